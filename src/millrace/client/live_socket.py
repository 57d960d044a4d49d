"""Live queries of a server, over WebSockets."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from millrace.client.live_link import LostError, Wire
from millrace.model.errors import PipelineError

_REFUSED = 1008
"""The code with which a server closes a WebSocket that may not be opened again."""
_LATER = (408, 425, 429)
"""Statuses of requests that may succeed later, as those from 500 on."""


class SocketLink:
    """A way to `millrace serve`."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """`url` is that of the server."""
        self._url, self._headers = f"ws{url.removeprefix('http')}/live", headers

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Wire]:
        """Connect. Messages are not compressed: most servers are near, and compression takes their time."""
        try:
            socket = await connect(
                self._url, additional_headers=self._headers, compression=None, max_size=None, close_timeout=1
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if 400 <= status < 500 and status not in _LATER:
                problem = f"{self._url} answered {status} {error.response.reason_phrase}"
                raise PipelineError(problem, "check the address and the token") from None
            raise LostError(f"the server answered {status}") from None
        except (OSError, InvalidHandshake) as error:  # a timeout is an OSError, too
            raise LostError(str(error)) from None
        async with socket:
            yield _Socket(socket)


class _Socket:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, text: str) -> None:
        try:
            await self._socket.send(text)
        except ConnectionClosed as error:
            raise _why(error) from None

    async def receive(self) -> str | bytes:
        try:
            return await self._socket.recv()
        except ConnectionClosed as error:
            raise _why(error) from None


def _why(closed: ConnectionClosed) -> Exception:
    """Whether the server has refused the connection, or it was lost."""
    if closed.rcvd is None or closed.rcvd.code != _REFUSED:
        return LostError(str(closed))
    problem, _, advice = closed.rcvd.reason.partition("; ")
    return PipelineError(problem or "the server refuses the connection", advice or None)
