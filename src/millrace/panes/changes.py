"""Columnar aggregates over changes: rows that are added (diff 1) and taken back (diff -1).

An aggregate with an inverse stores the partials of `panes.columns` with the sign of the diff (`Signed`). The others
store values with their counts (`Multiset`): a list for each part of a value, and a list of counts. Pairs with equal
values are merged by adding their counts, and a pair with count 0 vanishes.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.aggregate import (
    Aggregate,
    Collect,
    CollectSet,
    Count,
    First,
    Mean,
    Min,
    StdDev,
    Sum,
    TopK,
    Variance,
)
from millrace.model.sketch import SecondMoment
from millrace.panes import exact
from millrace.panes.arms import Bools, Ints
from millrace.panes.columns import ColumnAnswers, Columnar, Columns, Numbers, columnar
from millrace.panes.floats import as_compared
from millrace.panes.grouping import Grouping, group, identify, lengths, offsets


@dataclass(frozen=True, slots=True)
class OverChanges(Columnar):
    """The columnar form of one aggregate over changes."""

    base: Columnar
    """The form over rows."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of columns of a partial."""

    @abstractmethod
    def lift_changes(self, values: Sequence[pa.Array], at: Ints, diffs: Ints) -> Columns:
        """The partials of changes with these argument values, event times and diffs."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        return self.lift_changes(values, at, np.ones(len(at), np.int64))


class Signed(OverChanges):
    """count, count_if, sum, mean, variance, stddev: the partials over rows, negated for what is taken back."""

    @property
    def width(self) -> int:
        return self.aggregate.width

    def lift_changes(self, values: Sequence[pa.Array], at: Ints, diffs: Ints) -> Columns:
        return self._numbers.signed(self.base.lift(values, at), diffs)

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        return self.base.merge(columns, rows)

    def answers(self, columns: Columns) -> ColumnAnswers:
        match self.aggregate:
            case Mean():
                return self.base.answers(self._divisible(*columns))
            case Sum():
                return self.base.answers([columns[0], _unless_nothing(*columns)])
            case StdDev():
                return self._rooted(columns)
        return self.base.answers(columns)

    def _divisible(self, totals: pa.Array, counts: pa.Array) -> Columns:
        """Sums and counts with the same quotients whose counts are not below 0. A sum without a count is 0."""
        held = counts.to_numpy()
        totals, counts = self._numbers.signed([totals, counts], np.where(held < 0, -1, 1))
        return [*self.base.clear([totals], held == 0), counts]

    def _rooted(self, columns: Columns) -> ColumnAnswers:
        """Standard deviations; NULL for an increment with a negative variance."""
        with np.errstate(invalid="ignore"):
            found = self.base.answers(columns)
        variances = exact.variances(columns[1], columns[2], columns[0].to_numpy())
        return ColumnAnswers(pc.if_else(pa.array(variances < 0), pa.scalar(None, found.values.type), found.values))

    @property
    def _numbers(self) -> Numbers:
        assert isinstance(self.base, Numbers)
        return self.base

    def clear(self, columns: Columns, where: Bools) -> Columns:
        return self.base.clear(columns, where)


class SignedTable(OverChanges):
    """second_moment: its table of counters, negated for what is taken back."""

    @property
    def width(self) -> int:
        return self.aggregate.width

    def lift_changes(self, values: Sequence[pa.Array], at: Ints, diffs: Ints) -> Columns:
        (tables,) = self.base.lift(values, at)
        taken = pa.array(diffs < 0)
        negated = [
            None if table is None else (-np.frombuffer(table, np.int64)).tobytes()
            for table in tables.filter(taken).to_pylist()
        ]
        return [pc.replace_with_mask(tables, taken, pa.array(negated, tables.type))]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        return self.base.merge(columns, rows)

    def answers(self, columns: Columns) -> ColumnAnswers:
        return self.base.answers(columns)


class Multiset(OverChanges):
    """min, max, first, last, collect, collect_set and top_k: values with counts.

    Counts below 0 belong to rows that were taken back and are not here; the answer does not show them.
    """

    @property
    def _is_timed(self) -> bool:
        return isinstance(self.aggregate, First)

    @property
    def width(self) -> int:
        return len(self.aggregate.arguments) + self._is_timed + 1

    def lift_changes(self, values: Sequence[pa.Array], at: Ints, diffs: Ints) -> Columns:
        parts = [*map(as_compared, values), *([pa.array(at)] if self._is_timed else [])]
        held = pc.is_valid(parts[0])
        for part in parts[1:]:
            held = pc.and_(held, pc.is_valid(part))
        ends = offsets(held.cast(pa.int64()).to_numpy())
        return [pa.ListArray.from_arrays(ends, part.filter(held)) for part in (*parts, pa.array(diffs))]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        lists = [rows.lists(column) for column in columns]
        owners = np.repeat(np.arange(rows.count, dtype=np.int64), lengths(lists[-1]))
        *parts, diffs = (each.flatten() for each in lists)
        same = identify([owners, *parts], len(owners))
        counts = same.sum(diffs.to_numpy())
        remains = counts != 0
        # Groups of equal pairs are numbered by their owners first, so the pairs of each owner are adjacent.
        chosen = pa.array(same.firsts[remains])
        ends = offsets(np.bincount(owners[same.firsts[remains]], minlength=rows.count))
        kept = [*(part.take(chosen) for part in parts), pa.array(counts[remains])]
        return [pa.ListArray.from_arrays(ends, part) for part in kept]

    def answers(self, columns: Columns) -> ColumnAnswers:
        many = len(columns[0])
        owners = np.repeat(np.arange(many, dtype=np.int64), lengths(columns[-1]))
        *parts, counts = (column.flatten() for column in columns)
        times = self._copies(counts.to_numpy())
        # A row of NULLs for each group, because a group without values has an answer too.
        rows = np.repeat(np.arange(len(owners)), times)
        parts = [pa.concat_arrays([part.take(pa.array(rows)), pa.nulls(many, part.type)]) for part in parts]
        ids = np.concatenate([owners[rows], np.arange(many, dtype=np.int64)])
        at = pc.fill_null(parts.pop(), 0).to_numpy() if self._is_timed else np.zeros(len(ids), np.int64)
        return self.base.answers(self.base.merge(self.base.lift(parts, at), group(ids, many)))

    def _copies(self, counts: Ints) -> Ints:
        """How often each value must be repeated for the answer."""
        most = np.int64(1)
        if isinstance(self.aggregate, TopK):
            most = np.int64(self.aggregate.k)
        elif isinstance(self.aggregate, Collect) and not isinstance(self.aggregate, CollectSet):
            most = np.int64(np.iinfo(np.int64).max)
        copies: Ints = np.clip(counts, 0, most)
        return copies


def over_changes(aggregate: Aggregate) -> OverChanges:
    """The columnar form of an aggregate over changes. `model.changes.check_over_changes` refuses the others."""
    base = columnar(aggregate)
    match aggregate:
        case Count() | Sum() | Variance():
            return Signed(aggregate, base)
        case SecondMoment():
            return SignedTable(aggregate, base)
        case Min() | First() | Collect() | TopK():
            return Multiset(aggregate, base)
    raise TypeError(f"{aggregate} cannot take a contribution back")


def _unless_nothing(totals: pa.Array, counts: pa.Array) -> pa.Array:
    """0 if neither a sum nor a count remains, which stands for NULL, and 1 otherwise."""
    if exact.is_exact(totals.type):
        is_zero = pc.and_(pc.equal(totals.field("near"), 0), pc.equal(pc.list_value_length(totals.field("far")), 0))
    else:
        is_zero = pc.equal(totals, pa.scalar(0).cast(totals.type))
    return pc.if_else(pc.and_(pc.equal(counts, 0), is_zero), 0, 1).cast(pa.int64())
