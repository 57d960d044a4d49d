"""The DuckDB instance of a process, with one thread, because Spark runs one task on each core."""

import atexit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

ROW_NUMBER = "__row_number"
"""The column with the index of a row's record in its bundle."""
ROW_ERRORS = (
    duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException, UnicodeDecodeError,
)  # fmt: skip
"""The errors that a value can cause; any other error means that the statement is wrong.

DuckDB's message shows a part of the value, and may cut a character, which Python then cannot decode.
"""


class Prepared:
    """Prepared statements over `__rows`, which change with each bundle, and over tables that do not.

    Each is planned once: planning takes DuckDB several times as long as processing a small bundle.
    """

    def __init__(self, tables: "Mapping[str, pa.Table | Given] | None" = None) -> None:
        """Plan nothing yet: most of the possible statements never run."""
        self._tables = dict(tables or {})
        self._given = Given(pa.schema([]))
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._names: dict[str, str] = {}

    @contextmanager
    def over(self, rows: pa.Table) -> Iterator[Callable[[str], duckdb.DuckDBPyRelation]]:
        """Run statements over these rows."""
        if self._connection is None or rows.schema != self._given.schema:
            self._open(rows.schema)
        self._given.rows = rows
        try:
            yield self._ask
        finally:
            self._given.rows = None

    def _ask(self, statement: str) -> duckdb.DuckDBPyRelation:
        assert self._connection is not None
        if statement not in self._names:
            name = f"s{len(self._names)}"
            self._connection.execute(f"PREPARE {name} AS {statement}")
            self._names[statement] = name
        return self._connection.sql(f"EXECUTE {self._names[statement]}")

    def plan(self, statement: str) -> str:
        """DuckDB's plan of a statement, for rows with the columns of the last ones, as JSON."""
        assert self._connection is not None
        ((_, plan),) = self._connection.sql(f"EXPLAIN (FORMAT json) {statement}").fetchall()
        return str(plan)

    def _open(self, schema: pa.Schema) -> None:
        """Open a connection with its own names, and discard the statements that were planned for other columns."""
        self._connection = None
        self._names.clear()
        self._given.schema = schema
        opened = connection().cursor()
        opened.execute("SET TimeZone = 'UTC'")
        for name, table in {"__rows": self._given, **self._tables}.items():
            opened.register(name, table)
        self._connection = opened


class Given:
    """A table of DuckDB's that supplies its current rows to each statement."""

    def __init__(self, schema: pa.Schema) -> None:
        """Start without rows."""
        self.schema = schema
        self.rows: pa.Table | None = None

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        rows = self.schema.empty_table() if self.rows is None else self.rows
        return rows.__arrow_c_stream__(requested_schema)


@cache
def connection() -> duckdb.DuckDBPyConnection:
    """The connection of the process."""
    opened = duckdb.connect()
    opened.execute("SET TimeZone = 'UTC'; SET threads = 1")
    # The size of a bundle is unknown when a statement is planned, but a bundle has more rows than a table.
    # A rewritten or shared expression may fail where the original does not, or outside of its TRY.
    kept_off = ("join_order", "build_side_probe_side", "expression_rewriter", "common_subexpressions")
    opened.execute(f"SET disabled_optimizers = '{','.join(kept_off)}'")
    atexit.register(_close)
    return opened


def _close() -> None:
    connection().close()
    connection.cache_clear()
