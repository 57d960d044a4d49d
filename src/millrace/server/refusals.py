"""Why the server refuses a request, and with which status."""

from typing import Any, ClassVar

from millrace.model.errors import Kind, MachineError, MillraceError, PipelineError
from millrace.views.store import ForgottenError

STATUSES = {
    Kind.UNKNOWN: 500,
    Kind.MISTAKE: 400,
    Kind.NOT_FOUND: 404,
    Kind.MACHINE: 503,
    Kind.CORRUPT: 500,
    Kind.CONFLICT: 409,
}


_TEXTS = {"error": {"type": "string"}, "problem": {"type": "string"}, "kind": {"type": "string"}}
REFUSED: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "The request is refused: the error says why, and what to do.",
        "content": {"application/json": {"schema": {"type": "object", "properties": _TEXTS}}},
    },
    "5XX": {"description": "The server cannot do it now, or data is damaged."},
}
"""What OpenAPI says about errors."""


class RefusedError(PipelineError):
    """A request that the server does not take, for a reason that HTTP has a status for."""

    status: ClassVar[int]


class NoTokenError(RefusedError):
    """A request without a token, or with one that is not valid."""

    status = 401


class ForbiddenError(RefusedError):
    """A request that the caller's token does not allow, or that comes from another web page."""

    status = 403


class TooMuchError(RefusedError):
    """A request body is too large."""

    status = 413


class WrongTypeError(RefusedError):
    """A body of a content type that the server does not take."""

    status = 415


class WrongHostError(RefusedError):
    """A request for a host that this server is not."""

    status = 421


class BusyError(MachineError):
    """There is no room for the request now."""


def status_of(error: MillraceError) -> int:
    """The status for an error."""
    if isinstance(error, RefusedError):
        return error.status
    if isinstance(error, BusyError):
        return 429
    return 410 if isinstance(error, ForgottenError) else STATUSES[error.kind]
