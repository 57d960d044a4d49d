"""What may be fused: DuckDB and Spark agree on it, on values at the edge."""

import math
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from millrace.edge.sql import CannotFuseError, to_duckdb
from millrace.model.arrow import arrow_type
from millrace.model.expression import parse_expression
from millrace.model.schema import parse_schema
from test_expressions import EXPRESSIONS, SCHEMA, plain

COLUMNS = parse_schema(SCHEMA)
BIG, SMALL = 2**63 - 1, -(2**63)
MOMENT = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
FAR = datetime(2100, 2, 28, 12, tzinfo=UTC)
ROWS: list[tuple[Any, ...]] = [
    (7, 2, 2.5, "Hello", True, MOMENT, ["a", "b"], ("Oslo",)),
    (-7, 2, -2.5, " pad\t", False, FAR, [], ("",)),
    (0, -3, -0.0, "", True, MOMENT, ["x"], (None,)),
    (1, 1, math.nan, "12", None, FAR, ["y", None], None),
    (9, -1, math.inf, "a%b_c", False, MOMENT, None, ("Rome",)),
    (-1, 4, -math.inf, "naïve 😀 e\u0301", True, FAR, None, ("Zürich",)),
    (BIG // 2, 3, 1e308, "z" * 300, None, MOMENT, None, ("x",)),
    (SMALL // 2, -2, 5e-324, "A", True, None, None, ("x",)),
    (None, None, None, None, None, None, None, None),
]
TEXTS = [text.strip() for text in EXPRESSIONS.replace("\n", ";").split(";") if text.strip()]
MORE = """
i + 1; i * 2; j % 3; j div 2; -7 % 3; 7 div -2; d + 0.1; d * 2.5; d / 3; i / 3; abs(j); abs(d); d > i; d = i; i <=> j
s > 'A'; s = ''; s <> 'Hello'; length(s); trim(s); s || s; concat(s, 'x', s); substring(s, 3, 2); substring(s, -4)
s LIKE '%e%'; s LIKE ''; s LIKE 'z%'; s IN ('', 'A'); s BETWEEN 'A' AND 'b'; coalesce(s, 'none'); nullif(s, '')
CAST(j AS INT); CAST(j AS STRING); CAST(b AS INT); CAST(j AS BOOLEAN); CAST(j AS DOUBLE); CAST(j / 2 AS INT)
date_trunc('DAY', at); date_trunc('WEEK', at); date_trunc('YEAR', at); date_trunc('SECOND', at); at > '2000-01-01'
at = '1969-12-31 23:59:59.999999'; timestamp_millis(j); timestamp_micros(j); j IN (1, 2, NULL); NOT (j > 2)
CASE WHEN d > 0 THEN 'plus' WHEN d < 0 THEN 'minus' ELSE 'none' END; if(b, s, 'no'); greatest(j, 2); least(d, 0)
floor(j / 2); ceil(j / 2); floor(j); b = true; b <=> NULL; (b OR j > 1) AND NOT b
place.city = 'Oslo'; length(place.city)
"""
FUSED = sorted(
    (set(TEXTS) - {"timestamp_micros(i)"})
    | {text.strip() for text in MORE.replace("\n", ";").split(";") if text.strip()}
)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    values = {column.name: [row[number] for row in ROWS] for number, column in enumerate(COLUMNS)}
    values["place"] = [None if place is None else {"city": place[0]} for place in values["place"]]
    return pa.table({column.name: pa.array(values[column.name], arrow_type(column.type)) for column in COLUMNS})


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> Any:
    return spark.createDataFrame([SparkRow(*row) for row in ROWS], SCHEMA).coalesce(1)


def in_duckdb(sql: str, rows: pa.Table) -> list[Any]:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", rows)
    return [row[0] for row in connection.execute(f"SELECT {sql} FROM rows").fetchall()]


def fusible(text: str) -> str | None:
    try:
        return to_duckdb(parse_expression(text, COLUMNS))
    except CannotFuseError:
        return None


@pytest.mark.spark
def test_whatever_fuses_agrees_with_spark(table: pa.Table, frame: Any) -> None:
    got: dict[str, list[Any]] = {}
    failing = []
    for text in FUSED:
        sql = fusible(text)
        try:
            if sql is not None:
                got[text] = in_duckdb(sql, table)
        except duckdb.Error:
            failing.append(text)
    assert len(got) > 110
    # What DuckDB has a value for in every row, Spark has too: this would raise.
    collected = frame.selectExpr(*[f"{text} AS c{number}" for number, text in enumerate(got)]).collect()
    wrong = []
    for number, (text, values) in enumerate(got.items()):
        for expected, value in zip((row[number] for row in collected), values, strict=True):
            if plain(expected) != plain(value) or type(expected) is not type(value):
                wrong.append((text, expected, value))
    assert wrong == []
    for text in failing:
        with pytest.raises(PySparkException):
            frame.selectExpr(text).collect()


@pytest.mark.spark
@pytest.mark.parametrize(
    "text", ["1 / (i - i)", "i % (i - i)", "1 div (i - i)", "i * 9223372036854775807", "-(i * j * i)"]
)
def test_what_has_no_value_fails_in_both(text: str, table: pa.Table, frame: Any) -> None:
    with pytest.raises(PySparkException):
        frame.selectExpr(text).collect()
    with pytest.raises(duckdb.Error):
        in_duckdb(to_duckdb(parse_expression(text, COLUMNS)), table)


@pytest.mark.parametrize(
    "text",
    [
        "upper(s)",
        "lower(s)",
        "s RLIKE 'a+'",
        "substring(s, 0, 2)",
        "substring(s, i, 2)",
        "s LIKE s",
        r"s LIKE 'a\%'",
        "CAST(s AS INT)",
        "CAST(d AS STRING)",
        "CAST(at AS STRING)",
        "round(d, 2)",
        "soundex(s)",
        "s || i",
        "timestamp_seconds(i)",
        "tags[0]",
        "d % 2",
        "2.5",
        "i * 2.5",
    ],
)
def test_what_is_not_known_to_agree_is_not_fused(text: str) -> None:
    with pytest.raises(CannotFuseError):
        to_duckdb(parse_expression(text, COLUMNS))


def test_names_and_texts_are_quoted() -> None:
    schema = parse_schema({'a "b"': "STRING", "select": "BIGINT"})
    assert to_duckdb(parse_expression("`select` > 1", schema)) == '("select" > 1)'
    assert to_duckdb(parse_expression("`a \"b\"` = 'it\\'s'", schema)) == '("a ""b""" = \'it\'\'s\')'
