"""Functions and explode on Spark: fused and native edges answer what the reference and Spark's own explode answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from millrace import Pipeline, PipelineError, agg, files, memory, percentile, to_files, window
from millrace.model.arrow import arrow_schema
from millrace.model.duration import SECOND, to_datetime
from millrace.model.query import Query
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import batch
from millrace.spark.settled import settled
from millrace.testing import Script, run_script
from millrace.testing.spark_batch import all_on_spark, on_reference

pytestmark = pytest.mark.spark

ALL = "k STRING, v BIGINT, at TIMESTAMP, tags ARRAY<STRING>, by MAP<STRING, DECIMAL(5, 2)>"
EVENTS = memory("events", ALL)
ROWS: list[dict[str, Any]] = [
    {
        "k": "abc"[number % 3] if number % 7 else None,
        "v": number % 5,
        "at": to_datetime(number * SECOND // 3) if number % 9 else None,
        "tags": [None, [], ["x"], ["x", None, "y"]][number % 4],
        "by": [None, {}, {"p": number}][number % 3],
    }
    for number in range(60)
]
TIMED = EVENTS.event_time("at", watermark=percentile(0.5))


def twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(row["v"]):
        yield {**row, "v": 12 // (3 - row["v"]) + number}


def doubled(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "v", pc.multiply(rows["v"], 2))


def first_half(frame: Any) -> Any:
    return frame["v"] < 3


def summed(stream: Any, key: str) -> Query:
    built: Query = stream.group_by(key).window(window.fixed("5s")).aggregate(n=agg.count(), total=agg.sum("v"))
    return built


QUERIES = [
    summed(EVENTS.flat_map(twice, ALL).event_time("at", delay="1s").where("10 / v > 0"), "k"),
    summed(TIMED.flat_map(twice, ALL).explode("tags", outer=True).filter(first_half, over="pandas"), "tags"),
    summed(TIMED.with_columns(w="10 div v").map(doubled, f"{ALL}, w BIGINT", over="arrow").explode("by"), "value"),
    summed(EVENTS.filter(lambda row: 1 / row["v"]).union(EVENTS).event_time("at", delay="1s"), "k"),
]


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
def test_functions_in_several_partitions(fuse: bool, spark: SparkSession) -> None:
    found = all_on_spark(spark, [(query, ROWS) for query in QUERIES], partitions=3, fuse=fuse)
    assert found == [on_reference(query, ROWS) for query in QUERIES]


def test_explode_is_spark_s(spark: SparkSession) -> None:
    """On an edge that is native because only Spark knows `split` and `map_from_arrays`."""
    texts = ["a-b", "", "-", None, "c"]
    frame = spark.createDataFrame([(text,) for text in texts], "t STRING")
    lists = memory("texts", "t STRING").with_columns(x="split(t, '-')")
    maps = memory("texts", "t STRING").with_columns(x="map_entries(map_from_arrays(split(t, '-'), split(t, '-')))")
    for stream, how, outer in [(lists, f.explode, False), (lists, f.explode_outer, True), (maps, f.explode, False)]:
        (computed,) = [sql for name, sql in stream.columns if name == "x"]
        rows = frame.where("t IS NULL OR t <> '-'") if stream is maps else frame
        expected = [row[0] for row in rows.select(how(f.expr(computed.sql)).alias("x")).toLocalIterator()]
        exploded = stream.explode("x", outer=outer)
        found = _rows(spark, Pipeline("p", sinks=[exploded.to(to_files("out"))]), [row.t for row in rows.collect()])
        assert found == [each if isinstance(each, str | None) else each.asDict() for each in expected]


def _rows(spark: SparkSession, pipeline: Pipeline, texts: list[str | None]) -> list[Any]:
    script = MemoryScript([Happening([{"t": text} for text in texts])])
    (answers,) = batch.collect(spark, pipeline, scripts={"texts": script}).answers.values()
    values: list[Any] = answers["x"].to_pylist()
    return values


def test_a_map_that_only_spark_knows_is_refused_with_advice(spark: SparkSession) -> None:
    stream = memory("texts", "t STRING").with_columns(m="map(t, 1)")
    with pytest.raises(PipelineError, match=r"'m' is a MAP.*; explode map_entries\(m\) instead, an ARRAY of structs"):
        settled(spark, Pipeline("p", sinks=[stream.explode("m").to(to_files("out"))]))
    advised = stream.with_columns(m="map_entries(m)").explode("m")
    (output,) = settled(spark, Pipeline("p", sinks=[advised.to(to_files("out"))])).sinks
    assert output.of.schema.type_of("m") == "STRUCT<key: STRING, value: INT>"


def test_dead_letters_of_a_native_stream_name_the_function(spark: SparkSession) -> None:
    def parsed(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": int(row["part"])}

    stream = memory("texts", "t STRING").with_columns(part="split(t, '-')").explode("part").map(parsed, "n BIGINT")
    pipeline = Pipeline("p", {"sum": stream.window(window.all_time()).aggregate(n=agg.sum("n"))})
    answers = run_script(pipeline, Script().rows("texts", {"t": "1-2"}, {"t": "3-x-4"}, {"t": None}).end(), "spark")
    assert [row["n"] for row in answers.view("sum")] == [10]
    (letter,) = answers.dead_letters
    assert letter.row == {"t": "3-x-4"}
    line = parsed.__code__.co_firstlineno + 1
    assert letter.reason == (
        f"test_spark_functions.py:{line}: map(parsed): ValueError: invalid literal for int() with base 10: 'x'"
    )


def test_arrays_of_parquet_files_are_exploded(spark: SparkSession, tmp_path: Path) -> None:
    source = files(str(tmp_path), "k STRING, tags ARRAY<STRUCT<x: INT>>, unread MAP<STRING, INT>", format="parquet")
    rows = [{"k": "a", "tags": [{"x": 1}, {"x": 2}]}, {"k": "b", "tags": None, "unread": {"y": 1}}]
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema(source.schema)), tmp_path / "one.parquet")
    query = source.explode("tags").group_by("k").window(window.all_time()).aggregate(x=agg.sum("tags.x"))
    assert batch.collect(spark, Pipeline("p", {"v": query})).answers["view v"]["x"].to_pylist() == [3]
