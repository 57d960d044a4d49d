"""Arrays, maps and structs of JSON records: values by the rules of scalar columns, Spark and plain Python as judges."""

import json
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

from examples import examples
from millrace import Pipeline, PipelineError, agg, log, on, window
from millrace.edge.decode import JsonDecoder
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.model.nested import ArrayType, MapType, StructType, nested
from millrace.model.query import Query
from millrace.model.schema import Schema, missing, parse_schema
from millrace.model.stream import Stream
from millrace.views.store import open_store
from stream_run import run

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "STRING": st.text(st.characters(codec="utf-8"), max_size=5),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "INT": st.integers(-5, 5),
    "DOUBLE": st.floats(allow_nan=False, allow_infinity=False),
    "BOOLEAN": st.booleans(),
    "DATE": st.dates(),
    "TIMESTAMP": st.datetimes(timezones=st.just(UTC)),
    "DECIMAL(20, 4)": st.decimals(-(10**15), 10**15, places=4),
}
TYPES = st.recursive(
    st.sampled_from(sorted(SCALARS)),
    lambda inner: (
        inner.map("ARRAY<{}>".format)
        | inner.map("MAP<STRING, {}>".format)
        | st.tuples(inner, inner).map(lambda two: f"STRUCT<a: {two[0]}, b: {two[1]}>")
    ),
    max_leaves=4,
).filter(lambda type: "<" in type)


def values_of(type: str) -> st.SearchStrategy[Any]:
    """Values of a type, as Python reads them back from Arrow."""
    match nested(type):
        case ArrayType(element):
            return st.none() | st.lists(values_of(element), max_size=3)
        case MapType(_, item):
            return st.none() | st.dictionaries(SCALARS["STRING"], values_of(item), max_size=3).map(
                lambda found: list(found.items())
            )
        case StructType(fields):
            return st.none() | st.fixed_dictionaries({name: values_of(kind) for name, kind in fields})
    return st.none() | SCALARS[type]


def written(value: Any, type: str) -> str:
    """A value as JSON."""
    if value is None:
        return "null"
    match nested(type):
        case ArrayType(element):
            return f"[{', '.join(written(each, element) for each in value)}]"
        case MapType(_, item):
            return f"{{{', '.join(f'{json.dumps(name)}: {written(each, item)}' for name, each in value)}}}"
        case StructType(fields):
            return f"{{{', '.join(f'{json.dumps(name)} :{written(value[name], kind)}' for name, kind in fields)}}}"
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value.isoformat() if isinstance(value, date | datetime) else value)


@examples(60)
@given(st.data(), TYPES)
def test_what_was_written_is_read(data: st.DataObject, type: str) -> None:
    given_ = data.draw(st.lists(values_of(type), min_size=1, max_size=6))
    records = [f'{{"x": {written(value, type)}, "n": {number}}}' for number, value in enumerate(given_)]
    decoder = JsonDecoder(Schema(parse_schema({"n": "BIGINT", "x": type}).columns))
    rows, misfits = decoder.decode(pa.array(records))
    assert misfits == []
    assert rows["x"].to_pylist() == given_
    assert rows["n"].to_pylist() == list(range(len(given_)))


def read(schema: str, *records: str, strict: bool = False) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    rows, misfits = JsonDecoder(parse_schema(schema), strict=strict).decode(pa.array(records, pa.string()))
    return rows.to_pylist(), [(misfit.row, misfit.reason) for misfit in misfits]


@pytest.mark.parametrize(
    ("type", "value", "found"),
    [
        ("ARRAY<STRING>", "5", "5"),
        ("ARRAY<STRING>", '{"a": 1}', "{'a': 1}"),
        ("ARRAY<STRING>", '"a, b"', "'a, b'"),
        ("ARRAY<STRING>", '["a",]', """'["a",]'"""),
        ("ARRAY<BIGINT>", "[1, 5.5]", "5.5 at []"),
        ("ARRAY<BIGINT>", '[1, ["2"]]', "['2'] at []"),
        ("ARRAY<INT>", "[2147483648]", "2147483648 at []"),
        ("ARRAY<DECIMAL(5, 2)>", "[1.005]", "1.005 at []"),
        ("STRUCT<id: BIGINT>", "[1]", "[1]"),
        ("STRUCT<id: BIGINT>", '{"id": {}}', "{} at .id"),
        ("STRUCT<at: TIMESTAMP>", '{"at": "epoch"}', "'epoch' at .at"),
        ("STRUCT<xs: ARRAY<BOOLEAN>>", '{"xs": [true, 1]}', "1 at .xs[]"),
        ("MAP<STRING, INT>", '{"a": "x"}', "'x' at .*"),
        ("MAP<BIGINT, INT>", '{"a": 1, "2": 3}', "'a'"),
    ],
)
def test_a_value_that_does_not_fit_sets_its_record_aside(type: str, value: str, found: str) -> None:
    good = '{"n": 1, "x": {}}' if not type.startswith("ARRAY") else '{"n": 1, "x": []}'
    rows, misfits = read(f"n INT, x {type}", good, f'{{"n": 2, "x": {value}}}', "{", '{"n": 3}')
    assert [row["n"] for row in rows] == [1, 3]
    assert misfits[0] == (1, f"x is not {type}: {found}")
    assert [row for row, _ in misfits] == [1, 2]


def test_values_follow_the_rules_of_scalar_columns() -> None:
    rows, misfits = read(
        "tags ARRAY<STRING>, user STRUCT<id: BIGINT, at: TIMESTAMP>, prices MAP<STRING, DECIMAL(6, 2)>, "
        "ids MAP<BIGINT, INT>",
        '{"tags": [1.50, true, null, "é\\u0021", {"a": [1.0, "b"]}], "user": {"at": "2026-01-31", "id": "5", "x": 1}}',
        '{"prices": {"a": 19.9, "a": 1}, "ids": {"7": 1}, "tags": "[1]", "user": {}}',
    )
    assert misfits == []
    assert rows[0]["tags"] == ["1.50", "true", None, "é!", '{"a":[1.0,"b"]}']
    assert rows[0]["user"] == {"id": 5, "at": datetime(2026, 1, 31, tzinfo=UTC)}
    assert rows[1] == {
        "tags": ["1"], "user": {"id": None, "at": None}, "prices": [("a", Decimal("19.90"))], "ids": [(7, 1)],
    }  # fmt: skip


def test_a_strict_source_knows_the_fields_of_its_structs() -> None:
    rows, misfits = read("u STRUCT<a: INT>", '{"u": {"a": 1}}', '{"u": {"a": 1, "b": 2}}', strict=True)
    assert len(rows) == 1
    assert misfits == [(1, "u is not STRUCT<a: INT>: 'unknown field b'")]


def test_a_nested_column_that_is_not_null() -> None:
    rows, misfits = read("u ARRAY<INT> NOT NULL", '{"u": null}', "{}", '{"u": []}')
    assert rows == [{"u": []}]
    assert [reason for _, reason in misfits] == [missing("u")] * 2


def test_a_type_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(PipelineError, match="column 'x' of type BINARY cannot be decoded from JSON"):
        JsonDecoder(parse_schema("x ARRAY<BINARY>"))


def test_values_are_those_of_spark(spark: SparkSession) -> None:
    """On values that both accept, Spark's from_json reads the same."""
    type = (
        "a ARRAY<STRUCT<id: BIGINT, tags: ARRAY<STRING>>>, m MAP<STRING, ARRAY<DOUBLE>>, "
        "s STRUCT<at: TIMESTAMP, d: DECIMAL(10, 2)>"
    )
    records = [
        '{"a": [{"id": 1, "tags": ["x", null]}, {"tags": []}, null], "m": {"p": [1, 2.5], "q": null}}',
        '{"s": {"at": "2026-01-31T12:00:00.5Z", "d": 12.3}, "a": [], "m": {}}',
        '{"s": null, "a": [{"id": -7, "tags": ["\\u00e9", "b\\"c"], "more": 1}]}',
        "{}",
    ]
    frame = spark.createDataFrame([(each,) for each in records], "value STRING")
    parsed = frame.select(from_json(col("value"), type).alias("r")).select("r.*").toArrow()
    rows, misfits = JsonDecoder(parse_schema(type)).decode(pa.array(records))
    assert misfits == []
    assert rows.to_pylist() == parsed.to_pylist()


def test_nested_records_pass_through_fused_and_native_edges(spark: SparkSession, tmp_path: Path) -> None:
    opened = Log(tmp_path / "log.db")
    opened.create("posts")
    records = [
        '{"tags": ["a", "b"], "author": {"name": "ann", "age": 30}, "at": "2026-01-01T00:00:00Z"}',
        '{"tags": ["a"], "author": {"name": "bob", "age": 3}, "at": "2026-01-01T00:00:01Z"}',
        '{"tags": "a", "author": {"name": "cid", "age": 40}, "at": "2026-01-01T00:00:02Z"}',
        '{"tags": [], "author": {"name": "dee"}, "at": "2026-01-01T00:00:03Z"}',
    ]
    opened.append("posts", records)
    posts = log("posts", "tags ARRAY<STRING>, author STRUCT<name: STRING, age: INT>, at TIMESTAMP")
    timed = posts.event_time("at", delay="0s")
    grown = timed.where("author.age > 18 AND size(tags) > 1").with_columns(name="upper(author.name)")

    def counted(stream: Stream, by: str) -> Query:
        windowed = stream.group_by(by).window(window.all_time()).trigger(on.each()).accumulating()
        return windowed.aggregate(n=agg.count())

    pipeline = Pipeline("p", {"tags": counted(timed.explode("tags"), "tags"), "grown": counted(grown, "name")})
    store = tmp_path / "views.db"
    batches = run(spark, pipeline, tmp_path, log=opened.path, store=str(store))
    with closing(open_store(store)) as views:
        assert sorted(views.query("SELECT tags, n FROM tags").rows) == [("a", 2), ("b", 1)]
        assert views.query("SELECT name, n FROM grown").rows == [("ANN", 1)]
    (letter,) = [letter.rejected for letter in box_of(tmp_path, "p").letters()]
    assert (letter.problem, letter.value) == ("tags is not ARRAY<STRING>", records[2])
    assert sum(progress.rows for progress, _ in batches) == 4
