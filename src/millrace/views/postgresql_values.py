"""The representation of values in PostgreSQL.

PostgreSQL's text cannot hold the character NUL. NUL is stored as U+2400, the symbol for it, and U+2400 itself with
U+241B, the symbol for escape, before it: so the encoding is reversible, and distinct texts stay distinct. Text sorts
by code point, as in Spark. Nested values are JSONB.
"""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from millrace.views.dialect import Dialect
from millrace.views.nested import from_json, to_json

_SHOWN, _ESCAPE = "\u2400", "\u241b"
_SYMBOLS = b"\xe2\x90"
"""The first two bytes of both symbols in UTF-8."""
_WRITTEN = re.compile(f"{_ESCAPE}([{_SHOWN}{_ESCAPE}])|{_SHOWN}")
_PLAIN = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "SMALLINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "REAL",
    pa.float64(): "DOUBLE PRECISION",
    pa.string(): 'TEXT COLLATE "C"',
    pa.binary(): "BYTEA",
    pa.date32(): "DATE",
}


class PostgresqlDialect(Dialect):
    """The SQL dialect of PostgreSQL."""

    name = "postgres"
    row = "ctid"
    row_type = "TID"
    same = "IS NOT DISTINCT FROM"
    nulls_once = " NULLS NOT DISTINCT"
    kept_with = " WITH (fillfactor = 90)"
    scratch_with = " ON COMMIT DELETE ROWS"
    for_update = " FOR UPDATE"
    alone = "SELECT pg_advisory_xact_lock(7265738)"
    replaces_views = True

    def type_of(self, kind: pa.DataType) -> str:
        """The equivalent type of PostgreSQL."""
        if types.is_decimal(kind):
            return f"NUMERIC({kind.precision}, {kind.scale})"
        if types.is_timestamp(kind):
            return "TIMESTAMPTZ"
        return "JSONB" if types.is_nested(kind) else _PLAIN[kind]

    def plain(self, column: pa.ChunkedArray) -> pa.Array:
        """The column with nested values as JSON text, and with NUL escaped."""
        if types.is_nested(column.type):
            return to_json(column, _without_nul)
        return _all_without_nul(column.combine_chunks()) if types.is_string(column.type) else column.combine_chunks()

    def parameter(self, value: pa.Scalar) -> Any:
        """The value as a Python object, with NUL escaped."""
        plain = value.as_py()
        return _without_nul(plain) if isinstance(plain, str) else plain

    def column(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """A column, from values that PostgreSQL returned."""
        if types.is_nested(kind):
            return from_json(list(values), kind, _with_nul)
        column = pa.array(values, kind)
        if types.is_string(kind) and _holds(column, _SYMBOLS):
            return pa.array([None if value is None else _with_nul(value) for value in values], kind)
        return column


def _all_without_nul(column: pa.Array) -> pa.Array:
    if not _holds(column, b"\0", _SYMBOLS):
        return column
    return pa.array([None if value is None else _without_nul(value) for value in column.to_pylist()], pa.string())


def _without_nul(text: str) -> str:
    return text.replace(_ESCAPE, _ESCAPE * 2).replace(_SHOWN, _ESCAPE + _SHOWN).replace("\0", _SHOWN)


def _with_nul(text: str) -> str:
    """The inverse of `_without_nul`."""
    return _WRITTEN.sub(lambda found: found[1] or "\0", text)


def _holds(column: pa.Array, *parts: bytes) -> bool:
    """Whether the buffer of a text column contains any of these byte sequences, which is rare."""
    _, _, data = column.buffers()
    content = data.to_pybytes() if data else b""
    return any(part in content for part in parts)
