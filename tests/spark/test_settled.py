"""Spark decides types, and a row that has no value is a dead letter, on every edge and however rows are bundled."""

from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from rich.console import Console
from sqlglot import exp

from examples import examples
from millrace import Pipeline, PipelineError, Producer, agg, log, memory, on, table, to_function, window
from millrace.eventlog.topics import Log
from millrace.model import called, resolve
from millrace.model.arrow import arrow_type
from millrace.model.evaluate import no_value
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.model.stream import Stream
from millrace.panes.advance import Panes, PaneState
from millrace.plan.compile import stage_of
from millrace.plan.explain import explain
from millrace.running.replay import replay
from millrace.running.run import run_stream
from millrace.running.settings import Locations, StreamOptions
from millrace.sources.bundle import Bundle
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import batch
from millrace.spark import session as sessions
from millrace.spark.settled import settled
from millrace.spark.task import Reading, Sent
from millrace.testing.engines import as_panes
from millrace.views.store import open_store

ROWS = memory("rows", "k STRING, i INT, j INT, n BIGINT, s STRING, c DECIMAL(10, 2), at TIMESTAMP, dt DATE, b BOOLEAN")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GOOD = {
    "k": "a", "i": 2, "j": 3, "n": 7, "s": "12", "c": Decimal("12.34"), "at": NOON, "dt": date(2026, 3, 1), "b": True,
}  # fmt: skip


def collected(spark: SparkSession, of: Query, rows: list[dict[str, Any]], fuse: bool = True) -> Any:
    script = {"rows": MemoryScript([Happening(rows)])}
    return batch.collect(spark, Pipeline("p", views={"v": of}), scripts=script, fuse=fuse)


@pytest.mark.spark
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    ("text", "type", "value"),
    [
        ("year(at)", "INT", 2026),
        ("day(at)", "INT", 1),
        ("weekofyear(at)", "INT", 9),
        ("dt", "DATE", date(2026, 3, 1)),
        ("i * 3000000000", "BIGINT", 6_000_000_000),
        ("2147483648", "BIGINT", 2_147_483_648),
        ("c * c", "DECIMAL(21, 4)", Decimal("152.2756")),
        ("c / 3", "DECIMAL(14, 6)", Decimal("4.113333")),
        ("length(n)", "INT", 1),
        ("coalesce(s, 0)", "BIGINT", 12),
        ("CASE WHEN b THEN i ELSE c END", "DECIMAL(12, 2)", Decimal("2.00")),
        ("n * 1.5", "DECIMAL(23, 1)", Decimal("10.5")),
        ("pmod(i, 3)", "INT", 2),
        ("try_add(n, 1)", "BIGINT", 8),
        ("elt(1, s, k)", "STRING", "12"),
        ("substring(s, 2, -1)", "STRING", ""),
    ],
)
def test_an_expression_has_spark_s_type_as_a_key_a_column_and_an_argument(
    spark: SparkSession, text: str, type: str, value: Any, fuse: bool
) -> None:
    query = (
        ROWS.with_columns(x=text)
        .group_by("x")
        .window(window.all_time())
        .aggregate(most=agg.max(text), all=agg.collect("x"))
    )
    found = collected(spark, query, [GOOD], fuse)
    (row,) = found.answers["view v"].to_pylist()
    assert (row["x"], row["most"], row["all"]) == (value, value, [value])
    schema = settled(spark, Pipeline("p", views={"v": query})).views["v"].schema
    assert (schema.type_of("x"), schema.type_of("most")) == (type, type)
    assert len(found.dead_letters) == 0


@pytest.mark.spark
def test_what_spark_refuses_is_refused_at_the_user_s_line(spark: SparkSession) -> None:
    query = ROWS.with_columns(x="elt(i, s, n, at, k, dt, b)").window(window.all_time()).aggregate(n=agg.count())
    assert settled(spark, Pipeline("p", views={"v": query}))
    wrong = ROWS.where("hash(s) > array(1)").window(window.all_time()).aggregate(n=agg.count())
    with pytest.raises(PipelineError, match=r"test_settled.py:\d+: Spark refuses .*array"):
        settled(spark, Pipeline("p", views={"v": wrong}))
    for stream in (ROWS.select(x="array_contains(n, s)"), ROWS.with_columns(x="array_contains(n, s)")):
        with pytest.raises(PipelineError) as refused:
            settled(spark, Pipeline("p", sinks=[stream.to(to_function(print))]))
        assert str(refused.value).count("\n") == 0
        assert "Spark refuses 'array_contains(n, s)': [DATATYPE_MISMATCH" in str(refused.value)
    interval = ROWS.with_columns(x="at - at").group_by("x").window(window.all_time()).aggregate(n=agg.count())
    with pytest.raises(PipelineError, match=r"'at - at' is interval day to second, which Millrace does not keep"):
        settled(spark, Pipeline("p", views={"v": interval}))
    condition = ROWS.where("hash(s)").window(window.all_time()).aggregate(n=agg.count())
    with pytest.raises(PipelineError, match="needs a condition, but this is INT"):
        settled(spark, Pipeline("p", views={"v": condition}))


@pytest.mark.spark
def test_where_spark_has_another_type_the_edge_is_native_and_says_why(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(resolve._KINDS, exp.Length, resolve.OperatorKind(("this",), called.of_text("length", "BIGINT")))
    wrong = Pipeline("p", sinks=[ROWS.select("k", x="length(s)").to(to_function(print))])
    assert "native" not in explain(wrong)
    typed = settled(spark, wrong)
    assert "native: length(s) is INT to Spark, not BIGINT" in explain(typed)
    view = Pipeline("p", views={"v": ROWS.window(window.all_time()).aggregate(m=agg.max("length(s)"))})
    with pytest.raises(PipelineError, match=r"view v: m is INT to Spark, not BIGINT; write .* CAST\(... AS INT\)"):
        settled(spark, view)


def risky(after: Stream) -> Query:
    """Divisions guarded and not, before and after the event time, and in an argument."""
    return (
        after.where("i = 0 OR 10 / i > 1")
        .with_columns(x="100 / j", y="j + 2147483000")
        .event_time("at", delay="0s")
        .where("i <> 5 AND 7 div (i - 3) < 100")
        .group_by("k")
        .window(window.fixed("1m"))
        .aggregate(n=agg.count(), total=agg.sum("n * 2"), most=agg.max("x"))
    )


def bad_rows() -> list[dict[str, Any]]:
    return [
        GOOD,
        {**GOOD, "i": 0},  # guarded: it is good
        {**GOOD, "j": 0},
        {**GOOD, "i": 3},
        {**GOOD, "n": 2**62},
        {**GOOD, "j": 2**31 - 1, "k": "b"},
        {**GOOD, "i": None, "j": 0},
        {**GOOD, "k": "b"},
        {**GOOD, "at": None},
    ]


@pytest.mark.spark
@pytest.mark.parametrize("fuse", [True, False])
def test_rows_without_a_value_are_dead_letters_and_the_others_go_on(spark: SparkSession, fuse: bool) -> None:
    query = risky(ROWS)
    slow = Reference(query)
    slow.micro_batch(bad_rows(), now="0s")
    found = collected(spark, query, bad_rows(), fuse)
    answers = {row["k"]: (row["n"], row["total"]) for row in found.answers["view v"].to_pylist()}
    assert answers == {"a": (2, 28), "b": (1, 14)}
    letters = [(each["offset"], each["reason"]) for each in found.dead_letters.sort_by("offset").to_pylist()]
    assert letters == [
        (2, no_value("100 / j")),
        (3, no_value("i <> 5 AND 7 div (i - 3) < 100")),
        (4, no_value("n * 2")),
        (5, no_value("j + 2147483000")),
        (8, "event time at is NULL"),
    ]
    assert [letter.reason for letter in slow.dead] == [
        no_value("100 / j"),
        no_value("j + 2147483000"),
        "event time at is NULL",
        no_value("i <> 5 AND 7 div (i - 3) < 100"),
        no_value("n * 2"),
    ]


@pytest.mark.spark
@pytest.mark.parametrize("text", ["10 / i", "CAST(s AS BIGINT)", "n + n", "CAST(s AS TIMESTAMP)", "hash(s) / i"])
def test_a_native_run_goes_on_past_what_it_cannot_compute(spark: SparkSession, text: str) -> None:
    rows = [GOOD, {**GOOD, "i": 0, "s": "zz", "n": 2**62}, GOOD]
    if "TIMESTAMP" in text:
        rows = [{**row, "s": "zz" if row["s"] == "zz" else "2026-01-01"} for row in rows]
    query = ROWS.with_columns(x=text).window(window.all_time()).aggregate(n=agg.count("x"))
    found = collected(spark, query, rows, fuse=False)
    assert found.answers["view v"]["n"].to_pylist() == [2]
    assert [(each["offset"], each["reason"]) for each in found.dead_letters.to_pylist()] == [(1, no_value(text))]


@pytest.mark.spark
@pytest.mark.parametrize("fuse", [True, False])
def test_nan_is_joined_with_nan_and_zero_with_minus_zero(spark: SparkSession, fuse: bool) -> None:
    points = memory("rows", "x DOUBLE")
    names = table("names", "x DOUBLE, name STRING", rows=[{"x": nan, "name": "none"}, {"x": 0.0, "name": "zero"}])
    query = points.join(names, on="x").window(window.all_time()).aggregate(all=agg.collect("name"))
    rows: list[dict[str, Any]] = [{"x": nan}, {"x": -0.0}, {"x": 0.0}, {"x": 1.0}, {"x": None}]
    slow = Reference(query)
    slow.micro_batch(rows, now="0s")
    assert slow.end()[0].values["all"] == ["none", "zero", "zero"]
    found = collected(spark, query, rows, fuse)
    assert found.answers["view v"]["all"].to_pylist() == [["none", "zero", "zero"]]


@pytest.mark.spark
def test_a_view_with_a_key_that_only_spark_can_type_runs_and_is_asked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "start", lambda *_: spark)
    monkeypatch.setattr(sessions, "stop", lambda _: None)
    clicks = log("clicks", "page STRING")
    by_hash = clicks.with_columns(shard="pmod(hash(page), 4)").group_by("shard").window(window.all_time())
    pipeline = Pipeline("shop", views={"shards": by_hash.trigger(on.each()).accumulating().aggregate(n=agg.count())})
    home = Locations(tmp_path / "log.db", str(tmp_path / "views.db"), tmp_path / "shop")
    records = Log(home.log)
    records.create("clicks")
    with Producer(home.log, "clicks") as producer:
        for page in ("a", "b", "c"):
            producer.send({"page": page})
    quiet = Console(quiet=True)
    run_stream(quiet, pipeline, home, StreamOptions(until_caught_up=True))
    replay(quiet, pipeline, home, StreamOptions())
    with closing(open_store(home.store)) as store:
        rows = store.query("SELECT shard, n FROM shards").rows
    assert sum(n for _, n in rows) == 3
    assert all(isinstance(shard, int) for shard, _ in rows)


class Held:
    """Rows as a split."""

    size = 0

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def read(self, wanted: Any = None) -> Bundle:
        return Bundle("here", np.arange(len(self._rows)), rows=self._rows)


values = st.sampled_from([None, 0, 1, 2, 3, 5, -1, 2**31 - 1])


@examples(60)
@given(st.lists(st.tuples(values, values, st.sampled_from([1, 2**62, None])), min_size=1, max_size=12), st.data())
def test_answers_and_dead_letters_do_not_depend_on_bundles(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    query = risky(ROWS)
    given_rows = [{**GOOD, "i": i, "j": j, "n": n} for i, j, n in rows]
    table = pa.table({c.name: pa.array([row[c.name] for row in given_rows], arrow_type(c.type)) for c in ROWS.schema})
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=4)) | {0, len(rows)})
    said = []
    for ends in ([0, len(rows)], cuts):
        reading, sent, dead = Reading([(0, stage_of("view v", query))], ROWS, {}), Sent(), []
        for first, last in pairwise(ends):
            held = Held(table.slice(first, last - first))
            dead += [(each["offset"] + first, each["reason"]) for each in reading.take(held.read(), held, {0: sent})]
        _, tables = Panes(query).advance(PaneState(), pa.concat_tables(sent.rows) if sent.rows else None, 2**60, 0)
        panes = sorted(str(pane) for each in tables for pane in as_panes(each, query))
        said.append((panes, sorted(dead), sent.seen))
    assert said[0] == said[1]
    slow = Reference(query)
    slow.micro_batch(given_rows, now="0s")
    assert sorted(reason for _, reason in said[0][1]) == sorted(letter.reason for letter in slow.dead)
