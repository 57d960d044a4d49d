"""What clients send: bodies of a bounded size, and JSON of a known form."""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from millrace.model.errors import PipelineError
from millrace.server.door import most_of
from millrace.server.refusals import TooMuchError

MOST = 64 << 20
"""The maximum size of a request body in bytes."""
SMALL = 1 << 20
"""The maximum size of a body that is not records."""

Model = TypeVar("Model", bound=BaseModel)


def _ignore(more: int) -> None:
    """Count nothing."""


async def received(
    scope: Scope, receive: Receive, most: int | None = None, hold: Callable[[int], None] = _ignore
) -> bytes:
    """The whole body. Refuses one over the limit, also without a Content-Length header; `hold` is told of each part."""
    allowed = most_of(scope)
    limit = min(MOST if most is None else most, MOST if allowed is None else allowed)
    parts: list[bytes] = []
    size = 0
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise TooMuchError(f"the body is larger than the maximum of {limit:,} bytes", "send several requests")
        hold(len(part))
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def given(kind: type[Model], request: Request, advice: str) -> Model:
    """The content of a body of JSON."""
    try:
        return kind.model_validate_json(await received(request.scope, request.receive, SMALL))
    except ValidationError as error:
        wrong = error.errors()[0]
        where = f"{'.'.join(map(str, wrong['loc']))}: " if wrong["loc"] else ""
        problem = f"the body of POST {request.url.path} is not valid: {where}{wrong['msg']}"
        raise PipelineError(problem, advice) from None


def taking(kind: type[BaseModel]) -> dict[str, Any]:
    """The description of a body for OpenAPI."""
    return {"requestBody": {"content": {"application/json": {"schema": kind.model_json_schema()}}, "required": True}}
