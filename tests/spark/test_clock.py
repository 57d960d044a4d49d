"""A stream whose wall clock was wrong: it follows the clock when it is set right, and says so once."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from millrace import CustomSource, Pipeline, agg, memory, on, source, window
from millrace.model.clock import JITTER
from millrace.model.duration import SECOND
from millrace.model.query import Query
from millrace.model.trigger import Trigger
from millrace.plan.compile import PlanSettings, compile
from millrace.running.shown import RunDisplay, RunDisplays
from millrace.running.status import all_under, note
from millrace.sources.bundle import Times
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import source as reading
from millrace.spark import stream
from millrace.spark.clock import JUMP, PATIENCE, ClockFollower, JumpDetector
from millrace.spark.job import Job
from millrace.spark.progress import BatchProgress
from millrace.spark.source import Reader, Reads
from millrace.spark.timers import Timers
from millrace.spark.watch import Watch

DAY = 86_400 * SECOND
NOON = 1_767_268_800 * SECOND


class TestWhenToFollow:
    """The decision, with times as arguments."""

    def test_the_clock_advances(self) -> None:
        clock = ClockFollower()
        assert [clock.now(NOON, NOON + step, 0.0) for step in (0, 1, DAY)] == [NOON, NOON + 1, NOON + DAY]

    def test_the_first_micro_batch_of_all_takes_the_wall_clock(self) -> None:
        assert ClockFollower().now(0, NOON, 5.0) == NOON

    def test_jitter_is_waited_out(self) -> None:
        clock = ClockFollower()
        assert [clock.now(NOON, NOON - JITTER, second) for second in (0.0, 60.0, 3_600.0)] == [NOON] * 3

    def test_a_running_stream_follows_after_a_short_while(self) -> None:
        clock = ClockFollower()
        clock.now(NOON, NOON, 100.0)
        assert clock.now(NOON, NOON - DAY, 101.0) == NOON
        assert clock.now(NOON, NOON - DAY, 101.0 + PATIENCE - 0.01) == NOON
        assert clock.now(NOON, NOON - DAY + 7, 101.0 + PATIENCE) == NOON - DAY + 7
        assert clock.now(NOON - DAY + 7, NOON - DAY + 9, 120.0) == NOON - DAY + 9

    def test_a_clock_that_is_behind_for_a_moment_is_not_followed(self) -> None:
        clock = ClockFollower()
        clock.now(NOON, NOON, 100.0)
        clock.now(NOON, NOON - DAY, 101.0)
        assert clock.now(NOON, NOON - 1, 105.0) == NOON
        assert clock.now(NOON, NOON - DAY, 101.0 + PATIENCE) == NOON, "the wait starts again"
        assert clock.now(NOON, NOON - DAY, 101.0 + 2 * PATIENCE) == NOON - DAY

    def test_a_new_run_follows_at_once(self) -> None:
        clock = ClockFollower()
        assert clock.now(NOON, NOON - DAY, 0.0) == NOON - DAY
        assert clock.now(NOON, NOON - DAY, 0.0) == NOON - DAY, "Spark may ask twice"


class TestWhatIsSaid:
    """Jumps ahead and back, as users are told about them."""

    def test_time_that_passes_is_no_jump(self) -> None:
        jumps = JumpDetector()
        assert jumps.moved(NOON, 0, 0.0) == 0
        assert jumps.moved(NOON + DAY, 0, 86_400.0) == 0, "a day without input"
        assert jumps.moved(NOON + DAY + JUMP, 0, 86_400.0) == 0

    def test_a_jump_ahead_is_said_once(self) -> None:
        jumps = JumpDetector()
        jumps.moved(NOON, 0, 0.0)
        assert jumps.moved(NOON + DAY, 0, 400.0) == DAY - 400 * SECOND
        assert jumps.moved(NOON + DAY + SECOND, 0, 401.0) == 0

    def test_a_run_that_starts_after_a_pause_has_not_jumped(self) -> None:
        assert JumpDetector().moved(NOON, 0, 0.0) == 0

    def test_a_clock_that_goes_back_is_said_once_for_all_sources(self) -> None:
        jumps = JumpDetector()
        assert jumps.moved(NOON, DAY, 0.0) == -DAY
        assert jumps.moved(NOON + SECOND, DAY, 1.0) == 0
        assert jumps.moved(NOON, DAY, 100.0) == -DAY

    def test_a_run_prints_it_and_status_keeps_it(self, tmp_path: Path) -> None:
        out = StringIO()
        shown = RunDisplay(RunDisplays(Console(file=out, width=200), False, several=False), "charts", lambda: None)
        shown.batch(BatchProgress(0, 0, 0.1, 0, {}, clock_moved=2 * DAY), {})
        shown.batch(BatchProgress(1, 0, 0.1, 0, {}), {})
        shown.batch(BatchProgress(2, 0, 0.1, 0, {}, clock_moved=-DAY - 5 * SECOND), {})
        assert out.getvalue().splitlines() == [
            "charts: the clock jumped ahead 2d; if that is wrong, timers follow it back when it is set right",
            "charts: the clock went back 1d: timers follow it",
        ]
        (tmp_path / "charts").mkdir()
        note(tmp_path / "charts", "charts", BatchProgress(2, 0, 0.1, 0, {}), 0, -DAY)
        assert [each.clock_moved for each in all_under(tmp_path)] == [-DAY]
        assert json.loads(BatchProgress(0, 0, 0.1, 0, {}, clock_moved=7).to_json())["clock_moved"] == 7


def counted(rows: Any, trigger: Trigger) -> Query:
    query: Query = rows.group_by("k").window(window.all_time()).trigger(trigger).accumulating().aggregate(n=agg.count())
    return query


class Wall:
    """The wall clock and the seconds elapsed, set by hand."""

    def __init__(self) -> None:
        self.wall, self.elapsed = NOON, 0.0


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(reading, "wall_clock", lambda: wall.wall)
    monkeypatch.setattr(reading, "seconds_elapsed", lambda: wall.elapsed)
    return wall


def reader(folder: Path, trigger: Trigger, rows: int = 0) -> Reader:
    plan = compile(Pipeline("p", {"n": counted(memory("rows", "k STRING"), trigger)}), PlanSettings(1, fuse=True))
    script = MemoryScript([Happening([{"k": "a"}])] * rows, timed=False)
    return Reader(Reads(Job(plan, (0,), str(folder), scripts={"rows": script}).pack(), 1, plan.fused))


def times(read: Reader, start: dict[str, Any], end: dict[str, Any]) -> Times:
    return read.tasks(start, end)[0].times[0]


def test_the_clock_alone_makes_the_micro_batch_that_follows_it(tmp_path: Path, wall: Wall) -> None:
    read = reader(tmp_path, on.after("30s"))
    first = read.latest(read.start())
    wall.wall = NOON + DAY
    ahead = read.latest(first)
    assert times(read, first, ahead) == Times(NOON, NOON + DAY)
    wall.wall = NOON
    assert read.latest(ahead) is ahead
    wall.elapsed = PATIENCE
    back = read.latest(ahead)
    assert times(read, ahead, back) == Times(NOON + DAY, NOON)
    assert times(read, ahead, json.loads(json.dumps(back))) == Times(NOON + DAY, NOON), "as Spark logged it"
    assert read.latest(back) is back, "the clock is followed, nothing else is due"


def test_the_clock_asks_for_a_micro_batch_only_when_a_timer_is_due(tmp_path: Path, wall: Wall) -> None:
    read = reader(tmp_path, on.every("10s"))
    first = read.latest(read.start())
    timers = Timers(tmp_path / "timers")
    timers.write(first["now"], NOON + 30 * SECOND)
    wall.wall = NOON + 30 * SECOND - 1
    assert read.latest(first) is first
    wall.wall += 1
    assert read.latest(first)["now"] == NOON + 30 * SECOND
    timers.write(first["now"], None)
    wall.wall = NOON + DAY
    assert read.latest(first) is first, "nothing waits for the clock"


@pytest.mark.parametrize("text", ["", "[", "null", "[1, 2]", '[1, "x"]', "[0, 99999999999999999]"])
def test_without_the_next_timer_of_this_state_the_clock_advances_at_short_intervals(
    text: str, tmp_path: Path, wall: Wall
) -> None:
    read = reader(tmp_path, on.every("10s"))
    first = read.latest(read.start())
    (tmp_path / "timers").write_text(text)
    wall.wall = NOON + 2 * SECOND
    assert read.latest(first)["now"] == NOON + 2 * SECOND


def test_a_look_that_finds_nothing_waits_until_there_may_be_input(tmp_path: Path) -> None:
    news = tmp_path / "news"
    watch = Watch([lambda: news.exists()])
    for _ in range(2):
        watch.look()
        began = time.monotonic()
        watch.wait()
    assert time.monotonic() - began < 0.05, "a busy stream does not wait"
    watch._idle_since = time.monotonic() - 3600
    watch.look()
    began = time.monotonic()
    watch.wait(until_due=0.1)
    assert 0.09 < time.monotonic() - began < 0.4, "a timer is due"
    watch.look()
    news.touch()
    began = time.monotonic()
    watch.wait()
    assert time.monotonic() - began < 0.4, "the input came after the look"


def test_rows_that_come_while_the_clock_is_behind_wait_with_it(tmp_path: Path, wall: Wall) -> None:
    read = reader(tmp_path, on.after("30s"), rows=3)
    first = read.latest(read.start())
    wall.wall = NOON - DAY
    second = read.latest(first)
    assert times(read, first, second) == Times(NOON, NOON)
    wall.elapsed = PATIENCE
    assert times(read, second, read.latest(second)) == Times(NOON, NOON - DAY)


def test_a_run_until_caught_up_follows_the_clock_and_ends(tmp_path: Path, wall: Wall) -> None:
    ahead = {"now": NOON + DAY, "at": reader(tmp_path, on.after("30s")).start()["at"]}
    read = reader(tmp_path, on.after("30s"))
    read.stop_at_the_end()
    back = read.latest(ahead)
    assert back["now"] == NOON
    assert read.latest(back) is back


def test_a_pipeline_without_timers_follows_the_clock_with_its_next_rows(tmp_path: Path, wall: Wall) -> None:
    at = reader(tmp_path, on.each()).start()["at"]
    read = reader(tmp_path, on.each())
    ahead = {"now": NOON + DAY, "at": at}
    assert read.latest(ahead) is ahead
    assert reader(tmp_path, on.each(), rows=1).latest(ahead)["now"] == NOON


class Wrong(CustomSource):
    """Lines of a file, in a process whose wall clock is wrong by the seconds that another file holds."""

    def __init__(self, folder: str, patience: float = PATIENCE) -> None:
        self.folder, self.patience = folder, patience

    def start(self) -> int:
        return 0

    def end(self) -> int:
        import time
        from pathlib import Path

        from millrace.spark import clock
        from millrace.spark import source as planned

        wrong = Path(self.folder, "wrong")
        clock.PATIENCE = self.patience
        ahead = int(wrong.read_text()) * 1_000_000
        setattr(planned, "wall_clock", lambda: time.time_ns() // 1000 + ahead)  # noqa: B010
        return len(Path(self.folder, "keys").read_text().splitlines())

    def splits(self, start: int, end: int) -> list[tuple[int, int]]:
        return [(start, end)]

    def read(self, split: tuple[int, int]) -> list[dict[str, Any]]:
        return [{"k": key} for key in Path(self.folder, "keys").read_text().splitlines()[slice(*split)]]


class Place:
    """A pipeline over `Wrong`, and what its micro-batches said."""

    def __init__(self, folder: Path, trigger: Trigger, patience: float = PATIENCE) -> None:
        self.folder = folder
        self.pipeline = Pipeline("p", {"n": counted(source("rows", "k STRING", Wrong(str(folder), patience)), trigger)})
        self.said: list[int] = []
        self.moved: list[int] = []
        self.rows = 0
        self.heard = threading.Event()
        self.set("keys", "")

    def set(self, name: str, text: str) -> None:
        (self.folder / f"{name}.part").write_text(text)
        (self.folder / f"{name}.part").rename(self.folder / name)

    def listen(self, progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        self.said += answers["view n"]["n"].to_pylist()
        self.moved += [progress.clock_moved] if progress.clock_moved else []
        self.rows += progress.rows

    def start(self, spark: SparkSession, **how: Any) -> stream.StreamRun:
        return stream.start(spark, self.pipeline, self.folder / "checkpoint", on_batch=self.listen, **how)

    def catch_up(self, spark: SparkSession, **how: Any) -> None:
        run = self.start(spark, until_caught_up=True, **how)
        try:
            assert run.wait(120)
        finally:
            run.stop()


def until(run: stream.StreamRun, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert not run.wait(0.1)
        assert time.monotonic() < deadline


@pytest.mark.spark
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
@pytest.mark.parametrize("trigger", [on.after("3s"), on.every("3s")], ids=str)
def test_timers_go_on_after_a_run_whose_clock_was_a_day_ahead(
    trigger: Trigger, fuse: bool, spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path, trigger)
    place.set("wrong", "86400")
    place.set("keys", "a\n")
    place.catch_up(spark, fuse=fuse)
    assert (place.said, place.moved) == ([], [])
    place.set("wrong", "0")
    place.set("keys", "a\na\n")
    run = place.start(spark, fuse=fuse)
    try:
        until(run, lambda: place.said and place.said[-1] == 2)
    finally:
        run.stop()
    (moved,) = place.moved
    assert -DAY - 60 * SECOND < moved < -DAY + 60 * SECOND


@pytest.mark.spark
def test_a_running_stream_follows_its_clock_ahead_and_back(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path, on.repeat(on.after("1s")), patience=1.0)
    place.set("wrong", "0")
    run = place.start(spark)
    try:
        place.set("keys", "a\n")
        until(run, lambda: place.said == [1])
        place.set("wrong", "86400")
        place.set("keys", "a\na\n")  # nothing waits for the clock, so the jump is noticed with the next rows
        until(run, lambda: place.moved and place.rows == 2)
        place.set("wrong", "0")
        until(run, lambda: len(place.moved) == 2)
        place.set("keys", "a\na\na\n")
        until(run, lambda: place.said[-1] == 3)
    finally:
        run.stop()
    ahead, back = place.moved
    assert abs(ahead - DAY) < 60 * SECOND
    assert abs(back + DAY) < 60 * SECOND
    assert place.said in ([1, 2, 3], [1, 3])
