"""The Arrow types that are read as each SQL type, unchanged or by a lossless cast: the one list for Parquet.

A pair that is not listed is refused, even if Arrow has a cast: seconds in a BIGINT are not a TIMESTAMP.
"""

from typing import Literal, TypeAlias

import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.model.errors import PipelineError

Fit: TypeAlias = Literal["same", "wider", "checked"]

_SIGNED = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_WIDTHS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_UNSIGNED = {pa.uint8(): 8, pa.uint16(): 16, pa.uint32(): 32}
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_EXACT = {"FLOAT": 24, "DOUBLE": 53}
"""The number of bits up to which a floating point type holds every whole number exactly."""


def accepted(held: pa.DataType, type: str) -> Fit | None:
    """How a column of an Arrow type is read as an SQL type: unchanged, by a lossless cast, or not at all (None).

    Nanoseconds are checked: they are a TIMESTAMP if all values are whole microseconds, as pandas writes them.

    >>> accepted(pa.int32(), "BIGINT"), accepted(pa.int64(), "TIMESTAMP"), accepted(pa.timestamp("ms"), "TIMESTAMP")
    ('wider', None, 'wider')
    """
    asked = arrow_type(type)
    if asked is None or held == asked:
        return "same"
    if pa.types.is_dictionary(held):
        return "wider" if accepted(held.value_type, type) else None
    if type == "TIMESTAMP" and pa.types.is_timestamp(held) and held.unit == "ns":
        return "checked"
    return "wider" if held == pa.null() or _is_wider(held, asked, type) else None


def _is_wider(held: pa.DataType, asked: pa.DataType, type: str) -> bool:
    types = pa.types
    if type in _SIGNED:
        return min(_WIDTHS.get(held, 99), _UNSIGNED.get(held, 99)) < _WIDTHS[asked]
    if type in _EXACT:
        bits = _WIDTHS[held] - 1 if held in _WIDTHS else _UNSIGNED.get(held, 99)
        return bits <= _EXACT[type] or held == pa.float16() or bool(held == pa.float32() and type == "DOUBLE")
    if type == "STRING":
        return any(check(held) for check in (types.is_large_string, types.is_string_view))
    if type == "BINARY":
        return any(check(held) for check in (types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary))
    if type == "TIMESTAMP":  # times without a zone are in UTC, as in JSON
        return bool(types.is_timestamp(held) and held.unit in ("s", "ms", "us"))
    if types.is_decimal(asked):
        if types.is_decimal(held):
            return bool(0 <= held.scale <= asked.scale and held.precision - held.scale <= asked.precision - asked.scale)
        return _DIGITS.get(held, 99) <= int(asked.precision - asked.scale)
    return False


def as_type(column: pa.ChunkedArray, type: str, what: str) -> pa.ChunkedArray:
    """A column as an SQL type. Raises PipelineError, with `what` as the subject, if it is not one."""
    how, kind = accepted(column.type, type), arrow_type(type)
    if how is None:
        raise PipelineError(f"{what} is {column.type}, which cannot be read as {type}")
    try:
        return column if kind is None else column.cast(kind)
    except pa.ArrowInvalid as error:
        raise PipelineError(f"{what} is {column.type}, and one of its values is not {type}: {error}") from None
