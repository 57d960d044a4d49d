"""The SQLite database of a log: connections and transactions.

Connections are opened on demand, and one thread at a time uses each. SQLite's locks do not survive a fork, so all
connections are closed before one; parent and child then open new ones on demand. The same holds for a file that was
replaced by a restore. Where nothing may be written, each reader opens a connection of its own.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeAlias

from millrace.eventlog.opening import JOURNAL, connect, connect_to_read, made, may_only_read, patiently
from millrace.eventlog.trouble import NOT_KEPT, PATIENCE, clear
from millrace.model.errors import MachineError, MillraceError


class Database:
    """One database file. Threads may share it, and a child may use it after a fork."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Refuses a file that is not a log."""
        self.path = path
        self._idle: list[sqlite3.Connection] = []
        self._file: _FileId | None = None
        """The file that the idle connections have open."""
        self._used = 0
        self._change = threading.Condition()
        self._writing = threading.Lock()
        weakref.finalize(self, _close, self._idle)
        _forkable().add(self)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(
                f"cannot create the folder of the log {path}: {error.strerror}", "fix the cause, or choose another path"
            ) from None
        with clear(path):
            try:
                self._idle.append(made(path))
                self._file = _file_id(path)
            except sqlite3.Error as error:
                if not may_only_read(path, error):
                    raise
                connect_to_read(path).close()

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection; each statement reads a snapshot of its own."""
        with clear(self.path), self._taken() as connection:
            yield connection

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
        file = _file_id(self.path)
        # Take the connection before the lock: a waiting writer then counts as using it, and a fork waits for all users.
        with clear(self.path, writing=True), self._taken() as connection, self._writing:
            if not durable:
                connection.execute("PRAGMA synchronous = NORMAL")
            _begin(connection)
            try:
                if file != _file_id(self.path):  # a restore moved the file while this waited for its lock
                    raise MachineError(f"log {self.path} was replaced by another one", f"{NOT_KEPT}do it again")
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if not durable:
                    connection.execute("PRAGMA synchronous = FULL")
            with suppress(OSError, sqlite3.Error):  # the transaction is committed, even if this fails
                if os.stat(f"{self.path}-wal").st_size > JOURNAL:
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

    @contextmanager
    def _taken(self) -> Iterator[sqlite3.Connection]:
        connection, keep, file = self._take()
        whole = False
        try:
            yield connection
            whole = True
        except MillraceError:
            whole = True
            raise
        finally:
            self._give(connection, whole and keep, file)

    def _take(self) -> tuple[sqlite3.Connection, bool, "_FileId | None"]:
        """A connection, whether it may be kept for later, and the file that it has open."""
        with self._change:
            file = _file_id(self.path)
            if file != self._file:  # the log was restored or made again: the connections still have the old file open
                _close(self._idle)
                self._file = file
            connection, keep = (self._idle.pop(), True) if self._idle else self._connected()
            self._used += 1
            return connection, keep, file

    def _connected(self) -> tuple[sqlite3.Connection, bool]:
        try:
            return connect(self.path, "rw"), True
        except sqlite3.Error as error:
            if not may_only_read(self.path, error):
                raise
            return connect_to_read(self.path), False

    def _give(self, connection: sqlite3.Connection, keep: bool, file: "_FileId | None") -> None:
        with self._change:
            self._used -= 1
            if keep and file == self._file:
                self._idle.append(connection)
            else:
                connection.close()
            self._change.notify_all()


_FileId: TypeAlias = tuple[int, int]
"""The device and the inode of a file."""


def _file_id(path: Path) -> _FileId | None:
    try:
        found = os.stat(path)
    except OSError:  # to open it then says why
        return None
    return found.st_dev, found.st_ino


def _begin(connection: sqlite3.Connection) -> None:
    """Begin a write transaction. Retries at a fixed interval, as SQLite's own back-off starves long waiters."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        patiently(connection, "BEGIN IMMEDIATE")
    finally:
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000}")


def _empty_journal(connection: sqlite3.Connection) -> None:
    """Truncate the write-ahead log. Under constant reads SQLite would never do so, and it would grow for ever."""
    connection.execute("PRAGMA busy_timeout = 1000")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000}")


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
