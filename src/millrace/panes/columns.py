"""Columnar aggregates: the aggregates of `model.aggregate` for many groups at once.

Each aggregate stores its partials in a few columns (`sum` in two, a sum and a count; `variance` in three). It computes
them from the values of rows (`lift`), merges those of each group (`merge`) and computes the answers (`answers`), with
the groups that have none. Sums are exact: `wide` holds those of whole numbers, `exact` those of floats. Sketches and
folds cannot be vectorized: their partials are merged in Python, group by group.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.model.aggregate import (
    Aggregate,
    Collect,
    CollectSet,
    Count,
    CountIf,
    First,
    Fold,
    Last,
    Max,
    Mean,
    Min,
    StdDev,
    Sum,
    TopK,
    Variance,
)
from millrace.model.arrow import arrow_type
from millrace.model.errors import NoValueError
from millrace.model.sketch import ApproxDistinct, ApproxQuantile, ApproxTopK, SecondMoment
from millrace.panes import exact, wide
from millrace.panes.arms import Bools, Ints
from millrace.panes.floats import as_compared
from millrace.panes.grouping import Grouping, identify, lengths, offsets
from millrace.panes.nested import sortable

Columns: TypeAlias = list[pa.Array]
_DIGITS = Context(prec=200)
_BY_GROUP = [("group", "ascending"), ("value", "ascending")]
_MISFITS = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""The errors that Arrow raises for values that do not belong to a type."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnAnswers:
    """The answers of groups: NULL for a group without one, and `failed` holds the reason by row."""

    values: pa.Array
    failed: Mapping[int, str] = field(default_factory=dict)


class RowsFailedError(Exception):
    """Rows without a partial, by number, with the reason. The other rows can be lifted without them."""

    def __init__(self, rows: Mapping[int, str]) -> None:
        super().__init__(f"{len(rows)} rows")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Columnar(ABC):
    """The columnar form of one aggregate."""

    aggregate: Aggregate

    @abstractmethod
    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        """The partials of rows with these argument values and event times. Raises RowsFailedError."""

    @abstractmethod
    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        """Merge the partials of each group."""

    @abstractmethod
    def answers(self, columns: Columns) -> ColumnAnswers:
        """The answers, with the groups that have none."""

    def result(self, columns: Columns) -> pa.Array:
        """The answers; NULL for a group without one."""
        return self.answers(columns).values

    def clear(self, columns: Columns, where: npt.NDArray[np.bool_]) -> Columns:
        """The partials, with those `where` replaced by the partial of no contributions."""
        return [_null_where(column, where) for column in columns]


class Numbers(Columnar):
    """Aggregates whose partials are numbers; 0 stands for no contribution."""

    def signed(self, columns: Columns, diffs: Ints) -> Columns:
        """The partials of rows, each multiplied by its diff: 1, or -1 to take the row back. It is exact."""
        return [_signed(column, diffs) for column in columns]

    def clear(self, columns: Columns, where: npt.NDArray[np.bool_]) -> Columns:
        return [pc.if_else(pa.array(where), _zero(column.type), column) for column in columns]


class Counted(Numbers):
    """count and count_if: a number."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        if not values:
            return [pa.array(np.ones(len(at), np.int64))]
        if isinstance(self.aggregate, CountIf):
            return [pc.fill_null(values[0].cast(pa.bool_()), False).cast(pa.int64())]
        return [pc.is_valid(values[0]).cast(pa.int64())]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        return [pa.array(rows.sum(columns[0].to_numpy()))]

    def answers(self, columns: Columns) -> ColumnAnswers:
        return ColumnAnswers(columns[0])


class Summed(Numbers):
    """sum and mean: a sum and a count. A sum has a wider type than the values, so that it never overflows."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        (value,) = values
        counts = pc.is_valid(value).cast(pa.int64())
        if types.is_floating(value.type) or self._model.type in ("DOUBLE", "FLOAT"):
            return [exact.lift(exact.SUMS, value.cast(pa.float64())), counts]
        if types.is_null(value.type) or types.is_integer(value.type):
            whole = pc.fill_null(value.cast(pa.int64()), 0).to_numpy()
            return [wide.widened(whole), counts]
        value = value.cast(pa.decimal256(76, value.type.scale))
        return [pc.fill_null(value, _zero(value.type)), counts]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        return [self._sum(columns[0], rows), pa.array(rows.sum(columns[1].to_numpy()))]

    def _sum(self, column: pa.Array, rows: Grouping) -> pa.Array:
        if exact.is_exact(column.type):
            return exact.merge(exact.SUMS, column, rows)
        if types.is_decimal128(column.type):
            return wide.sums(column, rows)
        table = pa.table({"group": rows.ids, "value": column})
        summed = table.group_by("group", use_threads=False).aggregate([("value", "sum")]).sort_by("group")
        return summed["value_sum"].combine_chunks().cast(column.type)

    def answers(self, columns: Columns) -> ColumnAnswers:
        total, counts = columns[0], columns[1].to_numpy()
        if types.is_decimal256(total.type):
            answers = self._decimals(total, counts)
        elif exact.is_exact(total.type):
            divisors = np.maximum(counts, 1) if isinstance(self.aggregate, Mean) else np.ones(len(total), np.int64)
            answers = ColumnAnswers(pa.array(exact.quotients(total, divisors)))
        elif isinstance(self.aggregate, Mean):
            answers = ColumnAnswers(pa.array(wide.quotients(total, np.maximum(counts, 1))))
        else:
            answers = self._whole(total)
        return ColumnAnswers(_null_where(answers.values, counts == 0), answers.failed)

    def _whole(self, total: pa.Array) -> ColumnAnswers:
        values, fits = wide.narrowed(total)
        if fits.all():
            return ColumnAnswers(pa.array(values))
        rows = np.flatnonzero(~fits)
        too_large = zip(rows.tolist(), wide.whole(total, rows), strict=True)
        failed = {row: str(self._model.too_large(number)) for row, number in too_large}
        return ColumnAnswers(_null_where(pa.array(values), ~fits), failed)

    def _decimals(self, total: pa.Array, counts: Ints) -> ColumnAnswers:
        """Answers over decimals, rounded half away from zero; computed in 64 bits for the rows that fit."""
        is_mean = isinstance(self.aggregate, Mean)
        before = total.type.scale
        precision, scale = self._model.digits(min(38, before + 4) if is_mean else before)
        kind, more = pa.decimal128(precision, scale), 10 ** (scale - before)
        divisors = np.maximum(counts, 1) if is_mean else np.ones(len(total), np.int64)
        values, fits = wide.narrowed(total)
        limit = min(2**62 // more, 10**precision // more - 1)
        fits &= (values <= limit) & (values >= -limit)
        values = np.where(fits, values, 0)
        quotient, rest = np.divmod(np.abs(values) * more, divisors)
        quotient += 2 * rest >= divisors
        answers = np.where(values < 0, -quotient, quotient)
        if fits.all():
            return ColumnAnswers(wide.widened(answers, kind))
        whole, failed = answers.tolist(), {}
        rows = np.flatnonzero(~fits)
        for row, number in zip(rows.tolist(), wide.whole(total, rows), strict=True):
            size, left = divmod(abs(number) * more, int(divisors[row]))
            size += 2 * left >= int(divisors[row])
            whole[row] = size if number >= 0 else -size
            if size >= 10**precision:
                failed[row] = str(self._model.too_large(Decimal(whole[row]).scaleb(-scale, _DIGITS)))
                whole[row] = 0
        empty = np.zeros(len(whole), np.bool_)
        empty[list(failed)] = True
        return ColumnAnswers(_null_where(wide.from_whole(whole, kind), empty), failed)

    @property
    def _model(self) -> Sum:
        assert isinstance(self.aggregate, Sum)
        return self.aggregate


class Spread(Numbers):
    """variance and stddev: count, sum, and sum of squares."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        value = values[0].cast(pa.float64(), safe=False)
        counts = pc.is_valid(value).cast(pa.int64())
        return [counts, *(exact.lift(kind, value) for kind in (exact.SUMS, exact.SQUARES))]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        counts, sums, squares = columns
        return [
            pa.array(rows.sum(counts.to_numpy())),
            exact.merge(exact.SUMS, sums, rows),
            exact.merge(exact.SQUARES, squares, rows),
        ]

    def answers(self, columns: Columns) -> ColumnAnswers:
        counts = columns[0].to_numpy()
        variance = exact.variances(columns[1], columns[2], counts)
        answer = np.sqrt(variance) if isinstance(self.aggregate, StdDev) else variance
        return ColumnAnswers(_null_where(pa.array(answer), counts < 2))


class Extreme(Columnar):
    """min and max: a value."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        return [as_compared(values[0])]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        chosen = rows.greatest(columns[0]) if isinstance(self.aggregate, Max) else rows.least(columns[0])
        return [columns[0].take(pa.array(chosen))]

    def answers(self, columns: Columns) -> ColumnAnswers:
        return ColumnAnswers(columns[0])


class Timed(Columnar):
    """first and last: an event time and its value."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        return [_null_where(pa.array(at), values[0].is_null().to_numpy(zero_copy_only=False)), as_compared(values[0])]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        chosen = rows.greatest(*columns) if isinstance(self.aggregate, Last) else rows.least(*columns)
        return [column.take(pa.array(chosen)) for column in columns]

    def answers(self, columns: Columns) -> ColumnAnswers:
        return ColumnAnswers(columns[1])


class Listed(Columnar):
    """collect and collect_set: a list."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        held = pc.is_valid(values[0])
        return [
            pa.ListArray.from_arrays(offsets(held.cast(pa.int64()).to_numpy()), as_compared(values[0]).filter(held))
        ]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        return [rows.lists(columns[0])]

    def answers(self, columns: Columns) -> ColumnAnswers:
        return ColumnAnswers(_sorted_lists(columns[0], distinct=isinstance(self.aggregate, CollectSet)))


class Topped(Columnar):
    """top_k: a list of values, and a list of the values that rank them."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        held = pc.and_(pc.is_valid(values[0]), pc.is_valid(values[-1]))
        ends = offsets(held.cast(pa.int64()).to_numpy())
        kept = (as_compared(column).filter(held) for column in (values[0], values[-1]))
        return [pa.ListArray.from_arrays(ends, column) for column in kept]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        assert isinstance(self.aggregate, TopK)
        values, ranks = (rows.lists(column) for column in columns)
        owners = _owners(values)
        parts = {"group": owners, "rank": sortable(ranks.flatten()), "value": sortable(values.flatten())}
        table = pa.table(parts)
        # A descending sort would put NaN last, so sort ascending and read each group backwards.
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names]).to_numpy()
        held = np.bincount(owners, minlength=rows.count).astype(np.int64)
        place = np.arange(len(owners)) - np.repeat(np.cumsum(held) - held, held)
        backwards = order[np.repeat(np.cumsum(held) - 1, held) - place]
        kept = backwards[place < self.aggregate.k]
        ends = offsets(np.minimum(held, self.aggregate.k))
        return [pa.ListArray.from_arrays(ends, column.flatten().take(pa.array(kept))) for column in (values, ranks)]

    def answers(self, columns: Columns) -> ColumnAnswers:
        values = columns[0]
        return ColumnAnswers(pa.ListArray.from_arrays(offsets(lengths(values)), values.flatten()))


@dataclass(frozen=True, slots=True)
class Unmerged:
    """Replaces a partial whose merge failed; holds the reason."""

    reason: str


class Opaque(Columnar):
    """Sketches and folds: a serialized partial, merged by the aggregate itself."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        partials: list[Any] = []
        failed: dict[int, str] = {}
        for row in zip(*(value.to_pylist() for value in values), at.tolist(), strict=True):
            try:
                partials.append(self.aggregate.partial(row[:-1], row[-1]))
            except NoValueError as error:
                failed[len(partials)] = str(error)
                partials.append(None)
        if failed:
            raise RowsFailedError(failed)
        return self._kept(partials)

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        if rows.count == len(columns[0]):
            return [columns[0].take(pa.array(rows.order))]
        partials = self._read(columns[0])
        ends = np.append(rows.starts[1:], len(partials))
        groups = zip(rows.starts.tolist(), ends.tolist(), strict=True)
        order = rows.order.tolist()
        return self._kept([self._combined([partials[row] for row in order[a:b]]) for a, b in groups])

    def _combined(self, partials: list[Any]) -> Any:
        failed = [partial for partial in partials if isinstance(partial, Unmerged)]
        try:
            return failed[0] if failed else self.aggregate.combine(partials)
        except NoValueError as error:
            return Unmerged(str(error))

    def answers(self, columns: Columns) -> ColumnAnswers:
        answers: list[Any] = []
        failed: dict[int, str] = {}
        for row, partial in enumerate(self._read(columns[0])):
            try:
                if isinstance(partial, Unmerged):
                    raise NoValueError(partial.reason)
                answers.append(self.aggregate.result(partial))
            except NoValueError as error:
                failed[row] = str(error)
                answers.append(None)
        return self._typed(answers, failed)

    def _typed(self, answers: list[Any], failed: dict[int, str]) -> ColumnAnswers:
        """Answers as a column; an answer of a fold that does not have its type fails."""
        kind = arrow_type(self.aggregate.type) if isinstance(self.aggregate, Fold) else None
        try:
            return ColumnAnswers(pa.array(answers, kind), failed)
        except _MISFITS:
            if kind is None:
                raise
        for row, answer in enumerate(answers):
            try:
                pa.array([answer], kind)
            except _MISFITS:
                answers[row] = None
                failed[row] = f"{self.aggregate}: {answer!r:.60} is not {self.aggregate.result_type(())}"
        return ColumnAnswers(pa.array(answers, kind), failed)

    def _kept(self, partials: list[Any]) -> Columns:
        if isinstance(self.aggregate, Fold):
            partials = [None if partial is None else pickle.dumps(partial) for partial in partials]
        return [pa.array(partials, pa.binary())]

    def _read(self, column: pa.Array) -> list[Any]:
        partials: list[Any] = column.to_pylist()
        if isinstance(self.aggregate, Fold):
            return [None if partial is None else pickle.loads(partial) for partial in partials]
        return partials


_KINDS: tuple[tuple[type[Aggregate], type[Columnar]], ...] = (
    (Count, Counted),
    (Sum, Summed),
    (Variance, Spread),
    (Min, Extreme),
    (First, Timed),
    (Collect, Listed),
    (TopK, Topped),
    (ApproxDistinct, Opaque),
    (ApproxQuantile, Opaque),
    (ApproxTopK, Opaque),
    (SecondMoment, Opaque),
    (Fold, Opaque),
)


def columnar(aggregate: Aggregate) -> Columnar:
    """The columnar form of an aggregate."""
    for kind, made in _KINDS:
        if isinstance(aggregate, kind):
            return made(aggregate)
    raise TypeError(f"{type(aggregate).__name__} has no columns; add it to panes.columns")


def _signed(column: pa.Array, diffs: Ints) -> pa.Array:
    if exact.is_exact(column.type):
        return exact.signed(exact.kind_of(column.type), column, diffs)
    return pc.if_else(pa.array(diffs < 0), pc.negate(column), column)


def _zero(type: pa.DataType) -> pa.Scalar:
    if exact.is_exact(type):
        return exact.zero(type)
    return pa.scalar(Decimal(0) if types.is_decimal(type) else 0, type)


def _owners(lists: pa.Array) -> Ints:
    """The row of each element of a list column."""
    return np.repeat(np.arange(len(lists), dtype=np.int64), lengths(lists))


def _sorted_lists(lists: pa.Array, distinct: bool) -> pa.Array:
    owners, values = _owners(lists), as_compared(lists.flatten())
    if types.is_nested(values.type):
        return _sorted_nested(owners, values, len(lists), distinct)
    table = pa.table({"group": owners, "value": values})
    if distinct:
        table = table.group_by(["group", "value"], use_threads=False).aggregate([])
    table = table.sort_by([("group", "ascending"), ("value", "ascending")])
    held = np.bincount(table["group"].to_numpy(), minlength=len(lists)).astype(np.int64)
    return pa.ListArray.from_arrays(offsets(held), table["value"].combine_chunks())


def _sorted_nested(owners: Ints, values: pa.Array, many: int, distinct: bool) -> pa.Array:
    """Lists of nested values, sorted by stand-ins for them."""
    ranks = sortable(values)
    order = pc.sort_indices(pa.table({"group": owners, "value": ranks}), sort_keys=_BY_GROUP).to_numpy()
    if distinct and len(order):
        same = identify([owners, ranks], len(owners)).ids[order]
        order = order[np.append(True, same[1:] != same[:-1])]
    held = np.bincount(owners[order], minlength=many).astype(np.int64)
    return pa.ListArray.from_arrays(offsets(held), values.take(pa.array(order)))


def _null_where(values: pa.Array, where: Bools) -> pa.Array:
    return pc.if_else(pa.array(where), pa.scalar(None, values.type), values) if where.any() else values
