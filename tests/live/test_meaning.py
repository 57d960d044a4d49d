"""A live query means the same in Arrow, in SQLite and in PostgreSQL; the databases judge."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql as psycopg_sql

from examples import examples
from live_cases import KINDS, VIEW, Row, conditions, create, rows, sqlite_rows, table
from millrace.live.condition import Constant, Slot, walk
from millrace.live.evaluate import scalar, truth
from millrace.live.parsing import parse
from millrace.live.query import LiveQuery
from millrace.live.statement import Database, select
from millrace.views.postgresql_values import PostgresqlDialect
from millrace.views.sqlite_values import SqliteDialect
from postgres import Postgres

_ORDERS = ["", "ORDER BY name DESC, x", "ORDER BY x DESC, price, ok", "ORDER BY at, day DESC, n LIMIT 3", "LIMIT 2"]


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


@examples(60)
@given(rows(extreme=True), st.lists(conditions(), min_size=1, max_size=6))
def test_sqlite_answers_as_arrow_does(sqlite: sqlite3.Connection, found: list[Row], texts: list[str]) -> None:
    sqlite.execute("PRAGMA case_sensitive_like = OFF")  # as it is by default
    fill_sqlite(sqlite, found)
    for text in texts:
        query = parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW})
        assert set(asked_sqlite(sqlite, query)) == arrow_keys(query, found)


@examples(30)
@given(rows(extreme=True), st.lists(conditions(), min_size=1, max_size=6))
def test_postgresql_answers_as_arrow_does(postgresql: psycopg.Connection, found: list[Row], texts: list[str]) -> None:
    fill_postgresql(postgresql, found)
    for text in texts:
        query = parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW})
        assert set(asked_postgresql(postgresql, query)) == arrow_keys(query, found)


@examples(60)
@given(rows(extreme=False), st.lists(conditions(), min_size=1, max_size=6))
def test_what_the_user_wrote_means_the_same_in_sqlite(
    sqlite: sqlite3.Connection, found: list[Row], texts: list[str]
) -> None:
    sqlite.execute("PRAGMA case_sensitive_like = ON")
    fill_sqlite(sqlite, found)
    for text in texts:
        query = parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW})
        judged = {row[0] for row in sqlite.execute(f"SELECT id FROM items WHERE {text}")}
        assert judged == arrow_keys(query, found)


@examples(30)
@given(rows(extreme=True), st.lists(conditions(arithmetic=False), min_size=1, max_size=6))
def test_what_the_user_wrote_means_the_same_in_postgresql(
    postgresql: psycopg.Connection, found: list[Row], texts: list[str]
) -> None:
    fill_postgresql(postgresql, found)
    for text in texts:
        query = parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW})
        original = psycopg_sql.SQL("SELECT id FROM items WHERE ") + psycopg_sql.SQL(text)
        assert {row[0] for row in postgresql.execute(original)} == arrow_keys(query, found)


@examples(20)
@given(rows(extreme=True), st.sampled_from(_ORDERS))
def test_both_stores_sort_alike(
    sqlite: sqlite3.Connection, postgresql: psycopg.Connection, found: list[Row], order: str
) -> None:
    fill_sqlite(sqlite, found)
    fill_postgresql(postgresql, found)
    query = parse(f"SELECT id FROM items {order}", {"items": VIEW})
    ours = asked_sqlite(sqlite, query), asked_postgresql(postgresql, query)
    assert ours[0] == ours[1] if query.is_sorted else set(ours[0]) == set(ours[1])
