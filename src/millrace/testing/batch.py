"""Transcripts against Spark's batch: the elements of one, all at once, must answer what the reference answers."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.model.arrow import arrow_type
from millrace.model.query import Query
from millrace.model.reference import batch
from millrace.model.stream import sources
from millrace.model.window import Row
from millrace.spark import batch as spark_batch
from millrace.spark import session
from millrace.testing.transcript import Input, Transcript


def differences(transcript: Transcript) -> list[str]:
    """What Spark answers over the elements of a transcript that the reference does not, and the other way round."""
    rows = [row for step in transcript.steps if isinstance(step, Input) for row in step.rows]
    if not rows:
        return []
    expected, got = on_reference(transcript.query, rows), on_spark(_spark(), transcript.query, rows)
    missing = [f"missing answer    {row}" for row in expected if row not in got]
    return missing + [f"unexpected answer {row}" for row in got if row not in expected]


def on_spark(spark: SparkSession, query: Query, rows: Iterable[Row], partitions: int = 1) -> list[dict[str, Any]]:
    """The answers of Spark over rows of a query's only source, in an order of their own."""
    (source,) = sources(query.stream)
    given = list(rows)
    columns = {
        column.name: pa.array([row.get(column.name) for row in given], arrow_type(column.type))
        for column in source.schema
    }
    frame = spark.createDataFrame(pa.table(columns)).repartition(partitions)
    found = spark_batch.run(spark, query, {source.name: frame}, shards=2).toArrow().to_pylist()
    return _comparable(found)


def on_reference(query: Query, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The answers of the reference, likewise."""
    answers = [query.row(pane) for pane in batch(query, rows)]
    return _comparable({name: value for name, value in row.items() if name != "diff"} for row in answers)


def _comparable(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    near = ({name: _rounded(value) for name, value in row.items()} for row in rows)
    return sorted(near, key=repr)


def _rounded(value: Any) -> Any:
    """Sums of floats depend on their order in the last digits."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


@cache
def _spark() -> SparkSession:
    return session.start("millrace check")
