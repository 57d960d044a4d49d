"""Decodes JSON text into the columns of a schema, one bundle at a time, in DuckDB.

A record must be a JSON object. Its fields are read by name; a missing or null field is NULL, which does not fit a
column that is NOT NULL. Fields that the schema does not have are ignored or, if the decoder is strict, do not fit. A
field fits if its text is a value of the column's type: a whole number for BIGINT (5 or "5", not 5.5), an ISO time for
TIMESTAMP, in UTC if it names no zone; anything for STRING. Arrays, maps and structs are read as texts first, from which
`nested_json` makes values. A record that does not fit is returned as a misfit with the
reason; the others are decoded.
"""

import json
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.edge.by_shape import ByShape
from millrace.edge.connection import Prepared
from millrace.edge.hints import hint_for_text, hint_for_value
from millrace.edge.nested_json import DecodeScalars, NestedColumn
from millrace.formats.fields import names_of
from millrace.formats.sql import quoted
from millrace.formats.texts import SPACES, First, Written
from millrace.formats.typed import OBJECT, as_written, is_doubtful, is_none, is_unsure, pointer, value_of
from millrace.formats.written import written
from millrace.model.arrow import arrow_type
from millrace.model.errors import unknown
from millrace.model.nested import ArrayType, MapType, StructType, nested
from millrace.model.schema import Column, Schema, missing

MISFIT = "__misfit"
"""The column that marks a record that does not fit, and encodes the reason."""
_NOT_AN_OBJECT, _LOOK, _UNKNOWN = -1, -2, -3
_COMMA = re.compile(r",\s*\}\s*\Z")
_OPEN, _CLOSE, _BREAK = b"{}\n"
_SPACE, _DOUBTFUL = (np.isin(np.arange(256), [*signs]) for signs in (b" \t\r\n", b" \t\r\n,"))


@dataclass(frozen=True, slots=True)
class Misfit:
    """A record that does not fit the schema: its row in the bundle, and the reason."""

    row: int
    problem: str
    """The reason without the values of the record, so that records with the same problem can be counted."""
    found: str | None = None
    """The part of the record that does not fit."""
    hint: str | None = None

    @property
    def reason(self) -> str:
        """The problem, with what was found."""
        return self.problem if self.found is None else f"{self.problem}: {self.found}"


class JsonDecoder:
    """Decodes JSON text into the columns of one schema."""

    def __init__(self, schema: Schema, wanted: Container[str] | None = None, strict: bool = False) -> None:
        """Write the statements, for all columns or for the wanted ones. Refuses types that cannot be decoded."""
        self._schema, self._prepared, self._looking = schema, Prepared(), Prepared()
        # Any text fits a STRING, so an unwanted STRING is not read; a field of another type, or none, may not fit.
        read = [
            column
            for column in schema
            if strict or wanted is None or column.name in wanted or column.type != "STRING" or column.required
        ]
        self._nested = [
            NestedColumn(column, _scalars(column), strict) for column in schema if nested(column.type) is not None
        ]
        # The statements below read nested values as texts.
        read, schema = [_flat(column) for column in read], Schema(tuple(map(_flat, schema)))
        numbers = {column.name: number for number, column in enumerate(schema)}
        places = {column.name: place for place, column in enumerate(read, 1)}
        # Everything is read as text first: DuckDB itself would read 5.5 as the BIGINT 6.
        pointers = ", ".join(_string(pointer(column.name)) for column in read or schema.columns[:1])
        parsed = f"json_extract_string(value, [{pointers}])"
        texts = {name: f"j[{place}]" for name, place in places.items()}
        unsure = {
            column: is_unsure(column, f"v{places[column.name]}" if column.type == "STRING" else texts[column.name])
            for column in read
        }
        self._unsure = [column for column, condition in unsure.items() if condition is not None]
        marks = [f"WHEN {condition} THEN {_LOOK}" for condition in unsure.values() if condition is not None]

        def marked(extracted: str, texts: dict[str, str], marks: list[str]) -> str:
            values = [f"{value_of(column, texts[column.name])} AS v{places[column.name]}" for column in read]
            given = [(column, f"v{places[column.name]}", texts[column.name]) for column in read]
            doubts = [
                is_doubtful(column, value, value if column.type == "STRING" else text) for column, value, text in given
            ]
            absent = [(column, f"{text} IS NULL") for column, _, text in given if column.required]
            extra = [f"NOT list_has_all([{', '.join(map(_string, schema.names))}], k)"] if strict else []
            # To compare all names takes DuckDB longer than to decode; a record with as many names as values is right.
            present = " + ".join(f"CAST({text} IS NOT NULL AS INTEGER)" for _, _, text in given)
            doubts += [f"len(k) <> {present}"] if strict else []
            doubtful = " OR ".join(["j IS NULL", *doubts, *(condition for _, condition in absent)])
            misfits = [
                f"WHEN {is_none(column, value, text)} THEN {numbers[column.name]}"
                for column, value, text in given
                if column.type != "STRING"
            ]
            misfits += [f"WHEN {condition} THEN {numbers[column.name]}" for column, condition in absent]
            misfits += [f"WHEN {condition} THEN {_UNKNOWN}" for condition in extra]
            mark = " ".join([f"CASE WHEN j IS NULL THEN {_NOT_AN_OBJECT}", *marks, *misfits, "END"])
            keys = f", {extracted.replace(parsed, 'json_keys(value)')} AS k" if strict else ""
            rows = f"(SELECT *, {extracted} AS j{keys} FROM __rows)"
            # Almost no record is doubtful; the others need no further check.
            rows = f"(SELECT *, {doubtful} AS doubtful FROM (SELECT {', '.join(['*', *values])} FROM {rows}))"
            return f"(SELECT *, CASE WHEN doubtful THEN {mark} END AS {MISFIT} FROM {rows})"

        trusting, checking = (
            marked(extracted, texts, marks) for extracted in (parsed, f"CASE WHEN {OBJECT} THEN {parsed} END")
        )
        exact = {column.name: as_written(f"w{n}", texts[column.name]) for n, column in enumerate(self._unsure)}
        looking = marked(parsed, texts | exact, [])
        self.by_shape = ByShape(read, schema, strict)
        """Decodes most records of large bundles."""
        named = [f"v{place} AS {quoted(name)}" for name, place in places.items()]
        self._trusting, self._checking, self._exact = (
            f"SELECT {', '.join([*named, MISFIT])} FROM {rows}" for rows in (trusting, checking, looking)
        )
        # The check is part of every value, so that DuckDB cannot drop a row before it is checked.
        sure = [
            f"CASE WHEN {MISFIT} IS NULL THEN v{places[name]} ELSE error('a record does not fit') END AS {quoted(name)}"
            if name in places
            else f"CAST(NULL AS STRING) AS {quoted(name)}"
            for name in schema.names
        ]
        self._sure, self._trusted = sure, trusting

    @property
    def is_one_statement(self) -> bool:
        """Whether a statement decodes all columns."""
        return not self._nested

    def sure(self, hidden: Sequence[str]) -> str:
        """The query that decodes records that look like objects; it fails at a value of one that does not fit.

        The rows keep these `hidden` columns of the records.
        """
        return f"(SELECT {', '.join([*hidden, *self._sure])} FROM {self._trusted})"

    def decode(self, values: pa.Array) -> tuple[pa.Table, list[Misfit]]:
        """The records that fit, as columns in their order, and the misfits."""
        return self._with_nested(*self._decode(values))

    def parse(self, values: pa.Array) -> tuple[pa.Table, list[Misfit]]:
        """The same as `decode`, without shapes: DuckDB parses every record."""
        return self._with_nested(*self._parse(values))

    def _with_nested(self, rows: pa.Table, misfits: list[Misfit]) -> tuple[pa.Table, list[Misfit]]:
        """The rows with nested values instead of their texts; those that do not fit become misfits."""
        found: dict[int, Misfit] = {}
        places = None
        for nested_column in self._nested:
            column = nested_column.column
            values, wrong = nested_column.decode(rows[column.name])
            rows = rows.set_column(rows.column_names.index(column.name), column.name, values)
            if wrong and places is None:
                places = np.delete(np.arange(len(rows) + len(misfits)), [misfit.row for misfit in misfits])
            for row, why in wrong.items():
                found.setdefault(row, Misfit(int(places[row]), f"{column.name} is not {column.type}", why))  # type: ignore[index]
        if not found:
            return rows, misfits
        left = np.delete(np.arange(len(rows)), list(found))
        return rows.take(pa.array(left)), sorted([*misfits, *found.values()], key=lambda misfit: misfit.row)

    def _decode(self, values: pa.Array) -> tuple[pa.Table, list[Misfit]]:
        if not self.by_shape.takes(values):
            return self._parse(values)
        rows, matched = self.by_shape.decode(values)
        if len(rows) == len(values):
            return rows, []
        left = np.flatnonzero(~matched)
        others, misfits = self._parse(values.take(pa.array(left)))
        misfits = [replace(misfit, row=int(left[misfit.row])) for misfit in misfits]
        fitting = np.setdiff1d(left, [misfit.row for misfit in misfits], assume_unique=True)
        places = np.full(len(values), -1)
        places[matched] = np.arange(len(rows))
        places[fitting] = len(rows) + np.arange(len(others))
        together = pa.concat_tables([rows, others]).combine_chunks()
        return together.take(pa.array(places[places >= 0])), misfits

    def _parse(self, values: pa.Array) -> tuple[pa.Table, list[Misfit]]:
        with self._prepared.over(pa.table({"value": values})) as ask:
            try:
                statement = self._trusting if look_like_objects(values) else self._checking
                decoded = ask(statement).to_arrow_table()
            except (duckdb.Error, UnicodeDecodeError):
                # One record that is no JSON fails the statement; this one checks each first, which parses it twice.
                decoded = ask(self._checking).to_arrow_table()
        if decoded[MISFIT].null_count < len(decoded):
            decoded = self._looked_at(decoded, values)
        marks = decoded[MISFIT]
        rows = decoded.drop_columns([MISFIT])
        if marks.null_count == len(marks):
            return rows, []
        misfits = [
            self._misfit(place, mark, values[place].as_py())
            for place, mark in enumerate(marks.to_pylist())
            if mark is not None
        ]
        return rows.filter(marks.is_null()), misfits

    def _looked_at(self, decoded: pa.Table, values: pa.Array) -> pa.Table:
        """The same rows; those in which DuckDB may have rewritten a text are decoded again from the original text."""
        places = np.flatnonzero(decoded[MISFIT].fill_null(0).to_numpy() == _LOOK)
        if not len(places):
            return decoded
        texts = values.take(pa.array(places))
        raw = {f"w{place}": text for place, text in enumerate(written(texts, self._unsure))}
        with self._looking.over(pa.table({"value": texts, **raw})) as ask:
            exact = ask(self._exact).to_arrow_table()
        chosen = np.arange(len(decoded))
        chosen[places] = len(decoded) + np.arange(len(exact))
        return pa.concat_tables([decoded, exact]).take(pa.array(chosen))

    def _misfit(self, row: int, mark: int, text: str | None) -> Misfit:
        if text is None:
            return Misfit(row, "it is not text in UTF-8")
        if mark == _NOT_AN_OBJECT:
            whole = text.strip(SPACES)
            comma = "; a comma stands before its last brace" if _COMMA.search(text) else ""
            return Misfit(row, "it is not a JSON object", f"{whole!r:.80}{comma}", hint_for_text(whole))
        if mark == _UNKNOWN:
            extra = [name for name in names_of(text) if name not in self._schema]
            return Misfit(row, unknown("field", extra[0], self._schema.names))
        column = self._schema.columns[mark]
        found = _field(text, column.name)
        if found is None:
            return Misfit(row, missing(column.name))
        return Misfit(row, f"{column.name} is not {column.type}", f"{found!r:.80}", hint_for_value(column, found))


def _flat(column: Column) -> Column:
    """The column as a statement reads it: a nested value as its text."""
    return column if nested(column.type) is None else replace(column, type="STRING")


def _scalars(column: Column) -> DecodeScalars:
    """Decodes scalar values inside of a column. Refuses a column with a type that cannot be decoded."""
    decoders: dict[str, JsonDecoder] = {}

    def prepare(type: str) -> None:
        match nested(type):
            case ArrayType(element):
                prepare(element)
            case MapType(key, value):
                prepare(key)
                prepare(value)
            case StructType(fields):
                for _, kind in fields:
                    prepare(kind)
            case None:
                if type != "STRING":
                    value_of(replace(column, type=type), "")
                    decoders[type] = JsonDecoder(Schema((Column("value", type),)))
            case never:
                assert_never(never)

    def decode(type: str, tokens: Sequence[str]) -> tuple[pa.Array, list[int]]:
        rows, misfits = decoders[type].parse(pa.array([f'{{"value":{token}}}' for token in tokens], pa.string()))
        return rows["value"].combine_chunks().cast(arrow_type(type)), [misfit.row for misfit in misfits]

    prepare(column.type)
    return decode


def _field(text: str, name: str) -> object:
    """The value of a record's field, a number as written; the whole record if Python cannot read it."""
    try:
        pairs = json.loads(text, object_pairs_hook=First, parse_float=Written, parse_int=Written)
        return pairs.get(name)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return text.strip(SPACES)


def look_like_objects(values: pa.Array) -> bool:
    """Whether every text starts and ends with a brace, without a comma before the last: if JSON, it is an object."""
    if values.null_count or not len(values):
        return False
    _, held, data = values.buffers()
    width = np.int64 if pa.types.is_large_string(values.type) else np.int32
    offsets = np.frombuffer(held, width)[values.offset : values.offset + len(values) + 1]
    if data is None or (offsets[:-1] == offsets[1:]).any():
        return False
    signs = np.frombuffer(data, np.uint8)
    return bool(signs[offsets[0]] == _OPEN) and (_meet_well(signs, offsets) or _start_and_end_well(signs, offsets))


def _meet_well(signs: npt.NDArray[np.uint8], offsets: npt.NDArray[Any]) -> bool:
    """Whether the four bytes around each border show that texts end and start well; reads memory once, not thrice."""
    borders = offsets[1:-1]
    if not len(borders) or borders[0] < 4:
        return False
    around = np.ndarray(len(signs) - 3, "<u4", signs, strides=(1,))[borders - 3]
    ends = 1 if signs[borders[0] - 1] == _BREAK else 2  # lines end with a line break, values of a log do not
    around >>= 8 * (ends - 1)
    usual = int.from_bytes(b"}\n{"[::ends], "little")
    return bool(
        (around >> 8 == usual).all() and not _DOUBTFUL[around & 255].any() and _start_and_end_well(signs, offsets[-2:])
    )


def _start_and_end_well(signs: npt.NDArray[np.uint8], offsets: npt.NDArray[Any]) -> bool:
    at = _before_spaces(signs, offsets[1:] - 1)
    return bool(
        (signs[offsets[:-1]] == _OPEN).all()
        and (signs[at] == _CLOSE).all()
        and (signs[_before_spaces(signs, at - 1)] != ord(",")).all()
    )


def _before_spaces(signs: npt.NDArray[np.uint8], at: npt.NDArray[Any]) -> npt.NDArray[Any]:
    while (spaces := _SPACE[signs[at]]).any():
        at = at - spaces
    return at


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
