"""A DuckDB instance for each thread of each process, for the few queries that the log runs over JSON."""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa


def asked(sql: str, tables: Mapping[str, pa.Table], parameters: Sequence[Any] = ()) -> pa.Table:
    """The result of a query over Arrow tables, by the names that the query uses."""
    connection = _local.connection()
    for name, table in tables.items():
        connection.register(name, table)
    try:
        return connection.sql(sql, params=list(parameters)).to_arrow_table()
    finally:
        for name in tables:
            connection.unregister(name)


class _Local(threading.local):
    """Caches the connection, because opening one costs as much as many queries."""

    _opened: tuple[int, duckdb.DuckDBPyConnection] | None = None

    def connection(self) -> duckdb.DuckDBPyConnection:
        if self._opened is None or self._opened[0] != os.getpid():
            connection = duckdb.connect(config={"threads": 1})
            connection.execute("SET TimeZone = 'UTC'")
            self._opened = os.getpid(), connection
        return self._opened[1]


_local = _Local()
