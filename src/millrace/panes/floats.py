"""Floats as Spark compares them: -0.0 is 0.0, and there is one NaN."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types


def as_compared(column: pa.Array) -> pa.Array:
    """A column in which equal values have equal bits, also inside of arrays and structs."""
    if types.is_nested(column.type):
        return _parts_as_compared(column)
    if not types.is_floating(column.type):
        return column
    column = pc.add(column, pa.scalar(0.0, column.type))
    nans = pc.is_nan(column)
    return pc.if_else(nans, pa.scalar(float("nan"), column.type), column) if pc.any(nans).as_py() else column


def _parts_as_compared(column: pa.Array) -> pa.Array:
    kind = column.type
    if types.is_struct(kind) and kind.num_fields:
        fields = [as_compared(each) for each in column.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if types.is_list(kind):
        held = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        ends = np.concatenate([[0], np.cumsum(held)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), as_compared(column.flatten()), kind, mask=column.is_null())
    return column
