"""A persistent hash index of rows, in which the cost of an update depends on the number of changed rows.

A store has a few segments. A segment is an immutable Arrow table with an index sorted by hash. An update marks the
old row as dead and appends the new row in a new segment; small segments are compacted, so their number stays small.
Every store is a value: an update leaves the previous store unchanged, and a failed attempt starts from it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.panes.arms import Bools, Ints
from millrace.panes.grouping import keep, sort_by, without_last_bits
from millrace.panes.hashing import Hashes

HASH = "hash"


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Immutable rows with a sorted index of their hashes."""

    number: int
    """The unique number of the segment in its store; a number always means the same rows."""
    rows: pa.Table
    hashes: Hashes
    """The hashes in ascending order, without the low bits that `sort_by` clears."""
    order: npt.NDArray[np.intp]
    """The row of each hash."""
    live: Bools
    """The mask of the rows that have not been replaced or removed."""

    def column(self, name: str) -> Ints:
        """A numeric column as an array."""
        values: Ints = self.rows[name].chunk(0).to_numpy() if len(self.rows) else np.zeros(0, np.int64)
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Positions of rows in a store: for each, the index of its segment and its row there."""

    segment: npt.NDArray[np.intp]
    row: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: npt.NDArray[np.intp]) -> "Located":
        """The positions with these indices."""
        return Located(self.segment[rows], self.row[rows])


@dataclass(frozen=True, slots=True, eq=False)
class RowStore:
    """An immutable store of rows; its segments are ordered from largest to smallest."""

    segments: tuple[Segment, ...] = ()
    next_number: int = 0

    def __len__(self) -> int:
        return sum(int(segment.live.sum()) for segment in self.segments)

    def find(self, wanted: pa.Table, on: Sequence[str]) -> tuple[npt.NDArray[np.intp], Located]:
        """The live rows that equal wanted rows in the columns `on`: the index of each wanted row, and the position."""
        # Lookups in hash order are fast: each one reads memory that the previous one has just read.
        _, sought = sort_by(wanted[HASH].to_numpy())
        hashes = wanted[HASH].to_numpy()[sought]
        found, numbers, places = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
        for number, segment in enumerate(self.segments):
            kept = without_last_bits(hashes, len(segment.rows))
            low = np.searchsorted(segment.hashes, kept, "left")
            counts = np.searchsorted(segment.hashes, kept, "right") - low
            asked = np.repeat(sought, counts)
            place = np.arange(len(asked)) + np.repeat(low - np.cumsum(counts) + counts, counts)
            row = segment.order[place]
            # Rows with equal hashes are candidates; the columns decide.
            same = segment.live[row]
            for name in on:
                same &= _same(segment.rows[name].take(pa.array(row)), wanted[name].take(pa.array(asked)))
            found.append(asked[same])
            places.append(row[same])
            numbers.append(np.full(int(same.sum()), number, np.intp))
        return np.concatenate(found), Located(np.concatenate(numbers), np.concatenate(places))

    def where(self, wanted: Sequence[Bools]) -> Located:
        """The live rows that the masks select, one mask for each segment."""
        rows = [np.flatnonzero(mask & segment.live) for mask, segment in zip(wanted, self.segments, strict=True)]
        numbers = [np.full(len(found), number, np.intp) for number, found in enumerate(rows)]
        nothing = np.zeros(0, np.intp)
        return Located(np.concatenate([nothing, *numbers]), np.concatenate([nothing, *rows]))

    def take(self, places: Located, columns: Sequence[str] | None = None) -> list[pa.Table]:
        """The rows at these positions, in order, as one table; an empty list if there are none.

        With `columns`, only these.
        """
        if not len(places):
            return []
        tables = [
            (segment.rows if columns is None else segment.rows.select(columns)).take(
                pa.array(places.row[places.segment == n])
            )
            for n, segment in enumerate(self.segments)
        ]
        found = stack(tables)
        if (places.segment[:-1] <= places.segment[1:]).all():
            return [found]
        back = np.argsort(np.argsort(places.segment, kind="stable"), kind="stable")
        return [found.take(pa.array(back))]

    def numbers(self, places: Located, name: str) -> Ints:
        """A numeric column of the rows at these positions, in order."""
        values = np.zeros(len(places), np.int64)
        for number, segment in enumerate(self.segments):
            here = places.segment == number
            values[here] = segment.column(name)[places.row[here]]
        return values

    def put(self, gone: Located, added: pa.Table | None = None) -> "RowStore":
        """The store after the rows `gone` are removed and the rows `added` are appended."""
        segments = []
        for number, segment in enumerate(self.segments):
            rows = gone.row[gone.segment == number]
            if len(rows):
                live = segment.live.copy()
                live[rows] = False
                segment = replace(segment, live=live)
            segments.append(segment)
        if added is not None and len(added):
            segments.append(segment_of(self.next_number, added.combine_chunks()))
        return _compacted(segments, self.next_number + 1)


def stack(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables; a column that a table does not have is NULL in its rows."""
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def segment_of(number: int, rows: pa.Table, live: Bools | None = None) -> Segment:
    """Index rows as a segment; all are live unless `live` is given."""
    hashes, order = sort_by(rows[HASH].to_numpy())
    return Segment(number, rows, hashes, order, np.ones(len(rows), np.bool_) if live is None else live)


def _compacted(segments: list[Segment], number: int) -> RowStore:
    """Compact segments that are mostly dead, then merge the last two until each is less than half of the one before."""
    kept: list[Segment] = []
    for segment in segments:
        living = int(segment.live.sum())
        if living and 2 * living < len(segment.live):
            kept.append(segment_of(number, _living(segment).combine_chunks()))
            number += 1
        elif living:
            kept.append(segment)
    while len(kept) > 1 and 2 * len(kept[-1].live) >= len(kept[-2].live):
        last, before = kept.pop(), kept.pop()
        kept.append(segment_of(number, stack([_living(before), _living(last)])))
        number += 1
    return RowStore(tuple(kept), number)


def _living(segment: Segment) -> pa.Table:
    return keep(segment.rows, segment.live)


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Bools:
    """Whether values are equal; NULL equals NULL, and NaN equals NaN."""
    equal = pc.fill_null(pc.equal(one, other), False)
    same = pc.or_(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
    if types.is_floating(one.type):
        same = pc.or_(same, pc.and_(pc.fill_null(pc.is_nan(one), False), pc.fill_null(pc.is_nan(other), False)))
    agreed: Bools = same.to_numpy().astype(np.bool_)
    return agreed
