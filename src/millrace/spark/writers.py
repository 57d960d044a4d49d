"""Writers of answers, one micro-batch at a time, and delivery guarantees.

A writer receives the answers of a micro-batch with a commit: the pipeline, the checkpoint and the id of the batch.
Spark repeats an interrupted batch under the same id and with the same answers, so a writer that finds the commit stored
does nothing: that is exactly-once. At-least-once writes without checking. At-most-once records the batch before it
writes, and does not write a recorded batch.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, assert_never

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from millrace.eventlog.durable import remove_parts, write_whole
from millrace.eventlog.room import why_no_room
from millrace.eventlog.sealed import sealed, unsealed
from millrace.eventlog.topics import Log
from millrace.model.connectors import Commit, CustomSink
from millrace.model.errors import NOTHING_LOST, ConflictError, MachineError, PipelineError, unknown
from millrace.model.pipeline import FileSink, FunctionSink, ObjectSink, Sink, TableSink, TopicSink
from millrace.model.plain import as_text, to_json
from millrace.model.schema import Schema
from millrace.spark.answers import free_names
from millrace.spark.crash import reach
from millrace.spark.trouble import by_number


class Guarantee(StrEnum):
    """How often an answer is delivered despite failures."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


def parse_guarantee(text: str) -> Guarantee:
    """A guarantee by its name."""
    if text not in tuple(Guarantee):
        raise PipelineError(unknown("guarantee", text, Guarantee))
    return Guarantee(text)


class Writer(Protocol):
    """Writes answers to one sink."""

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Write the answers of a micro-batch; if `once`, together with the commit, unless that is stored already."""

    def replace(self, answers: pa.Table) -> None:
        """Replace all earlier answers with those of a batch."""


class Views(Protocol):
    """Stores the answers of all views of a pipeline."""

    def write(self, answers: Mapping[str, pa.Table], commit: Commit, once: bool) -> None:
        """Store the answers of a micro-batch, by view, in one transaction; `once` is as for a writer."""

    def replace(self, answers: Mapping[str, pa.Table]) -> None:
        """Replace all stored answers with those of a batch, by view."""


class Delivery:
    """Delivers answers to writers with a guarantee."""

    def __init__(self, pipeline: str, checkpoint: str, guarantee: Guarantee, noted: Path) -> None:
        """`noted` is the file with the last batch begun, for at-most-once."""
        self._pipeline, self._checkpoint, self._guarantee, self._noted = pipeline, checkpoint, guarantee, noted

    def deliver(self, batch: int, writes: Iterable[Callable[[Commit, bool], None]]) -> None:
        """Write the answers of a micro-batch; each write receives the commit and the flag `once`."""
        reach("sink before write")
        if self._guarantee is Guarantee.AT_MOST_ONCE and not self._begin(batch):
            return
        for write in writes:
            write(Commit(self._pipeline, self._checkpoint, batch), self._guarantee is Guarantee.EXACTLY_ONCE)
        reach("sink after write")

    def _begin(self, batch: int) -> bool:
        """Record that a batch is begun; False if it was begun before, so that it may have been written."""
        if self._noted.exists() and begun_batch(self._noted) >= batch:
            return False
        text = json.dumps(sealed({"batch": batch}))
        write_whole(self._noted, lambda path: path.write_text(text))
        return True


def begun_batch(file: Path) -> int:
    """The last batch whose write was started, from the file that records it. Raises ValueError if it is damaged."""
    text = file.read_text()
    if text.isdigit():  # as earlier releases wrote it
        return int(text)
    batch = unsealed(text).get("batch")
    if not isinstance(batch, int):
        raise ValueError("it names no batch")
    return batch


class FileWriter:
    """Files in a folder, one for each micro-batch that has answers. A visible file is complete."""

    def __init__(self, folder: str, format: str) -> None:
        """Create the folder if it does not exist, and remove incomplete files."""
        self._folder, self._format = Path(folder), format
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            remove_parts(self._folder)
        except OSError as error:
            raise MachineError(f"cannot write to the folder {folder}: {error.strerror}", NOTHING_LOST) from None

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Write a file named by the commit; unless `once`, the name also holds the process id."""
        if not len(answers):
            return
        name = f"{commit.pipeline}-{commit.checkpoint}-{commit.batch:09}"
        path = self._folder / f"{name}{'' if once else f'-{os.getpid()}'}.{self._format}"
        if not (once and path.exists()):
            self._put(answers, path)

    def replace(self, answers: pa.Table) -> None:
        """Write one file, then remove the others."""
        path = self._folder / f"answers.{self._format}"
        self._put(answers, path)
        for other in self._folder.glob(f"*.{self._format}"):
            if other != path:
                other.unlink()

    def _put(self, answers: pa.Table, path: Path) -> None:
        def write(whole: Path) -> None:
            if self._format == "parquet":
                pq.write_table(answers, whole)
            else:
                with whole.open("w", encoding="utf-8") as file:
                    file.writelines(line + "\n" for line in _lines(answers))
            reach("sink during write")

        with _clear(f"cannot write {path}", path):
            write_whole(path, write)


class TableWriter:
    """A table of an SQLite database, with a row for each change of an answer."""

    def __init__(self, path: str, table: str, schema: Schema) -> None:
        """Create the table if it does not exist. Refuses one with other columns."""
        self._path, self._table = path, table
        names = [*schema.names, *free_names(schema.names, ["batch"])]
        lower = [name.lower() for name in names]
        for name in names:
            if lower.count(name.lower()) > 1:
                raise PipelineError(f"SQLite has no table with two columns {name!r}, in capitals or not", "rename one")
        self._columns = ['"' + name.replace('"', '""') + '"' for name in names]
        with self._transaction() as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS millrace_commits "
                "(pipeline TEXT, checkpoint_id TEXT, output TEXT, last_batch INTEGER, "
                "PRIMARY KEY (pipeline, checkpoint_id, output)) WITHOUT ROWID"
            )
            found = ['"' + row[1].replace('"', '""') + '"' for row in database.execute(f'PRAGMA table_info("{table}")')]
            if not found:
                kinds = [_affinity(column.type) for column in schema] + ["INTEGER"]
                columns = ", ".join(f"{name} {kind}" for name, kind in zip(self._columns, kinds, strict=True))
                database.execute(f'CREATE TABLE "{table}" ({columns})')
            elif found != self._columns:
                raise ConflictError(
                    f"table {table} of {path} has the columns {', '.join(found)}, not {', '.join(self._columns)}",
                    "choose another table",
                )

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Insert rows in one transaction, with the commit if `once`."""
        with self._transaction() as database:
            if once:
                key = (commit.pipeline, commit.checkpoint, self._table)
                last = database.execute(
                    "SELECT last_batch FROM millrace_commits WHERE (pipeline, checkpoint_id, output) = (?, ?, ?)", key
                ).fetchone()
                if last is not None and last[0] >= commit.batch:  # batches are run in order
                    return
                database.execute("INSERT OR REPLACE INTO millrace_commits VALUES (?, ?, ?, ?)", (*key, commit.batch))
            self._insert(database, answers, commit.batch)
            reach("sink during write")

    def replace(self, answers: pa.Table) -> None:
        """Replace all rows in one transaction."""
        with self._transaction() as database:
            database.execute(f'DELETE FROM "{self._table}"')
            self._insert(database, answers, 0)

    def _insert(self, database: sqlite3.Connection, answers: pa.Table, batch: int) -> None:
        columns = [_plain(column) for column in answers.columns]
        rows = zip(*columns, [batch] * len(answers), strict=True)
        marks = ", ".join("?" * len(self._columns))
        database.executemany(f'INSERT INTO "{self._table}" VALUES ({marks})', rows)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        clear = _clear(f"cannot write to {self._path}", Path(self._path))
        with clear, closing(sqlite3.connect(self._path, timeout=60)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            with database:
                database.execute("BEGIN IMMEDIATE")
                yield database


class FunctionWriter:
    """A user's function. It may be called twice for one batch, and can detect that by the batch id."""

    def __init__(self, function: Callable[[list[Mapping[str, Any]], int], None]) -> None:
        self._function = function

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Call the function if there are answers."""
        if len(answers):
            self._function(answers.to_pylist(), commit.batch)

    def replace(self, answers: pa.Table) -> None:
        """Call the function once, with batch id 0."""
        self._function(answers.to_pylist(), 0)


class TopicWriter:
    """A topic of the log, with a JSON record for each change of an answer."""

    def __init__(self, log: str, topic: str) -> None:
        """Refuses a topic that does not exist."""
        self._log, self._topic = Log(log), topic
        self._log.topic(topic)

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Append the answers; if `once`, the producer's sequence number makes a repeated append idempotent."""
        if len(answers):
            producer = f"{commit.pipeline}-{commit.checkpoint}" if once else None
            self._log.append(self._topic, _lines(answers), producer=producer, sequence=commit.batch if once else None)

    def replace(self, answers: pa.Table) -> None:
        """Append the answers: records of a topic are never replaced."""
        if len(answers):
            self._log.append(self._topic, _lines(answers))


class ObjectWriter:
    """A user's `CustomSink`."""

    def __init__(self, sink: CustomSink) -> None:
        self._sink = sink

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Pass the answers and the commit to the sink, which stores them once whatever the guarantee is."""
        if len(answers):
            self._sink.write(answers, commit)

    def replace(self, answers: pa.Table) -> None:
        """Pass the answers of a batch to the sink."""
        self._sink.replace(answers)


def writer_of(sink: Sink, schema: Schema, log: str) -> Writer:
    """The writer of a sink."""
    match sink:
        case FileSink(path, format):
            return FileWriter(path, format)
        case TableSink(path, table):
            return TableWriter(path, table, schema)
        case FunctionSink(function):
            return FunctionWriter(function)
        case TopicSink(topic):
            return TopicWriter(log, topic)
        case ObjectSink(writer):
            return ObjectWriter(writer)
        case never:
            assert_never(never)


@contextmanager
def _clear(what: str, path: Path) -> Iterator[None]:
    """Raise system and SQLite errors as machine errors with advice."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        full = why_no_room(path)
        if full is not None:
            raise by_number(full, path) from error
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise MachineError(f"{what}: {said}", NOTHING_LOST) from error


def _affinity(type: str) -> str:
    if type in ("TINYINT", "SMALLINT", "INT", "BIGINT", "BOOLEAN"):
        return "INTEGER"
    return "REAL" if type in ("DOUBLE", "FLOAT") else "BLOB" if type == "BINARY" else "TEXT"


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Values as SQLite stores them: temporal, decimal and nested values as text."""
    values = column.to_pylist()
    kind = column.type
    if pa.types.is_nested(kind):
        return [None if value is None else to_json(value) for value in values]
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return [None if value is None else as_text(value) for value in values]
    return list(values)


def _lines(answers: pa.Table) -> list[str]:
    """Each row as a JSON object."""
    return [to_json(row) for row in answers.to_pylist()]
