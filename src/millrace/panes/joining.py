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
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.joining import LEFT, RIGHT, JoinSpec
from millrace.panes.arms import Bools, Ints
from millrace.panes.grouping import keep, pick
from millrace.panes.netting import COUNT, netted, with_numbers
from millrace.panes.sides import AT, DIFF, END, PARTNERS, SAID, START, Arrived, Side, array, numbers
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
    now: int = 0
    """Processing time, which the host keeps here."""


@dataclass(slots=True)
class _Work:
    """What a bundle changes: the stores of both sides, the numbers of late changes, and answers with their counts."""

    stores: list[RowStore]
    late: list[int]
    pairs: list[pa.Table] = field(default_factory=list)
    alone: list[pa.Table] = field(default_factory=list)
    """Rows without columns of the other side."""


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
        work = self._take_in(state, left, right)
        dropped = state.dropped[LEFT] + work.late[LEFT], state.dropped[RIGHT] + work.late[RIGHT]
        now = max(watermarks[LEFT], state.watermarks[LEFT]), max(watermarks[RIGHT], state.watermarks[RIGHT])
        lefts, left_alone = self._let_go(self.left, work.stores[LEFT], now)
        rights, right_alone = self._let_go(self.right, work.stores[RIGHT], now)
        answers = [*self._net(work.pairs), *self._net(work.alone), *self._net([*left_alone, *right_alone])]
        after = replace(state, left=lefts, right=rights, watermarks=now, dropped=dropped)
        return after, self._answered(answers)

    # Input.

    def _take_in(self, state: JoinState, left: pa.Table | None, right: pa.Table | None) -> _Work:
        """Both stores after a bundle, the number of late changes of each side, and the answers."""
        work = _Work([state.left, state.right], [0, 0])
        for side, changes in ((self.right, right), (self.left, left)):
            if changes is None or not len(changes):
                continue
            come = side.arrived(changes, state.watermarks[side.number])
            work.late[side.number] = come.dropped
            if len(come.rows) and self.spec.is_filter:
                self._count(work, side, come)
            elif len(come.rows):
                self._pair(work, side, come)
        return work

    def _pair(self, work: _Work, side: Side, come: Arrived) -> None:
        """Pair the rows that arrived on a side with the kept rows of the other side, and keep them."""
        other = self.right if side is self.left else self.left
        kept = work.stores[other.number]
        found = side.pairs(come, kept)
        held, diffs = kept.numbers(found.places, COUNT), come.counts[found.asked]
        for theirs in kept.take(found.places, [*other.columns, AT]):
            own = pick(come.rows.select(self._shown(side)), found.asked)
            both = (own, theirs) if side is self.left else (theirs, own)
            times = np.maximum(numbers(own, AT), numbers(theirs, AT))
            work.pairs.append(self._answer(self._own(side, own) | self._of_pair(*both), held * diffs, times))
        if other.counts_partners and len(found.places):
            span = max(len(segment.rows) for segment in kept.segments)
            codes = found.places.segment * span + found.places.row
            _, firsts, ids = np.unique(codes, return_index=True, return_inverse=True)
            places = found.places.take(firsts)
            (rows,) = kept.take(places)
            self._meet(work, other, places, rows, _sums(ids, diffs, len(firsts)), _zeros(rows))
        self._add(work, side, come, _sums(found.asked, held, len(come.rows)), _zeros(come.rows))

    def _count(self, work: _Work, side: Side, come: Arrived) -> None:
        """Count the partners of rows of the left, without listing the pairs, and keep the rows that arrived."""
        other = self.right if side is self.left else self.left
        kept = work.stores[other.number]
        places = side.near(come, kept)
        for theirs in kept.take(places, [*other.keys, AT, COUNT, *(() if self.spec.windowing is None else (START,))]):
            if side is self.left:
                found = side.tallied(come.rows, theirs)
                self._add(work, side, come, found.sums, np.maximum(come.at, found.firsts))
                return
            found = other.tallied(theirs, come.rows)
            met = np.flatnonzero(found.some)
            for rows in kept.take(places.take(met)):
                times = np.maximum(numbers(rows, AT), found.firsts[met])
                self._meet(work, other, places.take(met), rows, found.sums[met], times)
        self._add(work, side, come, _zeros(come.rows), _zeros(come.rows))

    def _add(self, work: _Work, side: Side, come: Arrived, partners: Ints, told: Ints) -> None:
        """Keep the rows that arrived, with the sums of their partners and, in a semi join, the times of the answers.

        Rows that are taken back are found and replaced. Other rows equal to kept ones become rows of their own: the
        result depends on the sum of their counts only. Equal rows of a semi join become one, as their answers have the
        same time.
        """
        store = work.stores[side.number]
        counts, gone = come.counts.copy(), _NOWHERE
        sought = np.arange(len(counts)) if side.is_semi else np.flatnonzero(counts < 0)
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
            work.alone += self._alone(side, rows, self._is_said(side, partners) * come.counts, told)
        if side.is_semi:
            rows = with_numbers(rows, SAID, told)
        work.stores[side.number] = store.put(gone, keep(rows, counts != 0))

    def _meet(self, work: _Work, side: Side, places: Located, rows: pa.Table, diffs: Ints, told: Ints) -> None:
        """Add the diffs of partners that arrived to kept rows; `told` is the time if they are a row's first ones."""
        before = numbers(rows, PARTNERS)
        after = before + diffs
        if side.is_semi:
            told = np.where(before > 0, numbers(rows, SAID), told)
            rows = with_numbers(rows, SAID, told)
        turned = self._is_said(side, after).astype(np.int64) - self._is_said(side, before)
        work.alone += self._alone(side, rows, turned * numbers(rows, COUNT), told)
        changed = after != before
        rows = keep(with_numbers(rows, PARTNERS, after), changed)
        work.stores[side.number] = work.stores[side.number].put(places.take(np.flatnonzero(changed)), rows)

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
        """The columns that answers are made of."""
        return [*side.columns, AT, *(() if self.spec.windowing is None else (START, END))]

    def _of_pair(self, left: pa.Table, right: pa.Table) -> dict[str, pa.Array]:
        """The columns of a pair, without the bounds of its window."""
        values = {name: right[own] for name, own in zip(self.right.names, self.right.columns, strict=True)}
        return values | {name: left[own] for name, own in zip(self.left.names, self.left.columns, strict=True)}

    def _alone(self, side: Side, rows: pa.Table, counts: Ints, told: Ints) -> list[pa.Table]:
        """Rows without columns of the other side; those whose count is 0 are left out."""
        some = np.flatnonzero(counts)
        if not len(some):
            return []
        rows = pick(rows, some)
        return [self._answer(self._own(side, rows), counts[some], told[some] if side.is_semi else numbers(rows, AT))]

    def _own(self, side: Side, rows: pa.Table) -> dict[str, pa.Array]:
        """The columns of an answer that one side gives."""
        columns = {name: rows[own] for name, own in zip(side.names, side.columns, strict=True)}
        if self.spec.windowing is not None:
            columns["window_start"] = array(rows, START).view(_TIMESTAMP)
            columns["window_end"] = array(rows, END).view(_TIMESTAMP)
        return columns

    def _answer(self, columns: dict[str, pa.Array], counts: Ints, times: Ints) -> pa.Table:
        return pa.table({**columns, AT: pa.array(times), COUNT: pa.array(counts)})

    def _net(self, said: list[pa.Table]) -> list[pa.Table]:
        """The answers of one kind in one step; if some take others back, only what remains."""
        if not said:
            return []
        rows = stack(said)
        if (numbers(rows, COUNT) < 0).any():
            rows = netted(rows, [AT, *(name for name in rows.column_names if name not in (AT, COUNT))])
        return [rows]

    def _answered(self, answers: list[pa.Table]) -> pa.Table:
        """All answers, one row for each change."""
        if not answers:
            fields = [(column.name, arrow_type(column.type) or pa.null()) for column in self.spec.schema]
            return pa.schema([*fields, (AT, pa.int64()), (DIFF, pa.int8())]).empty_table()
        rows = stack(answers)
        counts = numbers(rows, COUNT)
        if (counts != 1).any():
            rows = pick(rows, np.repeat(np.arange(len(rows)), np.abs(counts)))
        columns = {}
        for column in self.spec.schema:
            missing = column.name not in rows.column_names
            kind = arrow_type(column.type) or pa.null()
            columns[column.name] = pa.nulls(len(rows), kind) if missing else rows[column.name]
        return pa.table({**columns, AT: rows[AT], DIFF: pa.array(np.sign(numbers(rows, COUNT)).astype(np.int8))})


def _zeros(rows: pa.Table) -> Ints:
    return np.zeros(len(rows), np.int64)


def _sums(ids: npt.NDArray[np.intp], values: Ints, many: int) -> Ints:
    """The sum of the values of each id."""
    sums = np.zeros(many, np.int64)
    np.add.at(sums, ids, values)
    return sums
