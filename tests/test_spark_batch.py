"""A query on Spark, as a batch, answers what the reference answers."""

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace import (
    ModelError,
    approx_distinct,
    collect,
    count,
    fixed,
    fold,
    global_,
    max_,
    mean,
    memory,
    on,
    session,
    sliding,
    sum_,
    table,
    windows,
)
from millrace.model.duration import SECOND, to_datetime
from millrace.model.query import Query
from millrace.spark import batch as spark_batch
from millrace.testing.batch import on_reference, on_spark
from millrace.testing.check import BATCH, check
from millrace.testing.transcript import Document
from test_transcripts import DOCUMENTS

pytestmark = [pytest.mark.spark, pytest.mark.no_cover]

EVENTS = memory("events", "k STRING, v BIGINT, at TIMESTAMP")
NAMES = table("names", "k STRING, name STRING", rows=[{"k": "a", "name": "Ann"}, {"k": "b", "name": "Bob"}])
ROWS: list[dict[str, Any]] = [
    {"k": "abc"[number % 3] if number % 7 else None, "v": number % 11 or None, "at": to_datetime(number * SECOND // 3)}
    for number in range(200)
]
TIMED = EVENTS.event_time("at", delay="5s")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_transcript(document: Document, spark: SparkSession) -> None:
    verdict = check(document, BATCH)
    assert verdict.passed, verdict.failure


@pytest.mark.parametrize(
    "query",
    [
        EVENTS.where("v > 2")
        .with_columns(double="v * 2", what="CASE WHEN v > 5 THEN 'big' ELSE 'small' END")
        .join(NAMES, on="k", how="left")
        .event_time("at", delay="5s")
        .group_by("name", "what")
        .window(fixed("10s"))
        .aggregate(n=count(), total=sum_("double"), average=mean("v")),
        TIMED.select("k", "at", x="v + 1").group_by("k").window(sliding("10s", every="4s")).aggregate(all=collect("x")),
        TIMED.group_by("k")
        .window(session("1s"))
        .trigger(on.watermark(early=on.each(), late=on.each()))
        .retracting()
        .aggregate(n=count(), most=max_("v"), distinct=approx_distinct("v")),
        EVENTS.window(global_()).aggregate(n=count("v"), any=max_("k")),
        EVENTS.union(EVENTS.where("v > 5")).group_by("k").window(global_()).aggregate(n=count()),
    ],
    ids=lambda query: str(query.windowing),
)
def test_rows_in_several_partitions(query: Query, spark: SparkSession) -> None:
    assert on_spark(spark, query, ROWS, partitions=3) == on_reference(query, ROWS)


def test_what_goes_by_order_of_arrival_keeps_it_within_a_partition(spark: SparkSession) -> None:
    path = fold("v", "", lambda so_far, v: f"{so_far}{v}", type="STRING")
    query = EVENTS.group_by("k").window(windows.count(4)).aggregate(path=path)
    assert on_spark(spark, query, ROWS) == on_reference(query, ROWS)


def test_a_row_without_event_time_is_not_passed_over(spark: SparkSession) -> None:
    query = TIMED.window(fixed("10s")).aggregate(n=count())
    with pytest.raises(PySparkException, match="event time at is NULL"):
        on_spark(spark, query, [{"k": "a", "at": None}])


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (EVENTS.dedup("k").window(global_()).aggregate(n=count()), r"dedup\(\) does not run on Spark yet"),
        (TIMED.window(windows.custom(lambda at, row: [])).aggregate(n=count()), "does not run on Spark yet"),
        (EVENTS.window(global_()).aggregate(n=fold("v", 0, max)), "the type of 'n' is not known"),
        (
            EVENTS.join(table("t", "k STRING, x INT", path="t.csv"), on="k").window(global_()).aggregate(n=count()),
            "file",
        ),
    ],
)
def test_what_does_not_run_yet_is_refused(query: Query, says: str, spark: SparkSession) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        on_spark(spark, query, ROWS)
    assert caught.value.place is not None
    assert caught.value.place.file == __file__


def test_a_source_without_rows_is_named(spark: SparkSession) -> None:
    with pytest.raises(ModelError, match="source 'events' has no rows to read"):
        spark_batch.run(spark, TIMED.window(fixed("10s")).aggregate(n=count()), {})
