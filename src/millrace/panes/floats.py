"""Floats as Spark compares them: -0.0 is 0.0, and there is one NaN."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types


def as_compared(column: pa.Array) -> pa.Array:
    """A column in which equal values have equal bits."""
    if not types.is_floating(column.type):
        return column
    column = pc.add(column, pa.scalar(0.0, column.type))
    nans = pc.is_nan(column)
    return pc.if_else(nans, pa.scalar(float("nan"), column.type), column) if pc.any(nans).as_py() else column
