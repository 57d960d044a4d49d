"""Flat records of Avro as columns, all records of a bundle at once, field after field, in NumPy.

Each record has a place at which its next field begins. A field is read for all records at once, and moves their places.
A record is read only if its place is at its end after the last field, and if each of its values is certain; the others
are left to fastavro, which decides and gives the reasons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.formats.texts import ends_of
from millrace.model.arrow import arrow_type

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_PADDING = 16
"""Zeros after the last record, so that a number or a float that is cut off is read, and found to be too long."""
_SIZES = {"float": 4, "double": 8}
_FITS = {
    "boolean": ("BOOLEAN",),
    "int": ("TINYINT", "SMALLINT", "INT", "BIGINT"),
    "long": ("TINYINT", "SMALLINT", "INT", "BIGINT"),
    "float": ("DOUBLE",),
    "double": ("DOUBLE",),
    "string": ("STRING",),
    "bytes": ("BINARY",),
}
"""The types of Avro that are read here, and the types of columns that hold each value of them, or a range of them."""
_BITS = {"TINYINT": 7, "SMALLINT": 15, "INT": 31}


@dataclass(frozen=True, slots=True)
class FlatField:
    """A field of a flat record."""

    name: str
    type: str
    null: int | None
    """The number of NULL in the union of the field; None if it cannot be NULL."""
    column: str | None
    """The type of its column; None if it is not read, or read as a number."""
    is_read: bool


def flat_fields(schema: Any, columns: Mapping[str, str], numbered: Mapping[str, Any]) -> list[FlatField] | None:
    """The fields of a schema; None if fastavro must read it, as it is not flat or a column has another type."""
    found = []
    for field in schema["fields"]:
        name, null = str(field["name"]), None
        kind = field["type"]
        if isinstance(kind, list):
            others = [each for each in kind if each != "null"]
            if len(kind) != 2 or len(others) != 1:
                return None
            null, kind = kind.index("null"), others[0]
        if isinstance(kind, dict) and "logicalType" not in kind:  # Java's producers add attributes of their own
            kind = kind.get("type")
        if not isinstance(kind, str) or kind not in _FITS:
            return None
        column = None if name in numbered else columns.get(name)
        if column is not None and column not in _FITS[kind]:
            return None
        found.append(FlatField(name, kind, null, column, name in columns))
    return found


def read_flat(values: pa.Array, fields: Sequence[FlatField]) -> tuple[dict[str, pa.Array], Bools]:
    """The columns of the records that can be read here, by name, and which records those are."""
    reading = _Reading(values)
    parts = {field.name: reading.take(field) for field in fields}
    good = reading.good & (reading.at == reading.stop)
    rows = np.flatnonzero(good)
    columns: dict[str, pa.Array] = {}
    for field in fields:
        if field.is_read:
            made = parts[field.name].column(reading.data, rows, field)
            if made is None:  # a text is not UTF-8: fastavro finds out which
                return {}, np.zeros(len(values), np.bool_)
            columns[field.name] = made
    return columns, good


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The values of a field in all records."""

    valid: Bools
    numbers: npt.NDArray[Any] | None = None
    """The values of a type with a fixed size."""
    starts: Ints | None = None
    lengths: Ints | None = None
    """Where texts and bytes begin, and how long they are."""

    def column(self, data: npt.NDArray[np.uint8], rows: Ints, field: FlatField) -> pa.Array | None:
        """The column of some records; None if one of its texts is not UTF-8."""
        valid = self.valid[rows]
        if self.numbers is not None:
            made = pa.array(self.numbers[rows], mask=~valid)
            return made if field.column is None else made.cast(arrow_type(field.column))
        assert self.starts is not None
        assert self.lengths is not None
        lengths = np.where(valid, self.lengths[rows], 0)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.repeat(self.starts[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        buffers = [pa.array(valid).buffers()[1], pa.py_buffer(offsets), pa.py_buffer(data[places])]
        held = pa.Array.from_buffers(pa.large_binary(), len(rows), buffers)
        try:
            return held.cast(pa.large_string()).cast(pa.string()) if field.type == "string" else held.cast(pa.binary())
        except pa.ArrowInvalid:
            return None


class _Reading:
    """Records of which the fields are read one after the other."""

    def __init__(self, values: pa.Array) -> None:
        ends = ends_of(values)
        self.data = np.zeros(int(ends[-1]) + _PADDING, np.uint8)
        held = values.buffers()[2]
        if held is not None:
            self.data[: ends[-1]] = np.frombuffer(held, np.uint8, int(ends[-1]))
        self.at, self.stop = ends[:-1].copy(), ends[1:]
        """Where the next field of each record begins, and where the record ends."""
        self.good = np.ones(len(values), np.bool_)
        """The records that are certain so far."""

    def take(self, field: FlatField) -> _Part:
        """The values of the next field."""
        many = len(self.at)
        rows, valid = np.arange(many), np.ones(many, np.bool_)
        if field.null is not None:
            branch = self._numbers(rows)
            self.good &= (branch == 0) | (branch == 1)
            valid = branch != field.null
            rows = np.flatnonzero(valid)
        match field.type:
            case "int" | "long":
                numbers = np.zeros(many, np.int64)
                numbers[rows] = self._numbers(rows)
                if field.column in _BITS:
                    limit = 1 << _BITS[field.column]
                    self.good &= (numbers >= -limit) & (numbers < limit)
                return _Part(valid, numbers)
            case "boolean":
                truths = np.zeros(many, np.uint8)
                truths[rows] = self.data[self.at[rows]]
                self.good &= truths <= 1
                self._move(rows, np.ones(len(rows), np.int64))
                return _Part(valid, truths.astype(np.bool_))
            case "float" | "double":
                size = _SIZES[field.type]
                floats = np.zeros(many, np.float64)
                found = self.data[self.at[rows][:, None] + np.arange(size)]
                floats[rows] = found.view(f"<f{size}").reshape(-1)
                self._move(rows, np.full(len(rows), size))
                return _Part(valid, floats)
        lengths, starts = np.zeros(many, np.int64), np.zeros(many, np.int64)
        found = self._numbers(rows)
        room = self.stop[rows] - self.at[rows]
        self.good[rows] &= (found >= 0) & (found <= room)
        found = np.clip(found, 0, np.maximum(room, 0))
        starts[rows], lengths[rows] = self.at[rows], found
        self._move(rows, found)
        return _Part(valid, starts=starts, lengths=lengths)

    def _numbers(self, rows: Ints) -> Ints:
        """A whole number of variable length of each of these records."""
        at = self.at[rows]
        byte = self.data[at]
        value = (byte & 127).astype(np.uint64)
        lengths = np.ones(len(rows), np.int64)
        left, shift = np.flatnonzero(byte > 127), 7
        while len(left) and shift < 70:
            byte = self.data[at[left] + lengths[left]]
            value[left] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
            lengths[left] += 1
            if shift == 63:  # the tenth byte has one bit
                self.good[rows[left[byte > 1]]] = False
            left, shift = left[byte > 127], shift + 7
        self._move(rows, lengths)
        one = np.uint64(1)
        return ((value >> one) ^ (np.uint64(0) - (value & one))).astype(np.int64)

    def _move(self, rows: Ints, by: Ints) -> None:
        """Move on in these records. One that moves beyond its end is not certain, and stays there."""
        at = self.at[rows] + by
        beyond = at > self.stop[rows]
        self.good[rows[beyond]] = False
        self.at[rows] = np.minimum(at, self.stop[rows])
