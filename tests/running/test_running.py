"""The whole path in one process: records in a log, a pipeline on Spark, answers in a view, on both stores."""

import json
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from millrace import ConflictError, Pipeline, PipelineError, agg, files, layers, log, on, table, to_topic, window
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.model.query import Query
from millrace.running.layers import run_batch_layer
from millrace.running.replay import replay, roll_back
from millrace.running.run import behind, run_batch, run_stream
from millrace.running.savepoint import save, start_from
from millrace.running.settings import Locations, StreamOptions
from millrace.running.status import all_under
from millrace.spark.records import LogSource
from millrace.views.store import open_store

pytestmark = pytest.mark.spark

PLAYS = log("plays", "user STRING, track STRING, ms BIGINT, at TIMESTAMP")
QUIET = Console(quiet=True)
ONCE = StreamOptions(until_caught_up=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def home(request: pytest.FixtureRequest, tmp_path: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch) -> Locations:
    """A home with a log of its own, run on the one Spark of all tests."""
    url = str(tmp_path / "views.db")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").empty()
    return Locations(tmp_path / "log.db", url, tmp_path / "checkpoint")


def kept(home: Locations, topic: str = "plays") -> Log:
    opened = Log(home.log)
    if topic not in {each.name for each in opened.topics()}:
        opened.create(topic, partitions=2)
    return opened


def play(user: str, track: str, second: int, ms: int = 40_000) -> str:
    at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
    return json.dumps({"user": user, "track": track, "ms": ms, "at": at})


def by_minute(least: int = 30_000) -> Query:
    timed = (
        PLAYS.where(f"ms >= {least}")
        .event_time("at", delay="5s")
        .group_by("track")
        .window(window.fixed("1m"), lateness="1h")
    )
    return timed.trigger(on.watermark(early=on.each(), late=on.each())).retracting().aggregate(plays=agg.count())


def rows(home: Locations, sql: str) -> list[tuple[Any, ...]]:
    with closing(open_store(home.store)) as store:
        return store.query(sql).rows


def changed(home: Locations, view: str, since: int) -> list[dict[str, Any]]:
    with closing(open_store(home.store)) as store:
        found: list[dict[str, Any]] = store.changes(view, since).to_pylist()
    return found


COUNTED = "SELECT track, plays FROM minutes ORDER BY window_start, track"


def test_late_records_correct_the_view_and_a_batch_says_the_same(home: Locations) -> None:
    pipeline = Pipeline("charts", {"minutes": by_minute()})
    kept(home).append("plays", [play("ann", "Weir", 5), play("bob", "Weir", 10), play("ann", "Eddy", 70), "not JSON"])
    run_stream(QUIET, pipeline, home, ONCE)
    assert rows(home, COUNTED) == [("Weir", 2), ("Eddy", 1)]
    kept(home).append("plays", [play("cal", "Weir", 20), play("cal", "Weir", 21, ms=5)])
    assert behind("charts", kept(home)) == 2
    run_stream(QUIET, pipeline, home, ONCE)
    assert rows(home, COUNTED) == [("Weir", 3), ("Eddy", 1)]
    assert rows(home, "SELECT timing FROM minutes WHERE track = 'Weir'") == [("late",)]
    ((version,),) = rows(home, "SELECT max(version) FROM minutes")
    changes = changed(home, "minutes", version - 1)
    assert [(row["plays"], row["diff"]) for row in changes] == [(2, -1), (3, 1)]
    letters = [letter.rejected for letter in box_of(home.checkpoint.parent, "charts").letters()]
    assert [(letter.source, letter.value) for letter in letters] == [("plays", "not JSON")]
    run_batch(QUIET, pipeline, home)
    assert rows(home, COUNTED) == [("Weir", 3), ("Eddy", 1)]
    assert behind("charts", kept(home)) == 0
    (status,) = all_under(home.checkpoint.parent)
    assert (status.pipeline, status.is_running, status.progress["batch"]) == ("charts", False, 1)


def test_merged_sessions_leave_one_row(home: Locations) -> None:
    timed = (
        PLAYS.event_time("at", delay="5s")
        .group_by("user")
        .window(window.session("10s"), lateness="1h")
        .trigger(on.each())
    )
    views = {
        "retracting": timed.retracting().aggregate(plays=agg.count()),
        "accumulating": timed.accumulating().aggregate(plays=agg.count()),
    }
    pipeline = Pipeline("visits", views)
    kept(home).append("plays", [play("ann", "Weir", 0), play("ann", "Weir", 15)])
    run_stream(QUIET, pipeline, home, ONCE)
    kept(home).append("plays", [play("ann", "Weir", 8)])
    run_stream(QUIET, pipeline, home, ONCE)
    for view in views:
        assert rows(home, f"SELECT plays FROM {view}") == [(3,)], view


def test_a_changed_pipeline_is_replayed_swapped_and_rolled_back(home: Locations) -> None:
    before, after = (Pipeline("charts", {"minutes": by_minute(least)}) for least in (30_000, 0))
    kept(home).append("plays", [play("ann", "Weir", 5), play("ann", "Weir", 6, ms=10), play("ann", "Eddy", 70)])
    run_stream(QUIET, before, home, ONCE)
    with pytest.raises(ConflictError, match="millrace replay"):
        run_stream(QUIET, after, home, ONCE)
    assert rows(home, COUNTED) == [("Weir", 1), ("Eddy", 1)]
    with closing(open_store(home.store)) as store:
        version = store.version()
    savepoint = home.checkpoint.with_name("savepoint")
    save(home.checkpoint, savepoint)
    kept(home).report("charts", "plays", kept(home).ends("plays"))
    assert "generation 2 of minutes is now served" in replay(QUIET, after, home, StreamOptions())
    assert behind("charts", kept(home)) == 0, "a replay is no reader that producers wait for"
    assert rows(home, COUNTED) == [("Weir", 2), ("Eddy", 1)]
    other = replace(home, checkpoint=home.checkpoint.with_name("other"))
    with pytest.raises(ConflictError, match="belongs to generation 1 of the views, but generation 2 is served"):
        start_from(savepoint, other, 2)
    changes = changed(home, "minutes", version)
    assert sorted((row["track"], row["plays"], row["diff"]) for row in changes if row["track"] == "Weir") == [
        ("Weir", 1, -1), ("Weir", 2, 1),
    ]  # fmt: skip
    kept(home).append("plays", [play("bob", "Weir", 7)])
    run_stream(QUIET, after, home, ONCE)  # it goes on where the replay ended
    assert rows(home, COUNTED) == [("Weir", 3), ("Eddy", 1)]
    roll_back(before, home)
    assert rows(home, COUNTED) == [("Weir", 1), ("Eddy", 1)]
    run_stream(QUIET, before, home, ONCE)  # and the one before goes on where it was
    assert rows(home, COUNTED) == [("Weir", 2), ("Eddy", 1)]


def test_a_replay_may_come_first_and_on_nothing(home: Locations) -> None:
    pipeline = Pipeline("charts", {"minutes": by_minute()})
    kept(home)
    assert "0 rows computed again" in replay(QUIET, pipeline, home, StreamOptions())
    assert rows(home, COUNTED) == []
    kept(home).append("plays", [play("ann", "Weir", 5), play("ann", "Eddy", 70)])
    assert "caught up: 2 rows" in run_stream(QUIET, pipeline, home, ONCE)
    assert rows(home, COUNTED) == [("Weir", 1), ("Eddy", 1)]
    assert "2 rows computed again" in replay(QUIET, pipeline, home, StreamOptions())
    assert rows(home, COUNTED) == [("Weir", 1), ("Eddy", 1)]


def test_a_run_on_nothing_says_how_it_is(home: Locations) -> None:
    pipeline = Pipeline("charts", {"minutes": by_minute()})
    kept(home)
    assert run_stream(QUIET, pipeline, home, ONCE).startswith("caught up: 0 rows in 1 micro-batch, 0 answers")
    assert run_batch(QUIET, pipeline, home).startswith("done: 0 rows, 0 answers")
    (status,) = all_under(home.checkpoint.parent)
    assert (status.progress["batch"], status.progress["rows"], status.dead) == (0, 0, 0)
    assert behind("charts", kept(home)) == 0


def test_what_is_due_when_a_pipeline_is_run_again_is_said(home: Locations) -> None:
    timed = PLAYS.event_time("at", delay="5s").group_by("track").window(window.fixed("1m"))
    asked = timed.trigger(on.watermark(early=on.every("1s"))).accumulating().aggregate(plays=agg.count())
    pipeline = Pipeline("charts", {"minutes": asked})
    kept(home).append("plays", [play("ann", "Weir", 5)])
    deadline = time.monotonic() + 60
    while not (home.checkpoint.exists() and rows(home, COUNTED)):  # the clock has to pass a second
        assert time.monotonic() < deadline
        run_stream(QUIET, pipeline, home, ONCE)
    assert rows(home, COUNTED) == [("Weir", 1)]


def test_views_that_were_dropped_are_computed_anew(home: Locations) -> None:
    pipeline = Pipeline("charts", {"minutes": by_minute()})
    kept(home).append("plays", [play("ann", "Weir", 5), play("ann", "Eddy", 70)])
    run_stream(QUIET, pipeline, home, ONCE)
    with closing(open_store(home.store)) as store:
        store.drop("charts")
    kept(home).append("plays", [play("bob", "Weir", 20)])
    run_stream(QUIET, pipeline, home, ONCE)
    assert rows(home, COUNTED) == [("Weir", 2), ("Eddy", 1)]


def test_a_savepoint_is_continued_on_the_views_it_belongs_to(home: Locations) -> None:
    pipeline = Pipeline("charts", {"minutes": by_minute()})
    kept(home).append("plays", [play("ann", "Weir", 5)])
    run_stream(QUIET, pipeline, home, ONCE)
    savepoint = home.checkpoint.with_name("savepoint")
    save(home.checkpoint, savepoint)
    with pytest.raises(ConflictError, match="choose another name"):
        save(home.checkpoint, savepoint)
    kept(home).append("plays", [play("ann", "Weir", 6), play("ann", "Eddy", 70)])
    other = replace(home, checkpoint=home.checkpoint.with_name("other"))
    start_from(savepoint, other)
    said = run_stream(QUIET, pipeline, other, ONCE)
    assert said.startswith("caught up: 2 rows")
    assert rows(home, COUNTED) == [("Weir", 2), ("Eddy", 1)]
    with pytest.raises(ConflictError, match="exists already"):
        start_from(savepoint, other)
    for refused in (home, replace(home, checkpoint=home.checkpoint.with_name("third"))):
        if refused is not home:
            start_from(savepoint, refused)
        with pytest.raises(ConflictError, match=r"has come to batch 0, but the store to 1; .*millrace replay FILE"):
            run_stream(QUIET, pipeline, refused, ONCE)


def test_tables_that_change_are_looked_up_as_of_event_time(home: Locations) -> None:
    plans = home.checkpoint.with_name("plans.csv")
    plans.write_text("user,since,plan\nann,2026-01-01T00:00:00Z,free\n")
    users = table("plans", "user STRING, since TIMESTAMP, plan STRING", path=str(plans))
    timed = PLAYS.event_time("at", delay="5s").join(users, on="user", how="left", as_of="since")
    asked = timed.group_by("plan").window(window.fixed("1h"), lateness="1h").trigger(on.each()).retracting()
    pipeline = Pipeline("plans", {"by_plan": asked.aggregate(plays=agg.count(), ms=agg.sum("ms"))})
    kept(home).append("plays", [play("ann", "Weir", 5), play("bob", "Weir", 6)])
    run_stream(QUIET, pipeline, home, ONCE)
    plans.write_text("user,since,plan\nann,2026-01-01T00:00:00Z,free\nann,2026-01-01T00:01:00Z,paid\n")
    kept(home).append("plays", [play("ann", "Weir", 59), play("ann", "Weir", 60)])
    run_stream(QUIET, pipeline, home, ONCE)
    found = rows(home, "SELECT plan, plays FROM by_plan")
    assert sorted(found, key=str) == [("free", 2), ("paid", 1), (None, 1)]


def test_a_view_is_a_table_for_another_pipeline(home: Locations) -> None:
    charts = Pipeline("charts", {"minutes": by_minute()})
    kept(home).append("plays", [play("ann", "Weir", 5), play("bob", "Weir", 6)])
    run_stream(QUIET, charts, home, ONCE)
    minutes = table("minutes", "track STRING, window_end TIMESTAMP, plays BIGINT", view="minutes")
    joined = PLAYS.event_time("at", delay="5s").join(minutes, on="track", as_of="window_end")
    asked = joined.group_by("track").window(window.fixed("1h")).trigger(on.each()).accumulating()
    pipeline = Pipeline("after", {"known": asked.aggregate(most=agg.sum("plays"))})
    kept(home).append("plays", [play("cal", "Weir", 59), play("cal", "Weir", 60), play("cal", "Weir", 61)])
    run_stream(QUIET, pipeline, replace(home, checkpoint=home.checkpoint.with_name("after")), ONCE)
    assert rows(home, "SELECT track, most FROM known") == [("Weir", 4)]


def test_answers_go_to_a_topic_once(home: Locations) -> None:
    kept(home, "answers")
    kept(home).append("plays", [play("ann", "Weir", 5), play("ann", "Eddy", 70)])
    pipeline = Pipeline("charts", sinks=[by_minute().to(to_topic("answers"))])
    run_stream(QUIET, pipeline, home, ONCE)
    opened = Log(home.log)
    read = [opened.read("answers", part, 0, end)["value"] for part, end in enumerate(opened.ends("answers"))]
    answers = [json.loads(value.as_py()) for column in read for value in column]
    stand = Counter[tuple[str, str]]()
    for answer in answers:
        stand[answer["track"], answer["timing"]] += answer["diff"]
    assert stand == {("Eddy", "early"): 1, ("Weir", "early"): 0, ("Weir", "on-time"): 1}


def test_the_batch_layer_heals_what_the_stream_got_wrong(home: Locations) -> None:
    archive = home.checkpoint.with_name("archive")
    both = layers(batch=files(str(archive), PLAYS.schema, "parquet"), speed=PLAYS)
    timed = both.event_time("at", delay="5s").group_by("track").window(window.fixed("1m"))
    asked = timed.trigger(on.watermark(early=on.each())).accumulating().aggregate(plays=agg.count())
    pipeline = Pipeline("charts", {"minutes": asked})
    late = [play("ann", "Weir", 5), play("ann", "Delta", 10), "not JSON", play("ann", "Eddy", 70)]
    kept(home).append("plays", late, ["a"] * 4)
    run_stream(QUIET, pipeline, home, ONCE)
    kept(home).append("plays", [play("bob", "Weir", 20)], ["a"])  # too late for the stream
    run_stream(QUIET, pipeline, home, ONCE)
    assert rows(home, COUNTED) == [("Delta", 1), ("Weir", 1), ("Eddy", 1)]
    with closing(open_store(home.store)) as store:  # somebody spoils it
        held = store.rows("minutes").rows
        spoiled = held.set_column(held.column_names.index("plays"), "plays", pa.array([77] * len(held)))
        diff = pa.array([1] * len(held), pa.int32())
        answers = spoiled.drop_columns(["version"]).add_column(4, "diff", diff)
        store.correct("charts", {"minutes": answers})
    assert rows(home, COUNTED) == [("Delta", 77), ("Weir", 77), ("Eddy", 77)]
    run_batch_layer(QUIET, pipeline, home)
    assert rows(home, COUNTED) == [("Delta", 1), ("Weir", 2), ("Eddy", 77)], "what is over is right again"
    kept(home).append("plays", [play("bob", "Eddy", 80), play("bob", "Eddy", 130)], ["a"] * 2)
    run_stream(QUIET, pipeline, home, ONCE)
    assert rows(home, COUNTED) == [("Delta", 1), ("Weir", 2), ("Eddy", 2), ("Eddy", 1)]
    run_batch_layer(QUIET, pipeline, home)
    assert rows(home, COUNTED) == [("Delta", 1), ("Weir", 2), ("Eddy", 2), ("Eddy", 1)]
    assert len(list(archive.iterdir())) == 2, "each record is archived once"
    visits = both.event_time("at", delay="5s").window(window.session("1m")).aggregate(plays=agg.count())
    with pytest.raises(PipelineError, match="fixed, sliding or calendar windows"):
        run_batch_layer(QUIET, Pipeline("visits", {"visits": visits}), home)


def test_the_batch_layer_looks_up_what_the_stream_does(home: Locations) -> None:
    kept(home).append("plays", [play("ann", "Weir", 5), play("ann", "Eddy", 6), play("ann", "Weir", 300)], ["a"] * 3)
    run_stream(QUIET, Pipeline("charts", {"minutes": by_minute()}), home, ONCE)
    archive = home.checkpoint.with_name("archive")
    both = layers(batch=files(str(archive), PLAYS.schema, "parquet"), speed=PLAYS)
    known = table("minutes", "track STRING, plays BIGINT", view="minutes")
    joined = both.event_time("at", delay="5s").join(known, on="track").group_by("track").window(window.fixed("1m"))
    pipeline = Pipeline("after", {"known": joined.accumulating().aggregate(times=agg.count())})
    other = replace(home, checkpoint=home.checkpoint.with_name("after"))
    run_batch_layer(QUIET, pipeline, other)
    found = rows(home, "SELECT track, times FROM known ORDER BY track")
    assert found == [("Eddy", 1), ("Weir", 2)], "a row for each of the minutes that it was played in"


def test_the_log_is_a_source_of_spark_s_with_kafka_s_rows(spark: SparkSession, tmp_path: Path) -> None:
    opened = Log(tmp_path / "log.db")
    opened.create("plays", partitions=2)
    opened.append("plays", ["a", "b", "c"], ["x", "y", "d"], headers=[[("h", b"1")], None, None])
    spark.dataSource.register(LogSource)
    options = {"log": str(opened.path), "subscribe": "plays", "startingOffsets": "earliest"}
    read = spark.read.format("millrace").options(**options).load()
    kafka = "key, value, topic, partition, offset, timestamp, timestampType"
    assert ", ".join(read.columns) == f"{kafka}, headers"
    found = sorted(read.collect(), key=lambda row: bytes(row.value))
    assert [(bytes(row.key), row.topic) for row in found] == [(b"x", "plays"), (b"y", "plays"), (b"d", "plays")]
    assert [(header.key, bytes(header.value)) for header in found[0].headers] == [("h", b"1")]
    writer = spark.readStream.format("millrace").options(**options, maxOffsetsPerTrigger="2").load().writeStream
    writer = writer.format("memory").queryName("kafka_rows").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "spark")).start()
    query.awaitTermination()
    assert spark.table("kafka_rows").count() == 3
    assert len(query.recentProgress) == 2
    ended = {**options, "startingOffsets": '{"plays": {"0": -1, "1": -2}}'}
    assert spark.read.format("millrace").options(**ended).load().count() == opened.ends("plays")[1]
