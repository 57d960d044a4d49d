"""Aggregates in columns: what `model.aggregate` defines for one element, for many groups at once.

Each aggregate keeps its partials in a few columns (`sum` in a sum and a count, `variance` in three) and
says how to make them from the values of rows (`lift`), how to merge those of a group (`merge`) and how
to read the answer (`result`). Sketches and folds are merged one by one; there is no other way, and there
is one merge a group and bundle, not one a row.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
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
from millrace.model.errors import refuse
from millrace.panes.arms import Ints
from millrace.panes.grouping import Grouping, group, lengths, offsets

Columns: TypeAlias = list[pa.Array]


@dataclass(frozen=True, slots=True)
class Columnar(ABC):
    """One aggregate in columns."""

    aggregate: Aggregate

    @abstractmethod
    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        """The partials of rows with these argument values and event times."""

    @abstractmethod
    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        """The partials of each group as one."""

    @abstractmethod
    def result(self, columns: Columns) -> pa.Array:
        """The answers."""

    def clear(self, columns: Columns, where: npt.NDArray[np.bool_]) -> Columns:
        """The partials, but nothing `where`."""
        return [_null_where(column, where) for column in columns]


class Numbers(Columnar):
    """Aggregates whose partials are numbers, 0 where nothing was contributed."""

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

    def result(self, columns: Columns) -> pa.Array:
        return columns[0]


class Summed(Numbers):
    """sum and mean: a sum, and of how many."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        (value,) = values
        if types.is_null(value.type) or types.is_integer(value.type):
            value = value.cast(pa.int64())
        elif types.is_floating(value.type):
            value = value.cast(pa.float64())
        elif types.is_decimal(value.type):
            value = value.cast(pa.decimal128(38, value.type.scale))
        return [pc.fill_null(value, _zero(value.type)), pc.is_valid(value).cast(pa.int64())]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        return [self._sum(columns[0], rows), pa.array(rows.sum(columns[1].to_numpy()))]

    def _sum(self, column: pa.Array, rows: Grouping) -> pa.Array:
        if types.is_decimal(column.type):
            table = pa.table({"group": rows.ids, "value": column})
            summed = table.group_by("group", use_threads=False).aggregate([("value", "sum")]).sort_by("group")
            return summed["value_sum"].combine_chunks().cast(column.type)
        values = column.to_numpy()
        total = rows.sum(values)
        if values.dtype == np.int64 and np.abs(rows.sum(values.astype(np.float64))).max(initial=0) > 2.0**62:
            _refuse_overflow(values, rows, self.aggregate)
        return pa.array(total)

    def result(self, columns: Columns) -> pa.Array:
        total, count = columns
        counts = count.to_numpy()
        if isinstance(self.aggregate, Mean):
            total = pa.array(total.cast(pa.float64()).to_numpy() / np.maximum(counts, 1))
        return _null_where(total, counts == 0)


class Spread(Numbers):
    """variance and stddev: count, mean, and the sum of squared distances from the mean."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        value = values[0].cast(pa.float64())
        counts = pc.is_valid(value).cast(pa.int64())
        return [counts, pc.fill_null(value, 0.0), pa.array(np.zeros(len(at)))]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        counts, means, squares = (column.to_numpy() for column in columns)
        total = rows.sum(counts)
        mean = rows.sum(counts * means) / np.maximum(total, 1)
        apart = means - mean[rows.ids]
        return [pa.array(total), pa.array(mean), pa.array(rows.sum(squares + counts * apart * apart))]

    def result(self, columns: Columns) -> pa.Array:
        counts, squares = columns[0].to_numpy(), columns[2].to_numpy()
        variance = squares / np.maximum(counts - 1, 1)
        answer = np.sqrt(variance) if isinstance(self.aggregate, StdDev) else variance
        return _null_where(pa.array(answer), counts < 2)


class Extreme(Columnar):
    """min and max: a value."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        return [values[0]]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        chosen = rows.greatest(columns[0]) if isinstance(self.aggregate, Max) else rows.least(columns[0])
        return [columns[0].take(pa.array(chosen))]

    def result(self, columns: Columns) -> pa.Array:
        return columns[0]


class Timed(Columnar):
    """first and last: an event time and the value of that time."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        return [_null_where(pa.array(at), values[0].is_null().to_numpy(zero_copy_only=False)), values[0]]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        chosen = rows.greatest(*columns) if isinstance(self.aggregate, Last) else rows.least(*columns)
        return [column.take(pa.array(chosen)) for column in columns]

    def result(self, columns: Columns) -> pa.Array:
        return columns[1]


class Listed(Columnar):
    """collect and collect_set: a list."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        held = pc.is_valid(values[0])
        return [pa.ListArray.from_arrays(offsets(held.cast(pa.int64()).to_numpy()), values[0].filter(held))]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        return [rows.lists(columns[0])]

    def result(self, columns: Columns) -> pa.Array:
        return _sorted_lists(columns[0], distinct=isinstance(self.aggregate, CollectSet))


class Topped(Columnar):
    """top_k: a list of the values, and one of what they are ranked by."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        held = pc.and_(pc.is_valid(values[0]), pc.is_valid(values[-1]))
        ends = offsets(held.cast(pa.int64()).to_numpy())
        return [pa.ListArray.from_arrays(ends, column.filter(held)) for column in (values[0], values[-1])]

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        assert isinstance(self.aggregate, TopK)
        values, ranks = (rows.lists(column) for column in columns)
        owners = _owners(values)
        table = pa.table({"group": owners, "rank": ranks.flatten(), "value": values.flatten()})
        # Descending order would put NaN last; so ascending, each group backwards.
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names]).to_numpy()
        held = np.bincount(owners, minlength=rows.count).astype(np.int64)
        place = np.arange(len(owners)) - np.repeat(np.cumsum(held) - held, held)
        backwards = order[np.repeat(np.cumsum(held) - 1, held) - place]
        kept = backwards[place < self.aggregate.k]
        ends = offsets(np.minimum(held, self.aggregate.k))
        return [pa.ListArray.from_arrays(ends, column.flatten().take(pa.array(kept))) for column in (values, ranks)]

    def result(self, columns: Columns) -> pa.Array:
        values = columns[0]
        return pa.ListArray.from_arrays(offsets(lengths(values)), values.flatten())


class Opaque(Columnar):
    """Sketches and folds: a partial as bytes, merged by the aggregate itself."""

    def lift(self, values: Sequence[pa.Array], at: Ints) -> Columns:
        rows = zip(*(value.to_pylist() for value in values), strict=True)
        return self._kept([self.aggregate.partial(row, time) for row, time in zip(rows, at.tolist(), strict=True)])

    def merge(self, columns: Columns, rows: Grouping) -> Columns:
        if rows.count == len(columns[0]):
            return [columns[0].take(pa.array(rows.order))]
        partials = self._read(columns[0])
        ends = np.append(rows.starts[1:], len(partials))
        groups = zip(rows.starts.tolist(), ends.tolist(), strict=True)
        order = rows.order.tolist()
        return self._kept([self.aggregate.combine([partials[row] for row in order[a:b]]) for a, b in groups])

    def result(self, columns: Columns) -> pa.Array:
        return pa.array([self.aggregate.result(partial) for partial in self._read(columns[0])])

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
)


def columnar(aggregate: Aggregate) -> Columnar:
    """An aggregate in columns."""
    return next((made for kind, made in _KINDS if isinstance(aggregate, kind)), Opaque)(aggregate)


def _zero(type: pa.DataType) -> pa.Scalar:
    return pa.scalar(Decimal(0) if types.is_decimal(type) else 0, type)


def _owners(lists: pa.Array) -> Ints:
    """The row of each element of a list column."""
    return np.repeat(np.arange(len(lists), dtype=np.int64), lengths(lists))


def _sorted_lists(lists: pa.Array, distinct: bool) -> pa.Array:
    owners, values = _owners(lists), lists.flatten()
    table = pa.table({"group": owners, "value": values})
    if distinct:
        table = table.group_by(["group", "value"], use_threads=False).aggregate([])
    table = table.sort_by([("group", "ascending"), ("value", "ascending")])
    held = np.bincount(table["group"].to_numpy(), minlength=len(lists)).astype(np.int64)
    return pa.ListArray.from_arrays(offsets(held), table["value"].combine_chunks())


def _null_where(values: pa.Array, where: npt.NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(where), pa.scalar(None, values.type), values) if where.any() else values


def _refuse_overflow(values: Ints, rows: Grouping, aggregate: Aggregate) -> None:
    """Add up in whole numbers without bound, as the float that raised the alarm may be off."""
    exact = group(rows.ids, rows.count).sum(values.astype(object))
    if any(not -(2**63) <= total < 2**63 for total in exact):
        raise refuse(f"{aggregate} does not fit into BIGINT; cast its argument to DECIMAL or DOUBLE")
