"""Tables of SQLite as sinks.

A replay fills a new generation of a table in another one beside it; `serve` then swaps the two.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.model.connectors import Commit, is_stored
from millrace.model.errors import ConflictError, PipelineError
from millrace.model.plain import as_text, to_json
from millrace.model.schema import Schema
from millrace.spark.answers import free_names
from millrace.spark.crash import reach
from millrace.spark.trouble import clear

_COMMITS = (
    "CREATE TABLE IF NOT EXISTS millrace_commits (pipeline TEXT, output TEXT, generation INTEGER NOT NULL, "
    "checkpoint_id TEXT NOT NULL, last_batch INTEGER NOT NULL, digest TEXT NOT NULL, "
    "PRIMARY KEY (pipeline, output)) WITHOUT ROWID"
)


class TableWriter:
    """A table of an SQLite database, with a row for each change of an answer."""

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
            clear(f"cannot read {self._path}", Path(self._path)),
            closing(sqlite3.connect(self._path, timeout=60)) as database,
        ):
            if not self._has_columns(database):
                return None
            return self._last(database, self._table)[0] if _columns_of(database, "millrace_commits") else None

    def lost(self) -> None:
        """Nothing: a table is lost with its commit, as a whole."""

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
            clear(f"cannot read {self._path}", Path(self._path)),
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
            clear(f"cannot write to {self._path}", Path(self._path)),
            closing(sqlite3.connect(self._path, timeout=60)) as database,
        ):
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            with database:
                database.execute("BEGIN IMMEDIATE")
                database.execute(_COMMITS)
                yield database


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
