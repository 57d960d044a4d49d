"""The differences between SQL dialects. All other SQL of a store is the same for every database.

Parameters are `$1`, `$2` and so on.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import pyarrow as pa


class Dialect(ABC):
    """The SQL of one database, and its representation of values."""

    name: ClassVar[str]
    """The name by which sqlglot knows its SQL."""
    row: ClassVar[str]
    """The expression that identifies a row of a table within a transaction."""
    row_type: ClassVar[str]
    same: ClassVar[str]
    """The operator for null-safe equality."""
    nulls_once: ClassVar[str] = ""
    """The clause that makes a unique index treat NULLs as equal, if the database has one."""
    not_null: ClassVar[str] = " NOT NULL"
    """The constraint of a column that is never NULL; empty where the check has a cost."""
    insert: ClassVar[str] = "INSERT"
    """The keyword that inserts rows and fails on a violation of a unique index."""
    kept_with: ClassVar[str] = ""
    """The storage options of a table whose rows change often."""
    scratch_with: ClassVar[str] = ""
    """The storage options of a temporary table."""
    for_update: ClassVar[str] = ""
    """The clause that locks a selected row; empty where a write transaction is exclusive anyway."""
    alone: ClassVar[str] = ""
    """The statement that locks out others who create the same tables; empty where a write transaction is exclusive."""
    replaces_views: ClassVar[bool] = False
    """Whether CREATE OR REPLACE VIEW works for a view with the same columns."""

    @abstractmethod
    def type_of(self, kind: pa.DataType) -> str:
        """The SQL type of a column."""

    @abstractmethod
    def plain(self, column: pa.ChunkedArray) -> pa.Array:
        """A column in the form that is compared and loaded, with nested values as JSON text."""

    @abstractmethod
    def parameter(self, value: pa.Scalar) -> Any:
        """A value as a query parameter."""

    @abstractmethod
    def column(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """A column, from values that the database returned."""


class Cursor(Protocol):
    """The result of an SQL statement."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""

    def fetchone(self) -> Any:
        """The next row; None if there is none."""

    def fetchall(self) -> list[Any]:
        """All remaining rows."""


class StoreConnection(Protocol):
    """A connection to a database, in a transaction."""

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect of the database."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        """Execute one SQL statement."""

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterator[list[Any]]:
        """The rows of a query, some at a time."""

    def load(self, table: str, rows: pa.Table, json: Collection[int]) -> None:
        """Insert rows into a table with the same columns, in order; `json` holds the indexes of JSON text columns."""

    def unread(self, statements: Iterable[str], patience: float = 60) -> None:
        """Execute statements that change tables or SQL views which others may be reading.

        Waits for current readers, at most `patience` seconds; new readers are not blocked meanwhile.
        """


AT_ONCE = 1_000
"""How many rows are read at a time where a result is read piece by piece."""


def quoted(name: str) -> str:
    """A name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def listed(items: Iterable[str]) -> str:
    """Items, separated by commas."""
    return ", ".join(items)
