"""From `millrace send` to the view, while producers, the pipeline and PostgreSQL are killed: all is there, once."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from kills import Process
from millrace.eventlog.topics import Log
from millrace.views.store import open_store
from postgres import Postgres

pytestmark = pytest.mark.spark

PIPELINE = """
from millrace import Pipeline, agg, log, on, window

events = log("events", "k STRING, v BIGINT, at TIMESTAMP")
totals = (
    events.event_time("at", delay="5s")
    .group_by("k")
    .window(window.fixed("10s"), lateness="1d")
    .trigger(on.watermark(early=on.each(), late=on.each()))
    .retracting()
    .aggregate(n=agg.count(), total=agg.sum("v"))
)
path = Pipeline("path", views={"totals": totals})
"""
FILES, RECORDS = 4, 60_000


def prepared(folder: Path) -> dict[tuple[str, str], tuple[int, int]]:
    """Make the files that are sent; what the view must hold of them in the end."""
    draw, expected = random.Random(7), Counter[tuple[str, str]]()
    sums = Counter[tuple[str, str]]()
    for number in range(FILES):
        lines = []
        for _ in range(RECORDS):
            second = max(0, min(3_599, number * 100 + draw.randrange(-60, 100)))
            key, value = f"key {draw.randrange(50)}", draw.randrange(1_000)
            at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
            lines.append(json.dumps({"k": key, "v": value, "at": at}))
            start = f"{second // 10 * 10 // 60:02}:{second // 10 * 10 % 60:02}"
            expected[key, start] += 1
            sums[key, start] += value
        (folder / f"{number}.json").write_text("\n".join(lines))
    (folder / "path.py").write_text(PIPELINE)
    return {place: (many, sums[place]) for place, many in expected.items()}


def send(folder: Path, number: int, kills: int) -> None:
    """Send a file, killing who sends it when something of it is there."""
    command = [sys.executable, "-m", "millrace", "send", "events", f"{number}.json", "--producer", f"file {number}"]
    log = Log(folder / ".millrace" / "log.db")
    for _ in range(kills):
        before = log.ends("events")
        process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
        while log.ends("events") == before and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.wait()
    subprocess.run(command, cwd=folder, check=True, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_nothing_is_lost_and_nothing_is_there_twice(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepared(tmp_path)
    database: Postgres | None = request.getfixturevalue("postgres") if kind == "postgresql" else None
    store = database.empty() if database else str(tmp_path / "views.db")
    monkeypatch.setenv("MILLRACE_STORE", store)
    subprocess.run([sys.executable, "-m", "millrace", "topics", "create", "events", "--partitions", "2"],
                   cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    send(tmp_path, 0, kills=2)
    pipeline = tmp_path / "path.py"
    process = Process(pipeline, [])
    process.wait_for_batch(1)
    send(tmp_path, 1, kills=2)
    process.wait_for_batch(2)
    if database:
        database.kill()
        time.sleep(1)
        database.restart()
    done = process.batches()
    send(tmp_path, 2, kills=0)
    process.wait_for_batch(done + 1)
    process.kill()
    done = process.batches()
    send(tmp_path, 3, kills=1)  # after the kill, so that the next run has something left to read
    process = Process(pipeline, [])
    process.wait_for_batch(done + 1)
    if database:
        database.kill()
        database.restart()
    process.kill()
    Process(pipeline, ["--until-caught-up"]).wait()
    log = Log(tmp_path / ".millrace" / "log.db")
    assert sum(log.ends("events")) == FILES * RECORDS
    with closing(open_store(store)) as opened:
        rows = opened.rows("totals").rows.to_pylist()
        held = {(row["k"], row["window_start"].strftime("%M:%S")): (row["n"], row["total"]) for row in rows}
        changes = opened.changes("totals", 0).to_pylist()
    assert len(held) == len(rows)
    assert held == expected
    # Whoever has followed the changes from the beginning holds the same.
    followed = Counter[tuple[object, ...]]()
    for change in changes:
        followed[change["k"], change["window_start"], change["n"], change["total"]] += change["diff"]
    assert {row for row, many in followed.items() if many} == {
        (row["k"], row["window_start"], row["n"], row["total"]) for row in rows
    }
