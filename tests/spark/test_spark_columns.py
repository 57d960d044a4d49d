"""Columns of Spark's in place of SQL: they mean what Spark says they mean, or are refused."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from millrace import PipelineError, memory
from millrace.model.rows import RowEvaluator
from millrace.plan.compile import stage_of

pytestmark = pytest.mark.spark

SCHEMA = "a INT, s STRING, l ARRAY<INT>, r STRUCT<x: INT>, t TIMESTAMP, `two words` INT"
NOON, JULY = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2025, 7, 1, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"a": 2, "s": "it's \\ x", "l": [1, 2], "r": {"x": 7}, "t": NOON, "two words": 3},
    {"a": -1, "s": "abc", "l": [], "r": {"x": None}, "t": JULY, "two words": None},
    {"a": None, "s": None, "l": None, "r": None, "t": None, "two words": 0},
]
COLUMNS: list[Callable[[], Column]] = [
    lambda: f.col("a") + 1,
    lambda: f.col("s") == "it's \\ x",
    lambda: f.upper("s"),
    lambda: f.col("a").cast("bigint") * f.col("two words"),
    lambda: f.when(f.col("a") > 1, "x").otherwise(f.col("s")),
    lambda: f.col("s").like("a%"),
    lambda: f.col("a").isin(1, 2),
    lambda: f.col("a").between(1, 3),
    lambda: f.col("s").substr(1, 2),
    lambda: f.col("r.x"),
    lambda: f.col("r")["x"],
    lambda: ~(f.col("a") > 1),
    lambda: -f.col("a"),
    lambda: f.lit(1.5),
    lambda: f.lit(Decimal("1.10")),
    lambda: f.col("t") > f.lit(datetime(2025, 12, 31, tzinfo=UTC)),
    lambda: f.col("s").isNull(),
    lambda: f.expr("a + 1"),
    lambda: f.concat_ws("-", "s", f.lit("x")),
    lambda: f.date_trunc("hour", "t"),
    lambda: f.col("a").eqNullSafe(f.lit(None)),
    lambda: f.coalesce(f.col("a"), f.col("two words")),
]


@pytest.mark.parametrize("make", COLUMNS, ids=range(len(COLUMNS)))
def test_a_column_is_the_sql_that_spark_takes_it_for(make: Callable[[], Column], spark: SparkSession) -> None:
    column, rows = make(), memory("rows", SCHEMA)
    stream = rows.select(value=column)
    frame = spark.createDataFrame(ROWS, SCHEMA)
    expected = [row["value"] for row in frame.select(column.alias("value")).collect()]
    (_, expression) = stream.columns[0]
    assert [row["value"] for row in frame.select(f.expr(expression.sql).alias("value")).collect()] == expected
    if expression.node is not None:  # otherwise only Spark computes it
        found = [row["value"] for row in RowEvaluator(stream, {}, 0).take(ROWS, None, 0, 0)]
        assert found == [value.replace(tzinfo=UTC) if isinstance(value, datetime) else value for value in expected]
    assert stage_of("view v", rows.where(column.cast("string") != "x")).edges


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: f.transform("l", lambda x: x + 1), "cannot be written as SQL; write it so in a string"),
        (lambda: f.udf(lambda text: text)("s"), "cannot be written as SQL; write it so in a string, or use map()"),
        (lambda: f.col("b"), "Spark refuses Column<'b'>: [UNRESOLVED_COLUMN"),
        (lambda: f.col("s").like("a%").isNotNull(), "cannot be written as SQL"),  # Spark leaves out the brackets
        (lambda: f.count("a"), "aggregates rows"),
        (lambda: f.rand(), "is different on every replay"),
        (lambda: f.explode("l"), "returns several rows"),
    ],
)
def test_a_column_that_is_no_row_expression_is_refused(
    make: Callable[[], Column], says: str, spark: SparkSession
) -> None:
    with pytest.raises(PipelineError, match=re.escape(says)) as raised:
        memory("rows", SCHEMA).select(value=make())
    assert str(raised.value).startswith("test_spark_columns.py:")
