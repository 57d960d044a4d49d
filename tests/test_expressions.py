"""The reference's evaluator says what Spark says."""

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from millrace.model.evaluate import RowError, evaluate
from millrace.model.expression import parse_expression
from millrace.model.functions import SPARK_FUNCTIONS
from millrace.model.schema import parse_schema

SCHEMA = (
    "i BIGINT, j BIGINT, d DOUBLE, s STRING, b BOOLEAN, at TIMESTAMP, tags ARRAY<STRING>, place STRUCT<city: STRING>"
)
NAMES = parse_schema(SCHEMA).names
NOON = datetime(2026, 3, 1, 12, 34, 56, 789000, tzinfo=UTC)
ROWS: list[tuple[Any, ...]] = [
    (7, 2, 2.5, "Hello", True, NOON, ["a", "b"], ("Oslo",)),
    (-7, 2, -2.5, " pad ", False, NOON, [], ("",)),
    (0, -3, 0.0, "", True, NOON, ["x"], (None,)),
    (1, 0, math.nan, "12", None, NOON, ["y", None], None),
    (9, 3, math.inf, "a%b_c", False, NOON, None, ("Rome",)),
    (None, None, None, None, None, None, None, None),
]
EXPRESSIONS = r"""
i + j; i - j; i * j; -i; abs(i); i % 2; -i % 2; i div 2; i / 2; d * 2
i = j; i <> j; i < j; i <= j; i > j; i >= j; i <=> j; i <=> NULL; d = d; d > 1e300; d <=> d
b AND i > 0; b OR i > 0; NOT b; b AND NULL; b OR NULL; i IS NULL; i IS NOT NULL; b IS TRUE; b IS FALSE
i IN (1, 7); i IN (1, NULL); i NOT IN (1, 7); i BETWEEN -7 AND 1; i NOT BETWEEN 0 AND 8
CASE WHEN i > 0 THEN 'plus' WHEN i < 0 THEN 'minus' END; CASE i WHEN 7 THEN 'seven' ELSE s END
CASE WHEN b THEN 1 ELSE 2 END; if(b, i, j); coalesce(i, j, 5); nullif(i, 7); greatest(i, j); least(i, j)
greatest(d, 1.5D); lower(s); upper(s); length(s); trim(s); concat(s, '!'); s || '?'
substring(s, 2, 3); substring(s, -3, 2); substring(s, 0, 2); substring(s, 2); substring(s, -9, 5)
s LIKE 'H%'; s LIKE 'a\%b%'
i > '3'; s = 'Hello'; d > '1.5'; at > '2026-01-01'; S = 'Hello'
 s LIKE '_ello'; s LIKE '%b_c'; s RLIKE '^[A-Z]'; s = 'Hello'; s < 'b'
ceil(i / 2); floor(i / 2); round(i / 4, 1); round(i); CAST(i AS STRING); CAST(b AS STRING); CAST(i AS DOUBLE)
CAST(i AS INT); CAST(i AS BOOLEAN); CAST('17' AS BIGINT); try_cast(s AS INT); CAST(' 5 ' AS INT)
CAST('true' AS BOOLEAN); CAST(2.7D AS INT)
CAST('1.005' AS DECIMAL(10, 2)); try_cast(300 AS TINYINT); try_cast(-128 AS TINYINT)
CAST('2026-03-01 12:00:00' AS TIMESTAMP); CAST(1772366400 AS TIMESTAMP); timestamp_seconds(1772366400)
timestamp_millis(1772366400123); timestamp_micros(i); date_trunc('HOUR', at); date_trunc('DAY', at)
date_trunc('MONTH', at); date_trunc('WEEK', at); date_trunc('MINUTE', at); at > TIMESTAMP '2026-01-01 00:00:00'
place.city; length(place.city); i; 'text'; 3; 2.5; true; NULL; (i + 1) * 2
"""


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value


@pytest.fixture(scope="module")
def answers(spark: SparkSession) -> dict[str, list[Any]]:
    """What Spark says for each row."""
    texts = [text.strip() for text in EXPRESSIONS.replace("\n", ";").split(";") if text.strip()]
    frame = spark.createDataFrame([SparkRow(*row) for row in ROWS], SCHEMA).coalesce(1)
    collected = frame.selectExpr(*[f"{text} AS c{number}" for number, text in enumerate(texts)]).collect()
    return {text: [row[number] for row in collected] for number, text in enumerate(texts)}


@pytest.mark.spark
def test_the_reference_evaluates_as_spark_does(answers: dict[str, list[Any]]) -> None:
    schema = parse_schema(SCHEMA)
    wrong = []
    for text, expected in answers.items():
        expression = parse_expression(text, schema)
        for values, spark_says in zip(ROWS, expected, strict=True):
            row = dict(zip(NAMES, values, strict=True))
            row["place"] = None if row["place"] is None else {"city": row["place"][0]}
            said = evaluate(expression, row)
            if plain(said) != plain(spark_says):
                wrong.append((text, values, said, spark_says))
    assert wrong == []


@pytest.mark.spark
@pytest.mark.parametrize(
    "text", ["1 / (i - i)", "i % (i - i)", "1 div (i - i)", "CAST(s AS INT)", "CAST(300 AS TINYINT)", "tags[5]"]
)
def test_what_spark_refuses_has_no_value(text: str, spark: SparkSession) -> None:
    frame = spark.createDataFrame([SparkRow(*ROWS[0])], SCHEMA)
    with pytest.raises(PySparkException):
        frame.selectExpr(text).collect()
    row = dict(zip(NAMES, ROWS[0], strict=True))
    with pytest.raises(RowError):
        evaluate(parse_expression(text, parse_schema(SCHEMA)), row)


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("i + j", "BIGINT"),
        ("i / j", "DOUBLE"),
        ("i > 3", "BOOLEAN"),
        ("lower(s)", "STRING"),
        ("timestamp_millis(i)", "TIMESTAMP"),
        ("date_trunc('HOUR', at)", "TIMESTAMP"),
        ("xpath_string(s, 'a')", "UNKNOWN"),
    ],
)
def test_types_of_expressions(text: str, type: str) -> None:
    assert parse_expression(text, parse_schema(SCHEMA)).type == type


@pytest.mark.spark
def test_the_names_of_functions_are_spark_s(spark: SparkSession) -> None:
    listed = {row[0].split(".")[-1] for row in spark.sql("SHOW ALL FUNCTIONS").collect()}
    assert {name for name in listed if name.replace("_", "").isalnum() and name[0].isalpha()} == SPARK_FUNCTIONS


def test_an_expression_names_the_columns_it_reads_once() -> None:
    assert parse_expression("i + i * j + length(place.city)", parse_schema(SCHEMA)).columns == ("i", "j", "place")
