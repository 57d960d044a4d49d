"""Values as keys: those of an index of constants, and those by which rows are sorted."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from millrace.live.condition import Value
from millrace.live.evaluate import orderable, ordered, plain
from millrace.live.query import Ordering
from millrace.model.types import decimal_of, is_decimal

Key: TypeAlias = int | str | bytes
"""A value as an index and a sort compare it: a number as a whole number, text and bytes as they are."""
_INVERTED = bytes(255 - each for each in range(256))
_END, _ZERO, _ESCAPED = b"\0\0", b"\0", b"\0\xff"


def keys_of(column: pa.Array, type: str) -> list[Key | None]:
    """Values of a type, as keys."""
    if is_decimal(type):
        scale = decimal_of(type)[1]
        return [None if value is None else _units(value, scale) for value in column.to_pylist()]
    if type == "BOOLEAN":
        column = column.cast(pa.int8())
    found: list[Key | None] = orderable(column, type).to_pylist()
    return found


def key_of(value: Value, type: str) -> Key | None:
    """A constant of a type, as a key."""
    if isinstance(value, Decimal):
        return _units(value, decimal_of(type)[1])
    if isinstance(value, float):
        return ordered(value)
    return int(value) if isinstance(value, bool) else value


def _units(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale))


def sort_keys(rows: pa.Table, order: Sequence[Ordering]) -> list[bytes]:
    """For each row, bytes that compare as the rows do: NULL first, and descending columns inverted."""
    parts = [_parts(rows.column(each.column).combine_chunks(), each) for each in order if each.type != "NULL"]
    if not parts:
        return [b""] * len(rows)
    return list(map(b"".join, zip(*parts, strict=True)))


def _parts(column: pa.Array, order: Ordering) -> list[bytes]:
    values: list[Any] = column.to_pylist() if order.type == "BINARY" else keys_of(plain(column, order.type), order.type)
    found = [_bytes(value) for value in values]
    return [each.translate(_INVERTED) for each in found] if order.descending else found


def _bytes(value: Key | None) -> bytes:
    if value is None:
        return b"\0"
    if isinstance(value, int):
        return b"\1" + (value + 2**63).to_bytes(8, "big")
    content = value.encode() if isinstance(value, str) else value
    return b"\1" + content.replace(_ZERO, _ESCAPED) + _END


def numbers(keys: Sequence[Key | None]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Keys without NULL as an array that can be searched, and the places at which they were."""
    places = [place for place, key in enumerate(keys) if key is not None]
    present = [keys[place] for place in places]
    is_number = not present or isinstance(present[0], int)
    return np.array(present, np.int64 if is_number else object), np.array(places, np.int64)
