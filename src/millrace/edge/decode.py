"""Decoding: JSON text to columns of a schema, a bundle at a time, in DuckDB.

A record must be a JSON object. Its fields are read by name; one that is missing or null is NULL, others are left
out. A field fits if its text reads as a value of the column's type: a whole number for BIGINT (5 or "5", not
5.5), an ISO time for TIMESTAMP, in UTC where it names no zone; anything for STRING. A record that does not fit is set
aside with the reason, and the rest go on.
"""

import json
from collections.abc import Container
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from millrace.edge.connection import PLACE, Prepared
from millrace.log.sql import quoted
from millrace.log.typed import pointer, value_of
from millrace.model.schema import Column, Schema

MISFIT = "__misfit"
"""The column that says whether a record does not fit, and why."""
_NOT_AN_OBJECT = -1
_FIRST, _LAST = "TIMESTAMPTZ '0001-01-01 00:00:00+00'", "TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"
"""The times that Python knows, and the reference with it."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A record that was set aside: its place in the bundle, and why."""

    place: int
    reason: str


class JsonDecoder:
    """JSON text to the columns of one schema."""

    def __init__(self, schema: Schema, wanted: Container[str] | None = None) -> None:
        """Write the statements, for all columns or for those wanted. Refuses types that cannot be decoded."""
        self._schema, self._prepared = schema, Prepared()
        # Any text fits a STRING, so one that nobody wants need not be looked at; other fields may be misfits.
        read = [column for column in schema if wanted is None or column.name in wanted or column.type != "STRING"]
        # Everything is read as text first: DuckDB itself would read 5.5 as the BIGINT 6.
        texts = ", ".join(_string(pointer(column.name)) for column in read or schema.columns[:1])
        places = {column.name: place for place, column in enumerate(read, 1)}
        values = [f"{value_of(column, f'j[{place}]')} AS v{place}" for place, column in enumerate(read, 1)]
        misfits = [
            f"WHEN {_is_none(column, f'v{places[column.name]}')} AND j[{places[column.name]}] IS NOT NULL THEN {number}"
            for number, column in enumerate(schema)
            if column in read and column.type != "STRING"
        ]
        misfit = f"CASE WHEN j IS NULL THEN {_NOT_AN_OBJECT} {' '.join(misfits)} END AS {MISFIT}"
        parsed = f"json_extract_string(value, [{texts}])"
        object_ = "json_valid(value) AND starts_with(ltrim(value, ' \t\r\n'), '{')"
        with_values = ", ".join(["*", *values])
        trusting, checking = (
            f"(SELECT *, {misfit} FROM (SELECT {with_values} FROM (SELECT *, {extracted} AS j FROM __rows)))"
            for extracted in (parsed, f"CASE WHEN {object_} THEN {parsed} END")
        )
        named = [f"v{place} AS {quoted(name)}" for name, place in places.items()]
        self._trusting, self._checking = (
            f"SELECT {', '.join([*named, MISFIT])} FROM {marked}" for marked in (trusting, checking)
        )
        # The check is part of every value, so that no row is left out before it was checked.
        sure = [
            f"CASE WHEN {MISFIT} IS NULL THEN v{places[name]} ELSE error('a record does not fit') END AS {quoted(name)}"
            if name in places
            else f"CAST(NULL AS STRING) AS {quoted(name)}"
            for name in schema.names
        ]
        self.sure = f"(SELECT {', '.join([PLACE, *sure])} FROM {trusting})"
        """All that look like objects, as rows of the schema; reading a value of one that does not fit fails."""

    def decode(self, values: pa.Array) -> tuple[pa.Table, list[Misfit]]:
        """The records that fit, as columns in their order, and those that do not."""
        with self._prepared.over(pa.table({"value": values})) as ask:
            try:
                statement = self._trusting if look_like_objects(values) else self._checking
                decoded = ask(statement).to_arrow_table()
            except duckdb.Error:
                # One record that is no JSON fails the statement; now each is asked first, which costs a second look.
                decoded = ask(self._checking).to_arrow_table()
        marks = decoded[MISFIT]
        rows = decoded.drop_columns([MISFIT])
        if marks.null_count == len(marks):
            return rows, []
        misfits = [
            Misfit(place, self._reason(mark, values[place].as_py()))
            for place, mark in enumerate(marks.to_pylist())
            if mark is not None
        ]
        return rows.filter(marks.is_null()), misfits

    def _reason(self, mark: int, text: str | None) -> str:
        if text is None:
            return "it is not text in UTF-8"
        if mark == _NOT_AN_OBJECT:
            return f"it is not a JSON object: {text.strip()!r:.80}"
        column = self._schema.columns[mark]
        return f"{column.name} is not {column.type}: {_field(text, column.name)!r:.80}"


def _field(text: str, name: str) -> object:
    """What a record says in a field; all that it says, if Python cannot tell."""
    try:
        return json.loads(text)[name]
    except (ValueError, KeyError, RecursionError):
        return text.strip()


def look_like_objects(values: pa.Array) -> bool:
    """Whether every text starts with a brace, so that what is JSON among them is an object."""
    if values.null_count or not len(values):
        return False
    _, offsets, data = values.buffers()
    width = np.int64 if pa.types.is_large_string(values.type) else np.int32
    starts = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1]
    if data is None or (starts[:-1] == starts[1:]).any():
        return False
    return bool((np.frombuffer(data, np.uint8)[starts[:-1]] == ord("{")).all())


def _is_none(column: Column, value: str) -> str:
    """Whether a value that was read is none of its type."""
    outside = f" OR {value} NOT BETWEEN {_FIRST} AND {_LAST}" if column.type == "TIMESTAMP" else ""
    return f"({value} IS NULL{outside})"


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
