"""Where answers go, a micro-batch at a time, and how often.

A writer is given the answers of a micro-batch with a commit: the pipeline and the id of the batch. Spark runs a batch
that was cut off again, under the same id and with the same answers, so a writer that finds the commit there already
does nothing: that is exactly-once. At-least-once writes without looking. At-most-once notes the commit before the
writing, and does not write what is noted.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from millrace.eventlog.durable import remove_parts, write_whole
from millrace.eventlog.topics import Log
from millrace.model.errors import PipelineError, unknown
from millrace.model.pipeline import FileSink, FunctionSink, Sink, TableSink, TopicSink
from millrace.model.plain import as_text, to_json
from millrace.model.schema import Schema
from millrace.spark.answers import free_names
from millrace.spark.crash import reach


class Guarantee(StrEnum):
    """How often an answer arrives when something dies."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


def parse_guarantee(text: str) -> Guarantee:
    """A guarantee by its name."""
    if text not in tuple(Guarantee):
        raise PipelineError(unknown("guarantee", text, Guarantee))
    return Guarantee(text)


@dataclass(frozen=True, slots=True)
class Commit:
    """Which answers these are."""

    pipeline: str
    checkpoint: str
    """The id of the checkpoint that the batch is counted in."""
    batch: int


class Writer(Protocol):
    """Somewhere that answers go."""

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Write the answers of a micro-batch; if `once`, together with the commit, and not if that is there."""

    def replace(self, answers: pa.Table) -> None:
        """Write the answers of a batch, in place of all that was there."""


class Views(Protocol):
    """Where the answers of all views of a pipeline are kept."""

    def write(self, answers: Mapping[str, pa.Table], commit: Commit, once: bool) -> None:
        """Take in the answers of a micro-batch, by view, in one transaction; `once` is as for a writer."""

    def replace(self, answers: Mapping[str, pa.Table]) -> None:
        """Hold the answers of a batch, in place of all that was there."""


class Delivery:
    """Answers to where they go, with a guarantee."""

    def __init__(self, pipeline: str, checkpoint: str, guarantee: Guarantee, noted: Path) -> None:
        """`noted` is the file of what was begun, for at-most-once."""
        self._pipeline, self._checkpoint, self._guarantee, self._noted = pipeline, checkpoint, guarantee, noted

    def deliver(self, batch: int, writes: Iterable[Callable[[Commit, bool], None]]) -> None:
        """Write what a micro-batch answers, by calls that are given the commit, and whether it must be once."""
        reach("sink before write")
        if self._guarantee is Guarantee.AT_MOST_ONCE and not self._begin(batch):
            return
        for write in writes:
            write(Commit(self._pipeline, self._checkpoint, batch), self._guarantee is Guarantee.EXACTLY_ONCE)
        reach("sink after write")

    def _begin(self, batch: int) -> bool:
        """Note that a batch is begun; False if it was before, so that it may have been written."""
        if self._noted.exists() and int(self._noted.read_text()) >= batch:
            return False
        write_whole(self._noted, lambda path: path.write_text(str(batch)))
        return True


class FileWriter:
    """Files in a folder, one a micro-batch that answers something. A file that is there is whole."""

    def __init__(self, folder: str, format: str) -> None:
        """Make the folder if it is not there."""
        self._folder, self._format = Path(folder), format
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            remove_parts(self._folder)
        except OSError as error:
            raise PipelineError(f"cannot write to the folder {folder}: {error.strerror}") from None

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Write a file named by the commit, or, if it need not be once, by that and by who writes it."""
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

        with _clear(f"cannot write {path}"):
            write_whole(path, write)


class TableWriter:
    """A table of an SQLite database: a row for each change of an answer."""

    def __init__(self, path: str, table: str, schema: Schema) -> None:
        """Make the table if it is not there. Refuses one with other columns."""
        self._path, self._table = path, table
        names = [*schema.names, *free_names(schema.names, ["batch"])]
        lower = [name.lower() for name in names]
        for name in names:
            if lower.count(name.lower()) > 1:
                raise PipelineError(f"SQLite has no table with two columns {name!r}, in capitals or not; rename one")
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
                raise PipelineError(
                    f"table {table} of {path} has the columns {', '.join(found)}, not {', '.join(self._columns)}; "
                    "choose another table"
                )

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Add rows in one transaction, with the commit if it is to be once."""
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
        """Put rows in place of all others, in one transaction."""
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
        with _clear(f"cannot write to {self._path}"), closing(sqlite3.connect(self._path, timeout=60)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            with database:
                database.execute("BEGIN IMMEDIATE")
                yield database


class FunctionWriter:
    """A function of the user's. It may be called twice with a batch id, and can tell by it."""

    def __init__(self, function: Callable[[list[Mapping[str, Any]], int], None]) -> None:
        self._function = function

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Call it, if there is anything to say."""
        if len(answers):
            self._function(answers.to_pylist(), commit.batch)

    def replace(self, answers: pa.Table) -> None:
        """Call it once."""
        self._function(answers.to_pylist(), 0)


class TopicWriter:
    """A topic of the log: a record of JSON for each change of an answer."""

    def __init__(self, log: str, topic: str) -> None:
        """Refuses a topic that is not there."""
        self._log, self._topic = Log(log), topic
        self._log.topic(topic)

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Append the answers; the log itself knows an append that it has."""
        if len(answers):
            producer = f"{commit.pipeline}-{commit.checkpoint}" if once else None
            self._log.append(self._topic, _lines(answers), producer=producer, sequence=commit.batch if once else None)

    def replace(self, answers: pa.Table) -> None:
        """Append the answers: what is in a log stays."""
        if len(answers):
            self._log.append(self._topic, _lines(answers))


def writer_of(sink: Sink, schema: Schema, log: str) -> Writer:
    """What writes to a sink."""
    match sink:
        case FileSink(path, format):
            return FileWriter(path, format)
        case TableSink(path, table):
            return TableWriter(path, table, schema)
        case FunctionSink(function):
            return FunctionWriter(function)
        case TopicSink(topic):
            return TopicWriter(log, topic)


@contextmanager
def _clear(what: str) -> Iterator[None]:
    """Errors of the machine as errors that say what to do."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PipelineError(f"{what}: {said}; nothing was lost: mend that, and run again") from error


def _affinity(type: str) -> str:
    if type in ("TINYINT", "SMALLINT", "INT", "BIGINT", "BOOLEAN"):
        return "INTEGER"
    return "REAL" if type in ("DOUBLE", "FLOAT") else "BLOB" if type == "BINARY" else "TEXT"


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Values as SQLite has them: times and what is made of parts as text."""
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
