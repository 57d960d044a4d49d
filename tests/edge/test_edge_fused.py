"""The fused edge sends what the reference's rows, lifted, would send: the panes are the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparison import said
from examples import examples
from millrace import Pipeline, PipelineError, agg, memory, on, percentile, punctuated, table, window
from millrace.edge.fused import Fused, columns_read
from millrace.edge.tables import columns_of
from millrace.model.arrow import arrow_type
from millrace.model.clock import DAY
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME, SECOND, to_datetime
from millrace.model.evaluate import no_value
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.model.stream import Source
from millrace.model.watermark import coarse
from millrace.panes.advance import Panes, PaneState
from millrace.plan.explain import explain
from millrace.sources.bundle import LOGGED
from millrace.testing.engines import as_panes
from strategies import bundles, rows, time_windows

SOURCE = memory("input", "k STRING, v BIGINT, at TIMESTAMP, d DOUBLE")
NAMES = table("names", "k STRING, name STRING", rows=[{"k": "a", "name": "Ann"}, {"k": "b", "name": "Bob"}])


def as_table(given: list[dict[str, Any]], source: Source) -> pa.Table:
    return pa.table(
        {
            column.name: pa.array([row.get(column.name) for row in given], arrow_type(column.type))
            for column in source.schema
        }
    )


def asked(windowing: Any) -> Query:
    return (
        SOURCE.where("v >= 0 OR v IS NULL")
        .with_columns(half="v / 2", double="v * 2")
        .join(NAMES, on="k", how="left")
        .event_time("at", delay="0s")
        .where("v <> 3 OR v IS NULL")
        .group_by("name")
        .window(windowing)
        .trigger(on.watermark(early=on.each()))
        .retracting()
        .aggregate(
            n=agg.count(),
            known=agg.count("v"),
            big=agg.count_if("v > 4"),
            total=agg.sum("double"),
            halves=agg.sum("half"),
            average=agg.mean("v"),
            spread=agg.stddev("d"),
            least=agg.min("v"),
            most=agg.max("name"),
            earliest=agg.first("v"),
            latest=agg.last("v"),
            all=agg.collect("v"),
            different=agg.collect_set("name"),
            top=agg.top_k("v", 2),
            top_by=agg.top_k("name", 1, by="v"),
        )
    )


@examples(150)
@given(st.data(), time_windows)
def test_the_panes_of_fused_partials_are_the_reference_s(data: st.DataObject, windowing: Any) -> None:
    query = asked(windowing)
    fused, panes, state = Fused(query, SOURCE), Panes(query), PaneState()
    slow = Reference(query)
    for bundle in data.draw(bundles(data.draw(rows(most=20)))):
        for row in bundle:
            row["d"] = data.draw(st.sampled_from([None, 0.5, 2.25, -8.0]))
            row["v"] = data.draw(st.sampled_from([None, row["v"]]))
        partials = fused.take(as_table(bundle, SOURCE)).rows
        state, tables = panes.advance(state, partials, state.watermark, state.now)
        fast = [pane for each in tables for pane in as_panes(each, query)]
        assert said(fast) == said(slow.input(bundle))
    state, tables = panes.advance(state, None, END_OF_TIME, state.now)
    assert said([pane for each in tables for pane in as_panes(each, query)]) == said(slow.end())


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (SOURCE.event_time("at", delay="0s").window(window.fixed("1m")).aggregate(n=agg.count()), "fused"),
        (
            SOURCE.where("upper(k) = 'A'").window(window.all_time()).aggregate(n=agg.count()),
            "native: upper of STRING may differ",
        ),
        (
            SOURCE.dedup("k").window(window.all_time()).aggregate(n=agg.count()),
            "fused up to the dedup, which runs in one shard",
        ),
        (
            SOURCE.window(window.count(3)).aggregate(n=agg.count()),
            "fused up to the aggregate: count(3) has no slices in SQL",
        ),
        (
            SOURCE.event_time("at", delay="0s").window(window.calendar("day")).aggregate(n=agg.count()),
            "fused up to the aggregate: calendar(day, zone=UTC) has no slices",
        ),
        (
            SOURCE.event_time("at", watermark=punctuated("at")).window(window.fixed("1m")).aggregate(n=agg.count()),
            "fused",
        ),
        (
            SOURCE.window(window.all_time()).aggregate(n=agg.approx_distinct("k")),
            "fused up to the aggregate: approx_distinct(k) has no partials in SQL",
        ),
    ],
)
def test_what_is_fused_and_why_not(query: Query, reason: str) -> None:
    assert explain(Pipeline("p", {"v": query})).split("edge ")[1].strip().startswith(reason)


def test_a_row_without_a_value_is_not_passed_over() -> None:
    query = (
        SOURCE.with_columns(x="1 / v").event_time("at", delay="0s").window(window.fixed("1m")).aggregate(x=agg.sum("x"))
    )
    good = {"k": "a", "v": 1, "at": to_datetime(SECOND), "d": 1.0}
    fused = Fused(query, SOURCE)
    assert fused.take(as_table([good], SOURCE)).rows["elements"].to_pylist() == [1]
    taken = fused.take(as_table([good, {**good, "v": 0}], SOURCE))
    assert taken.rows["elements"].to_pylist() == [1]
    assert taken.bad == ((1, no_value("1 / v")),)


def test_rows_of_a_plain_stream_without_a_value_are_told_apart_whatever_columns_are_called() -> None:
    source = memory("input", "slice INT, at INT, v INT, elements ARRAY<INT>")
    taken = Fused(source.with_columns(y="10 / v"), source).take(
        as_table([{"slice": 1, "v": 1}, {"slice": None, "v": 2}, {"slice": 3, "v": 0}], source)
    )
    assert taken.rows.column_names == ["slice", "at", "v", "elements", "y"]
    assert [(row["slice"], row["y"]) for row in taken.rows.to_pylist()] == [(1, 10.0), (None, 5.0)]
    assert taken.bad == ((2, no_value("10 / v")),)


def test_what_a_row_without_a_value_tells_of_time_depends_on_where_it_fails() -> None:
    source = memory("input", "i INT, j INT, at TIMESTAMP, closes TIMESTAMP")
    query = (
        source.with_columns(x="10 / j")
        .event_time("at", watermark=punctuated("closes"))
        .window(window.fixed("1m"))
        .aggregate(n=agg.sum("10 div i"))
    )
    moments = [to_datetime(each * SECOND) for each in (1, 2, 3, 900, 500)]
    rows: list[dict[str, Any]] = [
        {"i": 1, "j": 0, "at": moments[0], "closes": moments[3]},  # fails before: it tells nothing
        {"i": 0, "j": 1, "at": moments[2], "closes": moments[4]},  # fails after
        {"i": 0, "j": 1, "at": None, "closes": moments[1]},  # only closes, and is no element
    ]
    taken = Fused(query, source).take(as_table(rows, source))
    assert (taken.seen.newest, taken.seen.closed) == (3 * SECOND, 500 * SECOND)
    assert taken.bad == ((0, no_value("10 / j")), (1, no_value("10 div i")))
    slow = Reference(query)
    slow.micro_batch(rows, now="0s")
    assert [letter.reason for letter in slow.dead] == [no_value("10 / j"), no_value("10 div i")]


def test_rows_without_an_event_time_are_set_aside_unless_they_close_an_epoch() -> None:
    def rows(*given: tuple[int | None, int | None]) -> pa.Table:
        columns = zip(*given, strict=True)
        kind = pa.timestamp("us", "UTC")
        return pa.table({name: pa.array(values, kind) for name, values in zip(("at", "closes"), columns, strict=True)})

    source = memory("input", "at TIMESTAMP, closes TIMESTAMP")
    bundle = rows((7, None), (None, None), (None, 9), (3, 4))
    plain = source.event_time("at", delay="1s").window(window.fixed("1m")).aggregate(n=agg.count())
    taken = Fused(plain, source).take(bundle)
    assert (taken.rows["elements"].to_pylist(), taken.seen.newest) == ([2], 7)
    assert [row for row, _ in taken.timeless] == [1, 2]
    by_epoch = (
        source.event_time("at", watermark=punctuated("closes")).window(window.fixed("1m")).aggregate(n=agg.count())
    )
    taken = Fused(by_epoch, source).take(bundle)
    assert (taken.rows["elements"].to_pylist(), taken.seen.closed) == ([2], 9)
    assert [row for row, _ in taken.timeless] == [1]


NEWEST, CLOSED = 1_000 * DAY + 10 * SECOND, 1_000 * DAY + 5 * SECOND
GUARDED = memory("input", "k STRING, v BIGINT, at TIMESTAMP, closes TIMESTAMP")
AHEAD = GUARDED.event_time("at", delay="0s", ahead="10s")
BOTH = GUARDED.union(GUARDED.where("v > 1")).event_time("at", delay="0s", ahead="10s")
BY_EPOCH = GUARDED.event_time("at", watermark=punctuated("closes"), ahead="10s")


@pytest.mark.parametrize(
    ("query", "aside"),
    [
        (AHEAD.group_by("k").window(window.fixed("1m")).aggregate(n=agg.sum("v")), [2, 4, 5]),
        (AHEAD.where("v > 0").window(window.fixed("1m")).aggregate(n=agg.sum("10 / v")), [2, 4, 5]),
        (AHEAD.window(window.fixed("1m")).aggregate(n=agg.approx_distinct("k")), [2, 4, 5]),
        (AHEAD.select("at", "k"), [2, 4, 5]),
        (BOTH.window(window.fixed("1m")).aggregate(n=agg.count()), [2, 4, 5]),
        (BY_EPOCH.window(window.fixed("1m")).aggregate(n=agg.count()), [2, 3, 5]),
        (
            GUARDED.event_time("at", watermark=percentile(0.5), ahead="10s")
            .window(window.fixed("1m"))
            .aggregate(n=agg.count()),
            [2, 4, 5],
        ),
    ],
    ids=["told", "asked", "lifted", "plain", "union", "punctuated", "percentile"],
)
def test_rows_that_are_ahead_of_their_record_are_set_aside_and_tell_no_time(query: Any, aside: list[int]) -> None:
    start = 1_000 * DAY
    given: list[tuple[int | None, int | None, int]] = [
        (start, None, start),
        (NEWEST, CLOSED, start),
        (NEWEST + 1, None, start),
        (start, NEWEST + 1, start),
        (None, CLOSED, start),
        (start + 900 * DAY, None, start + 800 * DAY),
        (NEWEST - 1, None, start + 900 * DAY),
    ]
    moments: list[dict[str, Any]] = [
        {"k": "a", "v": 1, "at": at and to_datetime(at), "closes": closes and to_datetime(closes)}
        for at, closes, _ in given
    ]
    logged = pa.array([each for _, _, each in given])
    taken = Fused(query, GUARDED).take(as_table(moments, GUARDED).append_column(LOGGED, logged))
    found = sorted({row for row, _ in taken.timeless})
    assert (found, taken.bad) == (aside, ())
    assert taken.seen.newest == NEWEST
    assert taken.seen.closed in (CLOSED, BEGINNING_OF_TIME)


def test_rows_that_are_left_out_later_still_tell_the_time() -> None:
    query = SOURCE.event_time("at", delay="1s").where("v > 5").window(window.fixed("1m")).aggregate(n=agg.count())
    taken = Fused(query, SOURCE).take(as_table([{"v": 1, "at": to_datetime(SECOND)}], SOURCE))
    assert (len(taken.rows), taken.seen.newest) == (0, SECOND)


def test_a_percentile_is_told_every_time_or_when_there_are_many_three_digits_of_how_long_ago() -> None:
    query = SOURCE.event_time("at", watermark=percentile(0.9)).window(window.fixed("1m")).aggregate(n=agg.count())
    kind = pa.timestamp("us", "UTC")

    def times(every: np.ndarray[Any, Any]) -> dict[int, int]:
        rows = as_table([{}] * len(every), SOURCE).set_column(2, "at", pa.array(every, kind))
        return dict(Fused(query, SOURCE).take(rows).seen.times)

    assert times(np.array([5, 7, 5])) == {5: 2, 7: 1}
    many = times(np.arange(100_000))
    assert sum(many.values()) == 100_000
    assert len(many) < 5_000
    assert all(99_999 - at == coarse(99_999 - at) for at in many)


def test_a_function_of_the_user_s_may_look_at_every_column() -> None:
    query = SOURCE.event_time("at", delay="0s").window(window.custom(lambda at, row: [])).aggregate(n=agg.count())
    assert columns_read(query) == {"k", "v", "at", "d"}


def test_each_side_of_a_union_is_fused_by_itself() -> None:
    other = memory("other", "k STRING, v BIGINT, at TIMESTAMP, d DOUBLE")
    query = SOURCE.where("v > 1").union(other).window(window.all_time()).aggregate(n=agg.count())
    rows = [{"v": 1}, {"v": 2}]
    assert Fused(query, SOURCE).take(as_table(rows, SOURCE)).rows["elements"].to_pylist() == [1]
    assert Fused(query, other).take(as_table(rows, other)).rows["elements"].to_pylist() == [2]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("page,sektion\nhome,x\n", "has no column 'section' (columns: page, sektion)"),
        ("page,section,price\nhome,x,cheap\n", "row 2: price is not DOUBLE: 'cheap'"),
        ("page,section,price\nhome,x\n", "row 2: Expected 3 columns, got 2: home,x"),
        ('page,section,price\nhome,x,"1\n', "a quote is opened and never closed"),
    ],
)
def test_a_table_in_a_file_that_does_not_hold_it(rows: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "pages.csv").write_text(rows)
    pages = table("pages", "page STRING, section STRING, price DOUBLE", path=str(tmp_path / "pages.csv"))
    with pytest.raises(PipelineError, match=r"table 'pages'") as refused:
        columns_of(pages)
    assert said.replace("'", '"') in str(refused.value).replace("'", '"')


def test_tables_in_files(tmp_path: Path) -> None:
    pages = [{"page": "home", "price": 1.5}, {"page": "a, b", "price": None}]
    (tmp_path / "pages.csv").write_text('price;page;other\n1.5;home;x\n;"a, b";y\n')
    (tmp_path / "pages.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in pages))
    pq.write_table(pa.Table.from_pylist(pages), tmp_path / "pages.parquet")
    (tmp_path / "none.csv").write_text("page,price\n")
    for name in ("pages.csv", "pages.jsonl", "pages.parquet"):
        assert columns_of(table("t", "page STRING, price DOUBLE", path=str(tmp_path / name))).to_pylist() == pages
    assert columns_of(table("t", "page STRING, price DOUBLE", path=str(tmp_path / "none.csv"))).to_pylist() == []
