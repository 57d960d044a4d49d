"""A pipeline that is killed, at named points and at random, and started again until it is done.

The process is the real `millrace run`, with its Java and its Python workers, and is killed with SIGKILL. There is one
file a micro-batch, so that a clean run and a killed one divide the input in the same way, and their answers
can be compared byte for byte.
"""

import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kills import PATIENCE, Process, held_at, kill
from millrace.spark.crash import POINTS
from millrace.spark.session import make_home
from millrace.spark.writers import Guarantee
from millrace.views.store import open_store

pytestmark = pytest.mark.spark

PIPELINE = """
from millrace import Pipeline, agg, files, on, to_files, to_table, window

events = files("in", "k STRING, v BIGINT, at TIMESTAMP", per_batch=1)
timed = events.event_time("at", delay="5s").group_by("k")
totals = (
    timed.window(window.fixed("10s"), lateness="20s")
    .trigger(on.watermark(early=on.each(), late=on.each()))
    .retracting()
    .aggregate(n=agg.count(), total=agg.sum("v"), all=agg.collect("v"))
)
visits = timed.window(window.session("100ms")).aggregate(n=agg.count())
sinks = [visits.to(to_files("out", "json")), totals.to(to_table("out.db", "changes"))]
pipeline = Pipeline("killed", views={"totals": totals}, sinks=sinks)
"""
FILES = 24


@dataclass(frozen=True)
class Answers:
    """All that a run has written."""

    view: list[tuple[Any, ...]]
    changes: list[dict[str, Any]]
    """Of the view, by version."""
    table: list[tuple[Any, ...]]
    files: Mapping[str, bytes]
    letters: Mapping[str, bytes]


def prepared(folder: Path) -> Path:
    """A folder with the pipeline and its input, the same every time."""
    (folder / "in").mkdir(parents=True)
    draw = random.Random(7)
    for number in range(FILES):
        lines = []
        for _ in range(40):
            at = f"1970-01-01T00:00:{max(number * 2 + draw.uniform(-8, 2), 0.0):09.6f}Z"
            lines.append(json.dumps({"k": f"key {draw.randrange(6)}", "v": draw.randrange(100), "at": at}))
        lines.append("this is not JSON")
        path = folder / "in" / f"{number:03}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (number, number))
    pipeline = folder / "pipeline.py"
    pipeline.write_text(PIPELINE)
    return pipeline


def written(pipeline: Path) -> Answers:
    folder = pipeline.parent
    with closing(sqlite3.connect(folder / "out.db")) as database:
        table = database.execute("SELECT * FROM changes ORDER BY rowid").fetchall()
    with closing(open_store(folder / ".millrace" / "views.db")) as store:
        view = store.query("SELECT * FROM totals ORDER BY k, window_start").rows
        changes = store.changes("totals", 0).to_pylist()
    here = str(folder).encode()  # dead letters say where they are from
    own = json.loads((folder / "checkpoint" / "millrace.json").read_text())["id"]  # files are named by it
    contents = [
        {path.name.replace(own, ""): path.read_bytes().replace(here, b"") for path in sorted(place.iterdir())}
        for place in (folder / "out", folder / "checkpoint" / "dead_letters")
    ]
    return Answers(view, changes, table, *contents)


@dataclass(frozen=True)
class Clean:
    """What a run that nobody disturbs answers, and how Java starts faster than it did."""

    answers: Answers
    environment: Mapping[str, str]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    folder = tmp_path_factory.mktemp("clean")
    pipeline = prepared(folder / "pipeline")
    archive = folder / "classes.jsa"
    # Java keeps the classes that it loaded, so that the many starts to come do not load and check them again.
    home = folder / "spark"  # the same for all, or the classes are not taken for the same
    home.mkdir()
    make_home(home)
    options = {"SPARK_HOME": str(home), "JAVA_TOOL_OPTIONS": f"-XX:ArchiveClassesAtExit={archive}"}
    start(pipeline, Guarantee.EXACTLY_ONCE, options).wait()
    answers = written(pipeline)
    assert len(answers.table) > 100
    assert len(answers.changes) > 100
    assert len(answers.files) > 5
    assert len(answers.letters) == FILES
    options["JAVA_TOOL_OPTIONS"] = f"-XX:SharedArchiveFile={archive} -XX:TieredStopAtLevel=1"
    return Clean(answers, options)


def start(pipeline: Path, guarantee: str, environment: Mapping[str, str]) -> Process:
    options = ["--until-caught-up", "--checkpoint", "checkpoint", "--guarantee", guarantee]
    return Process(pipeline, options, environment)


def kill_at(point: str, pipeline: Path, guarantee: str, clean: Clean, count: int = 3) -> bool:
    """Run until a point is reached so many times, and kill it there; False if it ends before."""
    marker = pipeline.parent / "reached"
    process = start(pipeline, guarantee, {**clean.environment, **held_at(point, count, marker)})
    if not process.wait_for(marker):
        return False
    process.kill()
    return True


def test_exactly_once_is_the_clean_run_byte_for_byte(tmp_path: Path, clean: Clean) -> None:
    pipeline = prepared(tmp_path / "pipeline")
    killed = [kill_at(point, pipeline, Guarantee.EXACTLY_ONCE, clean) for point in POINTS]
    assert all(killed)
    draw = random.Random(11)
    for _ in range(1):  # and at any time at all
        process = start(pipeline, Guarantee.EXACTLY_ONCE, clean.environment)
        if process.wait_for_batches(1):
            time.sleep(draw.uniform(0, 0.8))
            process.kill()
    start(pipeline, Guarantee.EXACTLY_ONCE, clean.environment).wait()
    assert written(pipeline) == clean.answers


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_the_other_guarantees_keep_what_they_promise(guarantee: Guarantee, tmp_path: Path, clean: Clean) -> None:
    pipeline = prepared(tmp_path / "pipeline")
    for point in ("sink during write", "sink after write"):
        assert kill_at(point, pipeline, guarantee, clean, count=1)
    start(pipeline, guarantee, clean.environment).wait()
    answers = written(pipeline)
    expected, found = Counter(clean.answers.table), Counter(answers.table)
    if guarantee is Guarantee.AT_LEAST_ONCE:
        assert expected <= found
        assert expected != found, "a batch that was written before the kill is written again"
        assert [row[:-1] for row in answers.view] == [row[:-1] for row in clean.answers.view]
    else:
        assert found <= expected
        assert found != expected, "a batch that was begun before the kill is not written"


def test_a_run_that_is_told_to_end_has_committed_what_it_began(tmp_path: Path, clean: Clean) -> None:
    pipeline = prepared(tmp_path / "pipeline")
    draw = random.Random(17)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process = start(pipeline, Guarantee.AT_LEAST_ONCE, clean.environment)
        assert process.wait_for_batches(2)
        time.sleep(draw.uniform(0, 0.8))  # wherever in a micro-batch that is
        process.tell(number)
        process.wait()
        assert process.said()[-1].startswith("stopped: ")
    start(pipeline, Guarantee.AT_LEAST_ONCE, clean.environment).wait()
    assert [line.partition(":")[0] for line in process.said()] == [*["stopped"] * 3, "caught up"]
    answers = written(pipeline)
    assert answers.table == clean.answers.table, "nothing is missing, and nothing was written again"
    assert answers.changes == clean.answers.changes


def test_a_run_can_be_ended_while_spark_starts(tmp_path: Path, clean: Clean) -> None:
    pipeline = prepared(tmp_path / "pipeline")
    process = start(pipeline, Guarantee.EXACTLY_ONCE, clean.environment)
    deadline = time.monotonic() + PATIENCE
    while not process.has_java():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.tell(signal.SIGTERM)
    process.wait()
    (line,) = process.said()
    assert line.startswith("stopped: 0 rows in 0 micro-batches")
    start(pipeline, Guarantee.EXACTLY_ONCE, clean.environment).wait()
    assert written(pipeline) == clean.answers


def test_workers_that_die_are_replaced_and_nothing_is_lost_or_twice(tmp_path: Path, clean: Clean) -> None:
    pipeline = prepared(tmp_path / "pipeline")
    draw = random.Random(13)
    process = start(pipeline, Guarantee.EXACTLY_ONCE, clean.environment)
    assert process.wait_for_batches(1)
    kills = 0
    while kills < 40 and not process.is_over():
        workers = process.workers()
        if workers:
            kill(draw.choice(workers))
            kills += 1
        time.sleep(draw.uniform(0.0, 0.2))
    process.wait()
    assert kills == 40
    assert written(pipeline) == clean.answers
