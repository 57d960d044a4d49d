"""The grid: queries are partitioned one way, rows the other, and each cell matches its queries with its rows.

A query belongs to one line of cells, and a row to one column of cells, so every pair of them meets in one cell. Which
one depends only on the query and on the id of the row: the cells need not know of each other.
"""

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.live.index import Pairs, joined
from millrace.live.matcher import Matcher
from millrace.live.query import LiveQuery


def line_of(query: LiveQuery, lines: int) -> int:
    """The line of cells to which a query belongs."""
    told = f"{query.shape.text} {query.constants!r} {query.limit} {query.offset}"
    return zlib.crc32(told.encode()) % lines


def column_of(id: str, columns: int) -> int:
    """The column of cells to which the row with this id belongs."""
    return zlib.crc32(id.encode()) % columns


class Grid:
    """Cells that together answer as one `Matcher` does. Here they are in one process."""

    def __init__(self, lines: int = 1, columns: int = 1) -> None:
        """Make a grid of so many lines of queries, times so many columns of rows."""
        self._cells = [[Matcher() for _ in range(columns)] for _ in range(lines)]
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
        if columns == 1:
            return joined([line[0].match(rows) for line in self._cells])
        home = np.array([column_of(id, columns) for id in ids], np.int64)
        found = []
        for column in range(columns):
            places = np.flatnonzero(home == column)
            if not len(places):
                continue
            part = rows.take(pa.array(places))
            for line in self._cells:
                at, queries = line[column].match(part)
                found.append((places[at], queries))
        return joined(found)
