"""Opening the SQLite file of a log: its tables, its format, and reading where nothing may be written."""

import os
import sqlite3
import time
import uuid
from pathlib import Path

from millrace.eventlog.trouble import PATIENCE, is_forbidden
from millrace.model.errors import ConflictError

PAGE = 8192
"""The page size in bytes: a small append writes about four pages, a large one as many as it needs."""

JOURNAL = 64 << 20
"""The size in bytes of the write-ahead log above which the writer waits for readers, to truncate it."""

_OURS, _FORMAT = 0x4D696C6C, 3
_TABLES = (
    # One row: the id of the log, and its own time (see `logtime`), which is NULL before the first append.
    "CREATE TABLE log (id TEXT NOT NULL, own INTEGER, wall INTEGER, seen INTEGER)",
    "CREATE TABLE topics (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, uid TEXT NOT NULL UNIQUE,"
    " partitions INTEGER NOT NULL, max_age INTEGER, max_bytes INTEGER, interceptors TEXT NOT NULL)",
    # Retention has removed the offsets before the start. The last block gives the end, so appends need not store it.
    "CREATE TABLE partitions (topic INTEGER, partition INTEGER, start INTEGER NOT NULL,"
    " PRIMARY KEY (topic, partition)) WITHOUT ROWID",
    # Metadata of blocks is stored apart from their content, so that looking it up reads few pages. A block without
    # content is a gap: its content was damaged, and is set aside.
    "CREATE TABLE blocks (topic INTEGER, partition INTEGER, first INTEGER, records INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, latest INTEGER NOT NULL, begun INTEGER NOT NULL, ended INTEGER NOT NULL,"
    " content INTEGER, PRIMARY KEY (topic, partition, first)) WITHOUT ROWID",
    # The marks come before the block, so that reading them does not read the block.
    "CREATE TABLE contents (id INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, marks BLOB NOT NULL,"
    " block BLOB NOT NULL)",
    # Damaged content stays in `contents`, because copying it could fail, and deleting it could free pages of others.
    "CREATE TABLE set_aside (content INTEGER PRIMARY KEY, topic INTEGER NOT NULL, partition INTEGER NOT NULL,"
    " first INTEGER NOT NULL, records INTEGER NOT NULL, bytes INTEGER NOT NULL, why TEXT NOT NULL,"
    " at INTEGER NOT NULL)",
    "CREATE TABLE sequences (topic INTEGER, producer TEXT, sequence INTEGER, session TEXT NOT NULL,"
    " appended TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (topic, producer, sequence)) WITHOUT ROWID",
    # A consumer group has several members if it reads a topic several times; each reports its own offsets.
    "CREATE TABLE consumers (topic INTEGER, consumer_group TEXT, member TEXT, offsets TEXT NOT NULL,"
    " PRIMARY KEY (topic, consumer_group, member)) WITHOUT ROWID",
)


def made(path: Path) -> sqlite3.Connection:
    """A connection that can be kept; the tables are created if the file has none. Refuses a file that is not a log."""
    connection = connect(path, "rwc")
    try:
        connection.execute("BEGIN")  # one snapshot for all checks: another process may be creating the tables
        there = _is_ours(connection, path)
        connection.execute("ROLLBACK")
        if not there:
            connection.execute(f"PRAGMA page_size = {PAGE}")
            # With WAL, readers and the writer do not block each other. SQLite's busy timeout does not apply here.
            patiently(connection, "PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            if not _is_ours(connection, path):
                for table in _TABLES:
                    connection.execute(table)
                connection.execute("INSERT INTO log (id) VALUES (?)", (uuid.uuid4().hex,))
                connection.execute(f"PRAGMA application_id = {_OURS}")
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
            connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection for reading and writing. Fails if SQLite may not write beside the file, even for reading."""
    connection = _opened(path, f"mode={mode}")
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 2000")
        connection.execute(f"PRAGMA journal_size_limit = {JOURNAL // 2}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection to a log where nothing may be written, to be used once. Refuses a file that is not a log.

    SQLite coordinates readers and writers of a write-ahead log by a file beside it. If that file cannot be created,
    nobody writes on this machine, and the log can be read without coordination. The connection must not be kept,
    because a writer may start elsewhere.
    """
    if _has_content(Path(f"{path}-wal")):
        # With exclusive locking SQLite keeps its index of the write-ahead log in memory; "unix-none" locks nothing.
        connection = _opened(path, "mode=ro&vfs=unix-none")
        exclusive = "PRAGMA locking_mode = EXCLUSIVE"
    else:
        connection = _opened(path, "mode=ro&immutable=1")
        exclusive = "PRAGMA locking_mode"
    try:
        connection.execute(exclusive)
        if not _is_ours(connection, path):
            raise ConflictError(f"{path} is empty, and no log can be created there", "choose another path")
    except BaseException:
        connection.close()
        raise
    return connection


def may_only_read(path: Path, error: sqlite3.Error) -> bool:
    """Whether an error of `connect` means that a log is there, but nothing may be written to it or beside it."""
    return (
        is_forbidden(error)
        and path.is_file()
        and os.access(path, os.R_OK)
        and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    )


def patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Retry a statement until no other process holds the lock, for at most PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.001)


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is a log; False if it is empty. Refuses any other database."""
    (ours,) = connection.execute("PRAGMA application_id").fetchone()
    (format,) = connection.execute("PRAGMA user_version").fetchone()
    if ours == _OURS and format == _FORMAT:
        return True
    if ours == _OURS:
        raise ConflictError(
            f"log {path} was created by another release of Millrace (format {format}, not {_FORMAT})",
            "run that release, or choose another path",
        )
    if ours or format or connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise ConflictError(f"{path} is a database, but not a log", "choose another path")
    return False


def _opened(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?{options}", PATIENCE, isolation_level=None, check_same_thread=False, uri=True
    )


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
