"""Columns of integers beyond 64 bits, stored as Arrow decimals; DuckDB's HUGEINT is converted to them too.

Arrow stores a decimal as an unscaled integer of 128 or 256 bits, and a scale. Most of these integers fit into 64 bits,
and numpy computes with those; the few others are computed as Python integers.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.panes.arms import Bools, Ints
from millrace.panes.grouping import Grouping

WHOLE = pa.decimal128(38, 0)
"""The type of sums of whole numbers."""
_BITS = np.uint64(32)
_LAST = np.uint64(0xFFFFFFFF)


def widened(values: Ints, type: pa.DataType = WHOLE) -> pa.Array:
    """A column of decimals with these unscaled integers of 64 bits."""
    words = np.empty((len(values), 2), np.int64)
    words[:, 0] = values
    np.right_shift(values, 63, out=words[:, 1])
    return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(words)])


def from_whole(values: list[int], type: pa.DataType) -> pa.Array:
    """A column of decimals with these unscaled integers of at most 128 bits."""
    return pa.Array.from_buffers(
        type, len(values), [None, pa.py_buffer(b"".join(value.to_bytes(16, "little", signed=True) for value in values))]
    )


def narrowed(column: pa.Array) -> tuple[Ints, Bools]:
    """The unscaled integers of decimals in 64 bits, and the mask of those that fit."""
    words = words_of(column)
    values = words[:, 0].view(np.int64)
    signs = (values >> 63).view(np.uint64)
    fits = words[:, 1] == signs
    for place in range(2, words.shape[1]):
        fits &= words[:, place] == signs
    return values, fits


def whole(column: pa.Array, rows: npt.NDArray[np.intp]) -> list[int]:
    """The unscaled integers of the decimals in these rows, of any size."""
    words = words_of(column)[rows]
    return [int.from_bytes(row.tobytes(), "little", signed=True) for row in words]


def sums(column: pa.Array, rows: Grouping) -> pa.Array:
    """The exact sum of each group of a column of `WHOLE`."""
    values, fits = narrowed(column)
    if fits.all() and _stays_narrow(values, rows):
        return widened(rows.sum(values))
    words = words_of(column)
    low = rows.sum((words[:, 0] & _LAST).view(np.int64))
    middle = rows.sum((words[:, 0] >> _BITS).view(np.int64)) + (low >> 32)
    summed = np.empty((len(low), 2), np.int64)
    summed[:, 0] = (middle << 32) | (low & 0xFFFFFFFF)
    summed[:, 1] = rows.sum(words[:, 1].view(np.int64)) + (middle >> 32)
    return pa.Array.from_buffers(WHOLE, len(summed), [None, pa.py_buffer(summed)])


def quotients(totals: pa.Array, counts: Ints) -> npt.NDArray[np.float64]:
    """Sums of type `WHOLE` divided by counts of at least 1, each rounded once, to the nearest float."""
    values, fits = narrowed(totals)
    small = fits & (np.abs(values) <= 2**53) & (values != -(2**63))
    if small.all():  # both are exact as floats
        return values / counts
    result = np.empty(len(values))
    result[small] = values[small] / counts[small]
    large = ~small & fits & (values != -(2**63)) & (counts < 2**31)
    result[large] = _rounded_once(values[large], counts[large])
    rest = np.flatnonzero(~small & ~large)
    result[rest] = [total / count for total, count in zip(whole(totals, rest), counts[rest].tolist(), strict=True)]
    return result


def _rounded_once(values: Ints, counts: Ints) -> npt.NDArray[np.float64]:
    """Quotients of numbers of more than 53 bits by numbers of at most 31 bits.

    It computes at least 55 bits of a quotient and a sticky bit for a remainder. Converted to a float, they are rounded
    as the exact quotient would be.
    """
    size = np.abs(values)
    quotient, rest = np.divmod(size, counts)
    shift = np.clip(62 - np.frexp(quotient.astype(np.float64))[1].astype(np.int64), 0, 32)
    more, rest = np.divmod(rest << shift, counts)
    bits = (((quotient << shift) + more).view(np.uint64) << np.uint64(1)) | (rest > 0).astype(np.uint64)
    return np.copysign(np.ldexp(bits.astype(np.float64), -(shift + 1)), values)


def _stays_narrow(values: Ints, rows: Grouping) -> bool:
    if not len(values):
        return True
    most = int(np.diff(rows.starts, append=len(rows.order)).max())
    return max(int(values.max()), -int(values.min())) * most < 2**63


def words_of(column: pa.Array) -> npt.NDArray[np.uint64]:
    """The unscaled integers of decimals as words of 64 bits, lowest first, a row for each."""
    width = column.type.byte_width
    data = column.buffers()[1]
    if not len(column) or data is None:
        return np.zeros((0, width // 8), np.uint64)
    found = np.frombuffer(data, np.uint64, len(column) * width // 8, column.offset * width)
    return found.reshape(len(column), width // 8)
