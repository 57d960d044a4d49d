"""Live queries: matching beside evaluating each query, notification by the hub, and a storm of subscriptions.

Changes come in ten batches a second, as many a batch as the rate says. The latency is the time from a batch to the
pairs of a row and a query, or to the messages, on one core. The peer evaluates each query by itself over the same
batch, in Arrow or as a Python function over rows, whichever is faster.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from bench.figures import Figure, figure
from millrace.live.condition import Slot, walk
from millrace.live.evaluate import scalar, truth
from millrace.live.events import Changes, Follow, Instruction, ReadSnapshot, Send, SnapshotRead, Subscribe
from millrace.live.hub import Hub
from millrace.live.matcher import Matcher
from millrace.live.parsing import parse
from millrace.live.query import LiveQuery, LiveView
from millrace.live.statement import Database, Statement, as_table, select, statement
from millrace.live.token import Asked
from millrace.model.schema import parse_schema
from millrace.server.cells import CellProcesses

VIEW = LiveView("items", parse_schema("id BIGINT, user STRING, country STRING, price DOUBLE, qty BIGINT"), ("id",))
_COUNTRIES, _MOST = 200, 10**9
_NAIVE = 10_000
"""Of more queries than this, so many are evaluated naively, and the time is scaled."""


def _shapes(many: int, random: Random) -> list[tuple[str, Callable[[], list[Any]], Callable[[Any, Any], bool]]]:
    """Conditions, random constants for them, and the same as Python; a row matches about one query."""

    def user() -> str:
        return f"u{random.randrange(many)}"

    def within() -> list[Any]:
        low = random.randrange(_MOST)
        return [low, low + _MOST // many]

    def dear(share: float) -> float:
        return 1_000 - random.random() * 1_000 * share / many

    return [
        ("user = $1", lambda: [user()], lambda row, c: row[1] == c[0]),
        (
            "country = $1 AND price > $2",
            lambda: [f"c{random.randrange(_COUNTRIES)}", dear(_COUNTRIES)],
            lambda row, c: row[2] == c[0] and row[3] > c[1],
        ),
        ("qty BETWEEN $1 AND $2", within, lambda row, c: c[0] <= row[4] <= c[1]),
        ("price > $1", lambda: [dear(1)], lambda row, c: row[3] > c[0]),
        (
            "user IN ($1, $2) AND NOT qty < $3",
            lambda: [user(), user(), random.randrange(_MOST)],
            lambda row, c: row[1] in c[0] and not row[4] < c[1],
        ),
    ]


def _queries(many: int, random: Random) -> Iterator[LiveQuery]:
    shapes = _shapes(many, random)
    for number in range(many):
        text, constants, _ = shapes[number % len(shapes)]
        yield parse(f"SELECT id, price FROM items WHERE {text}", {"items": VIEW}, constants())


def _rows(many: int, users: int, random: Random) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([random.randrange(10**6) for _ in range(many)]),
            "user": [f"u{random.randrange(users)}" for _ in range(many)],
            "country": [f"c{random.randrange(_COUNTRIES)}" for _ in range(many)],
            "price": [random.random() * 1_000 for _ in range(many)],
            "qty": pa.array([random.randrange(_MOST) for _ in range(many)]),
        }
    )


def _naive(queries: list[LiveQuery], rows: pa.Table) -> float:
    """The seconds in which each query is evaluated by itself."""
    start = time.perf_counter()
    found = sum(int(np.count_nonzero(_evaluated(query, rows))) for query in queries)
    in_arrow = time.perf_counter() - start
    functions = [function for _, _, function in _shapes(1, Random(7))]
    start = time.perf_counter()
    plain = list(zip(*rows.to_pydict().values(), strict=True))
    same = 0
    for number, query in enumerate(queries):
        function, constants = functions[number % len(functions)], query.constants
        same += sum(function(row, constants) for row in plain)
    assert same == found
    return min(in_arrow, time.perf_counter() - start)


def _evaluated(query: LiveQuery, rows: pa.Table) -> pa.Array:
    condition = query.shape.condition
    types = {each.number: each.type for each in walk(condition or Slot(0, "")) if isinstance(each, Slot)}
    slots = [
        value if isinstance(value, tuple) else scalar(value, types[number])
        for number, value in enumerate(query.constants)
    ]
    return truth(condition, rows, slots)


def bench_matching() -> list[Figure]:
    """Matches a second and latency, by the number of queries and the rate of changes."""
    figures = []
    for many in (100, 10_000, 100_000, 1_000_000):
        random, matcher = Random(7), Matcher()
        queries = list(_queries(many, random))
        for handle, query in enumerate(queries):
            matcher.add(handle, query)
        matcher.match(_rows(1_000, many, random))  # the first changes sort what was added
        sample = queries[:_NAIVE]
        for rate in (100, 1_000, 10_000):
            batch = rate // 10
            spent, matches = [], 0
            for _ in range(50):
                rows = _rows(batch, many, random)
                start = time.perf_counter()
                places, _ = matcher.match(rows)
                spent.append(time.perf_counter() - start)
                matches += len(places)
            naive = _naive(sample, _rows(batch, many, random)) * many / len(sample)
            p50, p99 = np.percentile(spent, [50, 99]) * 1_000
            name = f"live matching, {many:,} queries, {rate:,} changes/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms a batch"
            ours = sum(spent) / len(spent)
            figures.append(figure(name, many * batch / ours, many * batch / naive, "pairs of query and change/s"))
    return figures


def bench_grid() -> list[Figure]:
    """Matching in processes, by the size of the grid, beside one process of the same kind: what more cells add."""
    many, batch = 100_000, 10_000
    figures: list[Figure] = []
    for lines, columns in ((1, 1), (2, 1), (1, 2), (2, 2)):
        random = Random(7)
        with closing(CellProcesses(lines, columns)) as processes:
            grid = processes.grid()
            for handle, query in enumerate(_queries(many, random)):
                grid.add(handle, query)
            spent = []
            for number in range(12):
                rows = _rows(batch, many, random)
                ids = [str(id) for id in rows["id"].to_pylist()]
                start = time.perf_counter()
                grid.match(rows, ids)
                if number > 1:  # the first changes sort what was added
                    spent.append(time.perf_counter() - start)
        ours = many * batch * len(spent) / sum(spent)
        name = f"live matching, a grid of {lines} x {columns} processes, {many:,} queries, {batch:,} changes a batch"
        peer = figures[0]["millrace"] if figures else ours
        figures.append(figure(name, ours, peer, "pairs of query and change/s"))
    return figures


def _connected(many: int, random: Random) -> Hub:
    """A hub with so many clients, each with a query of its own over an empty view."""
    hub = Hub(b"bench")
    asked = Asked("SELECT")
    wanted: list[Instruction] = []
    for number, query in enumerate(_queries(many, random)):
        wanted += hub.on(Subscribe(str(number), "s", query, asked))
    while reads := [each for each in wanted if isinstance(each, ReadSnapshot)]:
        (read,) = reads
        empty = tuple(_rows(0, 1, random) for _ in read.reads)
        wanted = hub.on(SnapshotRead("items", read.number, 0, 1, empty))
    return hub


def bench_notification() -> list[Figure]:
    """The hub with 100 thousand subscriptions: from a commit to the messages of its clients."""
    many, rate, random = 100_000, 1_000, Random(7)
    hub = _connected(many, random)
    spent, sent = [], 0
    for version in range(1, 121):
        rows = _rows(rate // 10, many, random)
        added = [pa.array([version] * len(rows), pa.int64()), pa.array([1] * len(rows), pa.int32())]
        table = rows.append_column("version", added[0]).append_column("diff", added[1])
        start = time.perf_counter()
        done = hub.on(Changes("items", version - 1, version, table))
        if version > 20:  # the first ones sort what was added
            spent.append(time.perf_counter() - start)
            sent += sum(isinstance(each, Send) for each in done)
    p50, p99 = np.percentile(spent, [50, 99]) * 1_000
    name = f"live hub, {many:,} subscriptions, {rate:,} changes/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms to the messages"
    return [figure(name, sent / sum(spent), sent / 10, "notifications/s, beside those needed")]


def bench_storm() -> list[Figure]:
    """2,048 subscriptions at once over a view of 10,000 rows in SQLite, beside a read for each of them."""
    many, random = 2_048, Random(7)
    rows = _rows(10_000, many, random)
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE items (id INTEGER, user TEXT, country TEXT, price REAL, qty INTEGER)")
    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", zip(*rows.to_pydict().values(), strict=True))

    def read(made: Statement) -> pa.Table:
        values = {str(number): value for number, value in enumerate(made.values, 1)}
        return as_table(made, VIEW, Database.SQLITE, connection.execute(made.sql, values).fetchall())

    figures = []
    one = list(_queries(1, random)) * many
    for told, queries in (("of one query", one), ("of as many queries", list(_queries(many, random)))):
        hub, ready = Hub(b"bench"), 0
        start = time.perf_counter()
        wanted: list[Instruction] = []
        for number, query in enumerate(queries):
            wanted += hub.on(Subscribe(str(number), "s", query, Asked("SELECT")))
        while wanted:
            each = wanted.pop(0)
            if isinstance(each, ReadSnapshot):
                tables = tuple(read(statement(one, "items", Database.SQLITE)) for one in each.reads)
                wanted += hub.on(SnapshotRead("items", each.number, 1, 1, tables))
            elif isinstance(each, Send):
                ready += sum('"type":"ready"' in text for text in each.messages)
            else:
                assert isinstance(each, Follow)
        ours = time.perf_counter() - start
        assert ready == many
        start = time.perf_counter()
        for query in queries:
            read(select(query, "items", Database.SQLITE))
        theirs = time.perf_counter() - start
        name = f"live storm, {many:,} subscriptions {told}: {ours:.2f} s"
        figures.append(figure(name, many / ours, many / theirs, "subscriptions/s"))
    connection.close()
    return figures


def run() -> list[Figure]:
    """All of it."""
    return [*bench_storm(), *bench_notification(), *bench_matching(), *bench_grid()]
