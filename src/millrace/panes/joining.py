"""The columnar engine of a join of two streams: `advance(state, left, right, watermarks) -> (state, answers)`.

One call is one micro-batch of one shard: an input step and a watermark step of `model.joining.JoinReference`. The
function is pure; it does not change the state passed in.

The rows that arrive on the right meet the kept rows of the left. They are then kept, and the rows that arrive on the
left meet all kept rows of the right, so that rows that arrive together meet once. A call reads only the kept rows that
are partners of rows that arrive, those that are taken back, and the times of all.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME
from millrace.model.joining import LEFT, RIGHT, JoinSpec
from millrace.panes.arms import Bools, Ints
from millrace.panes.grouping import keep, pick
from millrace.panes.netting import COUNT, netted, with_numbers
from millrace.panes.sides import AT, DIFF, END, PARTNERS, SAID, START, Arrived, Found, Side, array, numbers
from millrace.panes.store import Located, RowStore, stack

_NOWHERE = Located(np.zeros(0, np.intp), np.zeros(0, np.intp))
_TIMESTAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True, eq=False)
class JoinState:
    """The state of a join in a shard between micro-batches."""

    left: RowStore = field(default_factory=RowStore)
    """The rows of the left side that may still find a partner, with their counts."""
    right: RowStore = field(default_factory=RowStore)
    watermarks: tuple[int, int] = (BEGINNING_OF_TIME, BEGINNING_OF_TIME)
    dropped: tuple[int, int] = (0, 0)
    """How many changes of each side came too late."""


class Joining:
    """The engine of one join."""

    def __init__(self, spec: JoinSpec) -> None:
        """Prepare both sides."""
        self.spec = spec
        self.left, self.right = Side(spec, LEFT), Side(spec, RIGHT)

    def advance(
        self, state: JoinState, left: pa.Table | None, right: pa.Table | None, watermarks: tuple[int, int]
    ) -> tuple[JoinState, pa.Table]:
        """Take in the changes of both sides, then advance the watermarks.

        Changes have the columns of their side by name, `__at` (int64, microseconds) and `__diff` (1 or -1). The answers
        have the columns of `spec.schema`, `__at` and `__diff`. A watermark that is behind the one before stays as it
        was.
        """
        stores, dropped, answers = (state.left, state.right), state.dropped, []
        if (left is not None and len(left)) or (right is not None and len(right)):
            stores, late, said = self._take_in(state, left, right)
            dropped = dropped[LEFT] + late[LEFT], dropped[RIGHT] + late[RIGHT]
            answers.append(self._net(said))
        now = max(watermarks[LEFT], state.watermarks[LEFT]), max(watermarks[RIGHT], state.watermarks[RIGHT])
        kept_left, left_alone = self._let_go(self.left, stores[LEFT], now)
        kept_right, right_alone = self._let_go(self.right, stores[RIGHT], now)
        answers.append(self._net([*left_alone, *right_alone]))
        after = replace(state, left=kept_left, right=kept_right, watermarks=now, dropped=dropped)
        return after, self._answered(answers)

    # Input.

    def _take_in(
        self, state: JoinState, left: pa.Table | None, right: pa.Table | None
    ) -> tuple[tuple[RowStore, RowStore], tuple[int, int], list[pa.Table]]:
        """Both stores after a bundle, the numbers of late changes, and the answers."""
        said: list[pa.Table] = []
        lefts, rights, late = state.left, state.right, [0, 0]
        if right is not None and len(right):
            come = self.right.arrived(right, state.watermarks[RIGHT])
            late[RIGHT] = come.dropped
            found = self.right.partners(come, state.left)
            times = np.maximum(come.at[found.asked], state.left.numbers(found.places, AT))
            held = state.left.numbers(found.places, COUNT)
            if not self.spec.is_filter:
                for kept in state.left.take(found.places, self._shown(self.left)):
                    said.append(self._pairs(kept, pick(come.rows, found.asked), held * come.counts[found.asked], times))
            rights = self._added(self.right, state.right, come, found, held, times, said)
            lefts = self._met(self.left, state.left, found.places, come.counts[found.asked], times, said)
        if left is not None and len(left):
            come = self.left.arrived(left, state.watermarks[LEFT])
            late[LEFT] = come.dropped
            found = self.left.partners(come, rights)
            times = np.maximum(come.at[found.asked], rights.numbers(found.places, AT))
            held = rights.numbers(found.places, COUNT)
            if not self.spec.is_filter:
                for kept in rights.take(found.places, self._shown(self.right)):
                    said.append(self._pairs(pick(come.rows, found.asked), kept, held * come.counts[found.asked], times))
            lefts = self._added(self.left, lefts, come, found, held, times, said)
            rights = self._met(self.right, rights, found.places, come.counts[found.asked], times, said)
        return (lefts, rights), (late[LEFT], late[RIGHT]), said

    def _added(
        self, side: Side, store: RowStore, come: Arrived, found: Found, held: Ints, times: Ints, said: list[pa.Table]
    ) -> RowStore:
        """The store after rows are added; `found` are their partners, with the counts and times of the pairs.

        Rows that are taken back are found and replaced. Other rows equal to kept ones become rows of their own: the
        result depends on the sum of their counts only. Rows of a semi join are one, as they have one time in the
        answers.
        """
        many = len(come.rows)
        if not many:
            return store
        partners = _sums(found.asked, held, many)
        told = _leasts(found.asked, times, held > 0, many) if side.is_semi else np.zeros(many, np.int64)
        counts, gone = come.counts.copy(), _NOWHERE
        sought = np.arange(many) if side.is_semi else np.flatnonzero(counts < 0)
        if len(sought) and store.segments:
            equal = side.equal(come, sought, store)
            gone = equal.places
            np.add.at(counts, equal.asked, store.numbers(gone, COUNT))
            if side.counts_partners:
                partners[equal.asked] = store.numbers(gone, PARTNERS)
            if side.is_semi:
                had = store.numbers(gone, PARTNERS) > 0
                told[equal.asked[had]] = store.numbers(gone, SAID)[had]
        rows = with_numbers(come.rows, COUNT, counts)
        if side.counts_partners:
            rows = with_numbers(rows, PARTNERS, partners)
            said += self._alone(side, rows, self._is_said(side, partners) * come.counts, told)
        if side.is_semi:
            rows = with_numbers(rows, SAID, told)
        return store.put(gone, keep(rows, counts != 0))

    def _met(
        self, side: Side, store: RowStore, places: Located, diffs: Ints, times: Ints, said: list[pa.Table]
    ) -> RowStore:
        """The store after kept rows meet partners that arrived, with their diffs and the times of the pairs."""
        if not side.counts_partners or not len(places):
            return store
        span = max(len(segment.rows) for segment in store.segments)
        _, firsts, ids = np.unique(places.segment * span + places.row, return_index=True, return_inverse=True)
        places = places.take(firsts)
        (rows,) = store.take(places)
        before = numbers(rows, PARTNERS)
        after = before + _sums(ids, diffs, len(firsts))
        told = np.zeros(len(firsts), np.int64)
        if side.is_semi:
            first = _leasts(ids, times, diffs > 0, len(firsts))
            told = np.where(before > 0, numbers(rows, SAID), first)
            rows = with_numbers(rows, SAID, told)
        turned = self._is_said(side, after).astype(np.int64) - self._is_said(side, before)
        said += self._alone(side, rows, turned * numbers(rows, COUNT), told)
        changed = after != before
        rows = keep(with_numbers(rows, PARTNERS, after), changed)
        return store.put(places.take(np.flatnonzero(changed)), rows)

    def _is_said(self, side: Side, partners: Ints) -> Bools:
        """Which rows are in the result alone, while they are kept."""
        if side.is_semi:
            return partners > 0
        return (partners <= 0) & (self.spec.unmatched == "early" and self.spec.is_outer(side.number))

    # Time.

    def _let_go(self, side: Side, store: RowStore, watermarks: tuple[int, int]) -> tuple[RowStore, list[pa.Table]]:
        """The store without the rows that can find no partner any more, and the answers for those that had none."""
        places = side.let_go(store, watermarks)
        if not len(places):
            return store, []
        said: list[pa.Table] = []
        if self.spec.unmatched == "final" and self.spec.is_outer(side.number):
            never = places.take(np.flatnonzero(store.numbers(places, PARTNERS) <= 0))
            for rows in store.take(never):
                said += self._alone(side, rows, numbers(rows, COUNT), numbers(rows, AT))
        return store.put(places), said

    # Answers.

    def _shown(self, side: Side) -> list[str]:
        """The columns of kept rows that answers are made of."""
        return [*side.columns, *(() if self.spec.windowing is None else (START, END))]

    def _pairs(self, left: pa.Table, right: pa.Table, counts: Ints, times: Ints) -> pa.Table:
        values = {name: right[own] for name, own in _named(self.right, self.right.values)}
        return self._answer(self._own(self.left, left) | values, counts, times)

    def _alone(self, side: Side, rows: pa.Table, counts: Ints, told: Ints) -> list[pa.Table]:
        """Rows without columns of the other side; those whose count is 0 are left out."""
        some = np.flatnonzero(counts)
        if not len(some):
            return []
        rows = pick(rows, some)
        return [self._answer(self._own(side, rows), counts[some], told[some] if side.is_semi else numbers(rows, AT))]

    def _own(self, side: Side, rows: pa.Table) -> dict[str, pa.Array]:
        """The columns of an answer that one side gives."""
        columns = {name: rows[own] for name, own in _named(side, side.columns)}
        if self.spec.windowing is not None:
            columns["window_start"] = array(rows, START).view(_TIMESTAMP)
            columns["window_end"] = array(rows, END).view(_TIMESTAMP)
        return columns

    def _answer(self, columns: dict[str, pa.Array], counts: Ints, times: Ints) -> pa.Table:
        return pa.table({**columns, AT: pa.array(times), COUNT: pa.array(counts)})

    def _net(self, said: list[pa.Table]) -> list[pa.Table]:
        """The answers of one step; if some take others back, only what remains."""
        if not said:
            return []
        rows = stack(said)
        if (numbers(rows, COUNT) < 0).any():
            rows = netted(rows, [AT, *(name for name in rows.column_names if name not in (AT, COUNT))])
        return [rows]

    def _answered(self, answers: list[list[pa.Table]]) -> pa.Table:
        """The answers of all steps, one row for each change."""
        parts = [rows for each in answers for rows in each]
        if not parts:
            fields = [(column.name, arrow_type(column.type) or pa.null()) for column in self.spec.schema]
            return pa.schema([*fields, (AT, pa.int64()), (DIFF, pa.int8())]).empty_table()
        rows = stack(parts)
        counts = numbers(rows, COUNT)
        if (counts != 1).any():
            rows = pick(rows, np.repeat(np.arange(len(rows)), np.abs(counts)))
        columns = {}
        for column in self.spec.schema:
            missing = column.name not in rows.column_names
            kind = arrow_type(column.type) or pa.null()
            columns[column.name] = pa.nulls(len(rows), kind) if missing else rows[column.name]
        return pa.table({**columns, AT: rows[AT], DIFF: pa.array(np.sign(numbers(rows, COUNT)).astype(np.int8))})


def _named(side: Side, columns: tuple[str, ...]) -> list[tuple[str, str]]:
    """The user's names of columns of a side, and their own."""
    return [(name, own) for name, own in zip(side.names, side.columns, strict=True) if own in columns]


def _sums(ids: npt.NDArray[np.intp], values: Ints, many: int) -> Ints:
    """The sum of the values of each id."""
    sums = np.zeros(many, np.int64)
    np.add.at(sums, ids, values)
    return sums


def _leasts(ids: npt.NDArray[np.intp], values: Ints, counted: Bools, many: int) -> Ints:
    """The least value of each id among those that are counted."""
    least = np.full(many, END_OF_TIME)
    np.minimum.at(least, ids[counted], values[counted])
    return least
