"""What databases say in different ways. All else that a store says is the same SQL for all of them.

Parameters are `$1`, `$2` and so on.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Protocol

import pyarrow as pa


class Dialect(ABC):
    """The words of one database, and how it has values."""

    row: ClassVar[str]
    """What finds a row of a table again, within a transaction."""
    row_type: ClassVar[str]
    same: ClassVar[str]
    """The operator that says of two values whether they are the same; NULL is the same as NULL."""
    nulls_once: ClassVar[str] = ""
    """What makes a unique index take NULL for a value like any other, where the database can."""
    not_null: ClassVar[str] = " NOT NULL"
    """What says of a column that it always has a value, where that costs nothing."""
    insert: ClassVar[str] = "INSERT"
    """What adds rows to a table with a unique index, or fails."""
    kept_with: ClassVar[str] = ""
    """How a table is kept whose rows are changed often."""
    scratch_with: ClassVar[str] = ""
    """How a temporary table is kept."""
    for_update: ClassVar[str] = ""
    """What keeps others from a row that was read, where they are not kept out already."""
    alone: ClassVar[str] = ""
    """What keeps others from making the same tables, where they are not kept out already."""
    replaces_views: ClassVar[bool] = False
    """Whether an SQL view may be given another definition with the same columns."""

    @abstractmethod
    def type_of(self, kind: pa.DataType) -> str:
        """The SQL type of a column."""

    @abstractmethod
    def plain(self, column: pa.ChunkedArray) -> pa.Array:
        """A column as it can be compared and loaded: what is nested as JSON text."""

    @abstractmethod
    def parameter(self, value: pa.Scalar) -> Any:
        """A value as a parameter has it."""

    @abstractmethod
    def column(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """A column, from its values as the database has them."""


class Cursor(Protocol):
    """What an SQL statement gives."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""

    def fetchone(self) -> Any:
        """The next row; None if there is none."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""


class StoreConnection(Protocol):
    """A connection to a database, in a transaction."""

    @property
    def dialect(self) -> Dialect:
        """Its words."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        """Execute one SQL statement."""

    def load(self, table: str, rows: pa.Table, json: Collection[int]) -> None:
        """Add rows to a table that has their columns, in order; some of them, by place, are JSON text."""

    def unread(self, statements: Iterable[str], patience: float = 60) -> None:
        """Execute statements that must wait until nobody reads what they change, but for so many seconds at most.

        Who comes to read meanwhile does not wait for those that do.
        """


def quoted(name: str) -> str:
    """A name as SQL has it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def listed(items: Iterable[str]) -> str:
    """Items, with commas."""
    return ", ".join(items)
