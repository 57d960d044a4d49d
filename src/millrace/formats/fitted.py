"""Python values of decoded records as columns: those that fit the type of a column, and those that do not.

A value fits if it belongs to the type of the column: a whole number within the range of BIGINT, a moment for TIMESTAMP.
Any value fits a STRING, as its text in JSON; bytes, if they are UTF-8. Of a nested record, only the fields of the
STRUCT are read, and one that it lacks is NULL.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.model.errors import NoValueError, shown
from millrace.model.fitting import holder
from millrace.model.nested import ArrayType, MapType, StructType, nested
from millrace.model.plain import as_text, to_json
from millrace.model.schema import Column
from millrace.model.types import is_decimal, is_integer, is_number

_BULK: Mapping[str, set[type]] = {
    "TINYINT": {int}, "SMALLINT": {int}, "INT": {int}, "BIGINT": {int}, "DOUBLE": {float}, "STRING": {str},
    "BINARY": {bytes}, "BOOLEAN": {bool}, "DATE": {date}, "TIMESTAMP": {datetime},
}  # fmt: skip
"""The Python types of which Arrow makes a column without any doubt, or refuses."""
_DAY = 86_400_000_000
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds."""


def fitted(values: Sequence[Any], type: str) -> tuple[pa.Array, dict[int, Any]]:
    """A column of values, with NULL for those that do not fit, and these by their rows."""
    kind = arrow_type(type)
    if {each.__class__ for each in values} - {None.__class__} <= _BULK.get(type, set()):
        try:
            return pa.array(values, kind), {}
        except (pa.ArrowInvalid, OverflowError):  # a number is out of range
            pass
    hold, misfits, held = reader(type), {}, list[Any]()
    for row, value in enumerate(values):
        try:
            held.append(None if value is None else hold(value))
        except NoValueError:
            misfits[row] = value
            held.append(None)
    return pa.array(held, kind), misfits


def instants(numbers: pa.Array, per_second: int) -> tuple[pa.Array, dict[int, Any]]:
    """Times since 1970 as a column of type TIMESTAMP; those outside of the years 1 to 9999 do not fit.

    Nor do nanoseconds that are no whole microseconds.
    """
    filled = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    if per_second > 1_000_000:
        least = per_second // 1_000_000
        micros, outside = filled // least, filled % least != 0
    else:
        times = 1_000_000 // per_second
        outside = (filled < _FIRST // times) | (filled > _LAST // times)
        micros = np.where(outside, 0, filled) * times
    outside |= (micros < _FIRST) | (micros > _LAST)
    return _numbered(numbers, micros, outside, "TIMESTAMP")


def dates(numbers: pa.Array) -> tuple[pa.Array, dict[int, Any]]:
    """Days since 1970 as a column of type DATE; those outside of the years 1 to 9999 do not fit."""
    filled = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    outside = (filled < _FIRST // _DAY) | (filled > _LAST // _DAY)
    made, misfits = _numbered(numbers, filled, outside, None)
    return made.cast(pa.int32()).cast(arrow_type("DATE")), misfits


def _numbered(
    numbers: pa.Array, values: npt.NDArray[np.int64], outside: npt.NDArray[np.bool_], type: str | None
) -> tuple[pa.Array, dict[int, Any]]:
    misfits = {row: numbers[row].as_py() for row in np.flatnonzero(outside).tolist()}
    mask = outside | numbers.is_null().to_numpy(zero_copy_only=False)
    made = pa.array(np.where(mask, 0, values), pa.int64(), mask=mask)
    return made if type is None else made.cast(arrow_type(type)), misfits


@cache
def reader(type: str) -> Callable[[Any], Any]:
    """The value that a type holds of a decoded value. Raises NoValueError if there is none."""
    if type == "STRING":
        return _text
    match nested(type):
        case ArrayType(element):
            return _array(type, _or_null(element))
        case MapType(key, item):
            return _map(type, reader(key), _or_null(item))
        case StructType(fields):
            return _struct(type, {name: _or_null(each) for name, each in fields})
        case None:
            return holder(type)


def hint_for(column: Column, found: Any) -> str | None:
    """What to declare for a decoded value; None if there is nothing better to say."""
    match found:
        case bool():
            return "declare it BOOLEAN"
        case datetime():
            return "declare it TIMESTAMP"
        case date():
            return "declare it DATE"
        case Decimal() if found.is_finite():
            _, digits, exponent = found.as_tuple()
            scale = max(0, -int(exponent))
            return f"declare it DECIMAL({max(len(digits) + max(0, int(exponent)), scale)}, {scale}), or wider"
        case float() if is_integer(column.type) or is_decimal(column.type):
            return "declare it DOUBLE"
        case bytes():
            return "declare it BINARY"
        case dict():
            return "declare it STRUCT<...> with the fields that you need, or STRING to keep it as JSON"
        case list():
            return "declare it ARRAY<...>, or STRING to keep it as JSON"
        case str() if is_number(column.type) or column.type in ("BOOLEAN", "DATE", "TIMESTAMP"):
            return f"declare it STRING, and convert it: CAST({column.name} AS {column.type})"
    return None


def _or_null(type: str) -> Callable[[Any], Any]:
    read = reader(type)
    return lambda value: None if value is None else read(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise NoValueError(f"{shown(value)} is not STRING") from None
    return to_json(value) if isinstance(value, bool | int | float | dict | list) else as_text(value)


def _array(type: str, element: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise NoValueError(f"{shown(value)} is not {type}")
        return [element(each) for each in value]

    return read


def _map(type: str, key: Callable[[Any], Any], item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise NoValueError(f"{shown(value)} is not {type}")
        return [(key(name), item(each)) for name, each in value.items()]

    return read


def _struct(type: str, fields: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise NoValueError(f"{shown(value)} is not {type}")
        return {name: each(value.get(name)) for name, each in fields.items()}

    return read
