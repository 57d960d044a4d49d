"""Views in a PostgreSQL database."""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from millrace.model.duration import Duration
from millrace.model.errors import NOTHING_LOST, ConflictError, CorruptError, MachineError, MillraceError, PipelineError
from millrace.views import asked
from millrace.views.copying import binary_rows
from millrace.views.dialect import AT_ONCE, Cursor, StoreConnection
from millrace.views.permitted import permitted
from millrace.views.postgresql_values import PostgresqlDialect
from millrace.views.rights import Rights
from millrace.views.sql import SqlStore, wall_clock
from millrace.views.store import KEEP, NoViewsError, Selected, claimed

T = TypeVar("T")

OLDEST = 15
"""The first PostgreSQL whose unique indexes can treat NULLs as equal."""
_WAITS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The seconds to wait before each retry after the connection is lost."""
_SETTINGS = (
    "SET timezone = 'UTC'; SET client_min_messages = warning; SET cursor_tuple_fraction = 1; "
    "SET standard_conforming_strings = on"
)
_WRITER = "SET temp_buffers = '64MB'; SET random_page_cost = 1.1"  # looked-up rows are cached: they were just read
_ONE_STATE = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_CLAIM = "SELECT pg_try_advisory_lock(7265739, hashtext(current_schema() || ' ' || $1::text))"
_KEEP_ALIVE = "SET tcp_keepalives_idle = 20; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"
"""How the server notices within a minute that the machine of a run is gone."""
_ONE_QUERY = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"
_SWAPPING = 7265739
"""The advisory lock that queries share and changes of SQL views take exclusively; it prevents deadlocks."""
_MOST_IDLE = 8
_MOST_READERS = 16
_PATIENCE = 10
"""How many seconds a reader waits while there are as many as may be."""
_NOTICE = "SET client_connection_check_interval = '1s'"
"""How the server notices that whoever asked has gone. It refuses this on systems where it cannot."""


class PostgresqlConnection:
    """A connection to the server."""

    dialect = PostgresqlDialect()

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        """Execute one SQL statement."""
        return self._connection.execute(sql.encode(), values or None, binary=True)

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterator[list[Any]]:
        """The rows of a query, some at a time."""
        with self._connection.cursor("streamed", binary=True) as cursor:
            cursor.execute(sql.encode(), values or None)
            while rows := cursor.fetchmany(AT_ONCE):
                yield rows

    def load(self, table: str, rows: pa.Table, json: Collection[int]) -> None:
        """Insert rows with COPY."""
        for place in json:
            written = pc.binary_join_element_wise("\1", rows.column(place), "")  # 1 is JSONB's format version
            rows = rows.set_column(place, rows.column_names[place], written)
        with self._connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT binary)".encode()) as copy:
            for piece in binary_rows(rows):
                copy.write(piece)

    def unread(self, statements: Iterable[str], patience: float = 60) -> None:
        """Execute statements that need exclusive locks; retries with a short lock timeout, so that no queue forms."""
        deadline = time.monotonic() + patience
        while True:
            try:
                with self._connection.transaction():
                    self._connection.execute("SET LOCAL lock_timeout = '100ms'")
                    self._connection.execute(f"SELECT pg_advisory_xact_lock({_SWAPPING})".encode())
                    for statement in statements:
                        self._connection.execute(statement.encode())
                    self._connection.execute("SET LOCAL lock_timeout = DEFAULT")
                return
            except errors.LockNotAvailable:
                if time.monotonic() > deadline:
                    raise MachineError(
                        "a query has been reading the views for too long", "end that query, and try again"
                    ) from None
                time.sleep(0.1)


class PostgresqlStore(SqlStore):
    """A store on a server. Writers take turns; readers wait only for the moment in which generations are swapped."""

    def __init__(self, url: str, keep: Duration = KEEP, clock: Callable[[], int] = wall_clock) -> None:
        """Does not connect until the store is first used."""
        super().__init__(keep, clock)
        try:
            self._about = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            raise PipelineError(
                "the URL of the store does not parse", "write postgresql://user@host/database"
            ) from None
        self._url = url
        self._alone = threading.Lock()
        self._writer: psycopg.Connection[Any] | None = None
        self._idle: deque[psycopg.Connection[Any]] = deque()
        self._free = threading.BoundedSemaphore(_MOST_READERS)
        self._was_there = False

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self._url

    def write(self, work: Callable[[StoreConnection, bool], T]) -> T:
        """Run `work` in one transaction; if the connection is lost, retry with a new one."""
        with self._alone:
            for attempt, wait in enumerate((*_WAITS, None)):
                try:
                    if self._writer is None:
                        self._writer = self._connect()
                        self._writer.execute(_WRITER)
                    with self._writer.transaction():
                        return work(PostgresqlConnection(self._writer), attempt > 0)
                except psycopg.Error as error:
                    if not self._is_lost(error):
                        raise self._cannot("write to", error) from error
                    self._let_go()
                    if wait is None or not self._was_there:
                        raise self._cannot("write to", error) from error
                    time.sleep(wait)
        raise AssertionError("the last try gives or raises")

    @contextmanager
    def read(self) -> Iterator[PostgresqlConnection]:
        """A connection that reads one snapshot of the database."""
        with self._reader(_ONE_STATE) as connection:
            try:
                yield PostgresqlConnection(connection)
            except errors.UndefinedTable as error:
                if "millrace_" not in str(error):
                    raise MachineError("the view was replaced just now", "ask again") from error
                raise NoViewsError(f"{self._where} holds no views", "run a pipeline with views first") from None
            except psycopg.Error as error:
                raise self._cannot("read", error) from error

    @contextmanager
    def select(
        self, sql: str, limit_seconds: float = 10, params: Sequence[Any] = (), rights: Rights | None = None
    ) -> Iterator[Selected]:
        """The result of one SQL query, read piece by piece."""
        asked.check_query(sql)
        asked.check_seconds(limit_seconds)
        milliseconds = min(max(1, round(min(limit_seconds, 1e6) * 1000)), 2**31 - 1)
        try:
            with self._reader(_ONE_QUERY, discard=True) as connection:
                # The limit is set by a statement of its own: it has no effect on the one that sets it.
                connection.execute(f"SET LOCAL statement_timeout = {milliseconds}".encode())
                connection.execute(f"SELECT pg_advisory_xact_lock_shared({_SWAPPING})".encode())
                allowed = None if rights is None else permitted(PostgresqlConnection(connection), sql, rights)
                with connection.cursor("asked") as cursor:
                    cursor.execute((sql if allowed is None else allowed.sql).encode(), params or None)
                    columns = tuple(column.name for column in cursor.description or ())
                    yield Selected(columns, cursor.fetchmany, None if allowed is None else allowed.state)
        except errors.UndefinedTable as error:
            if "millrace_" in str(error):
                raise NoViewsError(f"{self._where} holds no views", "run a pipeline with views first") from None
            raise self._why(error, limit_seconds) from error
        except psycopg.Error as error:
            raise self._why(error, limit_seconds) from error

    @contextmanager
    def claim(self, pipeline: str, generation: int) -> Iterator[None]:
        """Hold a lock of the server on a connection of its own; the server releases it when the connection is lost."""
        try:
            connection = self._connect()
        except psycopg.Error as error:
            raise self._cannot("write to", error) from error
        with closing(connection):
            try:
                connection.execute(_KEEP_ALIVE)
                (free,) = connection.execute(_CLAIM, (f"{pipeline} {generation}",)).fetchone() or (False,)
            except psycopg.Error as error:
                raise self._cannot("write to", error) from error
            if not free:
                raise claimed(pipeline, self._where)
            yield

    def close(self) -> None:
        """Close all connections."""
        with self._alone:
            self._let_go()
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _reader(self, begin: str, discard: bool = False) -> Iterator[psycopg.Connection[Any]]:
        """A connection in a read-only transaction, which is rolled back afterwards.

        With `discard` nothing else that was done to the session stays either: settings, locks, prepared statements.
        """
        if not self._free.acquire(timeout=_PATIENCE):
            raise MachineError(f"{_MOST_READERS} queries are reading the store already", "ask again later")
        try:
            connection = self._begun(begin.encode())
            try:
                yield connection
            finally:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
                    if discard:
                        connection.execute("DISCARD ALL")
                        _settle(connection)
                if connection.closed or len(self._idle) >= _MOST_IDLE:
                    connection.close()
                else:
                    self._idle.append(connection)
        finally:
            self._free.release()

    def _begun(self, begin: bytes) -> psycopg.Connection[Any]:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            try:
                connection.execute(begin)
                return connection
            except psycopg.OperationalError:  # the server was restarted meanwhile
                connection.close()
        try:
            connection = self._connect()
            connection.execute(begin)
            return connection
        except psycopg.Error as error:
            raise self._cannot("read", error) from error

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,
            cursor_factory=psycopg.RawCursor,
            client_encoding="utf8",
            connect_timeout=self._about.get("connect_timeout", 10),
        )
        connection.server_cursor_factory = psycopg.RawServerCursor
        try:
            self._check(connection.info)
            _settle(connection)
        except BaseException:
            connection.close()
            raise
        self._was_there = True
        return connection

    def _check(self, about: psycopg.ConnectionInfo) -> None:
        if about.server_version < OLDEST * 10_000:
            raise ConflictError(
                f"{self._where} is of PostgreSQL {about.server_version // 10_000}",
                f"views need version {OLDEST} or later",
            )
        if (encoding := about.parameter_status("server_encoding")) != "UTF8":
            raise ConflictError(f"{self._where} is in {encoding}, which lacks characters", "make a database in UTF8")

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _is_lost(self, error: psycopg.Error) -> bool:
        """Whether the transaction itself did not cause the error, so that a retry may succeed."""
        if isinstance(error, errors.DeadlockDetected | errors.SerializationFailure):
            return True
        return isinstance(error, psycopg.OperationalError) and (self._writer is None or self._writer.closed)

    @property
    def _where(self) -> str:
        """The database, without the password."""
        about = self._about
        port = f":{about['port']}" if "port" in about else ""
        return f"database {about.get('dbname', about.get('user', ''))!r} at {about.get('host', 'localhost')}{port}"

    def _cannot(self, what: str, error: psycopg.Error) -> MillraceError:
        said = error.diag.message_primary or str(error).strip().partition("\n")[0]
        if not self._was_there:
            return MachineError(f"cannot {what} {self._where}: {said}", "check the URL, and that the server runs")
        if isinstance(error, errors.DataCorrupted | errors.IndexCorrupted):
            return CorruptError(
                f"{self._where} is damaged: {said}", "see what can be done about it: millrace repair FILE"
            )
        if isinstance(error, errors.ProgramLimitExceeded):
            advice = "nothing was lost: a key is too long, so shorten it in the query, as with left(k, 500)"
            return PipelineError(f"cannot {what} {self._where}: {said}", advice)
        return MachineError(f"cannot {what} {self._where}: {said}", NOTHING_LOST)

    def _why(self, error: psycopg.Error, limit_seconds: float) -> MillraceError:
        """The error of a query, for its user."""
        said = error.diag.message_primary or str(error)
        if isinstance(error, errors.DataCorrupted | errors.IndexCorrupted):
            return self._cannot("read", error)
        if isinstance(error, errors.QueryCanceled):
            return asked.too_slow(limit_seconds)
        if isinstance(error, errors.ReadOnlySqlTransaction) or "multiple commands" in said or "DECLARE CURSOR" in said:
            return asked.only_reads()
        if isinstance(error, errors.UndefinedTable):
            name = said.removeprefix('relation "').removesuffix('" does not exist')
            return asked.no_view(name, [view.name for view in self.views()])
        return asked.failed(said)


def _settle(connection: psycopg.Connection[Any]) -> None:
    """Set what this module relies on."""
    connection.execute(_SETTINGS)
    with suppress(psycopg.Error):
        connection.execute(_NOTICE)
