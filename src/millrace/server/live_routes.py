"""Live queries over WebSocket, and over Server-Sent Events for clients that have only HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, WebSocket
from starlette.responses import Response, StreamingResponse

from millrace.live.message import ResumeMessage, SubscribeMessage, read_message
from millrace.live.token import Token
from millrace.model.errors import MillraceError, PipelineError
from millrace.server.door import PROTOCOL, refuse_socket, still_allowed
from millrace.server.live_queries import LiveClient, LiveQueries
from millrace.server.viewing import reader
from millrace.views.rights import Rights

_LONGEST = 1 << 20
"""The maximum length of a message of a client."""
_REFUSED, _GONE = 1008, 1001
"""Why a WebSocket is closed: the client may not use it, or it may connect again."""
_GRACE = 5.0
"""How many seconds a client has that is disconnected to take the messages before."""
_NOTHING = 204
"""The status that tells a browser not to connect again."""
_DIGITS = 16
"""The maximum length of a version."""
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
        ways = _send(live, client, socket), _hear(live, client, socket), _give_up(client)
        talking = [asyncio.create_task(each) for each in ways]
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
    ) -> Response:
        """A live query as Server-Sent Events: the messages of the protocol. A browser resumes by itself."""
        rights = reader(request)
        last = resume or request.headers.get("last-event-id")
        if last is None and sql is None:
            raise PipelineError("the request names no query", "add sql=SELECT ...")
        said = None if last is None else _resumed(live, last, sql is None)
        if said is None:
            asked = {"form": form, "min_interval": min_interval, "up_to": up_to}
            said = _message({"type": "subscribe", "sql": sql, "params": _list(params), **asked})
        checked = read_message(said)
        if isinstance(checked, SubscribeMessage):
            await live.check(rights, checked)
        elif isinstance(checked, ResumeMessage) and _is_over(live.token_of(checked.token), checked.version):
            return Response(status_code=_NOTHING)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        events = _events(live, rights, still_allowed(request.scope), said)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    return routes


def _message(said: dict[str, Any]) -> str:
    return json.dumps({"sub": "events", **said})


def _resumed(live: LiveQueries, last: str, is_needed: bool) -> str | None:
    """The message that goes on after the last event; None if its token is not valid, and another query is there."""
    version, _, token = last.partition(":")
    try:
        live.token_of(token)
        if not (version.isascii() and version.isdigit() and len(version) <= _DIGITS):
            raise PipelineError("the id of the last event is not valid", "leave it out, and subscribe again")
    except PipelineError:
        if is_needed:
            raise
        return None
    return _message({"type": "resume", "token": token, "version": int(version)})


def _is_over(token: Token, version: int | None) -> bool:
    """Whether all was sent that was asked for."""
    end = token.asked.up_to
    return end is not None and max(version or 0, token.version) >= end


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
    while (said := await socket.receive())["type"] == "websocket.receive":
        text = said.get("text") or said.get("bytes") or ""
        if len(text) > _LONGEST:
            client.close("a message is too long", is_refused=True)
            return
        await live.hear(client, text)


async def _give_up(client: LiveClient) -> None:
    """Wait until a client is to be disconnected, and then for it to take what was sent before."""
    await client.leaving.wait()
    await asyncio.sleep(_GRACE)


async def _events(live: LiveQueries, rights: Rights, is_allowed: Callable[[], bool], said: str) -> AsyncIterator[str]:
    """The messages as events. Those of ready and progress have an id, with which a client resumes."""
    client, token = live.join(rights, is_allowed), ""
    try:
        await live.hear(client, said)
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
                told = json.loads(text)
                token = told.get("token", token)
                id = f"id: {told['version']}:{token}\n" if told["type"] in ("ready", "progress") else ""
                yield f"event: {told['type']}\n{id}data: {text}\n\n"
                if told["type"] in ("closed", "error"):
                    return
            live.note_backlog(client)
    finally:
        live.leave(client)
