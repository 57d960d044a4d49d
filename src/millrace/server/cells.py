"""The cells of the grid as processes: each matches a part of the live queries with a part of the changed rows.

The server waits for the answers of all cells, which work at the same time. It remembers which queries a cell has, so
that a process that was killed or hangs is replaced, and asked again: no change is lost. If the second attempt fails as
well, the server matches the rows of that question itself.
"""

import itertools
import logging
import pickle
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from millrace.live.grid import Cell, Grid
from millrace.live.index import Numbers, Pairs
from millrace.live.matcher import Matcher
from millrace.live.query import LiveQuery, QueryShape
from millrace.server.cell_messages import (
    LENGTH,
    CellMessage,
    MatchRows,
    NewQuery,
    NewShape,
    NoGrid,
    NoQuery,
    NoShape,
    read_content,
)

_LOGGER = logging.getLogger("millrace")
_PATIENCE = 30.0
"""How many seconds a process may take for an answer, or to read a question."""


class CellProcesses:
    """Processes for a grid of so many lines of queries, times so many columns of rows; all views share them."""

    def __init__(self, lines: int, columns: int) -> None:
        """The processes start when the first query comes."""
        self._processes = [[CellProcess() for _ in range(columns)] for _ in range(lines)]
        self._numbers = itertools.count()

    def grid(self) -> Grid:
        """A new grid in these processes."""
        number = next(self._numbers)

        def cell_of(line: int, column: int) -> Cell:
            return ProcessCell(self._processes[line][column], number)

        return Grid(len(self._processes), len(self._processes[0]), cell_of)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        return [pid for line in self._processes for process in line if (pid := process.pid) is not None]

    def close(self) -> None:
        """End all processes."""
        for line in self._processes:
            for process in line:
                process.end()


class ProcessCell:
    """The cell of one grid in a process."""

    def __init__(self, process: "CellProcess", grid: int) -> None:
        self._process, self._grid = process, grid

    def add(self, handle: int, query: LiveQuery) -> None:
        """Add a query."""
        self._process.add(self._grid, handle, query)

    def remove(self, handle: int) -> None:
        """Remove a query."""
        self._process.remove(self._grid, handle)

    def ask(self, rows: pa.Table) -> None:
        """Send the rows."""
        self._process.ask(self._grid, rows)

    def answer(self) -> Pairs:
        """Wait for the answer."""
        return self._process.answer()

    def close(self) -> None:
        """Forget all queries of the grid."""
        self._process.forget(self._grid)


@dataclass(slots=True)
class _KnownShape:
    """A shape that a process knows by a number, and how many queries have it."""

    number: int
    queries: int = 0


class CellProcess:
    """A process, and the queries that it has."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._answers: BinaryIO | None = None
        self._held: dict[int, dict[int, LiveQuery]] = defaultdict(dict)
        """The queries of each grid, by handle."""
        self._shapes: dict[tuple[int, QueryShape], _KnownShape] = {}
        """The shapes that the process knows, by grid."""
        self._numbers = itertools.count()
        self._asked: tuple[int, pa.Table] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def add(self, grid: int, handle: int, query: LiveQuery) -> None:
        """Add a query to a grid."""
        self._held[grid][handle] = query
        if self._process is None:
            self._start()
        else:
            self._try(lambda: self._send_query(grid, handle, query))

    def remove(self, grid: int, handle: int) -> None:
        """Remove a query of a grid."""
        query = self._held[grid].pop(handle)
        self._try(lambda: self._send_removal(grid, handle, query))

    def forget(self, grid: int) -> None:
        """Remove a grid."""
        self._held.pop(grid, None)
        self._try(lambda: self._send(NoGrid(grid)))
        for key in [key for key in self._shapes if key[0] == grid]:
            self._try(partial(self._send, NoShape(self._shapes.pop(key).number)))

    def ask(self, grid: int, rows: pa.Table) -> None:
        """Send rows to be matched."""
        self._asked = grid, rows
        if self._process is None:
            self._start()
        self._try(self._send_rows)

    def answer(self) -> Pairs:
        """Wait for the answer to the last question."""
        assert self._asked is not None
        for is_last in (False, True):
            try:
                return self._received()
            except (OSError, EOFError):
                self.end()
                if not is_last:
                    self._start()
                    self._try(self._send_rows)
        grid, rows = self._asked
        _LOGGER.warning("a process for live queries does not answer; the server matches its changes itself")
        matcher = Matcher()
        for handle, query in self._held[grid].items():
            matcher.add(handle, query)
        return matcher.match(rows)

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for each in (self._answers, self._socket):
            if each is not None:
                each.close()
        self._answers = self._socket = None

    def _start(self) -> None:
        """Start a process, and send it the queries."""
        ours, its = socket.socketpair()
        with its:
            # In a session of its own, it does not get the Ctrl-C of a terminal.
            command = [sys.executable, "-m", "millrace.server.cell"]
            self._process = subprocess.Popen(command, stdin=its.fileno(), start_new_session=True)
        ours.settimeout(_PATIENCE)
        self._socket, self._answers, self._shapes = ours, ours.makefile("rb"), {}
        for grid, queries in self._held.items():
            for handle, query in queries.items():
                self._try(partial(self._send_query, grid, handle, query))

    def _try(self, send: Callable[[], None]) -> None:
        """Send something. If that fails, the process is ended, and the next question starts another one."""
        try:
            if self._process is not None:
                send()
        except OSError:
            self.end()

    def _send_query(self, grid: int, handle: int, query: LiveQuery) -> None:
        known = self._shapes.get((grid, query.shape))
        if known is None:
            known = self._shapes[grid, query.shape] = _KnownShape(next(self._numbers))
            self._send(NewShape(known.number, query.shape))
        known.queries += 1
        self._send(NewQuery(grid, handle, known.number, query.constants, query.limit, query.offset))

    def _send_removal(self, grid: int, handle: int, query: LiveQuery) -> None:
        self._send(NoQuery(grid, handle))
        known = self._shapes[grid, query.shape]
        known.queries -= 1
        if not known.queries:
            del self._shapes[grid, query.shape]
            self._send(NoShape(known.number))

    def _send_rows(self) -> None:
        assert self._asked is not None
        grid, rows = self._asked
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        self._send(MatchRows(grid, sink.getvalue().to_pybytes()))

    def _send(self, message: CellMessage) -> None:
        assert self._socket is not None
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(LENGTH.pack(len(content)) + content)

    def _received(self) -> Pairs:
        if self._answers is None:
            raise EOFError
        places, handles = (self._numbers_of(read_content(self._answers)) for _ in range(2))
        return places, handles

    @staticmethod
    def _numbers_of(content: bytes | None) -> Numbers:
        if content is None:
            raise EOFError
        return np.frombuffer(content, "<i8").astype(np.int64)
