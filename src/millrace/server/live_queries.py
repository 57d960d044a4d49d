"""Carries out what the hub of live queries wants: reads the store, follows its changes, and sends messages to clients.

The hub lives on the event loop; reads of the store are made by threads of their own, so that they wait for nobody.
"""

import asyncio
import hashlib
import itertools
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, assert_never

from millrace.live import message
from millrace.live.events import (
    Backlog,
    Changes,
    Disconnect,
    Event,
    Follow,
    Forgotten,
    Gone,
    Instruction,
    ReadChanges,
    ReadSnapshot,
    Resume,
    Send,
    Subscribe,
    Tick,
    Unfollow,
    Unsubscribe,
)
from millrace.live.grid import Grid
from millrace.live.hub import Hub
from millrace.live.message import ResumeMessage, SubscribeMessage, UnsubscribeMessage, read_message
from millrace.live.parsing import parse, parse_filter
from millrace.live.query import LiveQuery, LiveView, restricted
from millrace.live.sending import Limits
from millrace.live.token import Asked, Token, unseal
from millrace.model.duration import to_datetime
from millrace.model.errors import CorruptError, MachineError, MillraceError, NotFoundError, PipelineError
from millrace.server.cells import CellProcesses
from millrace.server.live_reads import live_views, missed_changes, new_changes, snapshot
from millrace.views.rights import Rights
from millrace.views.store import Store

P = ParamSpec("P")
T = TypeVar("T")

_LOGGER = logging.getLogger("millrace")
KEY = "live.key"
"""The file, beside the log, with the key that signs resume tokens, so that they outlive the server."""
_POLL = 0.05
"""How many seconds pass between two looks at the version of the store."""
_TICK = 0.1
_TICKS = 5
"""At every so many ticks it is looked whether the tokens of clients are still valid."""
_AT_ONCE = 50
"""How many messages are sent before a client's queue is looked at again."""
_KNOWN = 1.0
"""For how many seconds the list of views is cached."""
_MOST_SUBSCRIPTIONS = 10_000
"""The maximum number of subscriptions of a client."""


@dataclass(eq=False, slots=True)
class LiveClient:
    """A connected client, and the messages that wait to be sent to it."""

    name: str
    rights: Rights
    is_allowed: Callable[[], bool]
    """Whether its token is still valid."""
    waiting: deque[str] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    closing: str | None = None
    """Why it is to be disconnected, after the messages that wait."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is to be disconnected."""
    is_refused: bool = False
    """Whether another attempt to connect would be refused, too."""

    def put(self, *messages: str) -> None:
        """Add messages to those that wait."""
        self.waiting.extend(messages)
        self.arrived.set()

    def close(self, reason: str, is_refused: bool = False) -> None:
        """End the connection after the messages that wait; one that is refused gets none of them."""
        if is_refused:
            self.waiting.clear()
        self.closing, self.is_refused = reason, is_refused
        self.leaving.set()
        self.arrived.set()

    async def take(self) -> list[str]:
        """The messages that wait, or the next ones; none if the connection is to be closed."""
        while not self.waiting and self.closing is None:
            self.arrived.clear()
            await self.arrived.wait()
        taken = list(itertools.islice(self.waiting, _AT_ONCE))
        for _ in taken:
            self.waiting.popleft()
        return taken


class LiveQueries:
    """The live queries of a server. `start` and `close` are called on its event loop."""

    def __init__(
        self,
        store: Store,
        key: bytes,
        clock: Callable[[], float],
        watermark: Callable[[str], str | None] = lambda view: None,
        limits: Limits | None = None,
        cells: tuple[int, int] = (1, 1),
    ) -> None:
        """`clock` counts seconds; `watermark` returns the watermark of a view as text, if it is known.

        `cells` are the processes of the grid: lines of queries, times columns of rows. One cell is in this process.
        """
        self._store, self._clock, self._watermark = store, clock, watermark
        self._limits = limits or Limits()
        self._cells = None if cells == (1, 1) else CellProcesses(*cells)
        self._hub = Hub(key, self._limits, Grid if self._cells is None else self._cells.grid)
        self._key = key
        self._clients: dict[str, LiveClient] = {}
        self._names = itertools.count(1)
        self._followed: dict[str, int] = {}
        """The version up to which the changes of each view were reported."""
        self._messages = self._changes = 0
        """How many messages were put into queues, and how many changes were matched."""
        self._wanted = asyncio.Event()
        self._views: tuple[float, Mapping[str, LiveView]] = (-_KNOWN, {})
        self._threads = ThreadPoolExecutor(2, "live-queries")
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to follow the store, the clock and the tokens."""
        for loop in (self._follow, self._tick):
            self._begin(loop(), loop)

    async def close(self) -> None:
        """Disconnect all clients, and end."""
        for client in self._clients.values():
            client.close("the server stops")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._cells is not None:
            self._cells.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def figures(self) -> dict[str, int]:
        """How many clients and subscriptions there are, and how many messages wait or were sent."""
        clients = self._clients.values()
        return {
            "clients": len(clients),
            "subscriptions": sum(self._hub.subscriptions(client.name) for client in clients),
            "waiting_messages": sum(len(client.waiting) for client in clients),
            "messages": self._messages,
            "changes": self._changes,
        }

    def join(self, rights: Rights, is_allowed: Callable[[], bool]) -> LiveClient:
        """A new client."""
        client = LiveClient(f"c{next(self._names)}", rights, is_allowed)
        self._clients[client.name] = client
        return client

    def leave(self, client: LiveClient) -> None:
        """Forget a client, and its subscriptions."""
        if self._clients.pop(client.name, None) is not None:
            self._take(Gone(client.name))

    def note_backlog(self, client: LiveClient) -> None:
        """Tell the hub how many messages wait to be sent to a client."""
        self._take(Backlog(client.name, len(client.waiting)))

    async def hear(self, client: LiveClient, text: str | bytes) -> None:
        """Take a message of a client. What is wrong with it is told to the client."""
        if client.closing is not None:
            return
        sub = ""
        try:
            said = read_message(text)
            sub = said.sub
            await self._said(client, said)
        except MillraceError as error:
            client.put(message.to(sub, message.error(error)))

    async def check(self, rights: Rights, said: SubscribeMessage) -> None:
        """Refuse a query that a client with these rights may not ask, or that is none."""
        await self._query(rights, Asked(said.sql, said.params))

    def token_of(self, text: str) -> Token:
        """The resume token of a text. Refuses one that this server did not give."""
        return unseal(text, self._key)

    async def _said(self, client: LiveClient, said: SubscribeMessage | ResumeMessage | UnsubscribeMessage) -> None:
        match said:
            case SubscribeMessage(sub, sql, params, form, min_interval, up_to):
                asked = Asked(sql, params, form, min_interval, up_to, name_of(client.rights))
                query = await self._query(client.rights, asked)
                self._check_number(client)
                self._take(Subscribe(client.name, sub, query, asked))
            case ResumeMessage(sub, text, version):
                token = self.token_of(text)
                query = await self._query(client.rights, token.asked)
                self._check_number(client)
                at = token.version if version is None else max(version, token.version)
                self._take(Resume(client.name, sub, query, token, at, name_of(client.rights)))
            case UnsubscribeMessage(sub):
                self._take(Unsubscribe(client.name, sub))
            case _:
                assert_never(said)

    async def _query(self, rights: Rights, asked: Asked) -> LiveQuery:
        """The query that a client asks for, over the rows that it may see."""
        try:
            readable, query = _parsed(rights, asked, await self._known(_KNOWN))
        except NotFoundError:  # perhaps a view that is newer than the list
            readable, query = _parsed(rights, asked, await self._known(0))
        only = rights.row_filter(query.shape.view)
        return query if only is None else restricted(query, *parse_filter(only, readable[query.shape.view]))

    def _check_number(self, client: LiveClient) -> None:
        if self._hub.subscriptions(client.name) >= _MOST_SUBSCRIPTIONS:
            raise PipelineError(f"a client has at most {_MOST_SUBSCRIPTIONS:,} subscriptions", "end some of them")

    async def _known(self, seconds: float) -> Mapping[str, LiveView]:
        """The views, as they were at most so many seconds ago."""
        at, views = self._views
        if self._clock() - at > seconds:
            views = await self._in_thread(live_views, self._store)
            self._views = self._clock(), views
        return views

    # What the hub wants.

    def _take(self, event: Event) -> None:
        for instruction in self._hub.on(event):
            self._do(instruction)
        if self._hub.is_empty:
            self._followed.clear()

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Send(name, messages):
                if (client := self._clients.get(name)) is not None:
                    client.put(*messages)
                    self._messages += len(messages)
                    if len(client.waiting) > self._limits.backlog:
                        self.note_backlog(client)
            case Disconnect(name, reason):
                if (client := self._clients.get(name)) is not None:
                    client.close(reason)
            case ReadSnapshot():
                self._begin(self._read(instruction))
            case ReadChanges():
                self._begin(self._read(instruction))
            case Follow(view, since):
                self._followed[view] = since
                self._wanted.set()
            case Unfollow(view):
                self._followed.pop(view, None)
            case _:
                assert_never(instruction)

    async def _read(self, wanted: ReadSnapshot | ReadChanges) -> None:
        pause = _POLL
        while True:
            try:
                if isinstance(wanted, ReadSnapshot):
                    self._take(await self._in_thread(snapshot, self._store, wanted))
                else:
                    self._take(await self._in_thread(missed_changes, self._store, wanted))
                return
            except MachineError:  # the store is away; it comes back
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)

    # What happens by itself.

    async def _follow(self) -> None:
        """Report the changes of the views that are followed."""
        while True:
            if not self._followed:
                self._wanted.clear()
                await self._wanted.wait()
            with suppress(MillraceError):  # the store is away; look again
                version = await self._in_thread(self._store.version)
                for view, since in [each for each in self._followed.items() if each[1] != version]:
                    with suppress(MachineError):
                        await self._report(view, since)
            await asyncio.sleep(_POLL)

    async def _report(self, view: str, since: int) -> None:
        def read() -> tuple[int, list[Event]]:
            return new_changes(self._store, view, since, self._watermark(view))

        version, events = await self._in_thread(read)
        if self._followed.get(view) != since:  # the hub has asked for something else meanwhile
            return
        self._followed[view] = version
        for event in events:
            self._changes += len(event.rows) if isinstance(event, Changes) else 0
            if isinstance(event, Forgotten):  # the hub reads the view anew, and then asks to follow it
                self._followed.pop(view, None)
            self._take(event)

    async def _tick(self) -> None:
        for number in itertools.count():
            self._take(Tick(round(self._clock() * 1_000_000)))
            if number % _TICKS == 0:
                self._refuse_some()
            await asyncio.sleep(_TICK)

    def _refuse_some(self) -> None:
        """Disconnect clients whose tokens were revoked or changed, or can no longer be read."""
        for client in [each for each in self._clients.values() if each.closing is None]:
            try:
                is_allowed = client.is_allowed()
            except MillraceError:
                is_allowed = False
            if not is_allowed:
                client.close("the token is no longer valid", is_refused=True)
                self._take(Gone(client.name))

    async def _in_thread(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments, **named))

    def _begin(
        self, work: Coroutine[Any, Any, None], loop: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        """Start a task; a loop is started again if it fails."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._start_anew(error)
                if loop is not None:
                    self._begin(loop(), loop)

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _start_anew(self, fault: BaseException) -> None:
        """After a fault of the hub, which nobody foresaw, all clients connect again, and resume."""
        _LOGGER.error("live queries have failed, and start anew", exc_info=fault)
        for client in self._clients.values():
            client.close("the server had a fault")
        self._hub = Hub(self._key, self._limits)
        self._followed.clear()


def _parsed(rights: Rights, asked: Asked, views: Mapping[str, LiveView]) -> tuple[Mapping[str, LiveView], LiveQuery]:
    """The views that a client may read, and its query over one of them."""
    readable = {name: view for name, view in views.items() if rights.may_read(name)}
    return readable, parse(asked.sql, readable, asked.params)


def name_of(rights: Rights) -> str:
    """A name for rights: equal rights have the same name, in every process."""
    parts = (rights.scope, None if rights.views is None else sorted(rights.views), rights.row_filters)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def read_key(folder: Path) -> bytes:
    """The key in a folder that signs resume tokens; it is made if there is none.

    If the folder cannot be written, the key is of this process only, and a client that resumes after it reads anew.
    """
    path = folder / KEY
    try:
        with suppress(FileExistsError):
            _write_new(path, secrets.token_bytes(32))
        key = path.read_bytes()
    except OSError:
        return secrets.token_bytes(32)
    if len(key) != 32:
        raise CorruptError(f"{KEY} is damaged", "remove it: clients then read their results anew")
    return key


def _write_new(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def watermarks(pipelines: Callable[[], Sequence[dict[str, Any]]]) -> Callable[[str], str | None]:
    """The watermark of a view as text, from the status of pipelines."""

    def watermark(view: str) -> str | None:
        for status in pipelines():
            part = ((status.get("progress") or {}).get("parts") or {}).get(f"view {view}")
            if status["running"] and part is not None and part["watermark"] is not None:
                return to_datetime(part["watermark"]).isoformat()
        return None

    return watermark
