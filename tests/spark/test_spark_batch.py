"""A query on Spark, as a batch, answers what the reference answers."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from documents import DOCUMENTS
from millrace import MillraceError, Pipeline, PipelineError, agg, memory, on, table, to_function, window
from millrace.model.duration import SECOND, to_datetime
from millrace.model.query import Query
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import batch
from millrace.testing.check import BATCH, check_all
from millrace.testing.spark_batch import on_reference, on_spark

pytestmark = pytest.mark.spark

EVENTS = memory("events", "k STRING, v BIGINT, at TIMESTAMP")
NAMES = table("names", "k STRING, name STRING", rows=[{"k": "a", "name": "Ann"}, {"k": "b", "name": "Bob"}])
ROWS: list[dict[str, Any]] = [
    {"k": "abc"[number % 3] if number % 7 else None, "v": number % 11 or None, "at": to_datetime(number * SECOND // 3)}
    for number in range(200)
]
TIMED = EVENTS.event_time("at", delay="5s")


def test_transcripts(spark: SparkSession) -> None:
    verdicts = list(check_all(DOCUMENTS, BATCH))
    assert [f"{verdict.document.name}: {verdict.failure}" for verdict in verdicts if not verdict.passed] == []


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
@pytest.mark.parametrize(
    "query",
    [
        EVENTS.where("v > 2")
        .with_columns(double="v * 2", what="CASE WHEN v > 5 THEN 'big' ELSE 'small' END")
        .join(NAMES, on="k", how="left")
        .event_time("at", delay="5s")
        .group_by("name", "what")
        .window(window.fixed("10s"))
        .aggregate(n=agg.count(), total=agg.sum("double"), average=agg.mean("v")),
        TIMED.select("k", "at", x="v + 1")
        .group_by("k")
        .window(window.sliding("10s", every="4s"))
        .aggregate(all=agg.collect("x")),
        TIMED.group_by("k")
        .window(window.session("1s"))
        .trigger(on.watermark(early=on.each(), late=on.each()))
        .retracting()
        .aggregate(n=agg.count(), most=agg.max("v"), distinct=agg.approx_distinct("v")),
        EVENTS.window(window.all_time()).aggregate(n=agg.count("v"), any=agg.max("k")),
        EVENTS.union(EVENTS.where("v > 5")).group_by("k").window(window.all_time()).aggregate(n=agg.count()),
    ],
    ids=lambda query: str(query.windowing),
)
def test_rows_in_several_partitions(query: Query, fuse: bool, spark: SparkSession) -> None:
    assert on_spark(spark, query, ROWS, partitions=3, fuse=fuse) == on_reference(query, ROWS)


def test_rows_that_come_again_are_counted_once(spark: SparkSession) -> None:
    query = (
        TIMED.dedup("k", "v").where("v > 1").group_by("k").window(window.fixed("10s")).aggregate(all=agg.collect("v"))
    )
    assert on_spark(spark, query, [*ROWS, *ROWS], partitions=3) == on_reference(query, [*ROWS, *ROWS])


def test_what_goes_by_order_of_arrival_keeps_it_within_a_partition(spark: SparkSession) -> None:
    path = agg.fold("v", "", lambda so_far, v: f"{so_far}{v}", type="STRING")
    query = EVENTS.group_by("k").window(window.count(4)).aggregate(path=path)
    assert on_spark(spark, query, ROWS) == on_reference(query, ROWS)


def test_rows_of_a_join_of_streams_are_chosen_and_computed(spark: SparkSession) -> None:
    others = memory("others", "k STRING, w BIGINT, then TIMESTAMP").event_time("then", delay="5s")
    joined = TIMED.join(others, on="k", within=("0s", "1s")).where("v > 2").select("k", both="v + w")
    rows = [{"k": "a", "w": 1, "then": to_datetime(20 * SECOND)}, {"k": "b", "w": 2, "then": to_datetime(21 * SECOND)}]
    found = batch.collect(
        spark,
        Pipeline("p", sinks=[joined.to(to_function(lambda rows, batch: None, "pairs"))]),
        scripts={"events": MemoryScript([Happening(ROWS)]), "others": MemoryScript([Happening(rows)])},
    )
    expected = [
        (row["k"], row["v"] + other["w"], 1)
        for row in ROWS
        for other in rows
        if row["k"] == other["k"] and 0 <= (other["then"] - row["at"]).total_seconds() <= 1 and (row["v"] or 0) > 2
    ]
    assert len(expected) > 1
    (answers,) = (table for id, table in found.answers.items() if "pairs" in id)
    assert sorted(tuple(row.values()) for row in answers.to_pylist()) == sorted(expected)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
def test_a_row_without_event_time_is_a_dead_letter(fuse: bool, spark: SparkSession) -> None:
    rows = [*ROWS[:3], {"k": "a", "at": None}]
    pipeline = Pipeline("p", {"n": TIMED.window(window.fixed("10s")).aggregate(n=agg.count())})
    found = batch.collect(spark, pipeline, scripts={"events": MemoryScript([Happening(rows)])}, fuse=fuse)
    assert found.answers["view n"]["n"].to_pylist() == [3]
    (letter,) = found.dead_letters.to_pylist()
    assert (letter["origin"], letter["offset"], letter["reason"]) == ("events", 3, "event time at is NULL")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (
            EVENTS.where("upper(k) = 'A'").dedup("k").window(window.all_time()).aggregate(n=agg.count()),
            r"dedup\(\) needs an edge that is fused, and this one is native: ",
        ),
        (EVENTS.dedup("k").dedup("v").window(window.all_time()).aggregate(n=agg.count()), r"only one dedup\(\)"),
        (EVENTS.window(window.all_time()).aggregate(n=agg.fold("v", 0, max)), "the type of 'n' is not known"),
        (
            EVENTS.join(table("t", "k STRING, x INT", path="t.csv"), on="k")
            .window(window.all_time())
            .aggregate(n=agg.count()),
            "there is no file t.csv",
        ),
    ],
)
def test_what_does_not_run_is_refused(query: Query, says: str, spark: SparkSession) -> None:
    with pytest.raises(MillraceError, match=says) as caught:
        on_spark(spark, query, ROWS)
    assert caught.value.place is not None
    assert caught.value.place.file == __file__


def test_a_source_without_rows_is_named(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="source 'events' has no rows to read"):
        batch.collect(spark, Pipeline("p", {"n": TIMED.window(window.fixed("10s")).aggregate(n=agg.count())}))


@pytest.mark.parametrize("name", ["names.csv", "names.json", "names.parquet"])
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
def test_a_table_in_a_file(name: str, fuse: bool, tmp_path: Path, spark: SparkSession) -> None:
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("k,name\na,Ann\nb,Bob\n")
    elif name.endswith("json"):
        path.write_text('{"k": "a", "name": "Ann"}\n{"k": "b", "name": "Bob"}\n')
    else:
        pq.write_table(pa.table({"k": ["a", "b"], "name": ["Ann", "Bob"]}), path)
    in_file = table("names", "k STRING, name STRING", path=str(path))
    asked, given = (
        EVENTS.join(names, on="k").group_by("name").window(window.all_time()).aggregate(n=agg.count())
        for names in (in_file, NAMES)
    )
    assert on_spark(spark, asked, ROWS, fuse=fuse) == on_reference(given, ROWS)


def test_windows_by_a_function(spark: SparkSession) -> None:
    query = TIMED.group_by("k").window(window.custom(by_parity)).aggregate(n=agg.count(), total=agg.sum("v"))
    for fuse in (True, False):
        assert on_spark(spark, query, ROWS, partitions=2, fuse=fuse) == on_reference(query, ROWS)


def by_parity(at: datetime, row: Mapping[str, Any]) -> list[tuple[datetime, datetime]]:
    start = at.replace(second=at.second // 10 * 10, microsecond=0)
    return [(start, start + timedelta(seconds=20 if (row["v"] or 0) % 2 else 10))]
