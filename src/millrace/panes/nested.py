"""Nested values as Spark compares them, in columns.

An ARRAY is compared element by element, and one that is the beginning of another is less. A STRUCT is compared field by
field, in their order. A NULL inside of one is less than any value. A MAP has no order.

Arrow neither sorts nor groups nested columns. So each value becomes bytes that have the same order and the same
equality: the ranks of its parts, which are numbers of eight bytes.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.panes.floats import as_compared


def sortable(column: pa.Array) -> pa.Array:
    """A column that Arrow can sort and group, with the order of this one; NULL is NULL."""
    kind = column.type
    if types.is_struct(kind):
        parts = [_ranks(field) for field in column.flatten()]
        widths = np.full(len(column), len(parts), np.int64)
        return _bytes(np.column_stack(parts).ravel() if parts else _NOTHING, widths, column)
    if types.is_list(kind) or types.is_large_list(kind):
        widths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        return _bytes(_ranks(column.flatten()), widths, column)
    return column


_NOTHING = np.zeros(0, np.uint64)


def _ranks(column: pa.Array) -> npt.NDArray[np.uint64]:
    """The rank of each value among all of the column, from 1 on; equal values have the same one, and NULL has 0."""
    if types.is_null(column.type):
        return np.zeros(len(column), np.uint64)
    values = sortable(as_compared(column))
    encoded = values.dictionary_encode()
    known = encoded.dictionary
    ranks = np.empty(len(known) + 1, np.uint64)
    ranks[pc.sort_indices(known).to_numpy()] = np.arange(1, len(known) + 1, dtype=np.uint64)
    ranks[len(known)] = 0
    found: npt.NDArray[np.uint64] = ranks[pc.fill_null(encoded.indices, len(known)).to_numpy()]
    return found


def _bytes(ranks: npt.NDArray[np.uint64], widths: npt.NDArray[np.int64], column: pa.Array) -> pa.Array:
    """The ranks of each row as bytes; rows of `column` that are NULL are NULL."""
    ends = np.concatenate([[0], np.cumsum(widths)]) * 8
    data = pa.py_buffer(ranks.astype(">u8").tobytes())
    made = pa.Array.from_buffers(pa.large_binary(), len(column), [None, pa.py_buffer(ends.astype(np.int64)), data])
    missing = column.is_null()
    return pc.if_else(missing, pa.scalar(None, made.type), made) if column.null_count else made
