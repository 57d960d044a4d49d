"""Runs transcripts as batches on Spark: the answers to all elements at once must equal those of the reference."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from millrace.model.pipeline import Pipeline
from millrace.model.query import Query
from millrace.model.reference import batch
from millrace.model.window import Row
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import batch as spark_batch
from millrace.testing.stream import alone_if_not_together, panes_of, renamed, spark
from millrace.testing.transcript import InputStep, Transcript

Answers = list[dict[str, Any]]


def differences(transcripts: Sequence[Transcript]) -> list[list[str] | Exception]:
    """For each transcript, the answers that only Spark or only the reference gives; or the error of Spark."""
    rows = [[row for step in each.steps if isinstance(step, InputStep) for row in step.rows] for each in transcripts]
    cases = [(each.query, given) for each, given in zip(transcripts, rows, strict=True)]
    found: list[list[str] | Exception] = []
    for (query, given), got in zip(cases, all_on_spark(spark(), cases), strict=True):
        if isinstance(got, Exception):
            found.append(got)
            continue
        expected = on_reference(query, given)
        missing = [f"missing answer    {row}" for row in expected if row not in got]
        found.append(missing + [f"unexpected answer {row}" for row in got if row not in expected])
    return found


def all_on_spark(
    spark: SparkSession, cases: Sequence[tuple[Query, Sequence[Row]]], partitions: int = 1, fuse: bool = True
) -> list[Answers | Exception]:
    """The sorted answers of Spark to each query over the rows of its only source; or the error."""

    def together(given: Sequence[tuple[Query, Sequence[Row]]]) -> list[Answers]:
        views = {f"case_{n}": renamed(query, f"case_{n}") for n, (query, _) in enumerate(given)}
        scripts = {}
        for n, (_, rows) in enumerate(given):
            share = max(1, -(-len(rows) // partitions))
            scripts[f"case_{n}"] = MemoryScript([Happening(rows[at : at + share]) for at in range(0, len(rows), share)])
        pipeline = Pipeline("check", views)
        found = spark_batch.collect(spark, pipeline, scripts=scripts, shards=2, fuse=fuse).answers
        return [
            _comparable(query.row(pane) for pane in panes_of(query, found[f"view case_{number}"]))
            for number, (query, _) in enumerate(given)
        ]

    return alone_if_not_together(together, cases)


def on_spark(spark: SparkSession, query: Query, rows: Sequence[Row], partitions: int = 1, fuse: bool = True) -> Answers:
    """The sorted answers of Spark to one query. Raises the error of Spark."""
    (found,) = all_on_spark(spark, [(query, rows)], partitions, fuse)
    if isinstance(found, Exception):
        raise found
    return found


def on_reference(query: Query, rows: Iterable[Row]) -> Answers:
    """The sorted answers of the reference."""
    return _comparable(query.row(pane) for pane in batch(query, rows))


def _comparable(rows: Iterable[dict[str, Any]]) -> Answers:
    near = ({name: _rounded(value) for name, value in row.items()} for row in rows)
    return sorted(near, key=repr)


def _rounded(value: Any) -> Any:
    """Round floats, as the last digits of approximate quantiles depend on the order, and convert times to UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return float(f"{value:.12g}") if isinstance(value, float) else value
