"""Expressions that may have no value for a row, in a Spark plan.

Under ANSI rules Spark stops the whole query at such a row. Its own `TryEval` catches that row by row, but has no name
in SQL, so it is made by way of Java. Around a struct it tells a NULL from a value that is missing.
"""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

SETTINGS = {"spark.sql.subexpressionElimination.enabled": "false"}
"""Else Spark computes what two expressions share once, before both, and outside of what catches."""


def tried(spark: SparkSession, sql: str) -> Column:
    """A struct with the value of an expression in its field `v`; NULL for a row that has no value."""
    return all_tried(spark, [sql])[0]


def all_tried(spark: SparkSession, texts: Iterable[str]) -> list[Column]:
    """The same of each expression. To find what makes them takes many calls to Java, so it is found once."""
    java: Any = spark._jvm
    parse = spark._jsparkSession.sessionState().sqlParser().parseExpression
    catching = java.org.apache.spark.sql.catalyst.expressions.TryEval
    column = java.org.apache.spark.sql.classic.ExpressionUtils.column
    return [ClassicColumn(column(catching(parse(f"named_struct('v', {sql}\n)")))) for sql in texts]
