"""A pipeline of three stages and a join of streams that is killed with SIGKILL: nothing is missing, nothing twice."""

import json
import os
import random
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kills import Process, held_at
from millrace.views.store import open_store

pytestmark = pytest.mark.spark

PIPELINE = """
from millrace import Pipeline, agg, files, on, to_table, window

events = files("in", "k STRING, v BIGINT, at TIMESTAMP", per_batch=1)
timed = events.event_time("at", delay="5s")
totals = (
    timed.group_by("k").window(window.fixed("10s"), lateness="1h").trigger(on.each()).retracting()
    .aggregate(total=agg.sum("v"))
)
ranking = (
    totals.window(window.fixed("10s"), lateness="1h").trigger(on.each()).retracting()
    .aggregate(best=agg.top_k("k", 2, by="total"), most=agg.max("total"))
)
tops = ranking.where("most > 0").window(window.fixed("20s"), lateness="1h").trigger(on.each()).retracting()
tops = tops.aggregate(most=agg.sum("most"))
odd = files("in", "k STRING, v BIGINT, at TIMESTAMP", per_batch=1).where("v % 2 = 1").select("k", odd="v", odd_at="at")
pairs = timed.where("v % 10 = 0").join(
    odd.event_time("odd_at", delay="5s"), on="k", within=("0s", "1s"), lateness="1h"
)
pipeline = Pipeline("staged", views={"ranking": ranking, "tops": tops}, sinks=[pairs.to(to_table("out.db", "pairs"))])
"""
FILES = 10


def test_stages_and_joins_are_exact_after_kills(tmp_path: Path) -> None:
    rows = prepared(tmp_path)
    for point, count in (("state written", 9), ("sink during write", 3)):
        marker = tmp_path / "reached"
        process = started(tmp_path, held_at(point, count, marker))
        assert process.wait_for(marker), f"it ended before {point}"
        process.kill()
        marker.unlink(missing_ok=True)
    started(tmp_path).wait()
    with closing(open_store(tmp_path / ".millrace" / "views.db")) as store:
        ranking, tops = (store.rows(view).rows.to_pylist() for view in ("ranking", "tops"))
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        pairs = Counter(database.execute("SELECT k, v, odd, diff FROM pairs").fetchall())
    totals: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        totals[int(row["at"]) // 10 * 10][row["k"]] += row["v"]
    best = {start: sorted(held.items(), key=lambda each: (each[1], each[0]))[::-1] for start, held in totals.items()}
    assert {seconds(row): (row["best"], row["most"]) for row in ranking} == {
        start: ([name for name, _ in held[:2]], held[0][1]) for start, held in best.items()
    }
    most: dict[int, int] = defaultdict(int)
    for start, held in best.items():
        most[start // 20 * 20] += held[0][1]
    assert {seconds(row): row["most"] for row in tops} == most
    assert pairs == Counter(
        (one["k"], one["v"], other["v"], 1)
        for one in rows
        for other in rows
        if one["v"] % 10 == 0 and other["v"] % 2 == 1 and one["k"] == other["k"] and 0 <= other["at"] - one["at"] <= 1
    )
    assert len(pairs) > 20


def seconds(row: dict[str, Any]) -> int:
    return int(row["window_start"].timestamp())


def prepared(folder: Path) -> list[dict[str, Any]]:
    """Write the pipeline and its input, the same every time; returns the rows, with times in seconds."""
    (folder / "in").mkdir()
    (folder / "pipeline.py").write_text(PIPELINE)
    draw = random.Random(5)
    rows = []
    for number in range(FILES):
        lines = []
        for _ in range(40):
            at = round(max(number * 4 + draw.uniform(-12, 4), 0.0), 6)
            row = {"k": f"key {draw.randrange(5)}", "v": draw.randrange(100), "at": at}
            rows.append(row)
            lines.append(json.dumps({**row, "at": f"1970-01-01T00:00:{at:09.6f}Z"}))
        path = folder / "in" / f"{number:03}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (number, number))
    return rows


def started(folder: Path, environment: dict[str, str] | None = None) -> Process:
    options = ["--until-caught-up", "--checkpoint", "checkpoint"]
    return Process(folder / "pipeline.py", options, environment or {})
