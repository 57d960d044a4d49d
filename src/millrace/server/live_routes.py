"""Live queries over WebSocket, and over Server-Sent Events for clients that have only HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, WebSocket
from starlette.responses import StreamingResponse
from starlette.websockets import WebSocketDisconnect

from millrace.model.errors import MillraceError, PipelineError
from millrace.server.door import PROTOCOL, refuse_socket, still_allowed
from millrace.server.live_queries import LiveClient, LiveQueries
from millrace.server.viewing import reader

_LONGEST = 1 << 20
"""The maximum length of a message of a client."""
_REFUSED, _GONE = 1008, 1001
"""Why a WebSocket is closed: the client may not use it, or it may connect again."""
_ALIVE = 15.0
"""After how many seconds without a message a stream of events says that it is alive."""


def live_routes(live: LiveQueries) -> APIRouter:
    """The requests for live queries."""
    routes = APIRouter()

    @routes.websocket("/live")
    async def socket(socket: WebSocket) -> None:
        try:
            rights = reader(socket)
        except MillraceError as error:
            await refuse_socket(error, socket)
            return
        await socket.accept(PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None)
        client = live.join(rights, still_allowed(socket.scope))
        talking = [asyncio.create_task(_send(live, client, socket)), asyncio.create_task(_hear(live, client, socket))]
        try:
            await asyncio.wait(talking, return_when=asyncio.FIRST_COMPLETED)
        finally:
            live.leave(client)
            for task in talking:
                task.cancel()
            await asyncio.gather(*talking, return_exceptions=True)

    @routes.get("/live", response_class=StreamingResponse)
    async def events(
        request: Request,
        sql: Annotated[str | None, Query(description="The query.")] = None,
        params: Annotated[str, Query(description="The values of $1, $2 and so on, as a JSON array.")] = "[]",
        form: Annotated[str, Query(description="The form of changes: diff, upsert or invalidate.")] = "diff",
        min_interval: Annotated[float, Query(description="The least number of seconds between two states.")] = 0,
        up_to: Annotated[int | None, Query(description="The version after which the stream ends.")] = None,
        resume: Annotated[str | None, Query(description="The id of the last event, to go on after it.")] = None,
    ) -> StreamingResponse:
        """A live query as Server-Sent Events: the messages of the protocol. A browser resumes by itself."""
        rights = reader(request)
        last = resume or request.headers.get("last-event-id")
        if last is not None:
            version, _, token = last.partition(":")
            if not version.isdigit():
                raise PipelineError("the id of the last event is not valid", "leave it out, and subscribe again")
            said: dict[str, Any] = {"type": "resume", "token": token, "version": int(version)}
        elif sql is not None:
            asked = {"form": form, "min_interval": min_interval, "up_to": up_to}
            said = {"type": "subscribe", "sql": sql, "params": _list(params), **asked}
        else:
            raise PipelineError("the request names no query", "add sql=SELECT ...")
        client = live.join(rights, still_allowed(request.scope))
        await live.hear(client, json.dumps({"sub": "events", **said}))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_events(live, client), media_type="text/event-stream", headers=headers)

    return routes


def _list(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise PipelineError("params is not a JSON array", 'write it like params=["NO", 5]')
    return found


async def _send(live: LiveQueries, client: LiveClient, socket: WebSocket) -> None:
    while messages := await client.take():
        for text in messages:
            await socket.send_text(text)
        live.note_backlog(client)
    with suppress(RuntimeError):  # the client has left
        await socket.close(_REFUSED if client.is_refused else _GONE, client.closing)


async def _hear(live: LiveQueries, client: LiveClient, socket: WebSocket) -> None:
    with suppress(WebSocketDisconnect):
        while True:
            text = await socket.receive_text()
            if len(text) > _LONGEST:
                client.close("a message is too long", is_refused=True)
                return
            await live.hear(client, text)


async def _events(live: LiveQueries, client: LiveClient) -> AsyncIterator[str]:
    """The messages as events. That of progress has an id, with which a client resumes."""
    token = ""
    try:
        while True:
            try:
                async with asyncio.timeout(_ALIVE):
                    messages = await client.take()
            except TimeoutError:
                yield ": alive\n\n"
                continue
            if not messages:
                return
            for text in messages:
                said = json.loads(text)
                token = said.get("token", token)
                id = f"id: {said['version']}:{token}\n" if said["type"] in ("ready", "progress") else ""
                yield f"event: {said['type']}\n{id}data: {text}\n\n"
                if said["type"] in ("closed", "error"):
                    return
            live.note_backlog(client)
    finally:
        live.leave(client)
