"""What every request passes: the host and the web page that it names, its content type, and its token.

A browser lets any web page send a request to any address, such as that of a server on the same machine. A page cannot
set a content type of JSON without asking first, which this server does not allow, nor the header Host; and a browser
says in the header Origin which page a request comes from.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from millrace.model.errors import MillraceError
from millrace.server.pace import Pace
from millrace.server.refusals import BusyError, ForbiddenError, NoTokenError, WrongHostError, WrongTypeError
from millrace.server.tokens import Token, Tokens
from millrace.views.rights import EVERYTHING, Rights

JSON = "application/json"
LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
"""Content types of JSON lines. A plain web form cannot send any of these, nor JSON."""
_RIGHTS, _MOST, _ALLOWED = "millrace.rights", "millrace.most", "millrace.allowed"
PROTOCOL, _TOKEN = "millrace", "token."
"""The subprotocol of WebSockets, and the start of another one that holds a token: browsers send no other header."""
_POLICY, _LONGEST_REASON = 1008, 123
"""The code with which a WebSocket is closed that is refused, and the maximum length of the reason."""
_OPEN = ("/", "/healthz", "/millrace.js")
"""Paths that need no token: those of the page hold no data."""
_FILES = ("/page/", "/site/")


Refuse: TypeAlias = Callable[[MillraceError], Callable[[Scope, Receive, Send], Awaitable[None]]]
"""Gives the response for an error."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a server beside localhost and addresses, and the origins of web pages that may use it."""

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()


@dataclass(slots=True)
class Door:
    """Refuses requests before anything else sees them."""

    app: ASGIApp
    tokens: Tokens
    names: Names
    clock: Callable[[], float]
    refuse: Refuse
    _pace: Pace = field(default_factory=Pace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it on with the rights of its caller."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            check_host(headers, self.names)
            check_origin(headers, self.names)
            if scope["type"] == "http" and scope["method"] in ("POST", "PUT", "PATCH"):
                check_content(headers, scope["path"])
            secret = _secret(scope, headers)
            token = self._token(secret, scope["path"])
        except MillraceError as error:
            if scope["type"] == "websocket":
                await refuse_socket(error, WebSocket(scope, receive, send))
            else:
                await self.refuse(error)(scope, receive, send)
            return
        scope[_RIGHTS] = EVERYTHING if token is None else token.rights
        scope[_MOST] = None if token is None else token.max_bytes
        scope[_ALLOWED] = lambda: self._allows(secret) == scope[_RIGHTS]
        await self.app(scope, receive, send)

    def _allows(self, secret: str) -> Rights | None:
        """The rights that a secret has now; None if it has none."""
        if not self.tokens.are_required:
            return EVERYTHING
        token = self.tokens.find(secret)
        return None if token is None else token.rights

    def _token(self, secret: str, path: str) -> Token | None:
        """The token with a secret; None if the request needs none."""
        if not self.tokens.are_required or path in _OPEN or path.startswith(_FILES):
            return None
        if not secret:
            raise NoTokenError("this server needs a token", "send the header Authorization: Bearer TOKEN")
        token = self.tokens.find(secret)
        if token is None:
            raise NoTokenError("the token is not valid", "make one: millrace tokens create --scope read")
        if not self._pace.admits(token.id, token.per_second, self.clock()):
            raise BusyError(f"the token makes more than {token.per_second} requests a second", "wait, and ask again")
        return token


def _secret(scope: Scope, headers: dict[bytes, bytes]) -> str:
    """The secret that a request brings along; empty if it brings none."""
    for protocol in scope.get("subprotocols", ()):
        if protocol.startswith(_TOKEN):
            return str(protocol.removeprefix(_TOKEN))
    kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


async def refuse_socket(error: MillraceError, socket: WebSocket) -> None:
    """Refuse a WebSocket. A browser tells a page only why one was closed, not why one was not opened."""
    await socket.accept(PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None)
    await socket.close(_POLICY, error.message.encode()[:_LONGEST_REASON].decode(errors="ignore"))


def still_allowed(scope: Scope) -> Callable[[], bool]:
    """Whether the caller of a request has the same rights as when it came."""
    found: Callable[[], bool] = scope[_ALLOWED]
    return found


def rights_of(scope: Scope) -> Rights:
    """The rights of the caller of a request."""
    found: Any = scope[_RIGHTS]
    assert isinstance(found, Rights)
    return found


def check_reads_all(request: Request) -> None:
    """Refuse a caller who may not read everything."""
    if not rights_of(request.scope).reads_all:
        raise ForbiddenError("the token does not allow this", "use one of scope admin, or read without --view")


def check_admin(request: Request) -> None:
    """Refuse a caller who may not change everything."""
    if not rights_of(request.scope).is_admin:
        raise ForbiddenError("the token does not allow this", "use one of scope admin")


def most_of(scope: Scope) -> int | None:
    """The maximum size of the body of a request that its token allows; None if it sets none."""
    found: int | None = scope[_MOST]
    return found


def check_host(headers: dict[bytes, bytes], names: Names) -> None:
    """Refuse a request for another host. An address is fine: only a name can be made to lead somewhere else."""
    host = _name(headers.get(b"host", b"").decode("latin-1"))
    if not (host == "localhost" or host.endswith(".localhost") or host in names.hosts or _is_address(host)):
        raise WrongHostError(f"this server is not {host!r}", f"name it: millrace serve --allow-host {host or 'NAME'}")


def check_origin(headers: dict[bytes, bytes], names: Names) -> None:
    """Refuse a request of a web page from elsewhere. Behind a proxy, the server does not know its own scheme."""
    given = headers.get(b"origin")
    if given is None:
        return
    origin, host = given.decode("latin-1").lower(), headers.get(b"host", b"").decode("latin-1").lower()
    if origin not in (f"http://{host}", f"https://{host}") and origin not in names.origins:
        raise ForbiddenError(
            f"a web page of {origin} may not use this server", f"allow it: millrace serve --allow-origin {origin}"
        )


def check_content(headers: dict[bytes, bytes], path: str) -> None:
    """Refuse content types that a plain web form can send, and all others that are not JSON."""
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    is_lines = path.startswith("/topics/") and kind in LINES
    if kind != JSON and not is_lines:
        other = f" or {LINES[0]}" if path.startswith("/topics/") else ""
        said = f"the content type {kind}" if kind else "a body without a content type"
        raise WrongTypeError(f"{said} is not taken", f"send the header Content-Type: {JSON}{other}")


def _name(host: str) -> str:
    """The name in the header Host, without a port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
