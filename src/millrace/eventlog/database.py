"""The SQLite database of a log: its tables, connections, transactions, and the errors of the disk.

Connections are opened on demand, and one thread at a time uses each. SQLite's locks do not survive a fork, so all
connections are closed before one; parent and child then open new ones on demand.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from millrace.model.errors import ConflictError, CorruptError, MachineError, MillraceError

PATIENCE = 60
"""How many seconds a transaction waits for the transaction of another process."""

PAGE = 8192
"""The page size in bytes: a small append writes about four pages, a large one as many as it needs."""

_JOURNAL = 64 << 20
"""The size in bytes of the write-ahead log above which the writer waits for readers, to truncate it."""

_OURS, _FORMAT = 0x4D696C6C, 2
_TABLES = (
    "CREATE TABLE topics (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL,"
    " max_age INTEGER, max_bytes INTEGER, interceptors TEXT NOT NULL)",
    # Retention has removed the offsets before the start. The last block gives the end, so appends need not store it.
    "CREATE TABLE partitions (topic INTEGER, partition INTEGER, start INTEGER NOT NULL,"
    " PRIMARY KEY (topic, partition)) WITHOUT ROWID",
    # Metadata of blocks is stored apart from their content, so that looking it up reads few pages.
    "CREATE TABLE blocks (topic INTEGER, partition INTEGER, first INTEGER, records INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, latest INTEGER NOT NULL, begun INTEGER NOT NULL, ended INTEGER NOT NULL,"
    " content INTEGER NOT NULL, PRIMARY KEY (topic, partition, first)) WITHOUT ROWID",
    "CREATE TABLE contents (id INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, block BLOB NOT NULL)",
    "CREATE TABLE sequences (topic INTEGER, producer TEXT, sequence INTEGER, session TEXT NOT NULL,"
    " appended TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (topic, producer, sequence)) WITHOUT ROWID",
    # A consumer group has several members if it reads a topic several times; each reports its own offsets.
    "CREATE TABLE consumers (topic INTEGER, consumer_group TEXT, member TEXT, offsets TEXT NOT NULL,"
    " PRIMARY KEY (topic, consumer_group, member)) WITHOUT ROWID",
)
_NOT_KEPT = "nothing of this was kept: "
_TROUBLES: dict[int, tuple[type[MachineError | CorruptError | ConflictError], str, str]] = {
    sqlite3.SQLITE_FULL: (MachineError, "the disk is full", f"{_NOT_KEPT}make room, and do it again"),
    sqlite3.SQLITE_READONLY: (
        MachineError,
        "it may not be written to",
        f"{_NOT_KEPT}change who may write to the file and its folder, or choose another path",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        MachineError,
        "it cannot be opened or made",
        "check that its folder is there and may be written to",
    ),
    sqlite3.SQLITE_BUSY: (
        MachineError,
        f"another process has been writing for {PATIENCE} s",
        f"{_NOT_KEPT}do it again",
    ),
    sqlite3.SQLITE_PROTOCOL: (MachineError, "too many processes are using it", f"{_NOT_KEPT}do it again"),
    sqlite3.SQLITE_IOERR: (
        MachineError,
        "the disk does not take or give data",
        f"{_NOT_KEPT}mend that, and do it again",
    ),
    sqlite3.SQLITE_NOTADB: (ConflictError, "it is a file of another kind", "choose another path"),
    sqlite3.SQLITE_CORRUPT: (
        CorruptError,
        "the file is damaged",
        "put a copy in its place, or save the rest: sqlite3 FILE .recover",
    ),
}
"""Error class, problem and advice for each primary result code of SQLite."""


class Database:
    """One database file. Threads may share it, and a child may use it after a fork."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Refuses a file that is not a log."""
        self.path = path
        self._idle: list[sqlite3.Connection] = []
        self._used = 0
        self._change = threading.Condition()
        self._writing = threading.Lock()
        weakref.finalize(self, _close, self._idle)
        _forkable().add(self)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(
                f"cannot make the folder of the log {path}: {error.strerror}", "mend that, or choose another path"
            ) from None
        with clear(path):
            self._idle.append(_made(path))

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection; each statement reads a snapshot of its own."""
        with clear(self.path):
            connection = self._take()
            whole = False
            try:
                yield connection
                whole = True
            except MillraceError:
                whole = True
                raise
            finally:
                self._give(connection, whole)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection whose statements all read the same snapshot of the log."""
        with self.read() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def write(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """The only write transaction at a time, fsynced when it commits; without `durable`, a power cut may undo it."""
        # Take the connection before the lock: a waiting writer then counts as using it, and a fork waits for all users.
        with self.read() as connection, self._writing:
            if not durable:
                connection.execute("PRAGMA synchronous = NORMAL")
            _begin(connection)
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if not durable:
                    connection.execute("PRAGMA synchronous = FULL")
            with suppress(OSError, sqlite3.Error):  # the transaction is committed, even if this fails
                if os.stat(f"{self.path}-wal").st_size > _JOURNAL:
                    _empty_journal(connection)

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._change:
            _close(self._idle)

    def pause(self) -> None:
        """Wait until no connection is in use, close all, and block new ones until `go_on`."""
        self._change.acquire()
        self._change.wait_for(lambda: not self._used)
        _close(self._idle)

    def go_on(self) -> None:
        """Allow connections again."""
        self._change.release()

    def _take(self) -> sqlite3.Connection:
        with self._change:
            connection = self._idle.pop() if self._idle else _connect(self.path, "rw")
            self._used += 1
            return connection

    def _give(self, connection: sqlite3.Connection, whole: bool) -> None:
        with self._change:
            self._used -= 1
            if whole:
                self._idle.append(connection)
            else:
                connection.close()
            self._change.notify_all()


@contextmanager
def clear(path: Path) -> Iterator[None]:
    """Translate errors of SQLite into errors with advice."""
    try:
        yield
    except sqlite3.Error as error:
        found = _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if found is None:
            raise
        kind, problem, advice = found
        raise kind(f"log {path}: {problem}", f"{advice} ({error})") from error


def _made(path: Path) -> sqlite3.Connection:
    """A connection; the tables are created if the file has none."""
    connection = _connect(path, "rwc")
    try:
        connection.execute("BEGIN")  # one snapshot for all checks: another process may be creating the tables
        there = _is_ours(connection, path)
        connection.execute("ROLLBACK")
        if not there:
            connection.execute(f"PRAGMA page_size = {PAGE}")
            # With WAL, readers and the writer do not block each other. SQLite's busy timeout does not apply here.
            _patiently(connection, "PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            if not _is_ours(connection, path):
                for table in _TABLES:
                    connection.execute(table)
                connection.execute(f"PRAGMA application_id = {_OURS}")
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
            connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is a log; False if it is empty. Refuses any other database."""
    (ours,) = connection.execute("PRAGMA application_id").fetchone()
    (format,) = connection.execute("PRAGMA user_version").fetchone()
    if ours == _OURS and format == _FORMAT:
        return True
    if ours == _OURS:
        raise ConflictError(
            f"log {path} was made by another release of Millrace (format {format}, not {_FORMAT})",
            "run that release, or choose another path",
        )
    if ours or format or connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise ConflictError(f"{path} is a database, but not a log", "choose another path")
    return False


def _begin(connection: sqlite3.Connection) -> None:
    """Begin a write transaction. Retries at a fixed interval, as SQLite's own back-off starves long waiters."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        _patiently(connection, "BEGIN IMMEDIATE")
    finally:
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000}")


def _empty_journal(connection: sqlite3.Connection) -> None:
    """Truncate the write-ahead log. Under constant reads SQLite would never do so, and it would grow for ever."""
    connection.execute("PRAGMA busy_timeout = 1000")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000}")


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
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


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", PATIENCE, isolation_level=None, check_same_thread=False, uri=True
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 2000")
    connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL // 2}")
    return connection


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


@cache
def _forkable() -> "weakref.WeakSet[Database]":
    """All databases of this process; fork handlers pause them before a fork and resume them after it."""
    databases: weakref.WeakSet[Database] = weakref.WeakSet()
    paused: list[Database] = []

    def before() -> None:
        for database in list(databases):
            database.pause()
            paused.append(database)

    def after() -> None:
        while paused:
            paused.pop().go_on()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
    return databases
