"""Sources of rows (topics, files, custom sources, memory in tests) and small tables to join with."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from millrace.model.connectors import CustomSource
from millrace.model.duration import to_instant
from millrace.model.errors import caller, refuse, refuse_unknown, shown
from millrace.model.schema import Schema, parse_schema
from millrace.model.stream import Source, Table
from millrace.model.window import Row

ARCHIVE = "archive"
"""The option of a source that names the folder where its records are archived."""


def log(topic: str, schema: str | Mapping[str, str] | Schema, start: str | datetime = "earliest") -> Source:
    """The rows of a log topic, each a JSON object with these columns.

    A stream starts at the earliest record in the topic, at the end of the topic (`latest`), or, in each partition, at
    the first record whose timestamp is not before a datetime.
    """
    name, columns = _name(topic, "topic"), parse_schema(schema)
    if start == "earliest":
        return Source("log", name, columns, place=caller())
    if isinstance(start, str) and start != "latest":
        raise refuse(f"start= must be 'earliest', 'latest' or a datetime, not {start!r}")
    begin = start if isinstance(start, str) else str(to_instant(start))
    return Source("log", name, columns, (("start", begin),), caller())


def files(
    path: str, schema: str | Mapping[str, str] | Schema, format: str = "json", per_batch: int | None = None
) -> Source:
    """The rows of the files in a folder, in the order in which files appear there.

    A micro-batch reads all new files, or at most `per_batch` of them.
    """
    if format not in ("json", "parquet"):
        raise refuse_unknown("file format", format, ("json", "parquet"))
    if per_batch is not None and (not isinstance(per_batch, int) or isinstance(per_batch, bool) or per_batch < 1):
        raise refuse(f"per_batch= must be the largest number of files in a micro-batch, not {per_batch!r}")
    limit = () if per_batch is None else (("per_batch", str(per_batch)),)
    return Source("files", str(path), parse_schema(schema), (("format", format), *limit), caller())


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
    if bool(given) + (path is not None) + (view is not None) != 1:
        raise refuse(f"table {name!r} needs exactly one of rows=, with at least one row, path= or view=")
    for row in given:
        for column in row:
            if column not in columns:
                raise refuse_unknown("column", column, columns.names)
    values = tuple(tuple(row.get(column) for column in columns.names) for row in given)
    return Table(_name(name, "table"), columns, values, path, view)


def _name(name: str, what: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise refuse(f"the name of a {what} must be a string that is not empty, not {name!r}")
    return name
