"""Changes of rows added up: equal rows become one row with the sum of their counts."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.panes.arms import Ints
from millrace.panes.grouping import identify, pick
from millrace.panes.hashing import Hashes

COUNT = "__count"


def netted(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """One row for all rows that are equal in `columns`, with the sum of their counts; none if the sum is 0."""
    if not len(rows):
        return rows
    same = identify([distinct(rows[name].combine_chunks()) for name in columns], len(rows))
    counts = same.sum(rows[COUNT].to_numpy())
    left = np.flatnonzero(counts)
    return with_numbers(pick(rows, same.firsts[left]), COUNT, counts[left])


def distinct(column: pa.Array) -> pa.Array:
    """A column in which the values of equal rows are equal, and only those: NaN equals NaN, -0.0 is not 0.0."""
    kind = column.type
    if types.is_floating(kind):
        nan = pa.scalar(float("nan"), kind)
        return pc.if_else(pc.is_nan(column), nan, column).view(pa.int64() if types.is_float64(kind) else pa.int32())
    if types.is_nested(kind):
        return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())
    return column


def with_numbers(rows: pa.Table, name: str, numbers: Ints | Hashes) -> pa.Table:
    """The rows with a column of numbers replaced, or added at the end."""
    if name in rows.column_names:
        return rows.set_column(rows.column_names.index(name), name, pa.array(numbers))
    return rows.append_column(name, pa.array(numbers))
