"""Sources of rows (topics, files, custom sources, memory in tests) and small tables to join with."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from millrace.model.connectors import CustomSource
from millrace.model.duration import to_instant
from millrace.model.errors import caller, refuse, refuse_unknown, shown
from millrace.model.schema import Schema, parse_schema
from millrace.model.stream import ARCHIVE, STRICT, Source, Table
from millrace.model.window import Row

FORMATS = ("json", "csv", "parquet")
"""The formats of `files(...)`."""


def log(
    topic: str, schema: str | Mapping[str, str] | Schema, start: str | datetime = "earliest", strict: bool = False
) -> Source:
    """The rows of a log topic, each a JSON object with these columns.

    A stream starts at the earliest record in the topic, at the end of the topic (`latest`), or, in each partition, at
    the first record whose timestamp is not before a datetime. A record without a value for a NOT NULL column is a dead
    letter and, if `strict`, so is one with a field that is no column.
    """
    name, columns, options = _name(topic, "topic"), parse_schema(schema), _strict(strict)
    if start == "earliest":
        return Source("log", name, columns, options, caller())
    if isinstance(start, str) and start != "latest":
        raise refuse(f"start= must be 'earliest', 'latest' or a datetime, not {start!r}")
    begin = start if isinstance(start, str) else str(to_instant(start))
    return Source("log", name, columns, (("start", begin), *options), caller())


def files(
    path: str,
    schema: str | Mapping[str, str] | Schema,
    format: str = "json",
    per_batch: int | None = None,
    strict: bool = False,
    delimiter: str | None = None,
) -> Source:
    """The rows of the files in a folder, in the order in which files appear there.

    A micro-batch reads all new files, or at most `per_batch` of them. A row without a value for a NOT NULL column is a
    dead letter and, if `strict`, so is one with a field that is no column. The fields of a CSV file are between commas,
    semicolons, tabs or bars, whichever its first row has most of, or between a given `delimiter`.
    """
    if format not in FORMATS:
        raise refuse_unknown("file format", format, FORMATS)
    if delimiter is not None and format != "csv":
        raise refuse(f"delimiter= is for CSV files, and these are {format}")
    if delimiter is not None and (len(delimiter.encode()) != 1 or delimiter in '"\r\n'):
        raise refuse(f"delimiter= must be one ASCII character such as ';', not {delimiter!r}")
    if per_batch is not None and (not isinstance(per_batch, int) or isinstance(per_batch, bool) or per_batch < 1):
        raise refuse(f"per_batch= must be the largest number of files in a micro-batch, not {per_batch!r}")
    limit = () if per_batch is None else (("per_batch", str(per_batch)),)
    between = () if delimiter is None else (("delimiter", delimiter),)
    options = (("format", format), *limit, *between, *_strict(strict))
    return Source("files", str(path), parse_schema(schema), options, caller())


def layers(batch: Source, speed: Source) -> Source:
    """A topic that is also archived: `layers(batch=files("archive", schema, "parquet"), speed=log("plays", schema))`.

    A stream reads the topic. `millrace run FILE --layer batch` brings the archive up to date with the topic,
    recomputes all windows that are over from the archive alone, and replaces the stream's rows with the results.
    """
    for source, kind in ((batch, "files"), (speed, "log")):
        if not isinstance(source, Source) or source.kind != kind:
            raise refuse(f"layers() takes batch=files(...) and speed=log(...), not {shown(source)}")
    if dict(batch.options)["format"] != "parquet":
        raise refuse("the archive of layers() must be Parquet", advice="write files(path, schema, 'parquet')")
    if batch.schema != speed.schema:
        raise refuse(f"the sources of layers() have different columns: ({batch.schema}) and ({speed.schema})")
    return Source("log", speed.name, speed.schema, (*speed.options, (ARCHIVE, batch.name)), caller())


def source(name: str, schema: str | Mapping[str, str] | Schema, reader: CustomSource) -> Source:
    """The rows of a source of your own: `source("orders", "id BIGINT, at TIMESTAMP", Orders(url))`.

    Offsets are stored under the name; keep it when the reader changes.
    """
    if not isinstance(reader, CustomSource):
        raise refuse(f"source() takes an object of a class derived from millrace.CustomSource, not {shown(reader)}")
    return Source("custom", _name(name, "source"), parse_schema(schema), place=caller(), reader=reader)


def memory(name: str, schema: str | Mapping[str, str] | Schema) -> Source:
    """A source whose rows a test passes to the engine directly."""
    return Source("memory", _name(name, "source"), parse_schema(schema), place=caller())


def table(
    name: str,
    schema: str | Mapping[str, str] | Schema,
    rows: Iterable[Row] = (),
    path: str | None = None,
    view: str | None = None,
) -> Table:
    """A small table to join with: given rows, the rows of a CSV, JSON or Parquet file, or those of a view.

    A file or a view may change while a pipeline runs: each micro-batch reads a snapshot.
    """
    columns, given = parse_schema(schema), list(rows)
    if columns.required:
        problem = f"table {name!r}: column {columns.required[0]!r} is NOT NULL, which only a source can be"
        raise refuse(problem, advice="leave NOT NULL out")
    if bool(given) + (path is not None) + (view is not None) != 1:
        raise refuse(f"table {name!r} needs exactly one of rows=, with at least one row, path= or view=")
    for row in given:
        for column in row:
            if column not in columns:
                raise refuse_unknown("column", column, columns.names)
    values = tuple(tuple(row.get(column) for column in columns.names) for row in given)
    return Table(_name(name, "table"), columns, values, path, view)


def _strict(strict: bool) -> tuple[tuple[str, str], ...]:
    return ((STRICT, "true"),) if strict else ()


def _name(name: str, what: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise refuse(f"the name of a {what} must be a string that is not empty, not {name!r}")
    return name
