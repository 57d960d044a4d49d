"""The response that passes on what a query process answers, and ends the query if the client leaves."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millrace.model.errors import MillraceError
from millrace.server.asks import Head, Part


class Answer(Response):
    """A response of parts. Errors before the first part are raised, for the application to answer."""

    def __init__(self, parts: AsyncGenerator[Part], media_type: str, seconds: float) -> None:
        """`parts` begin with a head. A client has so many seconds to take them: a query process waits for it."""
        super().__init__(media_type=media_type)
        self._parts, self._seconds = parts, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts until the end, until the client leaves, or until it has taken too long."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                if not task.done():
                    task.cancel()
            with suppress(asyncio.CancelledError):
                await leaving
            with suppress(asyncio.CancelledError):
                await sending

    async def _send(self, send: Send) -> None:
        is_begun = False
        try:
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    if isinstance(part, Head):
                        await send(self._start(part))
                        is_begun = True
                    else:
                        await send({"type": "http.response.body", "body": part, "more_body": True})
        except MillraceError:
            if not is_begun:
                raise
            return  # without the end of the body, by which the client knows that it is not whole
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _start(self, head: Head) -> dict[str, object]:
        headers = [(b"content-type", str(self.media_type).encode()), (b"cache-control", b"no-cache")]
        if head.etag is not None:
            headers.append((b"etag", head.etag.encode()))
        return {"type": "http.response.start", "status": 304 if head.is_known else 200, "headers": headers}


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
