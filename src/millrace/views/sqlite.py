"""Views in an SQLite database: a file, for one machine."""

import errno
import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from millrace.eventlog.room import why_no_room
from millrace.model.duration import Duration
from millrace.model.errors import NOTHING_LOST, CorruptError, MachineError, MillraceError
from millrace.views import asked
from millrace.views.dialect import AT_ONCE, Cursor, StoreConnection
from millrace.views.permitted import permitted
from millrace.views.rights import Rights
from millrace.views.sql import SqlStore, wall_clock
from millrace.views.sqlite_limits import Parameters, limit
from millrace.views.sqlite_values import SqliteDialect, values
from millrace.views.store import KEEP, NoViewsError, Selected, claimed

T = TypeVar("T")

_PATIENCE = 60
"""How many seconds to wait for another writer."""
_PIECE = 50_000
"""How many rows are converted to Python values at a time."""
_WRITER = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA secure_delete = OFF",
    "PRAGMA cache_size = -262144",
    "PRAGMA wal_autocheckpoint = 32768",
    "PRAGMA journal_size_limit = 67108864",
)
_NO_TABLE = "no such table: "


class SqliteConnection:
    """A connection to the file."""

    dialect = SqliteDialect()

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        """Execute one SQL statement."""
        return self._connection.execute(sql, {str(number): value for number, value in enumerate(values, 1)})

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterator[list[Any]]:
        """The rows of a query, some at a time."""
        cursor = self._connection.execute(sql, {str(number): value for number, value in enumerate(values, 1)})
        while rows := cursor.fetchmany(AT_ONCE):
            yield rows

    def load(self, table: str, rows: pa.Table, json: Collection[int]) -> None:
        """Insert rows into a table."""
        marks = ", ".join("?" * rows.num_columns)
        for start in range(0, len(rows), _PIECE):
            columns = [values(column.combine_chunks()) for column in rows.slice(start, _PIECE).columns]
            self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", zip(*columns, strict=True))

    def unread(self, statements: Iterable[str], patience: float = 60) -> None:
        """Execute statements at once: readers see the state before them until they are committed."""
        for statement in statements:
            self._connection.execute(statement)


class SqliteStore(SqlStore):
    """A store in a file. One process writes at a time; readers and the writer do not block each other."""

    def __init__(self, path: Path, keep: Duration = KEEP, clock: Callable[[], int] = wall_clock) -> None:
        """The first write creates the file."""
        super().__init__(keep, clock)
        self._path = path.absolute()
        self._alone = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._inode = 0

    @property
    def url(self) -> str:
        """The URL of the store."""
        return f"sqlite:///{self._path}"

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def write(self, work: Callable[[StoreConnection, bool], T]) -> T:
        """Run `work` in one transaction."""
        with self._alone:
            try:
                return self._transaction(work)
            except (sqlite3.Error, OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
                plain = self._cannot("write to", error, NOTHING_LOST)
                self._let_go()  # this may free room on a full disk, so the cause is looked for first
                raise plain from error

    @contextmanager
    def read(self) -> Iterator[SqliteConnection]:
        """A connection that reads one snapshot of the database."""
        with closing(self._reader()) as connection:
            try:
                connection.execute("BEGIN")
                yield SqliteConnection(connection)
            except (sqlite3.Error, json.JSONDecodeError, UnicodeDecodeError) as error:
                if str(error).startswith(f"{_NO_TABLE}millrace_"):
                    raise NoViewsError(f"{self._path} holds no views", "run a pipeline with views first") from None
                raise self._cannot("read", error, _ASK_AGAIN) from error

    @contextmanager
    def select(
        self, sql: str, limit_seconds: float = 10, params: Sequence[Any] = (), rights: Rights | None = None
    ) -> Iterator[Selected]:
        """The result of one SQL query, read piece by piece."""
        asked.check_query(sql)
        asked.check_seconds(limit_seconds)
        given = Parameters(params)
        deadline = time.monotonic() + limit_seconds
        with closing(self._reader()) as connection:
            try:
                connection.execute("BEGIN")
                allowed = None if rights is None else permitted(SqliteConnection(connection), sql, rights)
                limit(connection, None if allowed is None else allowed.tables, lambda: time.monotonic() > deadline)
                cursor = connection.execute(sql if allowed is None else allowed.sql, given)
                given.check_used()
                columns = tuple(column[0] for column in cursor.description or ())
                yield Selected(columns, cursor.fetchmany, None if allowed is None else allowed.state)
            except UnicodeDecodeError:  # Python cannot decode SQLite's message about a damaged schema
                raise self._damaged() from None
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise self._why(error, limit_seconds) from error

    @contextmanager
    def claim(self, pipeline: str, generation: int) -> Iterator[None]:
        """Lock a file beside the store, as closing one that SQLite has open would end the locks of SQLite."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = self._path.with_name(f".{self._path.name}.{pipeline}-{generation}.lock").open("ab")
        except OSError as error:
            raise self._cannot("write to", error, NOTHING_LOST) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise claimed(pipeline, str(self._path)) from None
            yield

    def damage(self) -> CorruptError | None:
        """The error for a damaged file, of which SQLite checks every page; None if it is whole or does not exist."""
        try:
            with self.read() as connection:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except NoViewsError:
            return None
        except CorruptError as error:
            return error
        return None if found == "ok" else self._damaged()

    def close(self) -> None:
        """Close the file."""
        with self._alone:
            self._let_go()

    def _transaction(self, work: Callable[[StoreConnection, bool], T]) -> T:
        if self._writer is not None and not self._is_open():
            self._let_go()  # another file was put in its place: answers would go to one that nobody reads
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = sqlite3.connect(self._path, _PATIENCE, isolation_level=None, check_same_thread=False)
            self._inode = self._path.stat().st_ino
            for statement in _WRITER:
                self._writer.execute(statement)
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            done = work(SqliteConnection(self._writer), False)
            self._writer.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # an error such as a full disk may have rolled it back already
                self._writer.execute("ROLLBACK")
            raise
        return done

    def _is_open(self) -> bool:
        """Whether the writer has the file open that is at the path now."""
        try:
            return self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _reader(self) -> sqlite3.Connection:
        if not self._path.exists():
            raise NoViewsError(f"there is no store {self._path}", "run a pipeline with views first")
        # With a write-ahead log SQLite creates a file beside the database even to read it. On a read-only disk it need
        # not: nobody writes there. It would ignore a write-ahead log then, so there must be none.
        wal = self._path.with_name(f"{self._path.name}-wal")
        fixed = "" if os.access(self._path.parent, os.W_OK) or wal.exists() else "&immutable=1"
        try:
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=ro{fixed}",
                _PATIENCE,
                isolation_level=None,
                uri=True,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self._cannot("read", error, _ASK_AGAIN) from error
        connection.execute("PRAGMA query_only = TRUE")  # this does not read the file yet, so it cannot fail
        return connection

    def _cannot(self, what: str, error: Exception, advice: str) -> MillraceError:
        """The error of the file or the disk, for a user."""
        if self._is_damage(error):
            return self._damaged()
        full = None
        if _code(error) in _NO_ROOM:
            full = why_no_room(self._path) or (errno.ENOSPC if _code(error) == sqlite3.SQLITE_FULL else None)
        if full is not None:
            from millrace.spark.trouble import by_number  # it imports DuckDB, which queries do not need

            return by_number(full, self._path)
        return MachineError(f"cannot {what} {self._path}: {error}", advice)

    def _is_damage(self, error: Exception) -> bool:
        """Whether an error means that the file is damaged. Damage of text and of the header has no result code."""
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) or _code(error) in _DAMAGED:
            return True
        if isinstance(error, sqlite3.OperationalError) and not _code(error):
            return True
        return _code(error) == sqlite3.SQLITE_ERROR and not self._opens()

    def _damaged(self) -> CorruptError:
        return CorruptError(
            f"store {self._path} is damaged, or no database of SQLite",
            "move it aside: millrace repair FILE --yes; then compute the views again: millrace replay FILE",
        )

    def _why(self, error: Exception, limit_seconds: float) -> MillraceError:
        """The error of a query, for its user."""
        said, code = str(error), _code(error)
        if code == sqlite3.SQLITE_INTERRUPT:
            return asked.too_slow(limit_seconds)
        # SQLite has no result code for a second statement, nor for an unknown table.
        if code == sqlite3.SQLITE_AUTH or "one statement at a time" in said:
            return asked.only_reads()
        if code in (*_DAMAGED, *_IN_THE_WAY):
            return self._cannot("read", error, _ASK_AGAIN)
        if said.startswith(f"{_NO_TABLE}millrace_"):
            return NoViewsError(f"{self._path} holds no views", "run a pipeline with views first")
        if said.startswith(_NO_TABLE):
            return asked.no_view(said.removeprefix(_NO_TABLE), [view.name for view in self.views()])
        return asked.failed(said) if self._opens() else self._damaged()

    def _opens(self) -> bool:
        """Whether SQLite can read the header and the schema of the file."""
        with closing(self._reader()) as connection:
            try:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            except (sqlite3.Error, UnicodeDecodeError):
                return False
        return True


_ASK_AGAIN = "fix the cause, and ask again"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_IN_THE_WAY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _code(error: Exception) -> int:
    """The primary result code of SQLite; 0 if there is none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
