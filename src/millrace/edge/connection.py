"""The DuckDB of a process: one, on one thread, as Spark runs a task for each core."""

import atexit
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import duckdb
import pyarrow as pa

ROW_ERRORS = (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)
"""What a statement fails with because of a value; another error says that the statement is wrong."""


@contextmanager
def registered(tables: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    """The connection, with Arrow tables to be read under these names."""
    connection = _connection()
    for name, table in tables.items():
        connection.register(name, table)
    try:
        yield connection
    finally:
        for name in tables:
            connection.unregister(name)


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
    atexit.register(_close)
    return connection


def _close() -> None:
    _connection().close()
    _connection.cache_clear()
