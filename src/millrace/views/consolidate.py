"""Consolidates the answers of a commit: of several for the same key, the last counts."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.views.shape import ViewShape

DIFF, NULLS = "diff", "nulls"

_Flags: TypeAlias = npt.NDArray[np.bool_]
_Ints: TypeAlias = npt.NDArray[np.int64]


def consolidate(shape: ViewShape, columns: Sequence[pa.Array], diffs: pa.Array) -> pa.Table:
    """At most one row per key, sorted by key.

    `columns` are those of the shape, with nested values as text already. The table names them c0, c1 and so on, and
    adds the diff and a bit mask of the key columns that are NULL. If the shape merges, a row that a later one overlaps
    gets diff -1: it is deleted together with all rows that it overlaps.
    """
    columns = list(columns)
    for place in shape.key_places:
        columns[place] = _as_key(columns[place])
    names = [f"c{place}" for place in range(len(columns))]
    table = pa.table([*columns, diffs.cast(pa.int16())], [*names, DIFF])
    key = [names[place] for place in shape.key_places]
    if len(table):
        # The sort is stable, so the last answer of a key stays last.
        order = (
            pc.sort_indices(table, sort_keys=[(name, "ascending") for name in key]) if key else np.arange(len(table))
        )
        table = table.take(pa.array(order))
        last = np.append(~_same_as_next([table[name] for name in key], len(table)), True)
        table = table.filter(pa.array(last))
        if shape.merges:
            gone = _overlapped(shape, table, np.asarray(order)[last])
            table = table.drop_columns([DIFF]).append_column(
                DIFF, pa.array(np.where(gone, -1, table[DIFF]), pa.int16())
            )
    nulls = np.zeros(len(table), np.int64)
    for bit, name in enumerate(key):
        nulls |= np.asarray(table[name].is_null()).astype(np.int64) << bit
    return table.append_column(NULLS, pa.array(nulls))


def _as_key(column: pa.Array) -> pa.Array:
    """Values normalized for key comparison: -0.0 becomes 0.0, and all NaNs become one."""
    if not types.is_floating(column.type):
        return column
    column = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)


def _same_as_next(columns: Sequence[pa.ChunkedArray], rows: int) -> _Flags:
    same = np.ones(rows - 1, np.bool_)
    for column in columns:
        this, following = column.slice(0, rows - 1), column.slice(1)
        equal = pc.or_(pc.fill_null(pc.equal(this, following), False), pc.and_(this.is_null(), following.is_null()))
        if types.is_floating(column.type):
            equal = pc.or_(equal, pc.fill_null(pc.and_(pc.is_nan(this), pc.is_nan(following)), False))
        same &= np.asarray(equal)
    return same


def _overlapped(shape: ViewShape, table: pa.Table, number: _Ints) -> _Flags:
    """Flags rows that a later row of the same group replaces because their windows overlap.

    Rows are sorted by group and start, so a row overlaps a contiguous run of its successors: compare each row with the
    next, then the rows that overlapped with the one after it, and so on.
    """
    rows = len(table)
    start, end = (np.asarray(table[f"c{place}"].cast(pa.int64())) for place in shape.bound_places)
    new_group = ~_same_as_next([table[f"c{place}"] for place in shape.group_places], rows)
    group = np.append(0, np.cumsum(new_group))
    gone = np.zeros(rows, np.bool_)
    first, step = np.arange(rows - 1), 1
    while len(first):
        other = first + step
        overlap = (group[first] == group[other]) & (start[other] < end[first])
        first, other = first[overlap], other[overlap]
        gone[np.where(number[first] < number[other], first, other)] = True
        step += 1
        first = first[first + step < rows]
    return gone
