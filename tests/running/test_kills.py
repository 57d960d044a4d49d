"""A pipeline that is killed, at named points and at random, and started again until it is done.

The process is the real `millrace run`, with its Java and its Python workers, and is killed with SIGKILL.
"""

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from killed import Answers, prepared, start, written
from kills import PATIENCE, Process, held_at, kill
from millrace.spark.crash import POINTS
from millrace.spark.writers import Guarantee

pytestmark = pytest.mark.spark


def kill_at(point: str, pipeline: Path, guarantee: str, count: int = 3) -> bool:
    """Run until a point is reached so many times, and kill it there; False if it ends before."""
    marker = pipeline.parent / "reached"
    process = start(pipeline, guarantee, held_at(point, count, marker))
    if not process.wait_for(marker):
        return False
    process.kill()
    return True


def kill_workers(process: Process, kills: int) -> None:
    """Kill Python workers at random while a process runs."""
    draw = random.Random(13)
    assert process.wait_for_batches(1)
    while kills and not process.is_over():
        workers = process.workers()
        if workers:
            kill(draw.choice(workers))
            kills -= 1
        time.sleep(draw.uniform(0.0, 0.05))
    assert kills == 0


def test_exactly_once_is_the_clean_run_byte_for_byte(tmp_path: Path, clean: Answers) -> None:
    pipeline = prepared(tmp_path / "pipeline")
    killed = [kill_at(point, pipeline, Guarantee.EXACTLY_ONCE) for point in POINTS]
    assert all(killed)
    draw = random.Random(11)
    for _ in range(1):  # and at any time at all
        process = start(pipeline, Guarantee.EXACTLY_ONCE)
        if process.wait_for_batches(1):
            time.sleep(draw.uniform(0, 0.8))
            process.kill()
    process = start(pipeline, Guarantee.EXACTLY_ONCE)
    kill_workers(process, 10)  # which are replaced
    process.wait()
    assert written(pipeline) == clean


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_the_other_guarantees_keep_what_they_promise(guarantee: Guarantee, tmp_path: Path, clean: Answers) -> None:
    pipeline = prepared(tmp_path / "pipeline")
    for point in ("sink during write", "sink after write"):
        assert kill_at(point, pipeline, guarantee, count=1)
    start(pipeline, guarantee).wait()
    answers = written(pipeline)
    expected, found = Counter(clean.table), Counter(answers.table)
    if guarantee is Guarantee.AT_LEAST_ONCE:
        assert expected <= found
        assert expected != found, "a batch that was written before the kill is written again"
        assert [row[:-1] for row in answers.view] == [row[:-1] for row in clean.view]
    else:
        assert found <= expected
        assert found != expected, "a batch that was begun before the kill is not written"


def test_a_run_that_is_told_to_end_has_committed_what_it_began(tmp_path: Path, clean: Answers) -> None:
    pipeline = prepared(tmp_path / "pipeline")
    process = start(pipeline, Guarantee.AT_LEAST_ONCE)
    deadline = time.monotonic() + PATIENCE
    while not process.has_java():  # first, while Spark starts
        assert not process.is_over()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.tell(signal.SIGTERM)
    process.wait()
    (line,) = process.said()
    assert line.startswith("stopped: 0 rows in 0 micro-batches")
    draw = random.Random(17)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process = start(pipeline, Guarantee.AT_LEAST_ONCE)
        assert process.wait_for_batches(2)
        time.sleep(draw.uniform(0, 0.8))  # wherever in a micro-batch that is
        process.tell(number)
        process.wait()
        assert process.said()[-1].startswith("stopped: ")
    start(pipeline, Guarantee.AT_LEAST_ONCE).wait()
    assert [line.partition(":")[0] for line in process.said()] == [*["stopped"] * 4, "caught up"]
    answers = written(pipeline)
    assert (answers.view, answers.changes, answers.table) == (
        clean.view, clean.changes, clean.table
    ), "nothing is missing, and nothing was written again"  # fmt: skip
    assert answers.letters == clean.letters
    assert sorted(answers.files.values()) == sorted(clean.files.values())  # each attempt names its files anew
