"""Spark's `Column` objects as SQL, so that they mean the same on every edge and in the reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from millrace.model.errors import refuse
from millrace.model.schema import UNKNOWN, Schema, backticked
from millrace.spark.session import separate

_AS_SQL = "write it as SQL in a string"


def sql_of(column: Column, schema: Schema) -> str:
    """The SQL of a column over a stream with this schema. Refuses one that SQL cannot express.

    Spark resolves the column and writes it as SQL, then reads the SQL and compares the two.
    """
    spark = SparkSession.getActiveSession()
    if spark is None or not hasattr(column, "_jc"):
        raise refuse(f"{column} needs a SparkSession of this process, not Spark Connect", advice=_AS_SQL)
    unknown = [each.name for each in schema if UNKNOWN in each.type]
    if unknown:
        raise refuse(f"{column}: the type of column {unknown[0]!r} is not known yet", advice=_AS_SQL)
    columns = ", ".join(f"{backticked(each.name)} {each.type}" for each in schema)
    with _active(separate(spark)) as own:
        frame = own.createDataFrame([], columns)
        try:
            asked = frame.select(column.alias("value"))
        except PySparkException as error:
            raise refuse(f"Spark refuses {column}: {str(error).splitlines()[0]}") from None
        computed = _plan(asked).expressions().head().children()
        if computed.isEmpty():  # Spark computes it in another step, as it does explode()
            raise refuse(f"{column} returns several rows or columns, but a row expression must return one value")
        text: str = computed.head().sql()
        try:
            same = _plan(asked).sameResult(_plan(frame.select(f.expr(text).alias("value"))))
        except (PySparkException, Py4JError):
            same = False
    if not same:
        raise refuse(
            f"{column} cannot be written as SQL", advice="write it so in a string, or use map(), filter() or udf()"
        )
    return text


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


@contextmanager
def _active(spark: SparkSession) -> Iterator[SparkSession]:
    """Make a session the one by whose settings Spark writes SQL."""
    assert spark._jvm is not None
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield spark
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
