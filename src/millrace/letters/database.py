"""The SQLite file of dead letters: its tables, transactions and errors."""

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from millrace.eventlog.opening import patiently
from millrace.eventlog.trouble import PATIENCE, explained
from millrace.model.errors import ConflictError, CorruptError, NotFoundError

_FORMAT = 1
_TABLES = (
    "CREATE TABLE box (id TEXT NOT NULL, served TEXT, sequence INTEGER NOT NULL)",
    # The checkpoints that have been served, in the order in which they were served last.
    "CREATE TABLE checkpoints (id TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE sources (checkpoint TEXT, name TEXT, kind TEXT NOT NULL, types TEXT NOT NULL, outputs TEXT NOT NULL,"
    " uid TEXT NOT NULL, strict INTEGER NOT NULL, PRIMARY KEY (checkpoint, name)) WITHOUT ROWID",
    "CREATE TABLE letters (number INTEGER PRIMARY KEY AUTOINCREMENT, identity TEXT NOT NULL UNIQUE,"
    " record TEXT NOT NULL, uid TEXT NOT NULL, at INTEGER NOT NULL, source TEXT NOT NULL, origin TEXT NOT NULL,"
    " partition INTEGER, offset INTEGER, output TEXT, problem TEXT NOT NULL, reason TEXT NOT NULL, hint TEXT,"
    " value TEXT)",
    "CREATE TABLE met (letter INTEGER, checkpoint TEXT, batch INTEGER NOT NULL, PRIMARY KEY (letter, checkpoint))"
    " WITHOUT ROWID",
    "CREATE INDEX met_by_batch ON met (checkpoint, batch)",
    # What was done about a record. One that is being sent has the number of the append; a crash leaves it so.
    "CREATE TABLE handled (record TEXT PRIMARY KEY, fixed TEXT, sending INTEGER, resent INTEGER) WITHOUT ROWID",
    "CREATE TABLE dropped (identity TEXT PRIMARY KEY) WITHOUT ROWID",
)


@contextmanager
def reading(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection to read letters with. Without letters there is no file, and reading creates none."""
    if not file.exists():
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
            _create(empty)
            yield empty
        return
    with _clear(file), closing(_connected(file)) as database:
        yield database


@contextmanager
def writing(file: Path, create: bool = False) -> Iterator[sqlite3.Connection]:
    """One write transaction, fsynced when it commits."""
    if not create and not file.exists():
        raise NotFoundError(f"there is no file {file}", "the pipeline has no dead letters")
    with _clear(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(_connected(file)) as database:
            database.execute("BEGIN IMMEDIATE")
            if database.execute("PRAGMA user_version").fetchone()[0] == 0:
                _create(database)
            yield database
            database.execute("COMMIT")


def _connected(file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(file, PATIENCE, isolation_level=None)
    try:
        (format,) = database.execute("PRAGMA user_version").fetchone()
        if format not in (0, _FORMAT):
            raise ConflictError(
                f"{file} has format {format}, and this Millrace reads format {_FORMAT}", "use the Millrace that made it"
            )
        patiently(database, "PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def _clear(file: Path) -> Iterator[None]:
    """Raise errors of SQLite as errors with advice."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise CorruptError(f"{file} is damaged", "move it aside: millrace repair FILE --yes") from error
        plain = explained(error, file, True, "file of dead letters")
        if plain is None:
            raise
        raise plain from error


def _create(database: sqlite3.Connection) -> None:
    for table in _TABLES:
        database.execute(table)
    database.execute("INSERT INTO box VALUES (?, NULL, -1)", (uuid.uuid4().hex[:8],))
    database.execute(f"PRAGMA user_version = {_FORMAT}")
