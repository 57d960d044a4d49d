"""Small tables that streams join, as columns: inline rows, or the rows of a file."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.edge.cells import CellDecoder
from millrace.edge.decode import JsonDecoder
from millrace.formats.compressed import opened
from millrace.formats.csvfile import read_csv
from millrace.model.accepted import as_type
from millrace.model.arrow import arrow_type
from millrace.model.errors import MillraceError, NotFoundError, PipelineError, Place, caller, refuse, unreadable
from millrace.model.stream import Table

_SPACES = re.compile(r"[ \t\r\n]*")
_SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")


def columns_of(table: Table, place: Place | None = None) -> pa.Table:
    """The rows of a table. Refuses a file that does not exist or does not fit the table's schema."""
    if table.path is not None:
        return _in_file(table, Path(table.path), place)
    if table.view is not None:  # the host supplies its rows
        return _empty(table)
    columns = zip(*table.rows, strict=True)
    return pa.table(
        {
            column.name: pa.array(values, arrow_type(column.type))
            for column, values in zip(table.schema, columns, strict=True)
        }
    )


def _empty(table: Table) -> pa.Table:
    return pa.table({column.name: pa.array([], arrow_type(column.type)) for column in table.schema})


def _in_file(table: Table, path: Path, place: Place | None) -> pa.Table:
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        advice = f"use a file that ends with one of {', '.join(_SUFFIXES)}"
        raise refuse(f"table {table.name!r}: {path} has an unknown file format", place, advice)
    if not path.is_file():
        raise NotFoundError(
            f"table {table.name!r}: there is no file {path}", "check path= of the table", place or caller()
        )
    read = {".csv": _csv, ".parquet": _parquet}.get(suffix, _json)
    try:
        return read(table, path)
    except MillraceError as error:
        raise error.about(f"table {table.name!r}", place or caller()) from None


def _parquet(table: Table, path: Path) -> pa.Table:
    try:
        held = pq.read_table(path, use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(path, error) from None
    names = _named(table, path, held)
    return pa.table(
        {
            column.name: as_type(held[names[column.name]], column.type, f"{path}: column {column.name}")
            for column in table.schema
        }
    )


def _csv(table: Table, path: Path) -> pa.Table:
    with opened(str(path)) as file:
        batches = list(read_csv(str(path), file))
    if not batches:
        return _empty(table)
    held = pa.Table.from_batches(batches)
    names = _named(table, path, held)
    cells = pa.table({column.name: held[names[column.name]] for column in table.schema})
    rows, misfits = CellDecoder(table.schema).decode(cells)
    if misfits:
        raise PipelineError(f"{path}: row {misfits[0].row + 2}: {misfits[0].reason}")
    return rows


def _json(table: Table, path: Path) -> pa.Table:
    """The rows of JSON objects, one after the other or in an array."""
    try:
        texts = list(_values(path.read_text("utf-8-sig")))
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"{path} is not valid JSON: {error}") from None
    rows, misfits = JsonDecoder(table.schema).decode(pa.array(texts, pa.string()))
    if misfits:
        raise PipelineError(f"{path}: row {misfits[0].row + 1}: {misfits[0].reason}")
    return rows if texts else _empty(table)


def _values(text: str) -> Iterator[str]:
    """The values of a JSON text as written."""
    decoder, end = json.JSONDecoder(), len(text.rstrip())
    at = _SPACES.match(text).end()  # type: ignore[union-attr]
    in_array = text[at : at + 1] == "["
    at, end = (at + 1, end - 1) if in_array else (at, end)
    if in_array and text[end] != "]":
        raise ValueError("an array is opened and never closed")
    while (at := _SPACES.match(text, at).end()) < end:  # type: ignore[union-attr]
        start = at
        _, at = decoder.raw_decode(text, at)
        yield text[start:at]
        at = _SPACES.match(text, at).end()  # type: ignore[union-attr]
        if in_array and at < end:
            if text[at] != "," or _SPACES.match(text, at + 1).end() >= end:  # type: ignore[union-attr]
                raise ValueError(f"a comma and a value are expected at character {at}")
            at += 1


def _named(table: Table, path: Path, held: pa.Table) -> dict[str, str]:
    """The names that the columns of a table have in a file."""
    known = {name.lower(): name for name in held.column_names}
    for column in table.schema:
        if column.name.lower() not in known:
            raise PipelineError(f"{path} has no column {column.name!r} (columns: {', '.join(held.column_names)})")
    return {column.name: known[column.name.lower()] for column in table.schema}
