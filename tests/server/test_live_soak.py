"""Live queries under trouble: lost connections, a server that is killed, replays that are swapped in.

A few seconds in the gate; `make soak` lasts SOAK_SECONDS. Whatever happens, the rows of every client are in the end
those of its query, the changes it was told lead to them, and no checksum has ever differed.
"""

import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from live_server import PATIENCE, Plays, eventually
from millrace.client.live_link import Wire
from millrace.client.live_result import Change, Row
from millrace.client.live_rows import LiveRows
from millrace.client.live_session import LiveSession
from millrace.client.live_socket import SocketLink, _Socket
from millrace.eventlog.topics import Log
from millrace.views.store import Store, open_store
from served import Served, served

SECONDS = float(os.environ.get("SOAK_SECONDS", "4"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
QUERIES = (
    "SELECT k, country, n FROM plays",
    "SELECT k, n FROM plays WHERE country = 'NO'",
    "SELECT k, n FROM plays WHERE n BETWEEN 200 AND 600 OR country IN ('SE', 'DK')",
    "SELECT k, n FROM plays ORDER BY n DESC, k LIMIT 5",
    "SELECT k FROM plays WHERE country <> 'NO' ORDER BY n, k LIMIT 7 OFFSET 3",
    "SELECT k, n FROM plays WHERE n > 300 ORDER BY country, k",
)


class Session(LiveSession):
    """A session that counts how often it had to read its result anew."""

    diverged = 0

    def _anew(self) -> list[str]:
        self.diverged += 1
        return super()._anew()


class Link(SocketLink):
    """A link whose connection can be broken."""

    wire: Wire | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Wire]:
        async with super().open() as wire:
            self.wire = wire
            try:
                yield wire
            finally:
                self.wire = None


class Client:
    """A query that is watched, and the rows that its changes lead to."""

    def __init__(self, url: str, sql: str, min_interval: float) -> None:
        self.sql, self.session, self.link = sql, Session(sql, (), min_interval, None), Link(url, {})
        self.seen: dict[str, Row] = {}
        self.mistakes: list[str] = []
        self.rows = LiveRows(self.session, self.link, url)
        self.rows.on_change(self._told)

    def _told(self, change: Change) -> None:
        for row in change.removed:
            if self.seen.pop(row["k"], None) != row:
                self.mistakes.append(f"{row} was removed and not there")
        for row in change.added:
            if row["k"] in self.seen:
                self.mistakes.append(f"{row} was added twice")
        self.seen |= {row["k"]: row for row in (*change.added, *change.changed)}

    def lose(self) -> None:
        """Break the connection."""
        wire = self.link.wire
        if isinstance(wire, _Socket):
            self.rows._loop.call_soon_threadsafe(wire._socket.transport.abort)

    def check(self, store: Store, version: int) -> None:
        """Wait for the last version, and compare."""
        eventually(lambda: (self.rows.version or 0) >= version, f"no version {version}: {self.sql}", 3 * PATIENCE)
        result = store.query(self.sql)
        wanted = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        found = self.rows.rows if "ORDER" in self.sql else sorted(self.rows.rows, key=lambda row: str(row["k"]))
        assert found == (wanted if "ORDER" in self.sql else sorted(wanted, key=lambda row: str(row["k"]))), self.sql
        eventually(lambda: self.seen == {row["k"]: row for row in found}, f"other changes were told: {self.sql}")
        assert (self.mistakes, self.session.diverged) == ([], 0), self.sql


def some_rows(chance: random.Random, plays: Plays) -> list[tuple[str, str, int] | str]:
    """A random commit: rows that come, change and go."""
    keys = {f"k{chance.randrange(40)}" for _ in range(chance.randrange(1, 8))}
    return [
        key
        if key in plays.rows and chance.random() < 0.3
        else (key, chance.choice(["NO", "SE", "DK"]), chance.randrange(1_000))
        for key in sorted(keys)
    ]


def test_every_client_ends_with_the_rows_of_its_query(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance, counts = random.Random(SEED), {"commits": 0, "lost": 0, "kills": 0, "replays": 0, "clients": 0}
    with closing(open_store(tmp_path / "views.db")) as store, closing(Log(tmp_path / "log.db")), ExitStack() as held:
        plays = Plays(store, "plays")
        plays.commit(*some_rows(chance, plays))
        running = ExitStack()
        held.callback(lambda: running.close())
        server: Served = running.enter_context(served(tmp_path))
        clients: list[Client] = []

        def join(sql: str) -> None:
            client = Client(server.url, sql, chance.choice([0, 0, 0.1]))
            held.callback(client.rows.close)
            clients.append(client)
            counts["clients"] += 1

        for sql in QUERIES:
            join(sql)
            join(sql)
        end = time.monotonic() + SECONDS
        kills = [time.monotonic() + each for each in range(int(SECONDS / 2), int(SECONDS), 15)]
        replays = [time.monotonic() + each for each in range(int(SECONDS / 4) + 1, int(SECONDS), 20)]
        while time.monotonic() < end:
            plays.commit(*some_rows(chance, plays))
            counts["commits"] += 1
            if chance.random() < 0.1:
                chance.choice(clients).lose()
                counts["lost"] += 1
            if replays and time.monotonic() > replays[0]:
                replays.pop(0)
                plays.replay(*((key, country, n) for key, (country, n) in plays.rows.items() if chance.random() < 0.8))
                counts["replays"] += 1
            if kills and time.monotonic() > kills[0]:
                kills.pop(0)
                running.close()  # with SIGKILL
                for _ in range(20):
                    plays.commit(*some_rows(chance, plays))
                running = ExitStack()
                server = running.enter_context(served(tmp_path, port=server.port))
                counts["kills"] += 1
            if chance.random() < 0.02 and len(clients) > len(QUERIES):
                clients.pop(chance.randrange(len(clients))).rows.close()
                join(chance.choice(QUERIES))
            time.sleep(chance.uniform(0, 0.03))
        version = plays.commit(("last", "NO", 500), ("first", "SE", 999))
        for client in clients:
            client.check(store, version)
    with capsys.disabled():
        print(f" seed {SEED}, {SECONDS:g} s: {counts} ", end="")  # noqa: T201
    assert min(counts.values()) > 0
