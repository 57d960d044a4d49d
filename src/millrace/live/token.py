"""Resume tokens: what a client needs to go on where it was, signed so that it cannot be changed.

A token does not grant rights: it names the rights under which it was given, and a client resumes only with those.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import Any

from millrace.model.errors import PipelineError

_LONGEST = 200_000


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asked for."""

    sql: str
    params: tuple[Any, ...] = ()
    form: str = "diff"
    min_interval: int = 0
    """The least time between two states that are sent, in microseconds."""
    up_to: int | None = None
    """The version after which the subscription ends."""
    rights: str = ""
    """The name of the client's rights. Clients with other rights have another name."""


@dataclass(frozen=True, slots=True)
class Token:
    """Where a client was in what it asked for."""

    asked: Asked
    generation: int
    version: int


def seal(token: Token, secret: bytes) -> str:
    """A token as text."""
    content = json.dumps(asdict(token), separators=(",", ":")).encode()
    return f"{_text(content)}.{_text(_signature(content, secret))}"


def unseal(text: object, secret: bytes) -> Token:
    """The token of a text. Refuses one that this secret did not sign."""
    refused = PipelineError("the resume token is not valid", "subscribe again")
    if not isinstance(text, str) or not text.isascii() or len(text) > _LONGEST:
        raise refused
    content, _, signature = text.partition(".")
    try:
        given, signed = _bytes(content), _bytes(signature)
    except (binascii.Error, ValueError):
        raise refused from None
    if not hmac.compare_digest(_signature(given, secret), signed):
        raise refused
    said = json.loads(given)
    asked = Asked(**{**said["asked"], "params": tuple(said["asked"]["params"])})
    return Token(asked, said["generation"], said["version"])


def _signature(content: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, content, hashlib.sha256).digest()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
