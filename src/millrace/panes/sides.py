"""One side of a join in columns: its arriving rows, its kept rows, and the search for partners.

A kept row has the columns `k0`, `k1`, ... (the join's `on`) and `v0`, `v1`, ... (the others), its event time and its
count; with windows it is kept once for each window. If the result depends on whether the row has partners, it also has
the sum of their diffs so far.

Rows are indexed by a hash of their key and their *slot*. With windows, the slot is the start of the window. Otherwise
it is a span of event time as long as the span in which a row has partners, so that partners are in at most two slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.arrow import arrow_type
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME
from millrace.model.joining import LEFT, JoinSpec
from millrace.model.window import Calendar, Fixed, Sliding
from millrace.panes.arms import Bools, Ints
from millrace.panes.floats import as_compared
from millrace.panes.grouping import identify, keep, pick
from millrace.panes.hashing import Hashes, hash_keys, with_number
from millrace.panes.netting import COUNT, distinct, netted, with_numbers
from millrace.panes.slices import slice_of, windows_of
from millrace.panes.store import HASH, Located, RowStore, stack
from millrace.panes.tally import Tally, tally

AT, DIFF = "__at", "__diff"
PARTNERS, SAID = "__partners", "__said"
START, END = "__start", "__end"
_NOWHERE = Located(np.zeros(0, np.intp), np.zeros(0, np.intp))


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """The net of the rows that a bundle adds to a side, with the hashes of their keys."""

    rows: pa.Table
    keys: Hashes
    dropped: int

    @property
    def at(self) -> Ints:
        """The event times."""
        return numbers(self.rows, AT)

    @property
    def counts(self) -> Ints:
        """The net counts, none of which is 0."""
        return numbers(self.rows, COUNT)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Pairs of a row that arrived and a kept row: the number of the first, and the position of the second."""

    asked: npt.NDArray[np.intp]
    places: Located


@dataclass(frozen=True)
class Side:
    """The side `number` of a join."""

    spec: JoinSpec
    number: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names in the user's rows of the columns in `columns`."""
        return self.spec.kept(self.number)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return tuple(f"k{number}" for number in range(len(self.spec.on)))

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The other columns."""
        return tuple(f"v{number}" for number in range(len(self.names) - len(self.keys)))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the user's rows."""
        return (*self.keys, *self.values)

    @cached_property
    def is_semi(self) -> bool:
        """Whether rows of this side are answered while they have a partner."""
        return self.spec.how == "semi" and self.number == LEFT

    @cached_property
    def counts_partners(self) -> bool:
        """Whether the result depends on whether a row of this side has partners."""
        return self.is_semi or self.spec.is_outer(self.number)

    @cached_property
    def _types(self) -> tuple[pa.DataType | None, ...]:
        return tuple(arrow_type(self.spec.columns(self.number).type_of(name)) for name in self.names)

    @property
    def _exact(self) -> tuple[str, ...]:
        """The columns in which equal kept rows are equal; those that tell most rows apart come first."""
        return (HASH, AT, *self.values, *self.keys, *(() if self.spec.windowing is None else (START,)))

    # Arrival.

    def arrived(self, changes: pa.Table, watermark: int) -> Arrived:
        """The rows that a bundle of changes adds, without those that are late by the watermark before it."""
        rows = changes.select([*self.names, AT, DIFF]).combine_chunks()
        in_time = numbers(rows, AT) >= _instant(watermark - self.spec.lateness[self.number])
        dropped = len(rows) - int(in_time.sum())
        rows = self._typed(keep(rows, in_time).combine_chunks())
        if not self.spec.is_outer(self.number):
            rows = keep(rows, has_key(rows, self.keys)).combine_chunks()
        hashes = hash_keys([array(rows, name) for name in self.keys], len(rows))
        at = numbers(rows, AT)
        if self.spec.windowing is None:
            slots = at // self.width
        else:
            assert isinstance(self.spec.windowing, Fixed | Sliding | Calendar)
            owners, slots, ends = windows_at(self.spec.windowing, at)
            rows, hashes = pick(rows, owners).combine_chunks(), hashes[owners]
            rows = with_numbers(with_numbers(rows, START, slots), END, ends)
        rows = with_numbers(rows, HASH, with_number(hashes, slots))
        if self.is_semi or (numbers(rows, COUNT) < 0).any():
            rows = netted(rows, self._exact).combine_chunks()
            hashes = hash_keys([array(rows, name) for name in self.keys], len(rows))
        return Arrived(rows, hashes, dropped)

    def _typed(self, rows: pa.Table) -> pa.Table:
        """The rows with the columns of the store, of the types that the schema says."""
        columns = {}
        for name, own, kind in zip(self.names, self.columns, self._types, strict=True):
            column = array(rows, name)
            columns[own] = column if kind is None or column.type == kind else column.cast(kind)
        return pa.table({**columns, AT: array(rows, AT), COUNT: array(rows, DIFF).cast(pa.int64())})

    @cached_property
    def width(self) -> int:
        """The length of a slot of event time."""
        assert self.spec.within is not None
        low, high = self.spec.within
        return high - low + 1

    # Partners.

    @property
    def _bounds(self) -> tuple[int, int]:
        """The least and the greatest time of a partner, less that of a row of this side."""
        assert self.spec.within is not None
        low, high = self.spec.within
        return (low, high) if self.number == LEFT else (-high, -low)

    def _asking(self, come: Arrived) -> tuple[npt.NDArray[np.intp], Hashes]:
        """The rows that may have partners, and the hashes under which the other side keeps these; some rows twice."""
        rows = np.flatnonzero(has_key(come.rows, self.keys))
        if self.spec.within is None:
            return rows, come.rows[HASH].to_numpy()[rows]
        low, high = self._bounds
        first, last = (come.at + low) // self.width, (come.at + high) // self.width
        second = rows[last[rows] > first[rows]]
        asking = np.concatenate([rows, second])
        return asking, with_number(come.keys[asking], np.concatenate([first[rows], last[second]]))

    def pairs(self, come: Arrived, kept: RowStore) -> Found:
        """The partners of the rows that arrived on this side, among the kept rows of the other side."""
        asking, hashes = self._asking(come)
        on = [*self.keys, *(() if self.spec.windowing is None else (START,))]
        asked, places = kept.find(with_numbers(pick(come.rows.select(on), asking), HASH, hashes), on)
        asked = asking[asked]
        if self.spec.within is None:
            return Found(asked, places)
        low, high = self._bounds
        apart = kept.numbers(places, AT) - come.at[asked]
        near = np.flatnonzero((apart >= low) & (apart <= high))
        return Found(asked[near], places.take(near))

    def near(self, come: Arrived, kept: RowStore) -> Located:
        """The kept rows of the other side among which the partners of the rows that arrived are, each once."""
        return under(self._asking(come)[1], kept)

    def tallied(self, rows: pa.Table, others: pa.Table) -> Tally:
        """The partners of rows of this side among rows of the other side, none of which has a NULL in its key."""
        on = [*self.keys, *(() if self.spec.windowing is None else (START,))]
        both = stack([rows.select(on), others.select(on)])
        ids = identify([as_compared(array(both, name)) for name in on], len(both)).ids
        at = numbers(rows, AT)
        if self.spec.within is None:
            low, high = np.full(len(rows), BEGINNING_OF_TIME), np.full(len(rows), END_OF_TIME)
        else:
            low, high = at + self._bounds[0], at + self._bounds[1]
        return tally(ids[: len(rows)], low, high, ids[len(rows) :], numbers(others, AT), numbers(others, COUNT))

    def equal(self, come: Arrived, rows: npt.NDArray[np.intp], kept: RowStore) -> Found:
        """The kept rows of this side that equal these of the rows that arrived."""
        wanted = pick(come.rows, rows)
        places = under(wanted[HASH].to_numpy(), kept)
        times = np.isin(kept.numbers(places, AT), numbers(wanted, AT))
        places = places.take(np.flatnonzero(times))
        for found in kept.take(places, self._exact):
            both = stack([found, wanted.select(self._exact)])
            same = identify([distinct(array(both, name)) for name in self._exact], len(both))
            row_of = np.full(same.count, -1, np.intp)
            row_of[same.ids[len(found) :]] = rows
            asked = row_of[same.ids[: len(found)]]
            return Found(asked[asked >= 0], places.take(np.flatnonzero(asked >= 0)))
        return Found(np.zeros(0, np.intp), places)

    # Time.

    def let_go(self, kept: RowStore, watermarks: tuple[int, int]) -> Located:
        """Rule 15: the rows that can find no partner any more."""
        before = _instant(watermarks[1 - self.number] - self.spec.reach(self.number))
        masks: list[Bools] = []
        for segment in kept.segments:
            gone = segment.column(AT) < before if self.spec.windowing is None else segment.column(END) <= before
            if self.is_semi:
                gone &= segment.column(AT) < _instant(watermarks[LEFT] - self.spec.lateness[LEFT])
            masks.append(gone)
        return kept.where(masks) if any(mask.any() for mask in masks) else _NOWHERE


def under(hashes: Hashes, kept: RowStore) -> Located:
    """The kept rows with one of these hashes, each once."""
    sought = np.unique(hashes)
    asked, places = kept.find(pa.table({HASH: pa.array(sought)}), [])
    # The index of a store holds hashes without their low bits.
    exact = kept.numbers(places, HASH).view(np.uint64) == sought[asked]
    return places.take(np.flatnonzero(exact))


def windows_at(windowing: Fixed | Sliding | Calendar, at: Ints) -> tuple[npt.NDArray[np.intp], Ints, Ints]:
    """The windows of all event times: for each window, the row of its time, its start and its end."""
    return windows_of(windowing, slice_of(windowing, at))


def array(rows: pa.Table, name: str) -> pa.Array:
    """A column of a table as one array."""
    column = rows[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def numbers(rows: pa.Table, name: str) -> Ints:
    """A column of whole numbers without NULLs."""
    found: Ints = rows[name].to_numpy()
    return found


def has_key(rows: pa.Table, keys: Sequence[str]) -> Bools:
    """Which rows have no NULL in their key."""
    known = np.ones(len(rows), np.bool_)
    for name in keys:
        if rows[name].null_count:
            known &= pc.is_valid(rows[name]).to_numpy()
    return known


def _instant(value: int) -> int:
    """An instant that 64 bits hold."""
    return min(max(value, BEGINNING_OF_TIME), END_OF_TIME)
