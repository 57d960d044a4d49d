"""A store with a view, a real server over it in a thread, and a client that speaks the protocol of live queries."""

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from millrace.eventlog.topics import Log
from millrace.live.sending import Limits
from millrace.model.connectors import Commit
from millrace.model.schema import parse_schema
from millrace.server import app
from millrace.server.listening import Address, listening, serving
from millrace.server.live_queries import LiveQueries
from millrace.views.shape import ViewShape
from millrace.views.store import Store
from stores import answers

COLUMNS = "k STRING, country STRING, n BIGINT, x DOUBLE, timing STRING, index BIGINT, last BOOLEAN"
PATIENCE = 20.0
"""How many seconds a test waits for what must happen."""


@dataclass
class Plays:
    """A pipeline that writes a view: rows by key, each with a country and a number."""

    store: Store
    view: str
    batch: int = 0
    generation: int | None = None
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    """What the view must hold."""

    def __post_init__(self) -> None:
        self.store.open(self.pipeline, [self.shape])

    @property
    def pipeline(self) -> str:
        return f"pipeline of {self.view}"

    @property
    def shape(self) -> ViewShape:
        return ViewShape(self.view, parse_schema(COLUMNS), ("k",))

    def commit(self, *rows: tuple[str, str, int] | str) -> int:
        """Commit rows, and the keys of rows that go; returns the version."""
        given = []
        for row in rows:
            if isinstance(row, str):
                country, n = self.rows.pop(row)
                given.append((-1, self._row(row, country, n)))
            else:
                self.rows[row[0]] = row[1:]
                given.append((1, self._row(*row)))
        number, self.batch = self.batch, self.batch + 1
        commit = Commit(self.pipeline, "c", number)
        version = self.store.commit(commit, {self.view: answers(self.shape, given)}, True, self.generation)
        assert version is not None
        return version

    def replay(self, *rows: tuple[str, str, int]) -> int:
        """Compute the view anew with these rows, and serve the new generation; returns the version."""
        self.generation = self.store.begin_generation(self.pipeline, [self.shape])
        self.batch, self.rows = 0, {}
        self.commit(*rows)
        return self.store.swap(self.pipeline, self.generation)

    def _row(self, k: str, country: str, n: int) -> tuple[Any, ...]:
        return k, country, n, n * 1e19, "early", self.batch, False


@dataclass(frozen=True)
class LiveServer:
    """A server that runs, and its live queries."""

    url: str
    live: LiveQueries
    folder: Path
    store: Store

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held of any query."""
        return self.live._hub.is_empty and not self.live._followed and not self.live._clients


@contextmanager
def live_server(
    folder: Path, store: Store, limits: Limits | None = None, buffer: int | None = None, cells: tuple[int, int] = (1, 1)
) -> Iterator[LiveServer]:
    """A server in a thread, until the end. `buffer` is how many bytes the system holds for a client that is slow."""
    made = []

    def noted(*given: Any, **named: Any) -> LiveQueries:
        made.append(partial(LiveQueries, limits=limits)(*given, **named))
        return made[0]

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address(port=free.getsockname()[1])
    with closing(Log(folder / "log.db")) as log, patch.object(app, "LiveQueries", noted):
        over = app.make_app(log, store, folder=folder, workers=1, cells=cells)
        with listening(address) as on:
            if buffer is not None:
                on.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            with serving(over, address, on):
                yield LiveServer(address.url, made[0], folder, store)


class Peer:
    """A client that sees each message."""

    def __init__(self, url: str, token: str | None = None, **options: Any) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._held = ExitStack()
        opened = connect(f"ws{url.removeprefix('http')}/live", additional_headers=headers, compression=None, **options)
        self.socket: ClientConnection = self._held.enter_context(opened)

    def say(self, **said: Any) -> None:
        self.socket.send(json.dumps(said))

    def subscribe(self, sql: str, params: Sequence[Any] = (), sub: str = "q", **options: Any) -> None:
        self.say(type="subscribe", sub=sub, sql=sql, params=list(params), **options)

    def hear(self) -> dict[str, Any]:
        """The next message."""
        said: dict[str, Any] = json.loads(self.socket.recv(PATIENCE))
        return said

    def until(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        """The next messages up to one of a kind, with these values."""
        heard: list[dict[str, Any]] = []
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, f"no {kind}"
            heard.append(self.hear())
            if heard[-1]["type"] == kind and wanted.items() <= heard[-1].items():
                return heard
            assert heard[-1]["type"] != "error", heard[-1]

    def rest(self) -> list[dict[str, Any]]:
        """All messages until the server closes the connection."""
        heard = []
        with suppress(ConnectionClosed):
            while True:
                heard.append(self.hear())
        return heard

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(Exception):
            self.close()


def eventually(found: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
