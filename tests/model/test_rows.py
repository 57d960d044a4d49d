"""What the row-wise part of a query does, and where a row goes that does not fit."""

from datetime import UTC, datetime
from typing import Any

import pytest

from millrace import PipelineError, agg, memory, punctuated, table, window
from millrace.model.duration import SECOND, to_datetime
from millrace.model.evaluate import no_value
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.testing import Reference

events = memory("events", "user STRING, ms BIGINT, at TIMESTAMP, place STRUCT<city: STRING>")


def said(stream: Stream, rows: list[dict[str, Any]], column: str = "user") -> list[Any]:
    engine = Reference(stream.window(window.all_time()).aggregate(values=agg.collect(column)))
    panes = engine.input(rows) + engine.end()
    return panes[0].values["values"] if panes else []


def at(second: int) -> datetime:
    return to_datetime(second * SECOND)


def test_where_keeps_what_is_true_and_not_what_is_null() -> None:
    rows: list[dict[str, Any]] = [{"user": "a", "ms": 5}, {"user": "b", "ms": 50}, {"user": "c", "ms": None}]
    assert said(events.where("ms > 10"), rows) == ["b"]


def test_select_and_with_columns_compute() -> None:
    rows = [{"user": "a", "ms": 1500}]
    assert said(events.select("user", seconds="ms / 1000"), rows, "seconds") == [1.5]
    assert said(events.with_columns(ms="ms + 1", double="ms * 2"), rows, "ms") == [1501]
    assert said(events.with_columns(ms="ms + 1", double="ms * 2"), rows, "double") == [3000]


def test_a_field_of_a_struct() -> None:
    assert said(events, [{"place": {"city": "Oslo"}}, {"place": None}], "place.city") == ["Oslo"]


def test_dedup_keeps_the_first() -> None:
    rows = [{"user": "a", "ms": 1}, {"user": "b", "ms": 2}, {"user": "a", "ms": 3}]
    assert said(events.dedup("user"), rows, "ms") == [1, 2]


def test_dedup_forgets_when_the_watermark_is_past() -> None:
    stream = events.event_time("at", delay="0s").dedup("user", within="10s")
    engine = Reference(stream.window(window.all_time()).aggregate(values=agg.collect("ms")))
    for ms, second in ((1, 0), (2, 10), (3, 20), (4, 21)):
        engine.micro_batch([{"user": "a", "ms": ms, "at": at(second)}], now=0)
    # The watermark is at 10 when the third comes, not past 0 + 10; at the fourth it is at 20.
    assert engine.end()[0].values["values"] == [1, 4]


def test_a_join_adds_columns_and_may_keep_misses() -> None:
    tracks = table("users", "user STRING, age INT", rows=[{"user": "a", "age": 30}, {"user": "a", "age": 40}])
    rows: list[dict[str, Any]] = [{"user": "a"}, {"user": "b"}, {"user": None}]
    assert said(events.join(tracks, on="user"), rows, "age") == [30, 40]
    assert said(events.join(tracks, on=["user"], how="left"), rows, "coalesce(age, 0)") == [0, 0, 30, 40]


def test_a_join_as_of_event_time_finds_what_held_then() -> None:
    rows = [{"user": "a", "since": at(10), "plan": "paid"}, {"user": "a", "since": at(0), "plan": "free"}]
    plans = table("plans", "user STRING, since TIMESTAMP, plan STRING", rows=[*rows, {**rows[0], "plan": "team"}])
    timed = events.event_time("at", delay="0s")
    given = [{"user": "a", "at": at(second)} for second in (-1, 0, 9, 10, 11)] + [{"user": "b", "at": at(11)}]
    assert said(timed.join(plans, on="user", as_of="since"), given, "plan") == ["free", "free", "team", "team"]
    kept = timed.join(plans, on="user", how="left", as_of="since")
    assert said(kept, given, "coalesce(plan, 'none')").count("none") == 2


def test_a_table_in_a_file_is_given_to_the_reference() -> None:
    users = table("users", "user STRING, age INT", path="users.csv")
    asked = events.join(users, on="user").window(window.all_time()).aggregate(ages=agg.collect("age"))
    engine = Reference(asked, tables={"users": [{"user": "a", "age": 30}]})
    engine.input([{"user": "a"}])
    assert engine.end()[0].values["ages"] == [30]
    with pytest.raises(PipelineError, match="needs the rows of table 'users'"):
        Reference(asked).input([{"user": "a"}])


def test_a_union_is_fed_by_the_name_of_its_source() -> None:
    other = memory("more", "user STRING, ms BIGINT, at TIMESTAMP, place STRUCT<city: STRING>")
    engine = Reference(events.union(other).window(window.all_time()).aggregate(users=agg.collect("user")))
    engine.input([{"user": "a"}], source="events")
    engine.input([{"user": "b"}], source="more")
    assert engine.end()[0].values["users"] == ["a", "b"]
    with pytest.raises(PipelineError, match="name the source of the rows: events, more"):
        engine.input([{"user": "a"}])
    with pytest.raises(PipelineError, match="unknown source 'mre'; did you mean 'more'"):
        engine.input([], source="mre")


def watched(**options: Any) -> Query:
    other = memory("more", "user STRING, ms BIGINT, at TIMESTAMP, place STRUCT<city: STRING>")
    both = events.event_time("at", **options).union(other.event_time("at", **options))
    return both.window(window.fixed("10s")).aggregate(users=agg.collect("user"))


def test_the_watermark_of_a_union_is_that_of_its_slowest_side() -> None:
    engine = Reference(watched(delay="0s"))
    engine.micro_batch([{"at": at(50)}], now=0, source="events")
    assert engine.event_time < 0
    engine.micro_batch([{"at": at(20)}], now=0, source="more")
    assert engine.event_time == 20 * SECOND


def test_a_side_that_is_idle_is_not_waited_for() -> None:
    engine = Reference(watched(delay="0s", idle="30s"))
    engine.micro_batch([{"at": at(20)}], now=0, source="more")
    engine.micro_batch([{"at": at(50)}], now=20 * SECOND, source="events")
    engine.micro_batch([{"at": at(60)}], now=29 * SECOND, source="events")
    assert engine.event_time == 20 * SECOND
    engine.advance(now=30 * SECOND)
    assert engine.event_time == 60 * SECOND


def test_while_all_are_idle_event_time_passes_with_the_clock() -> None:
    engine = Reference(watched(delay="5s", idle="30s"))
    engine.micro_batch([{"at": at(20)}], now=0, source="more")
    engine.micro_batch([{"at": at(40)}], now=0, source="events")
    engine.advance(now=40 * SECOND)
    assert engine.event_time == (20 - 5 + 40) * SECOND


def test_while_all_are_idle_a_side_that_never_spoke_is_not_waited_for() -> None:
    engine = Reference(watched(delay="0s", idle="30s"))
    engine.micro_batch([{"at": at(20)}], now=0, source="events")
    engine.advance(now=29 * SECOND)
    assert engine.event_time < 0
    engine.advance(now=40 * SECOND)
    assert engine.event_time == (20 + 40) * SECOND


def test_a_source_that_never_spoke_does_not_move_event_time() -> None:
    engine = Reference(watched(delay="0s", idle="30s"))
    engine.advance(now=100 * SECOND)
    assert engine.event_time < 0


def test_a_row_without_event_time_is_a_dead_letter() -> None:
    engine = Reference(events.event_time("at", delay="0s").window(window.fixed("10s")).aggregate(n=agg.count()))
    engine.input([{"user": "a", "at": None}, {"user": "b", "at": at(1)}, {"user": "c", "at": "noon"}])
    assert engine.end()[0].values["n"] == 1
    assert [(letter.row["user"], letter.reason) for letter in engine.dead] == [
        ("c", "at: 'noon' is not TIMESTAMP"),
        ("a", "event time at is NULL"),
    ]


def test_a_row_whose_expression_has_no_value_is_a_dead_letter() -> None:
    stream = events.where("100 / ms > 1").with_columns(n="CAST(user AS INT)")
    engine = Reference(
        stream.window(window.all_time()).aggregate(n=agg.collect("n"), inverse=agg.collect("1 / (n - 7)"))
    )
    engine.input([{"user": "5", "ms": 10}, {"user": "5", "ms": 0}, {"user": "x", "ms": 10}, {"user": "7", "ms": 10}])
    assert engine.end()[0].values["n"] == [5]
    assert [letter.reason for letter in engine.dead] == [
        no_value("100 / ms > 1"),
        no_value("CAST(user AS INT)"),
        no_value("1 / (n - 7)"),
    ]


def test_a_function_that_only_spark_knows_is_refused_by_name() -> None:
    strange = events.where("soundex(user) = 'A'")
    with pytest.raises(
        PipelineError, match=r"the reference engine cannot evaluate .*SOUNDEX\(user\) runs only in Spark"
    ) as caught:
        Reference(strange.window(window.all_time()).aggregate(n=agg.count()))
    assert caught.value.place == strange.place
    with pytest.raises(PipelineError, match=r"cannot evaluate 'hash\(at\)'"):
        Reference(events.window(window.all_time()).aggregate(n=agg.collect("hash(at)")))


@pytest.mark.parametrize("given", [events, events.group_by("user"), None])
def test_the_reference_takes_a_query(given: Any) -> None:
    with pytest.raises(PipelineError, match=r"takes a query, the result of .aggregate\(...\), not a "):
        Reference(given)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"ms": "5"}, "ms: '5' is not BIGINT"),
        ({"ms": True}, "ms: True is not BIGINT"),
        ({"ms": 2**63}, "ms: 9223372036854775808 is not BIGINT"),
        ({"user": 7}, "user: 7 is not STRING"),
        ({"at": 1767268800}, "at: 1767268800 is not TIMESTAMP"),
    ],
)
def test_a_row_that_does_not_fit_the_schema_is_a_dead_letter(row: dict[str, Any], reason: str) -> None:
    engine = Reference(events.window(window.all_time()).aggregate(n=agg.count()))
    engine.input([row, {"user": "a"}])
    assert [letter.reason for letter in engine.dead] == [reason]
    assert engine.end()[0].values["n"] == 1


def test_a_row_is_a_mapping() -> None:
    with pytest.raises(PipelineError, match="a row must be a mapping"):
        Reference(events.window(window.all_time()).aggregate(n=agg.count())).input([("a", 1)])  # type: ignore[list-item]


def test_text_is_compared_with_numbers_and_times_as_spark_does() -> None:
    rows = [{"user": "12", "ms": 5, "at": at(10)}, {"user": "ann", "ms": 50, "at": at(100)}]
    assert said(events.where("ms > '7'"), rows) == ["ann"]
    assert said(events.where("at < '1970-01-01 00:01:00'"), rows) == ["12"]
    assert said(events.where("MS = 5"), rows) == ["12"]
    engine = Reference(events.where("user = 12").window(window.all_time()).aggregate(n=agg.count()))
    engine.input(rows)
    assert [letter.reason for letter in engine.dead] == [no_value("user = 12")]
    assert engine.end()[0].values["n"] == 1


def test_a_whole_number_that_is_too_large_has_no_value() -> None:
    engine = Reference(events.window(window.all_time()).aggregate(n=agg.collect("ms * ms")))
    engine.input([{"ms": 2**40}, {"ms": 3}])
    assert engine.end()[0].values["n"] == [9]
    assert [letter.reason for letter in engine.dead] == [no_value("ms * ms")]


def test_a_pane_as_a_row() -> None:
    asked = events.event_time("at", delay="0s").group_by("user").window(window.fixed("10s")).aggregate(n=agg.count())
    engine = Reference(asked)
    (pane,) = engine.micro_batch([{"user": "a", "at": at(3)}], now="5s") + engine.watermark(at(10))
    assert asked.row(pane) == {
        "user": "a", "window_start": at(0), "window_end": at(10), "n": 1,
        "diff": 1, "timing": "on-time", "index": 0, "last": False,
    }  # fmt: skip
    counted = events.window(window.count(1)).aggregate(n=agg.count())
    assert counted.row(Reference(counted).input([{}])[0])["window_end"] == 1
    everything = events.window(window.all_time()).aggregate(n=agg.count())
    engine = Reference(everything)
    engine.input([{}])
    assert everything.row(engine.end()[0])["window_start"] is None


def test_punctuation_that_is_no_time_is_a_dead_letter() -> None:
    source = memory("m", "at TIMESTAMP, closes TIMESTAMP").event_time("at", watermark=punctuated("closes"))
    engine = Reference(source.window(window.fixed("10s")).aggregate(n=agg.count()))
    engine.input([{"at": at(1), "closes": "soon"}])
    assert len(engine.dead) == 1


def test_nan_is_one_key() -> None:
    source = memory("m", "k DOUBLE").group_by("k").window(window.all_time()).aggregate(n=agg.count())
    engine = Reference(source)
    engine.input([{"k": float("nan")}, {"k": float("nan")}])
    assert [pane.values["n"] for pane in engine.end()] == [2]


def test_event_time_may_be_computed() -> None:
    source = memory("m", "ms BIGINT").with_columns(at="timestamp_millis(ms)").event_time("at", delay="0s")
    engine = Reference(source.window(window.fixed("10s")).aggregate(n=agg.count()))
    panes = engine.input([{"ms": 1_500}]) + engine.end()
    assert panes[0].window.end == 10 * SECOND
    assert to_datetime(panes[0].window.start) == datetime(1970, 1, 1, tzinfo=UTC)
