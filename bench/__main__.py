"""Measure, print a JSON line a figure, and write bench/RESULTS.md.

What there is to measure so far is the reference engine. It is meant to be slow; the figures say how
slow, against a plain Python loop over the same rows in the same run, and whether its cost per element
grows with the input.
"""

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from millrace import Reference, count, fixed, memory, on, session
from millrace.model.duration import SECOND, to_datetime
from millrace.model.query import Query

RESULTS = Path(__file__).parent / "RESULTS.md"
BUNDLE = 100
_SOURCE = memory("events", "k STRING, at TIMESTAMP").event_time("at", delay="30s").group_by("k")
_QUERIES: dict[str, Query] = {
    "fixed windows, on time": _SOURCE.window(fixed("10s")).aggregate(n=count()),
    "sessions, each bundle, retracting": (
        _SOURCE.window(session("2s")).trigger(on.each()).retracting().aggregate(n=count())
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


def _rate(many: int, work: Callable[[], None]) -> float:
    """Elements a second, the best of three runs after one to warm up."""
    work()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return many / min(times)


def main() -> None:
    """Run everything."""
    figures = []
    for name, query in _QUERIES.items():
        for many in (1_000, 10_000):
            rows = _rows(many)
            ours = _rate(many, lambda query=query, rows=rows: _reference(query, rows))  # type: ignore[misc]
            plain = _rate(many, lambda rows=rows: _plain(rows))  # type: ignore[misc]
            figure = {"bench": f"reference, {name}, {many} elements", "millrace": round(ours), "peer": round(plain)}
            figures.append({**figure, "ratio": round(ours / plain, 4)})
            print(json.dumps(figures[-1]), flush=True)
    RESULTS.write_text(_report(figures))


def _report(figures: list[dict[str, Any]]) -> str:
    lines = [
        "# Results",
        "",
        "Written by `make bench`; not edited by hand. The machine is shared and noisy: trust the ratios.",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"millrace {version('millrace')}. Elements a second, best of three after a warm-up. The peer of the "
        "reference is a loop in plain Python that counts the same rows without windows that close.",
        "",
        "| bench | millrace | peer | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {each['bench']} | {each['millrace']:,} | {each['peer']:,} | {each['ratio']} |" for each in figures]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
