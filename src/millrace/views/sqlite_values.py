"""The representation of values in SQLite.

Times are text in UTC, all of one width, so that they sort as times: `2024-01-31 09:00:00.000000Z`. BOOLEAN is 0 or 1.
NaN, which SQLite would store as NULL, is the text NaN. DECIMAL is a number where that is exact, which it is up to 15
digits, and text otherwise. Nested values are JSON text.
"""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.views.dialect import Dialect
from millrace.views.nested import from_json, to_json

_EXACT_DIGITS = 15


class SqliteDialect(Dialect):
    """The SQL dialect of SQLite."""

    name = "sqlite"
    row = "rowid"
    row_type = "INTEGER"
    same = "IS"
    # SQLite journals every page that a statement changes if the statement may fail halfway.
    not_null = ""
    insert = "INSERT OR ROLLBACK"

    def type_of(self, kind: pa.DataType) -> str:
        """The type whose affinity leaves values unchanged."""
        if types.is_integer(kind) or types.is_boolean(kind):
            return "INTEGER"
        if types.is_floating(kind):
            return "REAL"
        return "BLOB" if types.is_binary(kind) or types.is_decimal(kind) else "TEXT"

    def plain(self, column: pa.ChunkedArray) -> pa.Array:
        """The column with nested values as JSON text."""
        return to_json(column) if types.is_nested(column.type) else column.combine_chunks()

    def parameter(self, value: pa.Scalar) -> Any:
        """A value in the same representation as in a row."""
        return values(pa.array([value.as_py()], value.type))[0]

    def column(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """A column, from values that SQLite returned."""
        if types.is_nested(kind):
            return from_json([None if value is None else json.loads(value) for value in values], kind)
        if types.is_temporal(kind):
            return pa.array(values, pa.string()).cast(kind)
        if types.is_boolean(kind):
            return pa.array(values, pa.int8()).cast(kind)
        if types.is_decimal(kind):
            exact = (None if value is None else Decimal(str(value)) for value in values)
            return pa.array(list(exact), kind)
        if types.is_floating(kind):
            return pa.array([None if value is None else float(value) for value in values], pa.float64()).cast(kind)
        return pa.array(values, kind)


def values(column: pa.Array) -> list[Any]:
    """The values of a column in the representation of SQLite."""
    kind = column.type
    if types.is_timestamp(kind):
        text = column.cast(pa.timestamp("us")).cast(pa.string())  # a cast with the zone takes twenty times as long
        column = pc.binary_join_element_wise(text, "Z", "")
    elif types.is_temporal(kind):
        column = column.cast(pa.string())
    elif types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif types.is_decimal(kind):
        return _numbers(column)
    found: list[Any] = column.to_pylist()
    if types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        found = [value if value == value else "NaN" for value in found]
    return found


def _numbers(column: pa.Array) -> list[Any]:
    """Decimals as numbers where these are exact, otherwise as text."""
    scale, rows = column.type.scale, len(column)
    low, high = np.frombuffer(column.buffers()[1], np.int64)[column.offset * 2 :][: rows * 2].reshape(rows, 2).T
    most = 10**_EXACT_DIGITS if scale else 2**63 - 1
    exact = (high == low >> 63) & (-most < low) & (low < most)
    # Both operands are exact, so the quotient is the float nearest to the decimal.
    found = np.array(low / 10.0**scale if scale else low, object)
    inexact = pa.array(~exact)
    found[~exact] = [None if value is None else str(value) for value in column.filter(inexact).to_pylist()]
    found[np.asarray(column.is_null())] = None
    return list(found.tolist())
