"""The DuckDB of a process: one, on one thread, as Spark runs a task for each core."""

import atexit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

ROW_NUMBER = "__row_number"
"""The column of a bundle that says which of its records a row is."""
ROW_ERRORS = (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)
"""What a statement fails with because of a value; another error says that the statement is wrong."""


class Prepared:
    """Statements over `__rows`, which are others each time, and over tables that stay.

    Each is planned once: that takes DuckDB several times as long as a small bundle does.
    """

    def __init__(self, tables: Mapping[str, pa.Table] | None = None) -> None:
        """Nothing is planned yet, as most that could be asked never is."""
        self._tables = dict(tables or {})
        self._given = _Given()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._names: dict[str, str] = {}

    @contextmanager
    def over(self, rows: pa.Table) -> Iterator[Callable[[str], duckdb.DuckDBPyRelation]]:
        """Ask statements of these rows."""
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
        """How DuckDB does a statement over rows as they were given last, as JSON."""
        assert self._connection is not None
        ((_, plan),) = self._connection.sql(f"EXPLAIN (FORMAT json) {statement}").fetchall()
        return str(plan)

    def _open(self, schema: pa.Schema) -> None:
        """A connection of its own, with its own names; what was planned for other columns is forgotten."""
        self._connection = None
        self._names.clear()
        self._given.schema = schema
        opened = connection().cursor()
        opened.execute("SET TimeZone = 'UTC'")
        for name, table in {"__rows": self._given, **self._tables}.items():
            opened.register(name, table)
        self._connection = opened


class _Given:
    """What DuckDB knows as one table, and asks for its rows at each statement."""

    schema: pa.Schema = pa.schema([])
    rows: pa.Table | None = None

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        rows = self.schema.empty_table() if self.rows is None else self.rows
        return rows.__arrow_c_stream__(requested_schema)


@cache
def connection() -> duckdb.DuckDBPyConnection:
    """The connection of the process."""
    opened = duckdb.connect()
    opened.execute("SET TimeZone = 'UTC'; SET threads = 1")
    # How many rows a bundle has is not known when a statement is planned, but that it has more than a table is.
    # What is rewritten or shared may fail where what was written does not, or outside of the TRY that it was in.
    kept_off = ("join_order", "build_side_probe_side", "expression_rewriter", "common_subexpressions")
    opened.execute(f"SET disabled_optimizers = '{','.join(kept_off)}'")
    atexit.register(_close)
    return opened


def _close() -> None:
    connection().close()
    connection.cache_clear()
