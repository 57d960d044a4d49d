"""Encodes nested values as JSON text, and decodes them.

Lists become arrays, structs and maps become objects; equal maps have equal text. Values that JSON cannot represent
become strings: NaN and the infinities (as Spark writes them), decimals, times, and bytes in base 64.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as types

from millrace.model.plain import finite

Convert: TypeAlias = Callable[[Any], Any]
Text: TypeAlias = Callable[[str], str]


def as_is(text: str) -> str:
    """The text itself."""
    return text


def to_json(column: pa.ChunkedArray, text: Text = as_is) -> pa.Array:
    """Each value as JSON text; `text` is applied to every string inside."""
    write = _or_null(_writer(column.type, text))
    values = (None if value is None else _dumps(write(value)) for value in column.to_pylist())
    return pa.array(values, pa.string())


def from_json(values: list[Any], kind: pa.DataType, text: Text = as_is) -> pa.Array:
    """Values of a type, from parsed JSON; `text` is applied to every string inside."""
    read = _or_null(_reader(kind, text))
    return pa.array([read(value) for value in values], kind)


def _writer(kind: pa.DataType, text: Text) -> Convert:
    """The function that converts a value of a type for JSON."""
    if types.is_map(kind):
        key, item = _writer(kind.key_type, text), _or_null(_writer(kind.item_type, text))
        return lambda pairs: dict(sorted((_name(key(name)), item(value)) for name, value in pairs))
    if types.is_list(kind):
        each = _or_null(_writer(kind.value_type, text))
        return lambda values: [each(value) for value in values]
    if types.is_struct(kind):
        parts = {field.name: _or_null(_writer(field.type, text)) for field in kind}
        return lambda struct: {name: part(struct[name]) for name, part in parts.items()}
    if types.is_floating(kind):
        return lambda value: finite(value + 0.0)
    if types.is_binary(kind):
        return lambda value: b64encode(value).decode()
    if types.is_timestamp(kind):
        return _instant
    if types.is_decimal(kind) or types.is_date(kind):
        return str
    return text if types.is_string(kind) else as_is


def _reader(kind: pa.DataType, text: Text) -> Convert:
    """The inverse of `_writer`."""
    if types.is_map(kind):
        key, item = _key_reader(kind.key_type, text), _or_null(_reader(kind.item_type, text))
        return lambda pairs: [(key(name), item(value)) for name, value in pairs.items()]
    if types.is_list(kind):
        each = _or_null(_reader(kind.value_type, text))
        return lambda values: [each(value) for value in values]
    if types.is_struct(kind):
        parts = {field.name: _or_null(_reader(field.type, text)) for field in kind}
        return lambda struct: {name: part(struct[name]) for name, part in parts.items()}
    if types.is_floating(kind):
        return float
    if types.is_binary(kind):
        return b64decode
    if types.is_timestamp(kind):
        return datetime.fromisoformat
    if types.is_date(kind):
        return date.fromisoformat
    if types.is_decimal(kind):
        return Decimal
    return text if types.is_string(kind) else as_is


def _key_reader(kind: pa.DataType, text: Text) -> Convert:
    """The function that converts a JSON object's name back to a map key."""
    if types.is_boolean(kind):
        return "true".__eq__
    if types.is_integer(kind):
        return int
    read = _reader(kind, text)
    return (lambda name: read(json.loads(name))) if types.is_nested(kind) else read


def _name(key: Any) -> str:
    return key if isinstance(key, str) else _dumps(key)


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds") + "Z"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
