"""A live query means the same in Arrow, in SQLite and in PostgreSQL; the databases judge."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql as psycopg_sql

from examples import examples
from live_cases import KINDS, TEXTS, VIEW, Row, conditions, create, rows, sqlite_rows, table
from millrace.live.condition import Constant, Slot, walk
from millrace.live.evaluate import scalar, truth
from millrace.live.ordering import sort_keys
from millrace.live.parsing import parse
from millrace.live.query import LiveQuery
from millrace.live.statement import Database, select
from millrace.views.postgresql_values import PostgresqlDialect
from millrace.views.sqlite_values import SqliteDialect
from postgres import Postgres

_ORDERS = ["ORDER BY name DESC, x", "ORDER BY x DESC, price, ok", "ORDER BY at, day DESC, n LIMIT 3", "LIMIT 2"]


def arrow_keys(query: LiveQuery, found: list[Row]) -> set[int]:
    """The keys of the rows for which the condition is true, by Arrow."""
    types = {each.number: each.type for each in walk(query.shape.condition or Slot(0, "")) if isinstance(each, Slot)}

    def slot(number: int, value: Constant) -> object:
        return value if isinstance(value, tuple) else scalar(value, types[number])

    slots = [slot(number, value) for number, value in enumerate(query.constants)]
    holds = truth(query.shape.condition, table(found), slots)
    return {row[0] for row, each in zip(found, holds.to_pylist(), strict=True) if each}


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(create(SqliteDialect()))
        yield connection


@pytest.fixture(scope="module")
def postgresql(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.empty(), autocommit=True) as connection:
        connection.execute(create(PostgresqlDialect()).encode())
        connection.execute("SET timezone = 'UTC'")
        yield connection


def fill_sqlite(connection: sqlite3.Connection, found: list[Row]) -> None:
    connection.execute("DELETE FROM items")
    connection.executemany(f"INSERT INTO items VALUES ({', '.join('?' * len(KINDS))})", sqlite_rows(found))


def fill_postgresql(connection: psycopg.Connection, found: list[Row]) -> None:
    connection.execute("DELETE FROM items")
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO items VALUES ({', '.join(['%s'] * len(KINDS))})".encode(), found)


def asked_sqlite(connection: sqlite3.Connection, query: LiveQuery) -> list[int]:
    made = select(query, "items", Database.SQLITE, query.end)
    values = {str(number): value for number, value in enumerate(made.values, 1)}
    place = query.shape.needed.index("id")
    return [row[place] for row in connection.execute(made.sql, values)]


def asked_postgresql(connection: psycopg.Connection, query: LiveQuery) -> list[int]:
    made = select(query, "items", Database.POSTGRESQL, query.end)
    place = query.shape.needed.index("id")
    with psycopg.RawCursor(connection) as cursor:
        return [row[place] for row in cursor.execute(made.sql.encode(), made.values).fetchall()]


@examples(40)
@given(rows(extreme=True), st.lists(conditions(), min_size=3, max_size=10))
def test_sqlite_answers_as_arrow_does(sqlite: sqlite3.Connection, found: list[Row], texts: list[str]) -> None:
    sqlite.execute("PRAGMA case_sensitive_like = OFF")  # as it is by default
    fill_sqlite(sqlite, found)
    for text in texts:
        query = parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW})
        assert set(asked_sqlite(sqlite, query)) == arrow_keys(query, found)


@examples(20)
@given(rows(extreme=True), st.lists(conditions(), min_size=3, max_size=10))
def test_postgresql_answers_as_arrow_does(postgresql: psycopg.Connection, found: list[Row], texts: list[str]) -> None:
    fill_postgresql(postgresql, found)
    for text in texts:
        query = parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW})
        assert set(asked_postgresql(postgresql, query)) == arrow_keys(query, found)


@examples(40)
@given(rows(extreme=False), st.lists(conditions(), min_size=3, max_size=10))
def test_what_the_user_wrote_means_the_same_in_sqlite(
    sqlite: sqlite3.Connection, found: list[Row], texts: list[str]
) -> None:
    sqlite.execute("PRAGMA case_sensitive_like = ON")
    fill_sqlite(sqlite, found)
    for text in texts:
        query = parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW})
        judged = {row[0] for row in sqlite.execute(f"SELECT id FROM items WHERE {text}")}
        assert judged == arrow_keys(query, found)


@examples(20)
@given(rows(extreme=True), st.lists(conditions(arithmetic=False), min_size=1, max_size=6))
def test_what_the_user_wrote_means_the_same_in_postgresql(
    postgresql: psycopg.Connection, found: list[Row], texts: list[str]
) -> None:
    fill_postgresql(postgresql, found)
    for text in texts:
        query = parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW})
        original = psycopg_sql.SQL("SELECT id FROM items WHERE ") + psycopg_sql.SQL(text)
        assert {row[0] for row in postgresql.execute(original)} == arrow_keys(query, found)


EDGES = [
    "n * n > 0", "n * m > 0", "n + n > m", "n - 1 < n", "-n > 0", "n / m = n", "n / m < 0", "n % m = 0", "m / 0 = 1",
    "NOT m / 0 = 1", "n / (m - m) IS NULL", "n * n IS NULL", "n + 1 IS NOT NULL", "x = x", "x > 1e300", "x >= 0.0",
    "x * x > 1.0", "x * x IS NULL", "x / x = 1.0", "x + x > x", "x - x = 0.0", "x / 0 IS NULL", "x < f", "NOT x > 2",
    "x IN (0.0, 2.0)", "n = 1.5", "n > 9007199254740992.0", "n IN (1, NULL)", "n NOT IN (1, NULL)", "price > 99999999",
    "price < -99999999", "price = n", "name LIKE 'A%'", "name LIKE '_'", "name LIKE '%B'", "name LIKE '%[%'",
    "name LIKE 'a%b'", "name LIKE '%'", "name > 'Z'", "name < 'é'", "ok OR n = 1", "NOT ok AND n = 1", "ok IS NOT TRUE",
    "at > '2024-01-01T01:00:00+01:00'", "day <= DATE '2024-01-02'", "at = TIMESTAMP '2024-01-01 00:00:00'",
]  # fmt: skip


def test_both_stores_agree_at_the_edges(sqlite: sqlite3.Connection, postgresql: psycopg.Connection) -> None:
    """Values at the limits of their types, in conditions that tell them apart."""
    whole = [None, 0, 1, -1, 2**63 - 1, -(2**63), 2**53, 2**53 + 1, 2**32]
    doubles = [None, 0.0, -0.0, 2.0, math.nan, math.inf, -math.inf, 1e308, 1e-308, 1e150, 1e-150, 1e151]
    names = [None, *TEXTS]
    start = datetime(2024, 1, 1, tzinfo=UTC)
    found: list[Row] = [
        (key, whole[key % 9], key % 3 - 1, doubles[key % 12], doubles[key % 4], Decimal(key - 18) / 4,
         names[key % len(names)], "a", [None, True, False][key % 3], start, start.date())
        for key in range(36)
    ]  # fmt: skip
    sqlite.execute("PRAGMA case_sensitive_like = OFF")
    fill_sqlite(sqlite, found)
    fill_postgresql(postgresql, found)
    for text in EDGES:
        query = parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW})
        ours = arrow_keys(query, found)
        assert set(asked_sqlite(sqlite, query)) == ours, text
        assert set(asked_postgresql(postgresql, query)) == ours, text
    for order in _ORDERS:
        check_order(sqlite, postgresql, found, order)


def check_order(sqlite: sqlite3.Connection, postgresql: psycopg.Connection, found: list[Row], order: str) -> None:
    """Compare the order of rows in both stores with that of their sort keys."""
    query = parse(f"SELECT id FROM items {order}", {"items": VIEW})
    keys = sort_keys(table(found), query.shape.order)
    ours = [key for _, key in sorted(zip(keys, range(len(found)), strict=True))][: query.end]
    assert asked_sqlite(sqlite, query) == ours
    assert asked_postgresql(postgresql, query) == ours


@examples(20)
@given(rows(extreme=True), st.sampled_from(_ORDERS))
def test_both_stores_sort_as_millrace_does(
    sqlite: sqlite3.Connection, postgresql: psycopg.Connection, found: list[Row], order: str
) -> None:
    fill_sqlite(sqlite, found)
    fill_postgresql(postgresql, found)
    check_order(sqlite, postgresql, found, order)
