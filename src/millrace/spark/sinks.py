"""The sinks that Millrace writes itself.

A replay fills a new generation of a sink beside the one in use: files in a folder below it, rows in a table beside it.
`serve` then swaps the two. A topic cannot be swapped: a replay appends to it again, or leaves it out.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, assert_never

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.eventlog.durable import remove_parts, sync, write_whole
from millrace.eventlog.room import why_no_room
from millrace.eventlog.sequences import PIPELINES
from millrace.eventlog.topics import Log
from millrace.model.connectors import Commit, CustomSink, is_stored
from millrace.model.errors import AGAIN, NOTHING_LOST, ConflictError, CorruptError, MachineError, PipelineError
from millrace.model.pipeline import FileSink, FunctionSink, ObjectSink, Sink, TableSink, TopicSink
from millrace.model.plain import as_text, to_json
from millrace.model.schema import Schema
from millrace.spark.answers import free_names
from millrace.spark.crash import reach
from millrace.spark.trouble import by_number
from millrace.spark.writers import Writer


class FileWriter:
    """Files in a folder, one for each micro-batch that has answers. A visible file is complete.

    The hidden file `.millrace-PIPELINE` holds the last commit. Readers ignore names that start with `.` or `_`.
    """

    stores_commits: ClassVar[bool] = True

    def __init__(self, folder: str, format: str, pipeline: str, generation: int = 1, staged: bool = False) -> None:
        """The first commit creates the folder. Incomplete files are removed."""
        self._root, self._format = Path(folder), format
        self._pipeline, self._generation = pipeline, generation
        self._folder = self._stage(generation) if staged else self._root
        _remove_parts(self._folder)

    def last(self) -> Commit | None:
        """The commit in the file."""
        return self._last(self._folder)[0]

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Write a file named by the commit, then the commit; unless `once`, the name also holds the process id."""
        if is_stored(self.last(), commit, f"folder {self._folder}") and once:
            return
        path = self._folder / _name(commit, once, self._format)
        if len(answers):
            _put(answers, path, self._format)
        elif once:  # a killed attempt, with other offsets, may have written it
            path.unlink(missing_ok=True)
        about = {"generation": self._generation, "last": [commit.checkpoint, commit.batch, commit.digest]}
        with _clear(f"cannot write to {self._folder}", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._record(self._folder), lambda part: part.write_text(json.dumps(about), encoding="utf-8"))

    def replace(self, answers: pa.Table) -> None:
        """Write one file, then remove the others."""
        _replace(answers, self._folder, self._format)

    def newest(self) -> int:
        """The newest generation in the folder, by its record and by the folders below."""
        stages = [path.name.split("-")[1] for path in self._root.glob(f"_generation-*-{self._pipeline}")]
        return max([self._served_generation(), *(int(number) for number in stages if number.isdecimal())])

    def serve(self) -> None:
        """Move the files in use into a folder below, and those of this generation to their place.

        A crash in between is completed by the next call: the marker tells whether the old files were moved.
        """
        stage = self._stage(self._generation)
        marker = stage / "_moving"
        if stage.is_dir():
            with _clear(f"cannot move files in {self._root}", self._root):
                if not marker.exists():
                    _move(self._own(self._root), self._stage(self._served_generation()))
                    marker.touch()
                    sync(stage)
                _move(self._own(stage), self._root)
                marker.unlink()
                stage.rmdir()
        self._folder = self._root

    def _served_generation(self) -> int:
        """The generation of the files in use; 0 if their record is missing or damaged, which a replay mends."""
        try:
            return self._last(self._root)[1]
        except ConflictError:
            return 0

    def _stage(self, generation: int) -> Path:
        return self._root / f"_generation-{generation}-{self._pipeline}"

    def _record(self, folder: Path) -> Path:
        return folder / f".millrace-{self._pipeline}"

    def _own(self, folder: Path) -> list[Path]:
        files = [*folder.glob(f"{self._pipeline}-*.{self._format}"), folder / f"answers.{self._format}"]
        return [path for path in [*files, self._record(folder)] if path.exists()]

    def _last(self, folder: Path) -> tuple[Commit | None, int]:
        """The last commit, and the generation, of the files in a folder."""
        try:
            about = json.loads(self._record(folder).read_text(encoding="utf-8"))
            return Commit(self._pipeline, *about["last"]), int(about["generation"])
        except FileNotFoundError:
            return None, 0
        except (ValueError, KeyError, TypeError):
            raise ConflictError(f"{self._record(folder)} is damaged", AGAIN) from None


class TableWriter:
    """A table of an SQLite database, with a row for each change of an answer."""

    stores_commits: ClassVar[bool] = True

    def __init__(
        self, path: str, table: str, schema: Schema, pipeline: str, generation: int = 1, staged: bool = False
    ) -> None:
        """The first commit creates the table."""
        self._path, self._served = path, table
        self._pipeline, self._generation = pipeline, generation
        self._table = _beside(table, generation) if staged else table
        names = [*schema.names, *free_names(schema.names, ["batch"])]
        lower = [name.lower() for name in names]
        for name in names:
            if lower.count(name.lower()) > 1:
                raise PipelineError(
                    f"SQLite has no table with two columns {name!r}, which differ only in case", "rename one"
                )
        self._columns = ['"' + name.replace('"', '""') + '"' for name in names]
        self._kinds = [_affinity(column.type) for column in schema] + ["INTEGER"]

    def last(self) -> Commit | None:
        """The commit in the database. Refuses a table with other columns."""
        if not Path(self._path).exists():
            return None
        with (
            _clear(f"cannot read {self._path}", Path(self._path)),
            closing(sqlite3.connect(self._path, timeout=60)) as database,
        ):
            if not self._has_columns(database):
                return None
            return self._last(database, self._table)[0] if _columns_of(database, "millrace_commits") else None

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Insert rows in one transaction, with the commit."""
        with self._transaction() as database:
            self._create(database)
            stored = is_stored(self._last(database, self._table)[0], commit, f"table {self._table} of {self._path}")
            if stored and once:
                return
            row = (self._pipeline, self._table, self._generation, commit.checkpoint, commit.batch, commit.digest)
            database.execute("INSERT OR REPLACE INTO millrace_commits VALUES (?, ?, ?, ?, ?, ?)", row)
            self._insert(database, answers, commit.batch)
            reach("sink during write")

    def replace(self, answers: pa.Table) -> None:
        """Replace all rows in one transaction."""
        with self._transaction() as database:
            self._create(database)
            database.execute(f'DELETE FROM "{self._table}"')
            self._insert(database, answers, 0)

    def newest(self) -> int:
        """The newest generation in the database, by its commits and its tables."""
        if not Path(self._path).exists():
            return 0
        with (
            _clear(f"cannot read {self._path}", Path(self._path)),
            closing(sqlite3.connect(self._path, timeout=60)) as database,
        ):
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            head = _beside(self._served, 0)[:-1]
            ends = [name.removeprefix(head) for name in tables if name.startswith(head)]
            numbers = [int(end) for end in ends if end.isdecimal()]
            if "millrace_commits" in tables:
                asked = "SELECT generation FROM millrace_commits WHERE pipeline = ?"
                numbers += [number for (number,) in database.execute(asked, (self._pipeline,))]
        return max(numbers, default=0)

    def serve(self) -> None:
        """Swap the table in use with that of this generation, in one transaction."""
        staged = _beside(self._served, self._generation)
        self._table = self._served
        if not Path(self._path).exists():
            return
        with self._transaction() as database:
            if not _columns_of(database, staged):
                return
            if _columns_of(database, self._served):
                self._rename(database, self._served, _beside(self._served, self._last(database, self._served)[1]))
            self._rename(database, staged, self._served)

    def _rename(self, database: sqlite3.Connection, before: str, after: str) -> None:
        database.execute(f'DROP TABLE IF EXISTS "{after}"')
        database.execute(f'ALTER TABLE "{before}" RENAME TO "{after}"')
        key = (self._pipeline, before)
        database.execute("DELETE FROM millrace_commits WHERE pipeline = ? AND output = ?", (self._pipeline, after))
        database.execute("UPDATE millrace_commits SET output = ? WHERE pipeline = ? AND output = ?", (after, *key))

    def _create(self, database: sqlite3.Connection) -> None:
        if not self._has_columns(database):
            columns = ", ".join(f"{name} {kind}" for name, kind in zip(self._columns, self._kinds, strict=True))
            database.execute(f'CREATE TABLE "{self._table}" ({columns})')

    def _has_columns(self, database: sqlite3.Connection) -> bool:
        """Whether the table exists. Refuses one with other columns."""
        found = _columns_of(database, self._table)
        if found and found != self._columns:
            raise ConflictError(
                f"table {self._table} of {self._path} has the columns {', '.join(found)}, not "
                f"{', '.join(self._columns)}",
                "choose another table",
            )
        return bool(found)

    def _last(self, database: sqlite3.Connection, table: str) -> tuple[Commit | None, int]:
        """The last commit, and the generation, of a table."""
        row = database.execute(
            "SELECT checkpoint_id, last_batch, digest, generation FROM millrace_commits "
            "WHERE pipeline = ? AND output = ?",
            (self._pipeline, table),
        ).fetchone()
        return (None, 0) if row is None else (Commit(self._pipeline, *row[:3]), int(row[3]))

    def _insert(self, database: sqlite3.Connection, answers: pa.Table, batch: int) -> None:
        columns = [_plain(column) for column in answers.columns]
        rows = zip(*columns, [batch] * len(answers), strict=True)
        marks = ", ".join("?" * len(self._columns))
        database.executemany(f'INSERT INTO "{self._table}" VALUES ({marks})', rows)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with (
            _clear(f"cannot write to {self._path}", Path(self._path)),
            closing(sqlite3.connect(self._path, timeout=60)) as database,
        ):
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            with database:
                database.execute("BEGIN IMMEDIATE")
                database.execute(_COMMITS)
                yield database


_COMMITS = (
    "CREATE TABLE IF NOT EXISTS millrace_commits (pipeline TEXT, output TEXT, generation INTEGER NOT NULL, "
    "checkpoint_id TEXT NOT NULL, last_batch INTEGER NOT NULL, digest TEXT NOT NULL, "
    "PRIMARY KEY (pipeline, output)) WITHOUT ROWID"
)


class TopicWriter:
    """A topic of the log, with a JSON record for each change of an answer.

    The commit is the sequence number of the pipeline as a producer, and the digest its session. Each generation is a
    producer of its own, because its batches are counted from 0 again.
    """

    stores_commits: ClassVar[bool] = True

    def __init__(self, log: str, topic: str, pipeline: str, generation: int = 1) -> None:
        """Refuses a topic that does not exist."""
        self._log, self._topic, self._pipeline = Log(log), topic, pipeline
        self._producer = f"{PIPELINES}{pipeline}" if generation == 1 else f"{PIPELINES}{pipeline}@{generation}"
        self._log.topic(topic)

    def last(self) -> Commit | None:
        """The last append of the pipeline."""
        found = self._log.last_append(self._topic, self._producer)
        return None if found is None else Commit(self._pipeline, "", *found)

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Append the answers, none if there are none; a repeated append is idempotent if `once`."""
        if is_stored(self.last(), commit, f"topic {self._topic}"):
            if not once and len(answers):
                self._log.append(self._topic, _lines(answers))
            return
        self._log.append(
            self._topic, _lines(answers), producer=self._producer, sequence=commit.batch, session=commit.digest
        )

    def replace(self, answers: pa.Table) -> None:
        """Append the answers: records of a topic are never replaced."""
        if len(answers):
            self._log.append(self._topic, _lines(answers))

    def newest(self) -> int:
        """The newest generation that has appended to the topic."""
        name = f"{PIPELINES}{self._pipeline}"
        found = [producer.removeprefix(name) for producer in self._log.producers(self._topic, name)]
        return max((int(end[1:] or 1) for end in found if end == "" or end[1:].isdecimal()), default=0)

    def serve(self) -> None:
        """Nothing: records are in place when they are appended."""


class FunctionWriter:
    """A user's function. It may be called twice for one batch, and can detect that by the batch id."""

    stores_commits: ClassVar[bool] = False

    def __init__(self, function: Callable[[list[Mapping[str, Any]], int], None]) -> None:
        self._function = function

    def last(self) -> None:
        """Nothing: a function stores no commits."""

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Call the function if there are answers."""
        if len(answers):
            self._function(answers.to_pylist(), commit.batch)

    def replace(self, answers: pa.Table) -> None:
        """Call the function once, with batch id 0."""
        self._function(answers.to_pylist(), 0)

    def newest(self) -> int:
        """Nothing is known of earlier generations."""
        return 0

    def serve(self) -> None:
        """Nothing: a function is called in place."""


class ObjectWriter:
    """A user's `CustomSink`."""

    stores_commits: ClassVar[bool] = False

    def __init__(self, sink: CustomSink) -> None:
        self._sink = sink

    def last(self) -> None:
        """Nothing: a user's sink is not asked for its commits."""

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Pass the answers and the commit to the sink, which stores them once whatever the guarantee is."""
        if len(answers):
            self._sink.write(answers, commit)

    def replace(self, answers: pa.Table) -> None:
        """Pass the answers of a batch to the sink."""
        self._sink.replace(answers)

    def newest(self) -> int:
        """Nothing is known of earlier generations."""
        return 0

    def serve(self) -> None:
        """Nothing: a user's sink is written in place."""


def writer_of(sink: Sink, schema: Schema, log: str, pipeline: str, generation: int = 1, staged: bool = False) -> Writer:
    """The writer of a sink. It writes in place, or `staged`: to a generation that is served later."""
    match sink:
        case FileSink(path, format):
            return FileWriter(path, format, pipeline, generation, staged)
        case TableSink(path, table):
            return TableWriter(path, table, schema, pipeline, generation, staged)
        case FunctionSink(function):
            return FunctionWriter(function)
        case TopicSink(topic):
            return TopicWriter(log, topic, pipeline, generation)
        case ObjectSink(writer):
            return ObjectWriter(writer)
        case never:
            assert_never(never)


@contextmanager
def _clear(what: str, path: Path) -> Iterator[None]:
    """Raise system and SQLite errors as errors with advice."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise CorruptError(
                f"{path} is damaged, or no database of SQLite",
                "move it aside: millrace repair FILE --yes; then compute it again: millrace replay FILE",
            ) from error
        if not isinstance(error, sqlite3.OperationalError):
            raise
        raise _machine_error(what, path, error) from error
    except OSError as error:
        raise _machine_error(what, path, error) from error


def _machine_error(what: str, path: Path, error: OSError | sqlite3.Error) -> MachineError:
    full = why_no_room(path)
    if full is not None:
        return by_number(full, path)
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return MachineError(f"{what}: {said}", NOTHING_LOST)


def _remove_parts(folder: Path) -> None:
    with _clear(f"cannot write to the folder {folder}", folder):
        remove_parts(folder)


def _name(commit: Commit, once: bool, format: str) -> str:
    attempt = "" if once else f"-{os.getpid()}"
    return f"{commit.pipeline}-{commit.checkpoint}-{commit.batch:09}{attempt}.{format}"


def _put(answers: pa.Table, path: Path, format: str) -> None:
    def write(whole: Path) -> None:
        if format == "parquet":
            pq.write_table(answers, whole)
        else:
            with whole.open("w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in _lines(answers))
        reach("sink during write")

    with _clear(f"cannot write {path}", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, write)


def _replace(answers: pa.Table, folder: Path, format: str) -> None:
    path = folder / f"answers.{format}"
    _put(answers, path, format)
    for other in folder.glob(f"*.{format}"):
        if other != path and not other.name.startswith("_"):
            other.unlink()


def _move(files: list[Path], to: Path) -> None:
    """Move files into a folder, which replaces those of the same name."""
    to.mkdir(parents=True, exist_ok=True)
    for path in files:
        os.replace(path, to / path.name)
    sync(to)


def _beside(table: str, generation: int) -> str:
    return f"{table}__generation_{generation}"


def _columns_of(database: sqlite3.Connection, table: str) -> list[str]:
    return ['"' + row[1].replace('"', '""') + '"' for row in database.execute(f'PRAGMA table_info("{table}")')]


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
