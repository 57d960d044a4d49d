"""Rows found by a hash of their key, kept so that a change costs what it changes.

A store is a few segments, each an immutable Arrow table with its rows sorted by hash. A changed row is
dead in its old segment and stands in a new one; small segments are put together as they come, so there
are never many. Every store is a value: the one before a change stays as it was, which is what a failed
attempt goes back to.
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
    """Rows, and where to find them."""

    number: int
    """Its own; a segment with other rows has another."""
    rows: pa.Table
    hashes: Hashes
    """Sorted, without the last bits that `sort_by` leaves out."""
    order: npt.NDArray[np.intp]
    """The row of each hash."""
    live: Bools
    """Which rows still hold."""

    def column(self, name: str) -> Ints:
        """A column of numbers."""
        values: Ints = self.rows[name].chunk(0).to_numpy() if len(self.rows) else np.zeros(0, np.int64)
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Rows of a store: a segment and a row in it, for each."""

    segment: npt.NDArray[np.intp]
    row: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: npt.NDArray[np.intp]) -> "Located":
        """Some of them."""
        return Located(self.segment[rows], self.row[rows])


@dataclass(frozen=True, slots=True, eq=False)
class RowStore:
    """Segments, largest first."""

    segments: tuple[Segment, ...] = ()
    next_number: int = 0

    def __len__(self) -> int:
        return sum(int(segment.live.sum()) for segment in self.segments)

    def find(self, wanted: pa.Table, on: Sequence[str]) -> tuple[npt.NDArray[np.intp], Located]:
        """The live rows that agree with wanted rows in the columns `on`: which wanted row, and where."""
        # Hashes in order are found next to each other, in memory that was just read.
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
            # Equal hashes are candidates; the columns decide.
            same = segment.live[row]
            for name in on:
                same &= _same(segment.rows[name].take(pa.array(row)), wanted[name].take(pa.array(asked)))
            found.append(asked[same])
            places.append(row[same])
            numbers.append(np.full(int(same.sum()), number, np.intp))
        return np.concatenate(found), Located(np.concatenate(numbers), np.concatenate(places))

    def where(self, wanted: Sequence[Bools]) -> Located:
        """The live rows for which a mask a segment holds."""
        rows = [np.flatnonzero(mask & segment.live) for mask, segment in zip(wanted, self.segments, strict=True)]
        numbers = [np.full(len(found), number, np.intp) for number, found in enumerate(rows)]
        nothing = np.zeros(0, np.intp)
        return Located(np.concatenate([nothing, *numbers]), np.concatenate([nothing, *rows]))

    def take(self, places: Located) -> list[pa.Table]:
        """The rows at these places, in order; in no tables if there are none."""
        if not len(places):
            return []
        tables = [
            segment.rows.take(pa.array(places.row[places.segment == n])) for n, segment in enumerate(self.segments)
        ]
        found = stack(tables)
        if (places.segment[:-1] <= places.segment[1:]).all():
            return [found]
        back = np.argsort(np.argsort(places.segment, kind="stable"), kind="stable")
        return [found.take(pa.array(back))]

    def put(self, gone: Located, added: pa.Table | None = None) -> "RowStore":
        """The store without some rows and with others."""
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
    """Tables as one; a column that is missing in some is NULL there."""
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def segment_of(number: int, rows: pa.Table, live: Bools | None = None) -> Segment:
    """Rows, indexed."""
    hashes, order = sort_by(rows[HASH].to_numpy())
    return Segment(number, rows, hashes, order, np.ones(len(rows), np.bool_) if live is None else live)


def _compacted(segments: list[Segment], number: int) -> RowStore:
    """Put the last two together while the last is not much smaller; so each is half of the one before."""
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
    """Whether values agree; NULL agrees with NULL, and NaN with NaN."""
    equal = pc.fill_null(pc.equal(one, other), False)
    same = pc.or_(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
    if types.is_floating(one.type):
        same = pc.or_(same, pc.and_(pc.fill_null(pc.is_nan(one), False), pc.fill_null(pc.is_nan(other), False)))
    agreed: Bools = same.to_numpy().astype(np.bool_)
    return agreed
