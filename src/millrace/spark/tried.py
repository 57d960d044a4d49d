"""Expressions in a Spark plan that may have no value for a row.

Under ANSI rules Spark fails the whole query at such a row. Spark's `TryEval` catches the error row by row, but has no
name in SQL, so it is created through Java. Around a struct it distinguishes a NULL from a missing value.
"""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

SETTINGS = {"spark.sql.subexpressionElimination.enabled": "false"}
"""Otherwise Spark computes a common subexpression once, before both expressions and outside of `TryEval`."""


def tried(spark: SparkSession, sql: str) -> Column:
    """A struct with the value of an expression in its field `v`; NULL for a row that has no value."""
    return all_tried(spark, [sql])[0]


def all_tried(spark: SparkSession, texts: Iterable[str]) -> list[Column]:
    """`tried` for each expression. Looking up the Java classes takes many calls, so they are looked up once."""
    java: Any = spark._jvm
    parse = spark._jsparkSession.sessionState().sqlParser().parseExpression
    catching = java.org.apache.spark.sql.catalyst.expressions.TryEval
    column = java.org.apache.spark.sql.classic.ExpressionUtils.column
    return [ClassicColumn(column(catching(parse(f"named_struct('v', {sql}\n)")))) for sql in texts]
