"""A world for the hub of live queries: a store with all its past, a shell that is late, and plain clients.

A client applies messages as docs/live.md says, slowly and plainly. The judge is SQLite, which runs the client's query
over the rows as they were at the version that a message names.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from millrace.live.canonical import canonical, checksum, parsed
from millrace.live.events import (
    Backlog,
    Changes,
    ChangesRead,
    Disconnect,
    Event,
    Follow,
    Forgotten,
    Gone,
    ReadChanges,
    ReadSnapshot,
    Replaced,
    Resume,
    Send,
    SnapshotRead,
    Subscribe,
    Tick,
    Unfollow,
    Unsubscribe,
)
from millrace.live.grid import Grid
from millrace.live.hub import Hub
from millrace.live.parsing import parse
from millrace.live.query import LiveView
from millrace.live.sending import Limits
from millrace.live.statement import Database, as_table, statement
from millrace.live.token import Asked, unseal
from millrace.model.schema import parse_schema

VIEW = LiveView("items", parse_schema("id BIGINT, n BIGINT, name STRING, x DOUBLE"), ("id",))
VIEWS = {"items": VIEW}
SECRET = b"for tests"
_KINDS = [pa.int64(), pa.int64(), pa.string(), pa.float64()]
_CHANGES = pa.schema([*zip(VIEW.columns.names, _KINDS, strict=True), ("version", pa.int64()), ("diff", pa.int32())])
Row = tuple[Any, ...]


@dataclass
class Past:
    """A store of one view that remembers every version."""

    states: dict[int, dict[int, Row]] = field(default_factory=lambda: {0: {}})
    changes: list[tuple[int, Row, int]] = field(default_factory=list)
    version: int = 0
    since: int = 0
    generation: int = 1

    def __post_init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE past (v INTEGER, id INTEGER, n INTEGER, name TEXT, x REAL)")

    def commit(self, state: dict[int, Row], skip: int = 1) -> None:
        """Make a state the latest one."""
        before = self.states[self.version]
        self.version += skip  # other views have versions, too
        gone = [row for key, row in before.items() if state.get(key) != row]
        new = [row for key, row in state.items() if before.get(key) != row]
        self.changes += [(self.version, row, -1) for row in gone] + [(self.version, row, 1) for row in new]
        self._keep(state, skip)

    def replace(self, state: dict[int, Row]) -> None:
        """Swap in another generation; its changes are not told."""
        self.version += 1
        self.generation += 1
        self.since = self.version
        self._keep(state, 1)

    def _keep(self, state: dict[int, Row], skip: int) -> None:
        for version in range(self.version - skip + 1, self.version):
            self.states[version] = self.states[self.version - skip]
        self.states[self.version] = state

    def table(self, since: int, until: int) -> pa.Table:
        """The changes after a version, up to another."""
        found = [(*row, version, diff) for version, row, diff in self.changes if since < version <= until]
        columns = list(zip(*found, strict=True)) or [()] * len(_CHANGES)
        return pa.table([pa.array(each, kind) for each, kind in zip(columns, _CHANGES.types, strict=True)], _CHANGES)

    def asked(self, sql: str, values: Any, version: int) -> list[Row]:
        """The answer of SQLite at a version."""
        self.database.execute("DELETE FROM past")
        self.database.executemany("INSERT INTO past VALUES (0, ?, ?, ?, ?)", self.states[version].values())
        return self.database.execute(sql, values).fetchall()


@dataclass
class Question:
    """A query as text, and the same for the judge: with the id first, and sorted by the key at the end."""

    columns: str
    where: str
    order: str = ""
    limit: str = ""

    @property
    def sql(self) -> str:
        return f"SELECT {self.columns} FROM items WHERE {self.where} {self.order} {self.limit}"

    @property
    def is_sorted(self) -> bool:
        return bool(self.order or self.limit)

    def judged(self, past: Past, version: int) -> list[tuple[str, list[Any]]]:
        """The rows at a version, with their ids."""
        by = (f"{self.order}, id" if self.order else "ORDER BY id") if self.is_sorted else ""
        columns = ", ".join(VIEW.columns.names) if self.columns == "*" else self.columns
        sql = f"SELECT id AS i, {columns} FROM past AS items WHERE {self.where} {by} {self.limit}"
        return [(canonical([key]), list(row)) for key, *row in past.asked(sql, (), version)]


@dataclass
class Watcher:
    """A client with one subscription. It stops at the first state that is not a real one."""

    name: str
    question: Question
    form: str
    past: Past
    up_to: int | None = None
    rows: list[tuple[str, list[Any]]] = field(default_factory=list)
    version: int | None = None
    token: str | None = None
    is_ended: bool = False
    reason: str = ""
    is_current: bool = True
    """Of the form invalidate: whether nothing was said to have changed."""
    seen: list[tuple[str, list[Any]]] = field(default_factory=list)
    states: int = 0

    def take(self, text: str) -> None:
        """Apply a message."""
        said = parsed(text)
        kind = said["type"]
        assert said["sub"] == "s"
        if kind == "snapshot":
            assert self.form != "invalidate"
            self.rows = self.rows[: said["from"]] if said["from"] else []
            self.rows += [(id, row) for id, row in said["rows"]]
        elif kind == "batch":
            self._batch(said)
        elif kind == "upsert":
            found = dict(self.rows)
            found.update((id, row) for id, row in said["rows"])
            self.rows = [(id, row) for id, row in found.items() if row is not None]
        elif kind == "invalidate":
            self.is_current = False
        elif kind == "ready":
            is_new = self.version is None or self.token is None
            self.token = said["token"]
            self._check(said["version"], begins=is_new)
        elif kind == "progress":
            self._check(said["version"])
            assert said["rows"] == len(self.rows)
            is_sorted = self.question.is_sorted and self.form != "upsert"
            assert said["checksum"] == checksum(((id, canonical(row)) for id, row in self.rows), is_sorted)
        elif kind == "refetch":
            self.token, self.version = None, None
        elif kind == "closed":
            self.is_ended, self.token, self.reason = True, said["token"], said["reason"]
            if said["reason"] == "up_to":
                assert self.up_to is not None
                assert self.version is not None
                assert self._judged(self.up_to) == self._now() or self.version >= self.up_to
        else:
            raise AssertionError(text)

    def _batch(self, said: dict[str, Any]) -> None:
        moved = {id for id, _ in said["moves"]}
        rows = dict(self.rows)
        assert set(said["removes"]) | moved | {id for id, _ in said["changes"]} <= set(rows)
        rows.update((id, row) for id, row in said["changes"])
        kept = [(id, rows[id]) for id, _ in self.rows if id not in moved and id not in said["removes"]]
        if self.question.is_sorted:
            placed = [(at, id, rows[id]) for id, at in said["moves"]] + [(at, id, row) for id, row, at in said["adds"]]
            for at, id, row in sorted(placed, key=lambda each: each[0]):
                kept.insert(at, (id, row))
        else:
            assert not moved
            kept += [(id, row) for id, row in said["adds"]]
        assert len({id for id, _ in kept}) == len(kept)
        self.rows = kept

    def _now(self) -> Any:
        is_sorted = self.question.is_sorted and self.form != "upsert"
        return self.rows if is_sorted else sorted(self.rows)

    def _judged(self, version: int) -> Any:
        found = self.question.judged(self.past, version)
        return found if self.question.is_sorted and self.form != "upsert" else sorted(found)

    def _check(self, version: int, begins: bool = False) -> None:
        assert self.version is None or version >= self.version
        judged = self._judged(version)
        if self.form == "invalidate":
            if not begins and self.is_current:
                assert judged == self.seen
            self.rows, self.seen, self.is_current = judged, judged, True
        assert self._now() == judged, f"{self.question.sql} at {version}"
        self.version = version
        self.states += 1


class World:
    """A hub, a store and clients. `random` decides when the shell does what it was told."""

    def __init__(self, random: Random, limits: Limits, make_grid: Callable[[], Grid] = Grid) -> None:
        self.random, self.past, self.hub = random, Past(), Hub(SECRET, limits, make_grid)
        self.watchers: dict[str, Watcher] = {}
        self.left: list[Watcher] = []
        self.followed: int | None = None
        self.asked: list[ReadSnapshot | ReadChanges] = []
        self.answers: list[Event] = []
        self.now = 0

    def do(self, event: Event) -> None:
        """Tell the hub of an event, and do what it wants; reads take their time."""
        for each in self.hub.on(event):
            match each:
                case Send(client=client, messages=messages):
                    for text in messages:
                        self.watchers[client].take(text)
                case ReadSnapshot() | ReadChanges():
                    self.asked.append(each)
                case Follow(since=since):
                    self.followed = since
                case Unfollow():
                    self.followed = None
                case Disconnect(client=client):
                    self.disconnect(client)

    def subscribe(self, watcher: Watcher, interval: int) -> None:
        """Connect a client with a subscription."""
        asked = Asked(watcher.question.sql, (), watcher.form, interval, watcher.up_to)
        self.watchers[watcher.name] = watcher
        self.do(Subscribe(watcher.name, "s", parse(watcher.question.sql, VIEWS), asked))

    def resume(self, watcher: Watcher) -> None:
        """Connect a client again."""
        token = unseal(watcher.token, SECRET)
        watcher.is_ended = False
        self.watchers[watcher.name] = watcher
        version = token.version if watcher.version is None else watcher.version
        self.do(Resume(watcher.name, "s", parse(token.asked.sql, VIEWS), token, version))

    def disconnect(self, name: str) -> None:
        """Disconnect a client, which may come again."""
        watcher = self.watchers.pop(name)
        if watcher.token is not None and watcher.reason != "up_to":
            self.left.append(watcher)

    def read(self) -> None:
        """Let the store answer the oldest read, with its state of now; the answer waits."""
        if not self.asked:
            return
        each = self.asked.pop(0)
        if isinstance(each, ReadChanges):
            kept = self.past.since <= each.since <= self.past.version
            rows = self.past.table(each.since, self.past.version) if kept else None
            self.answers.append(ChangesRead(each.view, each.number, self.past.version, rows))
            return
        tables = []
        self.past.asked("SELECT 1", (), self.past.version)
        for read in each.reads:
            made = statement(read, "past", Database.SQLITE)
            values = {str(number): value for number, value in enumerate(made.values, 1)}
            found = self.past.database.execute(made.sql, values).fetchall()
            tables.append(as_table(made, VIEW, Database.SQLITE, found))
        version, generation = self.past.version, self.past.generation
        self.answers.append(SnapshotRead(each.view, each.number, version, generation, tuple(tables)))

    def answer(self) -> None:
        """Give the hub an answer of the store."""
        if self.answers:
            self.do(self.answers.pop(self.random.randrange(len(self.answers))))

    def feed(self, until: int | None = None) -> None:
        """Report changes, up to a version."""
        if self.followed is None:
            return
        until = self.past.version if until is None else max(min(until, self.past.version), self.followed)
        since, self.followed = self.followed, until
        if since < self.past.since:
            known = self.past.generation
            view = self.hub._views["items"]
            self.followed = None
            self.do(Forgotten("items") if view.generation == known else Replaced("items", known))
            return
        self.do(Changes("items", since, until, self.past.table(since, until), "2024-01-01T00:00:00Z"))

    def settle(self) -> None:
        """Let everything that is under way come to its end."""
        for _ in range(3):
            for name in list(self.watchers):
                self.do(Backlog(name, 0))
            self.now += 10**9
            self.do(Tick(self.now))
            while self.asked or self.answers:
                self.read()
                self.answer()
            self.feed()

    def leave(self, name: str) -> None:
        """End the subscription of a client in an orderly way, or by a broken connection."""
        watcher = self.watchers[name]
        if self.random.random() < 0.3:
            del self.watchers[name]
            self.do(Unsubscribe(name, "s"))
        else:
            self.disconnect(name)
            self.do(Gone(name))
        assert not watcher.is_ended
