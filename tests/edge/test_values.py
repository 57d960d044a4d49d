"""Values at the door: how each JSON form reads as each type, on both edges, and what Spark's own reader says of it.

`FORMS` is the table of `docs/values.md`. ASIDE is a record that is set aside.
"""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from examples import examples
from millrace import MillraceError
from millrace.edge.connection import Prepared
from millrace.edge.decode import JsonDecoder, look_like_objects
from millrace.edge.tables import columns_of
from millrace.formats.written import written
from millrace.model.inputs import memory, table
from millrace.model.schema import Column, parse_schema
from millrace.sources.bundle import Bundle, Times
from millrace.spark.marks import CONTROL
from millrace.spark.reading import rows_of
from millrace.spark.source import Task

ASIDE = "aside"
D, B, L = "DOUBLE", "BIGINT", "DECIMAL(20, 2)"


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


FORMS: list[tuple[str, str, Any, Any]] = [
    # form, type, what we read, what Spark reads if that is something else
    ("5", "STRING", "5", None),
    ("19.90", "STRING", "19.90", "19.9"),
    ("1e2", "STRING", "1e2", "100.0"),
    ("12345678901234567.89", "STRING", "12345678901234567.89", "1.2345678901234568E16"),
    ("123456789012345678901234567890", "STRING", "123456789012345678901234567890", None),
    ("1e400", "STRING", "1e400", '"Infinity"'),
    ("-0", "STRING", "0", None),
    ("true", "STRING", "true", None),
    ("null", "STRING", None, None),
    ('""', "STRING", "", None),
    ('" 5 "', "STRING", " 5 ", None),
    ('"19.90"', "STRING", "19.90", None),
    ('"[1, 2]"', "STRING", "[1, 2]", None),
    ('"\\u00e4\\n"', "STRING", "ä\n", None),
    ('"\\ud800"', "STRING", ASIDE, "?"),
    ('"a\tb"', "STRING", ASIDE, None),
    ("'x'", "STRING", ASIDE, "x"),
    ("NaN", "STRING", "NaN", '"NaN"'),
    ("[1.10,  2]", "STRING", "[1.10,  2]", "[1.1,2]"),
    ('{"x": 1.50}', "STRING", '{"x": 1.50}', '{"x":1.5}'),
    ("[1,]", "STRING", "[1,]", ASIDE),
    ("5", B, 5, None),
    ('"5"', B, 5, ASIDE),
    ('"007"', B, 7, ASIDE),
    ("-0", B, 0, None),
    ("9223372036854775807", B, 2**63 - 1, None),
    ("9223372036854775808", B, ASIDE, None),
    *((form, B, ASIDE, None) for form in ("5.0", "1e3", "true", "[1]")),
    *((f'"{text}"', B, ASIDE, None) for text in ("+5", " 5 ", "1e5", "0x10", "1_0", "")),
    ("2147483648", "INT", ASIDE, None),
    ("32768", "SMALLINT", ASIDE, None),
    ("-128", "TINYINT", -128, None),
    ("5", D, 5.0, None),
    ("0.1", D, 0.1, None),
    ("1e-400", D, 0.0, None),
    ('"0.1"', D, 0.1, ASIDE),
    ('"1e5"', D, 1e5, ASIDE),
    ("1e400", D, ASIDE, float("inf")),
    ("1e39", "FLOAT", ASIDE, float("inf")),
    ('"1e400"', D, ASIDE, None),
    ("Infinity", D, float("inf"), None),
    ('"Infinity"', D, float("inf"), None),
    ('"-Infinity"', D, float("-inf"), None),
    ('"+INF"', D, ASIDE, float("inf")),
    ("-INF", D, ASIDE, float("-inf")),
    ("nan", D, ASIDE, None),
    *((f'"{text}"', D, ASIDE, None) for text in ("1_0", " 5 ", "1.", ".5", "+5", "0x10", "nan", "inf", "1d")),
    ("true", "BOOLEAN", True, None),
    ('"true"', "BOOLEAN", True, ASIDE),
    ('"false"', "BOOLEAN", False, ASIDE),
    *((form, "BOOLEAN", ASIDE, None) for form in ("1", "0", '"t"', '"yes"', '"TRUE"', '"true "')),
    ("12345678901234567.89", L, Decimal("12345678901234567.89"), None),
    ("19.9", L, Decimal("19.90"), None),
    ('"19.900"', L, Decimal("19.90"), None),
    ("1e2", L, Decimal(100), None),
    ('"1.5e-1"', L, Decimal("0.15"), None),
    ("100000e-3", L, Decimal(100), None),
    ("-0.0", L, Decimal(0), None),
    ("0.30000000000000000001", L, ASIDE, Decimal("0.30")),
    ("1.555", L, ASIDE, Decimal("1.56")),
    ("1e-400", L, ASIDE, Decimal("0.00")),
    ('"1,5"', L, ASIDE, Decimal("15.00")),
    ('".5"', L, ASIDE, Decimal("0.50")),
    ('"1."', L, ASIDE, Decimal("1.00")),
    ('"+5"', L, ASIDE, Decimal("5.00")),
    *((form, L, ASIDE, None) for form in ("1e18", "1e400", "1e999999999", "NaN", "true", "[1]")),
    *((f'"{text}"', L, ASIDE, None) for text in (" 5 ", "1_0", "NaN", "")),
    ('"2026-01-31"', "DATE", date(2026, 1, 31), None),
    ('"2026-1-31"', "DATE", ASIDE, date(2026, 1, 31)),
    ('"2026-01-31T12:00:00Z"', "DATE", ASIDE, date(2026, 1, 31)),
    *((form, "DATE", ASIDE, None) for form in ('"2026-02-30"', '"epoch"', '"infinity"', "5", '"2026/01/31"')),
    ('"2026-01-31T12:00:00.123456Z"', "TIMESTAMP", at(2026, 1, 31, 12, 0, 0, 123456), None),
    ('"2026-01-31T12:00:00Z"', "TIMESTAMP", at(2026, 1, 31, 12), None),
    ('"2026-01-31 12:00:00"', "TIMESTAMP", at(2026, 1, 31, 12), None),
    ('"2026-01-31T12:00"', "TIMESTAMP", at(2026, 1, 31, 12), None),
    ('"2026-01-31"', "TIMESTAMP", at(2026, 1, 31), None),
    ('"2026-1-3T4:5:6"', "TIMESTAMP", at(2026, 1, 3, 4, 5, 6), None),
    ('" 2026-01-31 "', "TIMESTAMP", at(2026, 1, 31), None),
    ('"2026-01-31T12:00:00.123456789Z"', "TIMESTAMP", at(2026, 1, 31, 12, 0, 0, 123456), None),
    ('"2026-01-31T12:00:00+02:30"', "TIMESTAMP", at(2026, 1, 31, 9, 30), None),
    ('"2026-01-31T12:00:00-18:00"', "TIMESTAMP", at(2026, 2, 1, 6), None),
    ('"2026-01-31T12:00+02:00"', "TIMESTAMP", at(2026, 1, 31, 10), ASIDE),
    ('"2026-01-31T12:00:00+02"', "TIMESTAMP", ASIDE, at(2026, 1, 31, 10)),
    ('"2026-01-31T12:00:00 UTC"', "TIMESTAMP", ASIDE, at(2026, 1, 31, 12)),
    ('"2026-01-31 12:00:00 Europe/Berlin"', "TIMESTAMP", ASIDE, at(2026, 1, 31, 11)),
    ('"2026-01"', "TIMESTAMP", ASIDE, at(2026, 1, 1)),
    ('"2026-01-31T12"', "TIMESTAMP", ASIDE, at(2026, 1, 31, 12)),
    ('"2026-01-31T12:00:00.Z"', "TIMESTAMP", ASIDE, at(2026, 1, 31, 12)),
    ("1700000000", "TIMESTAMP", ASIDE, at(2023, 11, 14, 22, 13, 20)),
    *(
        (json.dumps(form), "TIMESTAMP", ASIDE, None)
        for form in (
            "2026-01-31T24:00:00", "2026-01-31T24:00:00.000000Z", "2026-01-31T23:59:60Z", "2026-01-31T12:00:00+99:00",
            "2026-01-31T12:00:00+18:01", "epoch", "infinity", "-infinity", "now", "2026/01/31", "2026-02-30",
            "26-01-31T12:00:00.000000Z", "2026-01-31t12:00:00Z", "2026-01-31T", "2026-01-31Z", "",
        )
    ),
]  # fmt: skip
WHOLE: list[tuple[str, Any, Any]] = [
    # record, the field a of type STRING as we read it, and as Spark does if that is something else
    ('{"a": 1,}', ASIDE, None),
    ('{"a": 1 , }', ASIDE, None),
    ('{"b": 1}', None, None),
    ('{"a": 1, "a": 2}', "1", "2"),
    ('{"A": 1}', None, None),
    ('{"\\u0061": 1.50}', "1.50", "1.5"),
    ('{"a": 1} x', ASIDE, "1"),
    ('{"a": 1}{"a": 2}', ASIDE, "1"),
    ("{'a': 1}", ASIDE, "1"),
    ("{a: 1}", ASIDE, None),
    ('[{"a": 1}]', ASIDE, None),
    ('{"a": 1', ASIDE, None),
    ('{"b": NaN, "a": 1}', "1", None),
    ('{"b": [1,], "a": 1}', "1", ASIDE),
    (' {"a": 1.0}\r\n', "1.0", None),
]


def same(found: Any, expected: Any) -> bool:
    """Also of one type, and NaN is NaN."""
    both_nan = found != found and expected != expected
    return type(found) is type(expected) and bool(found == expected or both_nan)


def decoded(text: str, type: str) -> Any:
    """By the decoder, among others that fit."""
    others = ['{"other": 1}', '{"a": null}']
    rows, misfits = JsonDecoder(parse_schema({"a": type})).decode(pa.array([others[0], text, others[1]]))
    if misfits:
        assert [misfit.row for misfit in misfits] == [1]
        return ASIDE
    return rows["a"].to_pylist()[1]


def at_once(text: str, type: str) -> Any:
    """By the one statement of the fused edge; what it does not take is left to the decoder."""
    texts = pa.array([text])
    if not look_like_objects(texts):
        return "left"
    with Prepared().over(pa.table({"value": texts, "__row_number": [0]})) as ask:
        try:
            return (
                ask(f"SELECT a FROM {JsonDecoder(parse_schema({'a': type})).sure(())}").to_arrow_table()["a"][0].as_py()
            )
        except duckdb.Error:
            return "left"


class Given:
    """A split of one record."""

    def __init__(self, text: str) -> None:
        self.text, self.size = text, len(text)
        self.path = "given"

    def read(self, wanted: Any = None) -> Bundle:
        return Bundle("given", np.arange(1), pa.array([self.text]))


def native(text: str, type: str) -> Any:
    """By the native edge, as Spark is given it."""
    source = memory("given", {"a": type})
    batches = list(rows_of(source, Task(0, [(0, Given(text))], {0: Times(0, 0)})))
    rows = [row for batch in batches for row in batch.to_pylist()]
    control = json.loads(rows.pop()[CONTROL])
    assert len(rows) + len(control["letters"]) == 1
    return rows[0]["a"] if rows else ASIDE


@pytest.mark.parametrize(("form", "type", "expected"), [each[:3] for each in FORMS])
def test_forms(form: str, type: str, expected: Any) -> None:
    text = f'{{"a": {form}}}'
    assert same(decoded(text, type), expected)
    assert same(native(text, type), expected)
    for found in (at_once(text, type), at_once(f"{text}\n", type)):
        assert found == "left" or same(found, expected)


@pytest.mark.parametrize(("text", "expected"), [each[:2] for each in WHOLE])
def test_whole_records(text: str, expected: Any) -> None:
    assert decoded(text, "STRING") == expected
    assert native(text, "STRING") == expected
    assert at_once(text, "STRING") in (expected, "left")


@pytest.mark.spark
def test_where_spark_differs_is_a_fixed_list(spark: SparkSession) -> None:
    """With ANSI casts, as in Spark 4; `_bad` holds records that it sets aside."""
    asked = [(f'{{"a": {form}}}', type, ours, theirs) for form, type, ours, theirs in FORMS]
    asked += [(text, "STRING", ours, theirs) for text, ours, theirs in WHOLE]
    wrong = []
    for type in sorted({type for _, type, _, _ in asked}):
        some = [(text, ours, theirs) for text, each, ours, theirs in asked if each == type]
        texts = spark.createDataFrame([(n, text) for n, (text, _, _) in enumerate(some)], "n INT, value STRING")
        options = {"columnNameOfCorruptRecord": "_bad"}
        read = texts.select("n", f.from_json("value", f"a {type}, _bad STRING", options).alias("r")).select("n", "r.*")
        for row in read.orderBy("n").toArrow().to_pylist():
            text, ours, theirs = some[row["n"]]
            found = ASIDE if row["_bad"] is not None else row["a"]
            expected = ours if theirs is None else theirs
            if not same(found, expected):
                wrong.append((text, type, found, expected))
    assert wrong == []


def test_a_bundle_keeps_its_order_whatever_was_looked_at() -> None:
    prices = ["19.90", '"x"', "1e2", "[1.0]", "7", "null", '"0.5"'] * 700
    decoder = JsonDecoder(parse_schema("n BIGINT, s STRING, d DECIMAL(5, 2)"))
    texts = [f'{{"n": {n}, "s": {price}, "d": "{n % 7}.50"}}\n' for n, price in enumerate(prices)]
    rows, misfits = decoder.decode(pa.array(texts))
    assert misfits == []
    assert rows["n"].to_pylist() == list(range(len(prices)))
    assert rows["s"].to_pylist() == [None if price == "null" else price.strip('"') for price in prices]
    assert rows["d"].to_pylist() == [Decimal(n % 7) + Decimal("0.50") for n in range(len(prices))]


def test_what_was_written_of_large_texts_and_nested_names() -> None:
    texts = pa.array(['{"x": {"a": 1.0}, "a" : 2.50 }', '{"b": "a", "a": "\\"", "a": 3}', "{}"], pa.large_string())
    (found,) = written(texts, [Column("a", "STRING")])
    assert found.to_pylist() == ["2.50", '"\\""', None]


numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,22})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@examples(200)
@given(numbers, st.booleans(), st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))))
@example("1.50000000000000000000000000000000000000000000000", False, (3, 2))
def test_decimals_are_exact(text: str, quoted: bool, digits: tuple[int, int]) -> None:
    precision, scale = digits
    number = Decimal(text)
    scaled = number.scaleb(scale)
    fits = scaled == scaled.to_integral_value() and abs(scaled) < Decimal(10) ** precision
    found = decoded(f'{{"a": "{text}"}}' if quoted else f'{{"a": {text}}}', f"DECIMAL({precision}, {scale})")
    assert (found == number) if fits else (found == ASIDE), (found, number)


@examples(200)
@given(numbers)
def test_numbers_read_as_text_are_as_written(text: str) -> None:
    assert decoded(f'{{"a": {text}}}', "STRING") == ("0" if text == "-0" else text)


zones = st.one_of(
    st.sampled_from(["", "Z"]),
    st.integers(-18 * 60, 18 * 60).map(lambda m: f"{'-' if m < 0 else '+'}{abs(m) // 60:02}:{abs(m) % 60:02}"),
)


@examples(200)
@given(st.datetimes(), st.sampled_from("T "), st.sampled_from(["seconds", "milliseconds", "microseconds"]), zones)
@example(at(1, 1, 1).replace(tzinfo=None), "T", "microseconds", "Z")
@example(at(1, 1, 1).replace(tzinfo=None), "T", "seconds", "+00:01")
@example(at(9999, 12, 31, 23, 59, 59, 999999).replace(tzinfo=None), " ", "microseconds", "-00:01")
@example(at(1900, 1, 1).replace(tzinfo=None), "T", "microseconds", "Z")
def test_times_are_those_of_python(when: datetime, between: str, spec: str, zone: str) -> None:
    text = when.isoformat(between, spec) + zone
    offset = timedelta(0)
    if zone not in ("", "Z"):
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:])) * (-1 if zone[0] == "-" else 1)
    try:
        expected: Any = datetime.fromisoformat(when.isoformat(between, spec)).replace(tzinfo=UTC) - offset
    except OverflowError:
        expected = ASIDE
    assert decoded(json.dumps({"a": text}), "TIMESTAMP") == expected


@examples(300)
@given(st.text("0129-:T.Z +/\t", max_size=28))
@example("2026-01-31T 2:00:00.123456Z")
@example("\t2026-01-31T12:00:00.123456Z")
@example("02026-1-31T12:00:00.123456Z")
def test_what_python_does_not_read_is_no_time(text: str) -> None:
    """But for zeros left out and white space around it, whatever we take, Python takes, and says the same."""
    found = decoded(json.dumps({"a": text}), "TIMESTAMP")
    if found == ASIDE:
        return
    day, _, clock = text.strip().replace("T", " ").partition(" ")
    parts = [part.zfill(2) for part in day.split("-")]
    zone = clock[-6:] if clock[-6:-5] in ("+", "-") else ""
    hours, _, fraction = clock.removesuffix(zone).removesuffix("Z").partition(".")
    padded = ":".join(part.zfill(2) for part in hours.split(":")) if clock else "00:00"
    iso = f"{'-'.join(parts)}T{padded}{'.' if fraction else ''}{fraction[:6]:0<{6 if fraction else 0}}{zone}"
    read = datetime.fromisoformat(iso)
    assert found == (read if read.tzinfo else read.replace(tzinfo=UTC))


CSV: list[tuple[str, str, Any, Any]] = [
    # text, type, what we read, what Spark reads if that is something else
    ("19.90", "STRING", "19.90", None),
    ("19.90", L, Decimal("19.90"), None),
    ("1e2", L, Decimal(100), None),
    ("19.905", L, ASIDE, Decimal("19.91")),
    ("5", B, 5, None),
    ("+5", B, ASIDE, 5),
    *((text, B, ASIDE, None) for text in ("5.5", "1e5", " 5", "0x10", "1_0")),
    ("NaN", D, float("nan"), None),
    ("1e400", D, ASIDE, float("inf")),
    (" 5", D, ASIDE, 5.0),
    ("true", "BOOLEAN", True, None),
    ("TRUE", "BOOLEAN", ASIDE, True),
    ("yes", "BOOLEAN", ASIDE, None),
    ("2026-01-31", "DATE", date(2026, 1, 31), None),
    ("2026-1-31", "DATE", ASIDE, date(2026, 1, 31)),
    ("2026-01-31T24:00:00", "TIMESTAMP", ASIDE, None),
    ("2026-01-31 12:00:00+02:00", "TIMESTAMP", at(2026, 1, 31, 10), None),
    ("", "STRING", None, None),
    ('""', "STRING", "", "NULL"),
    ("", B, None, None),
]


@pytest.mark.spark
def test_where_spark_differs_on_csv_is_a_fixed_list(spark: SparkSession, tmp_path: Path) -> None:
    wrong = []
    for n, (text, type, ours, theirs) in enumerate(CSV):
        (tmp_path / f"{n}.csv").write_text(f"k,a\n0,{text}\n")
        reader = spark.read.schema(f"k STRING, a {type}, _bad STRING").option("columnNameOfCorruptRecord", "_bad")
        row = reader.csv(str(tmp_path / f"{n}.csv"), header=True).toArrow().to_pylist()[0]
        found = ASIDE if row["_bad"] is not None else row["a"]
        expected = ours if theirs is None else None if theirs == "NULL" else theirs
        if not same(found, expected):
            wrong.append((text, type, found, expected))
    assert wrong == []


@pytest.mark.parametrize(("text", "type", "value"), [each[:3] for each in CSV])
def test_tables_in_csv_and_json_files(text: str, type: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"k,a\n0,{text}\n")
    (tmp_path / "t.json").write_text(json.dumps([{"k": 0, "a": text.strip('"') if text else text or None}]))
    for name in ("t.csv", "t.json") if text != '""' else ("t.csv",):
        joined = table("t", {"k": "STRING", "a": type}, path=str(tmp_path / name))
        if value == ASIDE:
            with pytest.raises(MillraceError, match=rf"row \d: a is not {type.split('(')[0]}"):
                columns_of(joined)
        else:
            assert same(columns_of(joined)["a"][0].as_py(), value)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", 0),
        ("[]", 0),
        ('[{"a": 1.50}, {"a": "x"}]', 2),
        ('{"a": 1}\n{"a": 2}\n', 2),
        ('{\n "a": 1\n}\n', 1),
        ('[{"a": 1},]', None),
        ('[{"a": 1} {"a": 2}]', None),
        ('[{"a": 1}', None),
        ('{"a": 1,}', None),
        ("[1]", None),
        ("x", None),
    ],
)
def test_json_tables_are_objects_or_an_array_of_them(text: str, rows: int | None, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    joined = table("t", "a STRING", path=str(tmp_path / "t.json"))
    if rows is None:
        with pytest.raises(MillraceError, match=r"t\.json"):
            columns_of(joined)
    else:
        assert len(columns_of(joined)) == rows


def test_types_that_have_no_text_are_refused_with_advice() -> None:
    for type in ("ARRAY<BINARY>", "STRUCT<x: BINARY>", "MAP<STRING, BINARY>", "BINARY"):
        with pytest.raises(MillraceError, match="cannot be decoded from JSON; declare it as STRING"):
            JsonDecoder(parse_schema({"a": type}))
