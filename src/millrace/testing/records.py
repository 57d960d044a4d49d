"""Converts records of a script to rows with the types of their source, in the same way for every engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from millrace.edge.decode import JsonDecoder
from millrace.model.errors import Place, at_place, refuse, refuse_unknown, shown
from millrace.model.fitting import fits
from millrace.model.plain import to_json
from millrace.model.schema import Schema, missing
from millrace.model.stream import Source, Table
from millrace.model.window import Row
from millrace.testing.script import Arrival, Contents, Record, parsed_time


@dataclass(frozen=True, slots=True)
class Admitted:
    """The records of a step, divided into rows that fit the source and misfits."""

    rows: list[Row]
    """Rows with all columns of the source."""
    records: list[Record]
    """The record of each row, as the script gives it."""
    misfits: list[tuple[Record, str]]
    """The records that do not fit, with the reason."""


def admit(source: Source, arrivals: Sequence[Arrival]) -> list[Admitted]:
    """The records that arrive at a source, by step, decoded as in a running pipeline.

    Refuses a column that the source does not have, with the place of the step. All steps are decoded in one call,
    because the decoder's overhead per call exceeds the time for a few rows.
    """
    for step in arrivals:
        _check_records(source, step)
    rows, reasons = (_decode if is_json(source) else _cast)(
        source, [each for step in arrivals for each in step.records]
    )
    fitting, place = iter(rows), 0
    admitted = []
    for step in arrivals:
        numbered = list(enumerate(step.records, place))
        kept = [record for number, record in numbered if number not in reasons]
        misfits = [(record, reasons[number]) for number, record in numbered if number in reasons]
        admitted.append(Admitted([next(fitting) for _ in kept], kept, misfits))
        place += len(numbered)
    return admitted


def contents_of(table: Table, step: Contents) -> list[Row]:
    """The rows of a table, with all its columns. Refuses values that are not of their column's type."""
    rows: list[Row] = []
    for row in step.rows:
        _check_columns(row, table.schema, f"table {table.name!r}", step.place)
        typed = with_times(table.schema, row)
        wrong = misfit(table.schema, typed)
        if wrong is not None:
            raise refuse(f"table {table.name!r}: {wrong}", step.place)
        rows.append(typed)
    return rows


def with_times(schema: Schema, row: Row) -> dict[str, Any]:
    """A row with all columns of a schema; dates and times in ISO 8601 text are parsed."""
    return {column.name: _value(row.get(column.name), column.type) for column in schema}


def misfit(schema: Schema, row: Row) -> str | None:
    """A message about the first value that does not have its column's type; None if all fit."""
    for column in schema:
        if not fits(row[column.name], column.type):
            return f"{column.name} is not {column.type}: {row[column.name]!r:.80}"
        if column.required and row[column.name] is None:
            return missing(column.name)
    return None


def is_json(source: Source) -> bool:
    """Whether the records of a source are JSON text."""
    return source.kind in ("log", "kafka") or dict(source.options).get("format") == "json"


def _decode(source: Source, records: Sequence[Record]) -> tuple[list[Row], dict[int, str]]:
    """Encode records as JSON and decode it as a running pipeline does: rows that fit, and reasons by record number."""
    texts = [record if isinstance(record, str) else to_json(record) for record in records]
    with at_place(source.place):
        decoder = _decoder(source.schema, source.is_strict)
    rows, misfits = decoder.decode(pa.array(texts, pa.string()))
    return rows.to_pylist(), {each.row: each.reason for each in misfits}


@lru_cache(64)
def _decoder(schema: Schema, strict: bool) -> JsonDecoder:
    return JsonDecoder(schema, strict=strict)


def _cast(source: Source, records: Sequence[Record]) -> tuple[list[Row], dict[int, str]]:
    """Check records as Python values: rows that fit, and reasons by record number."""
    rows: list[Row] = []
    reasons: dict[int, str] = {}
    for number, record in enumerate(records):
        assert not isinstance(record, str)
        row = with_times(source.schema, record)
        wrong = misfit(source.schema, row)
        if wrong is None:
            rows.append(row)
        else:
            reasons[number] = wrong
    return rows, reasons


def _check_records(source: Source, step: Arrival) -> None:
    for record in step.records:
        if not isinstance(record, str):
            if source.is_strict and is_json(source):  # an unknown field makes a dead letter
                continue
            _check_columns(record, source.schema, f"source {source.name!r}", step.place)
        elif not is_json(source):
            problem = (
                f"the records of source {source.name!r} are not JSON, so a row must be a dict, not {shown(record)}"
            )
            raise refuse(problem, step.place)


def _check_columns(row: Row, schema: Schema, where: str, place: Place) -> None:
    for name in row:
        if name not in schema:
            raise refuse_unknown("column", name, schema.names, place).about(where)


def _value(value: Any, type: str) -> Any:
    if type == "TIMESTAMP":
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return parsed_time(value) or value
    if type == "DATE" and isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            return value
    return value
