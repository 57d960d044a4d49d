"""`late="keep"`: what is too late for every window is a dead letter, once, and exactly what the shards drop."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from rich.console import Console

from millrace import Pipeline, agg, log, memory, on, window
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.letters.fixing import fix
from millrace.letters.letter import Chosen
from millrace.letters.resending import resend
from millrace.model.duration import SECOND, to_datetime
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.model.window import Custom, Fixed, Session, Sliding, Windowing
from millrace.running.replay import replay
from millrace.running.run import run_batch, run_stream
from millrace.running.settings import Locations, StreamOptions
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import stream
from millrace.spark.progress import BatchProgress
from millrace.testing.stream import renamed
from millrace.views.store import open_store
from strategies import drawn, lasting_triggers, latenesses, micro_batches, modes, query, streams, time_windows
from stream_run import run

pytestmark = pytest.mark.spark

EVENTS = memory("events", "k STRING, v BIGINT, at TIMESTAMP")


def row(v: int, at: float, k: str = "a") -> dict[str, Any]:
    return {"k": k, "v": v, "at": to_datetime(int(at * SECOND))}


def counted(late: str = "keep") -> Query:
    timed = EVENTS.event_time("at", delay="0s").group_by("k")
    return timed.window(window.fixed("10s"), lateness="5s", late=late).aggregate(n=agg.count())


def kept(folder: Path, pipeline: str = "p") -> list[tuple[str | None, int | None]]:
    """The outputs and the offsets of the late records."""
    found = [letter.rejected for letter in box_of(folder, pipeline).letters()]
    return sorted((each.output, each.offset) for each in found if each.problem.startswith("too late"))


def around() -> Windowing:
    """Two windows for each element, and none in the first ten seconds."""

    def assigned(at: datetime, row: Mapping[str, Any]) -> list[tuple[datetime, datetime]]:
        second = timedelta(seconds=1)
        return [(at - second, at), (at, at + second)] if at.second >= 10 else []

    return window.custom(assigned)


def late_offsets(asked: Query, happenings: list[Happening]) -> tuple[list[int], int]:
    """The offsets of the records that the reference drops, each judged alone; and how many elements it drops."""
    slow, found, offset = Reference(asked), [], 0
    for happening in happenings:
        for given in happening.rows:
            alone = Reference(asked)
            alone.watermark(slow.event_time)
            alone.input([given])
            found += [offset] if alone.dropped else []
            offset += 1
        slow.micro_batch(happening.rows, happening.now or 0)
    return found, slow.dropped


@pytest.mark.parametrize(("fuse", "many"), [(True, 5), (False, 1)], ids=["fused", "native"])
def test_what_the_reference_drops_is_kept_in_random_queries(
    fuse: bool, many: int, spark: SparkSession, tmp_path: Path
) -> None:
    windows = st.one_of(time_windows.filter(lambda each: each != window.all_time()), st.just(around()))
    parts = st.tuples(micro_batches(), windows, lasting_triggers, modes, latenesses, streams())
    short = [(happenings, query(*asked)) for happenings, *asked in drawn(parts, 600) if len(happenings) < 5]
    late = [(happenings, asked) for happenings, asked in short if late_offsets(asked, happenings)[0]]
    kinds = (Fixed, Sliding, Session, Custom)
    cases = [case for kind in kinds for case in [each for each in late if isinstance(each[1].windowing, kind)][:many]]
    assert len(cases) == len(kinds) * many
    most = max(len(happenings) for happenings, _ in cases)
    views = {f"case_{n}": renamed(asked, f"case_{n}") for n, (_, asked) in enumerate(cases)}
    scripts = {
        f"case_{n}": MemoryScript([*happenings, *[Happening()] * (most - len(happenings))])
        for n, (happenings, _) in enumerate(cases)
    }
    batches = run(spark, Pipeline("p", views), tmp_path, scripts, fuse=fuse)
    found = kept(tmp_path)
    for number, (happenings, asked) in enumerate(cases):
        offsets, dropped = late_offsets(asked, happenings)
        wrong = (asked.explain(), happenings)
        assert [offset for output, offset in found if output == f"view case_{number}"] == offsets, wrong
        assert batches[-1][0].parts[f"view case_{number}"].dropped == dropped, wrong


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
def test_a_repeated_micro_batch_judges_by_the_watermark_before_it(
    fuse: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """Its own watermark, which the first attempt has stored already, would make 29 too late."""
    script = {
        "events": MemoryScript(
            [Happening([row(0, 34)]), Happening([row(1, 1), row(2, 29), row(3, 90)]), Happening([row(4, 2)])]
        )
    }
    pipeline = Pipeline("p", {"n": counted()})

    def fail(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        if progress.batch == 1:
            raise ConnectionError("after everything was written")

    started = stream.start(
        spark, pipeline, tmp_path / "checkpoint", until_caught_up=True, scripts=script, on_batch=fail, fuse=fuse
    )
    with pytest.raises(ConnectionError):
        started.wait()
    started.stop()
    assert kept(tmp_path) == [("view n", 1)]
    batches = run(spark, pipeline, tmp_path, script, fuse=fuse)
    assert [(progress.batch, progress.dead_letters) for progress, _ in batches] == [(1, 1), (2, 1)]
    assert kept(tmp_path) == [("view n", 1), ("view n", 4)]
    assert batches[-1][0].late == 2, "what is kept still counts as late"
    (first, _) = box_of(tmp_path, "p").letters()
    assert first.rejected.problem == "too late for every window of view n"
    assert first.rejected.reason == (
        "too late for every window of view n, by 19s: its last window ended 1970-01-01 00:00:10, and the watermark was "
        "1970-01-01 00:00:34, with a lateness of 5s"
    )


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
def test_a_checkpoint_that_has_dropped_what_was_late_keeps_it_from_the_next_record_on(
    fuse: bool, spark: SparkSession, tmp_path: Path
) -> None:
    before = [Happening([row(0, 40)]), Happening([row(1, 1)])]
    run(spark, Pipeline("p", {"n": counted("drop")}), tmp_path, {"events": MemoryScript(before)}, fuse=fuse)
    assert not (tmp_path / "checkpoint" / "watermarks").exists()
    script = {"events": MemoryScript([*before, Happening([row(2, 2), row(3, 39)])])}
    batches = run(spark, Pipeline("p", {"n": counted()}), tmp_path, script, fuse=fuse)
    assert [(progress.rows, progress.dead_letters) for progress, _ in batches] == [(0, 0), (2, 1)]
    assert kept(tmp_path) == [("view n", 2)]


def test_after_a_dedup_the_shard_judges_and_rows_made_of_one_record_are_one_letter(
    spark: SparkSession, tmp_path: Path
) -> None:
    timed = EVENTS.dedup("v").event_time("at", delay="0s").group_by("k")
    twice = EVENTS.flat_map(lambda row: [row, row], "k STRING, v BIGINT, at TIMESTAMP").event_time("at", delay="0s")
    last = agg.fold("v", 0, lambda so_far, v: v, type="BIGINT")
    views = {
        "once": timed.window(window.session("10s"), late="keep").aggregate(n=agg.count()),
        "twice": twice.window(window.fixed("10s"), late="keep").aggregate(n=agg.count(), last=last),
    }
    script = MemoryScript([Happening([row(0, 40)]), Happening([row(1, 1), row(1, 2), row(0, 3), row(5, 45)])])
    batches = run(spark, Pipeline("p", views), tmp_path, {"events": script})
    assert kept(tmp_path) == [("view once", None), ("view twice", 1), ("view twice", 2), ("view twice", 3)]
    parts = batches[-1][0].parts
    assert (parts["view once"].dropped, parts["view twice"].dropped) == (1, 6)
    (once,) = (each.rejected for each in box_of(tmp_path, "p").letters() if each.rejected.output == "view once")
    assert json.loads(once.value or "")["v"] == 1


def charts(lateness: str = "0s") -> Pipeline:
    plays = log("plays", "user STRING, at TIMESTAMP")
    hourly = plays.event_time("at", delay="0s").window(window.fixed("1h"), lateness=lateness, late="keep")
    asked = hourly.trigger(on.watermark(early=on.each(), late=on.each())).accumulating()
    return Pipeline("charts", {"hourly": asked.aggregate(n=agg.count())})


def viewed(home: Locations) -> list[tuple[Any, ...]]:
    store = open_store(home.store)
    try:
        return list(store.query("SELECT n FROM hourly ORDER BY window_start").rows)
    finally:
        store.close()


def test_a_late_record_of_a_topic_is_fixed_and_sent_again_or_counted_by_a_replay(
    tmp_path: Path, one_spark: None
) -> None:
    home = Locations(tmp_path / "log.db", str(tmp_path / "views.db"), tmp_path / "charts")
    quiet, once = Console(quiet=True), StreamOptions(until_caught_up=True)
    opened, box = Log(home.log), box_of(tmp_path, "charts")
    opened.create("plays")

    def play(*hours: int) -> None:
        opened.append("plays", [json.dumps({"user": "ann", "at": f"2026-01-01T{hour:02}:30:00Z"}) for hour in hours])
        run_stream(quiet, charts(), home, once)

    play(12, 13)
    play(14, 9, 12)
    assert kept(tmp_path, "charts") == [("view hourly", 3), ("view hourly", 4)]
    assert viewed(home) == [(1,), (1,), (1,)]
    (first, _) = box.letters()
    assert first.rejected.value == '{"user": "ann", "at": "2026-01-01T09:30:00Z"}'
    assert first.rejected.hint == (
        "a record that is sent again is too late again: correct its time first (millrace dead fix --set at=...), or "
        "raise lateness= of window() and run millrace replay"
    )
    assert fix(box, Chosen((1,)), {"at": "timestamp'2026-01-01 14:45:00'"}).fixed == 1
    assert resend(box, opened, Chosen((1,))) == 1
    play(14)
    assert viewed(home) == [(1,), (1,), (3,)], "the corrected record, and one more"
    assert len(kept(tmp_path, "charts")) == 2
    replay(quiet, charts("1d"), home, once)
    assert (viewed(home), kept(tmp_path, "charts")) == ([(1,), (2,), (1,), (3,)], [])
    run_batch(quiet, charts(), home)
    assert kept(tmp_path, "charts") == []
