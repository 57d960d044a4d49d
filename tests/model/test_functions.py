"""User functions over rows, and explode: what they give, and where a row goes that has no value."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import Pipeline, PipelineError, agg, memory, punctuated, to_files, window
from millrace.model.applied import Applied, apply
from millrace.model.arrow import arrow_schema
from millrace.model.duration import SECOND, to_datetime
from millrace.model.stream import Applying, Stream
from millrace.plan.compile import compile
from millrace.testing import Reference

EVENTS = memory("events", "user STRING, ms BIGINT, at TIMESTAMP, tags ARRAY<STRING>, by MAP<STRING, BIGINT>")
SHORT = "user STRING, ms BIGINT"
Row = dict[str, Any]


def at(second: int) -> datetime:
    return to_datetime(second * SECOND)


def row(user: str | None = "ann", ms: int | None = 1, **more: Any) -> Row:
    return {"user": user, "ms": ms, "at": at((ms or 0) % 100), "tags": None, "by": None, **more}


def applied(step: Applying, rows: list[Row]) -> Applied:
    return apply(step, pa.Table.from_pylist(rows, arrow_schema(step.parent.schema)))


def made(step: Applying, rows: list[Row]) -> list[Row]:
    found = applied(step, rows)
    assert found.failed == {}
    return found.rows.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


def reason(step: Applying, given: Row) -> str:
    """Why a row has no value; the rows beside it have one."""
    found = applied(step, [given])
    assert len(found.rows) == 0
    return found.failed[0]


def test_map_makes_one_row_of_each() -> None:
    step = EVENTS.map(lambda row: {"name": row["user"].upper(), "s": row["ms"] / 1000}, "name STRING, s DOUBLE")
    assert made(step, [row(), row("bob", 500)]) == [{"name": "ANN", "s": 0.001}, {"name": "BOB", "s": 0.5}]


def test_a_column_that_is_left_out_is_null() -> None:
    assert made(EVENTS.map(lambda row: {"ms": 2}, SHORT), [row()]) == [{"user": None, "ms": 2}]


@pytest.mark.parametrize("over", ["rows", "arrow"])
def test_a_column_that_is_not_null_must_have_a_value(over: str) -> None:
    def same(given: Any) -> Any:
        return {"ms": given["ms"]} if over == "rows" else given.select(["ms"])

    found = applied(EVENTS.map(same, "ms BIGINT NOT NULL", over=over), [row(ms=1), row(ms=None), row(ms=3)])
    assert found.rows["ms"].to_pylist() == [1, 3]
    assert found.failed == {1: "map(same) returned ms: ms is missing or null, but NOT NULL"}


def test_flat_map_makes_any_number_of_rows() -> None:
    def words(row: Row) -> Iterator[Row]:
        for word in row["user"].split():
            yield {"word": word}

    step = EVENTS.flat_map(words, "word STRING")
    found = applied(step, [row("a b"), row(""), row("c")])
    assert found.rows["word"].to_pylist() == ["a", "b", "c"]
    assert found.origins.tolist() == [0, 0, 2]


def test_filter_keeps_what_is_true() -> None:
    step = EVENTS.filter(lambda row: row["ms"])
    assert [each["ms"] for each in made(step, [row(ms=0), row(ms=3), row(ms=None)])] == [3]


def test_a_function_may_change_the_dict_that_it_takes() -> None:
    def doubled(row: Row) -> Row:
        row["ms"] *= 2
        return {"user": row["user"], "ms": row["ms"]}

    def emptied(row: Row) -> bool:
        row.clear()
        return True

    assert made(EVENTS.map(doubled, SHORT), [row()]) == [{"user": "ann", "ms": 2}]
    assert made(EVENTS.filter(emptied), [row()]) == [row()]


def test_nested_values_reach_a_function_as_lists_and_dicts() -> None:
    step = EVENTS.map(lambda row: {"text": json.dumps([row["tags"], row["by"]])}, "text STRING")
    assert made(step, [row(tags=["a"], by={"x": 1})]) == [{"text": '[["a"], {"x": 1}]'}]


def breaks_in_a_call(row: Row) -> Any:
    return _broken(row)


def _broken(row: Row) -> Any:
    raise ValueError("no such\nuser")


THIS_LINE = _broken.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (breaks_in_a_call, f"test_functions.py:{THIS_LINE}: map(breaks_in_a_call): ValueError: no such user"),
        (lambda row: None, "map(<lambda>) returned None, which is not a mapping of columns to values"),
        (lambda row: {"usr": 1}, "map(<lambda>) returned a column 'usr', which its schema does not have"),
        (lambda row: {"ms": "5"}, "map(<lambda>) returned ms: '5' is not BIGINT"),
        (lambda row: {"ms": True}, "map(<lambda>) returned ms: True is not BIGINT"),
        (lambda row: {"ms": 2**63}, "map(<lambda>) returned ms: 9223372036854775808 is not BIGINT"),
        (lambda row: {"user": "\ud800"}, "map(<lambda>) returned user: UnicodeEncodeError"),
    ],
)
def test_a_row_without_a_value_says_why_and_the_others_go_on(function: Callable[[Row], Any], says: str) -> None:
    found = applied(EVENTS.map(_only_for("bad", function), SHORT), [row(), row("bad"), row()])
    assert found.origins.tolist() == [0, 2]
    assert list(found.failed) == [1]
    assert found.failed[1].startswith(says)


def _only_for(user: str, function: Callable[[Row], Any]) -> Callable[[Row], Any]:
    def chosen(row: Row) -> Any:
        return function(row) if row["user"] == user else {"user": "ok"}

    chosen.__name__ = function.__name__
    return chosen


def test_a_row_whose_generator_fails_gives_no_row_at_all() -> None:
    def some(row: Row) -> Iterator[Row]:
        yield {"user": "first"}
        raise KeyError(row["user"])

    assert reason(EVENTS.flat_map(some, SHORT), row()).endswith("flat_map(some): KeyError: 'ann'")


@pytest.mark.parametrize(
    ("type", "value", "held"),
    [
        ("FLOAT", 0.1, 0.10000000149011612),
        ("DOUBLE", 2**60 + 1, float(2**60)),
        ("DOUBLE", 10**400, inf),
        ("DECIMAL(5, 2)", 3, Decimal("3.00")),
        ("BIGINT", np.int64(7), 7),
        ("TIMESTAMP", at(0).replace(tzinfo=None), at(0)),
        ("TIMESTAMP", np.datetime64("2026-01-01T00:00:00", "us"), datetime(2026, 1, 1, tzinfo=UTC)),
        ("ARRAY<DOUBLE>", (1, None), [1.0, None]),
        ("MAP<STRING, INT>", {"a": 1}, {"a": 1}),
        ("STRUCT<a: INT, b: STRING>", {"a": 1}, {"a": 1, "b": None}),
    ],
)
def test_a_value_has_the_precision_of_its_type(type: str, value: Any, held: Any) -> None:
    assert made(EVENTS.map(lambda row: {"x": value}, f"x {type}"), [row()]) == [{"x": held}]


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("DECIMAL(5, 2)", Decimal("1.005")),
        ("DATE", at(0)),
        ("ARRAY<INT>", "12"),
        ("ARRAY<INT>", [1, "2"]),
        ("MAP<STRING, INT>", {None: 1}),
        ("MAP<STRING, INT>", [1]),
        ("STRUCT<a: INT>", {"b": 1}),
    ],
)
def test_a_value_that_would_be_altered_does_not_fit(type: str, value: Any) -> None:
    assert "returned x: " in reason(EVENTS.map(lambda row: {"x": value}, f"x {type}"), row())


def test_a_function_over_arrow_takes_a_table() -> None:
    def seconds(rows: pa.Table) -> pa.Table:
        return pa.table({"user": pc.utf8_upper(rows["user"]), "ms": pc.divide(rows["ms"], 1000)})

    assert made(EVENTS.map(seconds, SHORT, over="arrow"), [row(ms=5000), row(None, 1)]) == [
        {"user": "ANN", "ms": 5},
        {"user": None, "ms": 0},
    ]
    assert made(EVENTS.filter(lambda rows: pc.greater(rows["ms"], 1), over="arrow"), [row(ms=None), row(ms=2)]) == [
        row(ms=2)
    ]


def test_a_function_over_pandas_takes_a_dataframe_whose_types_do_not_depend_on_nulls() -> None:
    def longer(frame: pd.DataFrame) -> pd.DataFrame:
        assert str(frame["ms"].dtype) == "int64[pyarrow]"
        return frame[["user"]].assign(ms=frame["ms"] + 1)

    exact = 2**60 + 1
    assert made(EVENTS.map(longer, SHORT, over="pandas"), [row(ms=exact), row("bob", None)]) == [
        {"user": "ann", "ms": exact + 1},
        {"user": "bob", "ms": None},
    ]
    step = EVENTS.filter(lambda frame: frame["ms"] > 1, over="pandas")
    assert made(step, [row(ms=None), row(ms=2)]) == [row(ms=2)]


def test_only_the_rows_that_fail_in_a_vectorised_function_have_no_value() -> None:
    def inverse(rows: pa.Table) -> pa.Table:
        return pa.table({"x": pc.divide_checked(1000, rows["ms"])})

    found = applied(EVENTS.map(inverse, "x BIGINT", over="arrow"), [row(ms=ms) for ms in (1, 0, 10, 0, 100)])
    assert found.rows["x"].to_pylist() == [1000, 100, 10]
    assert found.origins.tolist() == [0, 2, 4]
    assert list(found.failed) == [1, 3]
    assert "map(inverse): ArrowInvalid: divide by zero" in found.failed[1]


@pytest.mark.parametrize(
    ("function", "over", "says"),
    [
        (lambda rows: rows.select(["user"]).slice(1), "arrow", "returned 0 rows for 1"),
        (lambda rows: rows.to_pylist(), "arrow", "returned a list, which is not an Arrow table"),
        (lambda rows: rows["user"], "pandas", "returned a Series, which is not a DataFrame"),
        (lambda rows: pa.table({"user": rows["ms"]}), "arrow", "returned user: it is int64, which cannot be read as"),
        (lambda rows: pa.table({"usr": rows["user"]}), "arrow", "returned a column 'usr', which its schema does not"),
        (lambda frame: frame.assign(ms=0.5)[["ms"]], "pandas", "returned ms: it is double, which cannot be read as"),
    ],
)
def test_what_a_vectorised_function_returns_must_fit(function: Callable[[Any], Any], over: str, says: str) -> None:
    assert says in reason(EVENTS.map(function, SHORT, over=over), row())


@given(rows=st.lists(st.tuples(st.integers(-3, 3), st.lists(st.sampled_from("ab"), max_size=3)), max_size=8))
def test_the_steps_agree_with_plain_python(rows: list[tuple[int, list[str]]]) -> None:
    given_rows = [row(ms=ms, tags=tags) for ms, tags in rows]

    def some(row: Row) -> list[Row]:
        return [{"user": tag, "ms": 6 // row["ms"]} for tag in row["tags"]]

    expected, failing = [], []
    for number, each in enumerate(given_rows):
        try:
            expected += some(each)
        except ZeroDivisionError:
            failing.append(number)
    found = applied(EVENTS.flat_map(some, SHORT), given_rows)
    assert found.rows.to_pylist() == expected
    assert list(found.failed) == failing
    tags = [tag for each in given_rows for tag in each["tags"]]
    assert [each["tags"] for each in made(EVENTS.explode("tags"), given_rows)] == tags


def test_explode_puts_each_element_in_the_place_of_its_array() -> None:
    rows = [row("a", tags=["x", None]), row("b", tags=[]), row("c"), row("d", tags=["y"])]
    step = EVENTS.explode("tags")
    assert str(step.schema) == "user STRING, ms BIGINT, at TIMESTAMP, tags STRING, by MAP<STRING, BIGINT>"
    assert [(each["user"], each["tags"]) for each in made(step, rows)] == [("a", "x"), ("a", None), ("d", "y")]
    outer = [(each["user"], each["tags"]) for each in made(EVENTS.explode("tags", outer=True), rows)]
    assert outer == [("a", "x"), ("a", None), ("b", None), ("c", None), ("d", "y")]


def test_explode_of_a_map_gives_key_and_value() -> None:
    step = EVENTS.select("user", "by").explode("by")
    assert str(step.schema) == "user STRING, key STRING, value BIGINT"
    assert [*made(step, [{"user": "a", "by": {"x": 1, "y": None}}, {"user": "b", "by": None}])] == [
        {"user": "a", "key": "x", "value": 1},
        {"user": "a", "key": "y", "value": None},
    ]
    outer = EVENTS.select("by").explode("by", outer=True)
    assert made(outer, [{"by": {}}]) == [{"key": None, "value": None}]


TIMED = EVENTS.event_time("at", delay="0s")
WITH_TIME = "user STRING, at TIMESTAMP"


def test_the_event_time_passes_through_a_function() -> None:
    step = TIMED.map(lambda row: {"user": row["user"]}, WITH_TIME)
    assert made(step, [row(ms=4)]) == [{"user": "ann", "at": at(4)}]
    assert made(TIMED.map(lambda row: {"at": row["at"]}, WITH_TIME), [row(ms=4)]) == [{"user": None, "at": at(4)}]
    vectorised = TIMED.map(lambda rows: rows.select(["user"]), WITH_TIME, over="arrow")
    assert made(vectorised, [row(ms=4)]) == [{"user": "ann", "at": at(4)}]


def test_a_function_that_changes_the_event_time_is_told_what_to_do() -> None:
    says = "changed at, which is the event time; call .event_time(...) after it"
    later = timedelta(hours=1)
    assert says in reason(TIMED.map(lambda row: {"at": row["at"] + later}, WITH_TIME), row())
    vectorised = TIMED.map(lambda rows: pa.table({"at": pc.add(rows["at"], later)}), WITH_TIME, over="arrow")
    assert says in reason(vectorised, row())
    moved = EVENTS.map(lambda row: {"at": row["at"] + later}, WITH_TIME).event_time("at", delay="0s")
    engine = Reference(moved.window(window.fixed("1h")).aggregate(n=agg.count()))
    engine.input([row()])
    assert [engine.query.row(pane)["window_start"] for pane in engine.end()] == [at(3600)]


def test_the_schema_must_keep_what_the_event_time_needs() -> None:
    closing = memory("c", "at TIMESTAMP, closes TIMESTAMP").event_time("at", watermark=punctuated("closes"))
    for stream, schema, column in [(TIMED, SHORT, "at"), (TIMED, "at DATE", "at"), (closing, "at TIMESTAMP", "closes")]:
        with pytest.raises(PipelineError, match=f"has no TIMESTAMP '{column}', which the event time needs; add it, or"):
            stream.map(lambda row: row, schema)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: EVENTS.map("user", SHORT), "map() takes a function, not 'user'"),  # type: ignore[arg-type]
        (lambda: EVENTS.map(len, SHORT, over="polars"), "unknown over= of map() 'polars' (known: rows, arrow, pandas)"),
        (lambda: EVENTS.filter("ms > 3"), "filter() takes a function; write where('ms > 3') for an SQL condition"),  # type: ignore[arg-type]
        (lambda: EVENTS.where(lambda row: True), "not the function <lambda>; pass a function to filter() or map()"),  # type: ignore[arg-type]
        (
            lambda: EVENTS.where("loud9(user)"),
            "'loud9'; use a function of Spark SQL, or pass a Python function to map()",
        ),
        (lambda: EVENTS.filter(a_coroutine), "takes a function that returns its result, not the coroutine a_coroutine"),
        (lambda: EVENTS.map(a_generator, SHORT), "a_generator yields several results; pass it to flat_map()"),
        (lambda: EVENTS.map(len, "user TEXTT <"), "does not parse"),
        (lambda: EVENTS.map(len, SHORT, version=2), "version= must be a string"),  # type: ignore[arg-type]
        (lambda: EVENTS.explode("tag"), "unknown column 'tag'; did you mean 'tags'?"),
        (lambda: EVENTS.explode("ms"), "explode() needs an ARRAY or a MAP, but 'ms' is BIGINT"),
        (lambda: EVENTS.explode("user"), "with_columns(user=\"split(user, ',')\")"),
        (lambda: EVENTS.with_columns(key="ms").explode("by"), "makes a column 'key', but the stream has one already"),
        (lambda: EVENTS.select(t="explode(tags)"), "compute the array with with_columns(), then call .explode(...)"),
    ],
)
def test_mistakes_are_refused_when_a_pipeline_is_built(build: Callable[[], Stream], says: str) -> None:
    with pytest.raises(PipelineError) as refused:
        build()
    assert says in str(refused.value)


async def a_coroutine(row: Row) -> bool:
    return True


def a_generator(row: Row) -> Iterator[Row]:
    yield row


def test_the_advice_for_a_text_is_an_array_to_explode() -> None:
    stream = EVENTS.with_columns(user="split(user, ',')").explode("user")
    assert stream.schema.type_of("user") == "UNKNOWN"


def test_a_changed_function_is_another_computation_unless_its_version_stays() -> None:
    def fingerprint(function: Callable[[Row], Any], version: str | None = None) -> Any:
        stream = EVENTS.map(function, SHORT, version=version)
        return compile(Pipeline("p", sinks=[stream.to(to_files("out"))])).fingerprint()

    assert fingerprint(lambda row: {"ms": 1}) == fingerprint(lambda row: {"ms": 1})
    assert fingerprint(lambda row: {"ms": 1}) != fingerprint(lambda row: {"ms": 2})
    assert fingerprint(lambda row: {"ms": 1}, "a") == fingerprint(lambda row: {"ms": 2}, "a")
    assert fingerprint(lambda row: {"ms": 1}, "a") != fingerprint(lambda row: {"ms": 1}, "b")
