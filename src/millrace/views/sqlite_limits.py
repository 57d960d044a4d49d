"""What a query may do in SQLite: the check of each access, limits, and parameters."""

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from millrace.model.errors import PipelineError, shown
from millrace.views import asked
from millrace.views.sqlite_values import SqliteDialect

_DIALECT = SqliteDialect()
_LOOK_EVERY = 10_000
"""How many virtual-machine instructions a query runs between two checks of its time limit."""
_LONGEST_VALUE = 100_000_000
"""The maximum size of a value in a query, in bytes."""
_OF_CLIENTS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 16_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 500,
}
"""The limits of queries of clients."""
_READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
_DENIED_FUNCTIONS = frozenset({
    "edit", "fts3_tokenizer", "load_extension", "printf", "format", "randomblob", "readfile",
    "sqlite_compileoption_get", "sqlite_compileoption_used", "sqlite_log", "sqlite_source_id", "writefile", "zeroblob",
})  # fmt: skip
"""Functions that a client never has, whatever the parser lets through."""


def limit(connection: sqlite3.Connection, tables: Mapping[str, str] | None, is_over: Callable[[], bool]) -> None:
    """Let a connection run one query, until `is_over`.

    `tables` are those that a client may read, by the view which reads them; None lets a query read all tables.
    """
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    stored: set[str] = set()
    if tables is not None:
        stored.update(name for (name,) in connection.execute("SELECT name FROM sqlite_schema"))
        connection.execute("PRAGMA temp_store = MEMORY")
        for each, most in _OF_CLIENTS.items():
            connection.setlimit(each, most)
    connection.set_authorizer(_only_reads if tables is None else _only_tables(tables, stored))
    connection.set_progress_handler(is_over, _LOOK_EVERY)


def _only_reads(action: int, name: str | None, *about: str | None) -> int:
    # SQLite reports this action when it declares json_each; the connection is read-only, so nothing is written.
    declares = action == sqlite3.SQLITE_UPDATE and name == "sqlite_master"
    return sqlite3.SQLITE_OK if action in _READS or declares else sqlite3.SQLITE_DENY


def _only_tables(tables: Mapping[str, str], stored: Collection[str]) -> Callable[..., int]:
    """The check of each access of a query: SQLite names the table, the column, and the view that reads it.

    Without a column, it also asks for what WITH names, which is not stored, and for the table of a view in a subquery.
    """

    def check(action: int, name: str | None, about: str | None, database: str | None, within: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            is_counted = about == "" and (name not in stored or name in tables.values())
            allowed = is_counted or name in tables or (within is not None and name == tables.get(within))
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed = about is not None and about.lower() not in _DENIED_FUNCTIONS
        else:
            allowed = action in _READS
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return check


class Parameters(dict[str, Any]):
    """The parameters of a query by number. It records which ones SQLite looks up, as SQLite ignores unused ones.

    It is a dict because sqlite3 treats any other mapping as a sequence.
    """

    def __init__(self, params: Sequence[Any]) -> None:
        super().__init__((str(number), _value(value)) for number, value in enumerate(params, 1))
        self._used: set[str] = set()

    def __getitem__(self, number: str) -> Any:
        self._used.add(number)
        return super().__getitem__(number)

    def check_used(self) -> None:
        """Refuse parameters that the query does not use."""
        unused = [number for number in self if number not in self._used]
        if unused:
            raise asked.failed(f"it has no ${unused[0]}, but {len(self)} parameters were given")


def _value(value: Any) -> Any:
    """A parameter in the representation of the store, so that times compare with those in views."""
    if value is None or (isinstance(value, str | bytes | int | float) and not isinstance(value, bool)):
        return value
    try:
        if isinstance(value, datetime):
            at = value if value.tzinfo else value.replace(tzinfo=UTC)
            return _DIALECT.parameter(pa.scalar(at, pa.timestamp("us", "UTC")))
        return _DIALECT.parameter(pa.scalar(value))
    except (pa.ArrowException, OverflowError):
        raise PipelineError(f"{shown(value)} cannot be a parameter of a query") from None
