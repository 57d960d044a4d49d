"""The parts that need no Spark.

The reference beside a plain Python loop, the panes beside the reference and beside themselves with fewer keys, the
fused edge beside a loop over rows.
"""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.figures import Figure, figure
from millrace import agg, memory, on, table, window
from millrace.edge.fused import Fused
from millrace.model.duration import SECOND, to_datetime
from millrace.model.query import Query
from millrace.panes import blobs
from millrace.panes.advance import Panes, PaneState
from millrace.testing import Reference
from millrace.testing.engines import PaneEngine

BUNDLE = 100
_SOURCE = memory("events", "k STRING, at TIMESTAMP").event_time("at", delay="30s").group_by("k")
_QUERIES: dict[str, Query] = {
    "fixed windows, on time": _SOURCE.window(window.fixed("10s")).aggregate(n=agg.count()),
    "sessions, each bundle, retracting": (
        _SOURCE.window(window.session("2s")).trigger(on.each()).retracting().aggregate(n=agg.count())
    ),
}


def _rows(many: int) -> list[dict[str, Any]]:
    return [{"k": f"k{number % 97}", "at": to_datetime(number * SECOND // 50)} for number in range(many)]


def _reference(query: Query, rows: list[dict[str, Any]]) -> None:
    engine = Reference(query)
    for start in range(0, len(rows), BUNDLE):
        engine.micro_batch(rows[start : start + BUNDLE], now=start)
    engine.end()


def _plain(rows: list[dict[str, Any]]) -> None:
    counts: Counter[Any] = Counter()
    for row in rows:
        counts[row["k"], int(row["at"].timestamp()) // 10] += 1


def _rate(many: int, work: Callable[[], object]) -> float:
    """Elements a second, the best of three runs after one to warm up."""
    work()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return many / min(times)


def bench_reference() -> list[Figure]:
    """The reference against a plain loop: how slow, and whether that grows with the input."""
    figures = []
    for name, query in _QUERIES.items():
        for many in (1_000, 10_000):
            rows = _rows(many)
            ours = _rate(many, partial(_reference, query, rows))
            figures.append(figure(f"reference, {name}, {many} elements", ours, _rate(many, partial(_plain, rows))))
    return figures


def bench_panes() -> list[Figure]:
    """The pane engine, fed row by row as the reference is, against the reference."""
    rows = _rows(10_000)

    def fast(query: Query) -> None:
        engine = PaneEngine(query)
        for start in range(0, len(rows), BUNDLE):
            engine.micro_batch(rows[start : start + BUNDLE], now=start)
        engine.end()

    return [
        figure(
            f"panes beside reference, {name}, bundles of {BUNDLE}",
            _rate(len(rows), partial(fast, query)),
            _rate(len(rows), partial(_reference, query, rows)),
        )
        for name, query in _QUERIES.items()
    ]


def bench_growth() -> list[Figure]:
    """What an event costs as the number of keys grows, writing of the state included; the peer is the smallest."""
    figures: list[Figure] = []
    source = memory("events", "k STRING, v BIGINT, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
    panes = Panes(
        source.window(window.fixed("1d")).trigger(on.each()).retracting().aggregate(n=agg.count(), total=agg.sum("v"))
    )
    many, chance = 200_000, np.random.default_rng(7)
    for keys in (1_000, 100_000, 1_000_000, 10_000_000):
        state, _ = panes.advance(PaneState(), _partials(np.arange(keys), np.ones(keys, np.int64)), 0, 0)
        kept, changes = blobs.write(None, state, "first")
        size = sum(map(len, changes.put.values())) / keys
        del changes
        spent = []
        for number in range(6):
            bundle = _partials(*np.unique(chance.integers(0, keys, many), return_counts=True))
            start = time.perf_counter()
            state, _ = panes.advance(state, bundle, 0, 0)
            kept, _ = blobs.write(kept, state, str(number))
            spent.append(time.perf_counter() - start)
        rate = many / sorted(spent)[len(spent) // 2]
        name = f"panes, 200,000 events of {keys:,} keys, retracting; {size:.0f} bytes of state a key"
        figures.append(figure(name, rate, figures[0]["millrace"] if figures else rate, "events/s"))
    return figures


def _partials(keys: npt.NDArray[np.int64], many: npt.NDArray[np.int64]) -> pa.Table:
    names = pa.array([f"user-{key:09}" for key in keys.tolist()])
    total = pa.array(many).cast(pa.decimal128(38, 0))
    return pa.table({"key0": names, "slice": many * 0, "elements": many, "p0_0": many, "p1_0": total, "p1_1": many})


def bench_edge() -> list[Figure]:
    """The edge of the Yahoo benchmark on decoded rows, one thread: fused, beside a loop over rows in Python."""
    many, chance = 500_000, np.random.default_rng(7)
    ads = table(
        "ads", "ad STRING, campaign STRING", rows=[{"ad": f"a{n}", "campaign": f"c{n // 10}"} for n in range(1_000)]
    )
    source = memory("events", "ad STRING, type STRING, at TIMESTAMP")
    query = (
        source.where("type = 'view'")
        .join(ads, on="ad")
        .event_time("at", delay="10s")
        .group_by("campaign")
        .window(window.fixed("10s"))
        .aggregate(n=agg.count())
    )
    rows = pa.table(
        {
            "ad": pa.array([f"a{number}" for number in chance.integers(0, 1_000, many).tolist()]),
            "type": pa.array(np.array(["view", "click", "buy"])[chance.integers(0, 3, many)].tolist()),
            "at": pa.array(chance.integers(0, 60 * SECOND, many), pa.timestamp("us", "UTC")),
        }
    )
    fused = Fused(query, source)

    def loop() -> None:
        campaigns, counts = dict(ads.rows), Counter[Any]()
        for row in rows.to_pylist():
            if row["type"] == "view":
                counts[campaigns[row["ad"]], int(row["at"].timestamp()) // 10] += 1

    name = "fused edge, Yahoo benchmark on decoded rows, beside a loop in Python"
    return [figure(name, _rate(many, lambda: fused.take(rows)), _rate(many, loop), "rows/s")]


def run() -> list[Figure]:
    """All of it."""
    return [*bench_reference(), *bench_panes(), *bench_growth(), *bench_edge()]
