"""The grid: queries are partitioned one way, rows the other, and each cell matches its queries with its rows.

A query belongs to one line of cells, and a row to one column of cells, so every pair of them meets in one cell. Which
one depends only on the query and on the id of the row: the cells need not know of each other. A cell may be in this
process or in another one: all cells are asked before the first answer is awaited.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from millrace.live.index import Pairs, joined, nothing
from millrace.live.matcher import Matcher
from millrace.live.query import LiveQuery


def line_of(query: LiveQuery, lines: int) -> int:
    """The line of cells to which a query belongs."""
    told = f"{query.shape.text} {query.constants!r} {query.limit} {query.offset}"
    return zlib.crc32(told.encode()) % lines


def column_of(id: str, columns: int) -> int:
    """The column of cells to which the row with this id belongs."""
    return zlib.crc32(id.encode()) % columns


class Cell(Protocol):
    """Matches some of the queries with some of the rows. An answer is awaited for each question, in order."""

    def add(self, handle: int, query: LiveQuery) -> None:
        """Add a query."""

    def remove(self, handle: int) -> None:
        """Remove a query."""

    def ask(self, rows: pa.Table) -> None:
        """Ask which queries want which rows."""

    def answer(self) -> Pairs:
        """The places of rows and the handles of queries, for the rows of the question."""

    def close(self) -> None:
        """Forget all queries; the cell is not used any more."""


class LocalCell:
    """A cell in this process."""

    def __init__(self) -> None:
        self._matcher = Matcher()
        self._answer = nothing()

    def add(self, handle: int, query: LiveQuery) -> None:
        """Add a query."""
        self._matcher.add(handle, query)

    def remove(self, handle: int) -> None:
        """Remove a query."""
        self._matcher.remove(handle)

    def ask(self, rows: pa.Table) -> None:
        """Match the rows."""
        self._answer = self._matcher.match(rows)

    def answer(self) -> Pairs:
        """The answer to the last question."""
        return self._answer

    def close(self) -> None:
        """Nothing is left to do."""


CellOf: TypeAlias = Callable[[int, int], Cell]
"""Makes the cell of a line and a column."""


def _local(line: int, column: int) -> Cell:
    return LocalCell()


class Grid:
    """Cells that together answer as one `Matcher` does."""

    def __init__(self, lines: int = 1, columns: int = 1, cell_of: CellOf = _local) -> None:
        """Make a grid of so many lines of queries, times so many columns of rows."""
        self._cells = [[cell_of(line, column) for column in range(columns)] for line in range(lines)]
        self._lines: dict[int, int] = {}
        """The line of each query, by its handle."""

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, handle: int, query: LiveQuery) -> None:
        """Add a query to its line of cells."""
        line = self._lines[handle] = line_of(query, len(self._cells)) if len(self._cells) > 1 else 0
        for cell in self._cells[line]:
            cell.add(handle, query)

    def remove(self, handle: int) -> None:
        """Remove a query."""
        for cell in self._cells[self._lines.pop(handle)]:
            cell.remove(handle)

    def match(self, rows: pa.Table, ids: Sequence[str]) -> Pairs:
        """The places of rows and the handles of the queries that want them, in no order."""
        columns = len(self._cells[0])
        home = np.array([column_of(id, columns) for id in ids], np.int64) if columns > 1 else np.zeros(len(ids))
        asked = []
        for column in range(columns):
            places = np.flatnonzero(home == column)
            if not len(places):
                continue
            part = rows if columns == 1 else rows.take(pa.array(places))
            for line in self._cells:
                line[column].ask(part)
                asked.append((places, line[column]))
        found = []
        for places, cell in asked:
            at, queries = cell.answer()
            found.append((places[at], queries))
        return joined(found)

    def close(self) -> None:
        """Forget all queries; the grid is not used any more."""
        for line in self._cells:
            for cell in line:
                cell.close()
