"""The hub over real stores: snapshots and changes of one view agree, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from millrace.live.canonical import canonical, checksum, parsed
from millrace.live.events import Changes, Event, ReadSnapshot, Send, SnapshotRead, Subscribe
from millrace.live.hub import Hub
from millrace.live.parsing import parse
from millrace.live.query import live_view
from millrace.live.statement import Database, as_table, statement
from millrace.live.token import Asked
from millrace.model.connectors import Commit
from millrace.model.schema import parse_schema
from millrace.views import sqlite
from millrace.views.dialect import quoted
from millrace.views.shape import ViewShape
from millrace.views.store import Store, open_store
from postgres import Postgres
from stores import Row, answers

SHAPE = ViewShape(
    "sales",
    parse_schema(
        "shop STRING, day DATE, total DECIMAL(12, 2), wide DECIMAL(30, 3), mean DOUBLE, ratio FLOAT, at TIMESTAMP, "
        "tags ARRAY<STRING>, place STRUCT<city: STRING, n: INT>, raw BINARY, many BIGINT, timing STRING, "
        "index BIGINT, last BOOLEAN"
    ),
    ("shop", "day"),
)
QUERIES = [
    "SELECT * FROM sales",
    "SELECT * FROM sales WHERE total > 1.5 AND at >= '2024-01-01 01:00:00'",
    "SELECT shop, total, many FROM sales WHERE mean > 1 OR tags IS NULL ORDER BY total DESC, at LIMIT 3",
    "SELECT tags, place, raw FROM sales WHERE day = '2024-01-02' AND shop LIKE 'a%'",
    "SELECT shop, wide FROM sales WHERE ratio <= 0.5 ORDER BY mean, ratio DESC LIMIT 2 OFFSET 1",
    "SELECT many, last FROM sales WHERE NOT last AND many / 2 <> 3 ORDER BY day DESC",
]


@pytest.fixture(params=["sqlite", "postgresql"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Store, Database]]:
    monkeypatch.setattr(sqlite, "_WRITER", (*sqlite._WRITER, "PRAGMA synchronous = OFF"))
    url = f"sqlite:///{tmp_path_factory.mktemp('store')}/views.db"
    if request.param == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.empty(synchronous_commit="off")
    with closing(open_store(url)) as opened:
        opened.open("p", [SHAPE])
        yield opened, Database(request.param)


def row(random: Random) -> Row:
    def maybe(value: Any) -> Any:
        return None if random.random() < 0.2 else value

    start = datetime(2024, 1, 1, tzinfo=UTC)
    return (
        maybe(random.choice(["a", "ab", "b", "é"])),
        date(2024, 1, random.randint(1, 3)),
        maybe(Decimal(random.randint(-300, 300)) / 100),
        maybe(Decimal(random.choice([1, 10**20])) / 8),
        maybe(random.choice([0.5, 1.5, float("nan"), float("inf"), -0.0])),
        maybe(random.choice([0.1, 0.5, 2.0])),
        maybe(start + timedelta(hours=random.randint(0, 3))),
        maybe(random.choice([[], ["x", None]])),
        maybe({"city": random.choice(["Oslo", None]), "n": 3}),
        maybe(random.choice([b"", b"\0\xff"])),
        maybe(random.choice([0, 6, 7, 2**53, -(2**63)])),
        "early",
        0,
        random.random() < 0.5,
    )


def told(hub: Hub, store: Store, database: Database, event: Event) -> list[Any]:
    """What the hub tells, with a store that answers at once."""
    found = []
    (info,) = store.views()
    for each in hub.on(event):
        if isinstance(each, Send):
            found += [parsed(text) for text in each.messages]
        elif isinstance(each, ReadSnapshot):
            tables: list[pa.Table] = []
            for read in each.reads:
                made = statement(read, quoted("sales"), database)
                rows = store.query(made.sql, params=made.values).rows
                tables.append(as_table(made, live_view(info), database, rows))
            answer = SnapshotRead("sales", each.number, store.version(), info.generation, tuple(tables))
            found += told(hub, store, database, answer)
    return found


def test_changes_lead_where_a_snapshot_is(store: tuple[Store, Database]) -> None:
    """A client that follows the changes has the checksum of one that asks at the end."""
    opened, database = store
    random, hub = Random(7), Hub(b"secret")
    (info,) = opened.views()
    views = {"sales": live_view(info)}
    for number, sql in enumerate(QUERIES):
        told(hub, opened, database, Subscribe("early", str(number), parse(sql, views), Asked(sql)))
    last: dict[str, tuple[int, int]] = {str(number): (0, 0) for number in range(len(QUERIES))}
    since, changes = opened.version(), 0
    for batch in range(12):
        given = [(random.choice([1, 1, -1]), row(random)) for _ in range(6)]
        opened.commit(Commit("p", "c", batch), {"sales": answers(SHAPE, given)}, once=True)
        until = opened.version()
        event = Changes("sales", since, until, opened.changes("sales", since))
        for said in told(hub, opened, database, event):
            if said["type"] == "progress":
                last[said["sub"]] = said["rows"], said["checksum"]
                changes += 1
        since = until
    assert changes > 20
    for number, sql in enumerate(QUERIES):
        query = parse(sql, views)
        fresh = Hub(b"secret")
        parts = told(fresh, opened, database, Subscribe("late", "s", query, Asked(sql)))
        rows = [(id, canonical(values)) for said in parts if said["type"] == "snapshot" for id, values in said["rows"]]
        assert last[str(number)] == (len(rows), checksum(rows, query.is_sorted)), sql
