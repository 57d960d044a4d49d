"""Encodes Arrow columns as rows in PostgreSQL's binary COPY format, column by column.

A row is the number of its fields as two bytes, then each field: its length as four bytes, -1 for NULL, and its bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types
from psycopg.types.numeric import DecimalBinaryDumper

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_PIECE = 50_000
"""How many rows are encoded at a time."""
_EPOCH_DAYS = 10_957
"""The days from 1970 to PostgreSQL's epoch, 2000."""
_EPOCH_MICROS = _EPOCH_DAYS * 86_400_000_000

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Field:
    """An encoded column: the length of each value in bytes, -1 for NULL, and the concatenated values."""

    lengths: _Ints
    content: npt.NDArray[Any]
    """Numbers of one width, or single bytes if lengths vary."""

    @property
    def sizes(self) -> _Ints:
        """The length of each value in the content; 0 for NULL."""
        return np.maximum(self.lengths, 0)

    def put(self, out: _Bytes, at: _Ints) -> None:
        """Write each value at its offset in the output."""
        if self.content.dtype.itemsize > 1:
            _put(out, at[self.lengths >= 0], self.content)
            return
        sizes = self.sizes
        starts = np.cumsum(sizes) - sizes
        out[np.repeat(at - starts, sizes) + np.arange(len(self.content))] = self.content


def binary_rows(table: pa.Table) -> Iterator[bytes]:
    """The rows of a table in the binary format, in pieces."""
    yield HEADER
    for start in range(0, len(table), _PIECE):
        piece = table.slice(start, _PIECE)
        yield _rows([_field(column.combine_chunks()) for column in piece.columns], len(piece)).tobytes()
    yield TRAILER


def _rows(fields: list[_Field], rows: int) -> _Bytes:
    lengths = sum((field.sizes for field in fields), np.full(rows, 2 + 4 * len(fields)))
    ends = np.cumsum(lengths)
    out = np.empty(ends[-1], np.uint8)
    at = ends - lengths
    _put(out, at, np.full(rows, len(fields), ">i2"))
    at += 2
    for field in fields:
        _put(out, at, field.lengths.astype(">i4"))
        at += 4
        field.put(out, at)
        at += field.sizes
    return out


def _put(out: _Bytes, at: _Ints, numbers: npt.NDArray[Any]) -> None:
    """Write one number at each offset."""
    width = numbers.dtype.itemsize
    out[at[:, None] + np.arange(width)] = numbers.view(np.uint8).reshape(-1, width)


def _field(column: pa.Array) -> _Field:
    if types.is_decimal(column.type):
        dump = DecimalBinaryDumper(Decimal).dump
        column = pa.array([None if value is None else dump(value) for value in column.to_pylist()], pa.binary())
    valid = np.asarray(column.is_valid())
    if types.is_string(column.type) or types.is_binary(column.type):
        return _of_any_length(column, valid)
    numbers = _numbers(column)[valid]
    numbers = numbers.astype(numbers.dtype.newbyteorder(">"))
    return _Field(np.where(valid, numbers.dtype.itemsize, -1), numbers)


def _of_any_length(column: pa.Array, valid: npt.NDArray[np.bool_]) -> _Field:
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    content = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data else np.empty(0, np.uint8)
    lengths = np.diff(ends)
    if lengths[~valid].any():  # a NULL slot may still have bytes in the buffer
        content = content[np.repeat(valid, lengths)]
    return _Field(np.where(valid, lengths, -1), content)


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    kind = column.type
    if types.is_boolean(kind):
        return np.asarray(column.cast(pa.uint8()).fill_null(0))
    if types.is_timestamp(kind):
        return np.asarray(column.cast(pa.int64()).fill_null(0)) - _EPOCH_MICROS
    if types.is_date(kind):
        return np.asarray(column.cast(pa.int32()).fill_null(0)) - np.int32(_EPOCH_DAYS)
    if types.is_int8(kind):
        column = column.cast(pa.int16())  # the narrowest integer type of PostgreSQL
    return np.asarray(column.fill_null(0))
