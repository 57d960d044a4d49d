"""A pipeline to be killed, its input, and all that it writes.

There is one file a micro-batch, so that a clean run and a killed one divide the input in the same way, and their
answers can be compared byte for byte.
"""

import json
import os
import random
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kills import Process
from millrace.letters.box import box_of
from millrace.letters.letter import Rejected
from millrace.spark.writers import Guarantee
from millrace.views.store import open_store

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
FILES = 29


@dataclass(frozen=True)
class Answers:
    """All that a run has written."""

    view: list[tuple[Any, ...]]
    changes: list[dict[str, Any]]
    """Of the view, by version."""
    table: list[tuple[Any, ...]]
    files: Mapping[str, bytes]
    letters: list[Rejected]


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
    own = json.loads((folder / "checkpoint" / "millrace.json").read_text())["id"]  # files are named by it
    files = {path.name.replace(own, ""): path.read_bytes() for path in sorted((folder / "out").glob("*.json"))}
    letters = [
        replace(letter.rejected, origin=letter.rejected.origin.removeprefix(str(folder)))
        for letter in box_of(folder, "killed").letters()
    ]
    return Answers(view, changes, table, files, letters)


def start(pipeline: Path, guarantee: str, environment: Mapping[str, str] | None = None) -> Process:
    options = ["--until-caught-up", "--checkpoint", "checkpoint", "--guarantee", guarantee]
    return Process(pipeline, options, environment or {})


def clean_run(folder: Path) -> Answers:
    """The answers of the pipeline when nobody disturbs it."""
    pipeline = prepared(folder / "pipeline")
    start(pipeline, Guarantee.EXACTLY_ONCE).wait()
    answers = written(pipeline)
    assert len(answers.table) > 100
    assert len(answers.changes) > 100
    assert len(answers.files) > 5
    assert len(answers.letters) == FILES
    return answers
