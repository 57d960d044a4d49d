"""`millrace.testing`: scripts of rows, watermarks and clock, answered alike by every engine."""

import importlib
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace.testing
from examples import examples
from millrace import (
    Pipeline,
    PipelineError,
    agg,
    files,
    log,
    memory,
    on,
    percentile,
    punctuated,
    table,
    to_files,
    to_function,
    to_topic,
    window,
)
from millrace.model.duration import SECOND, to_datetime
from millrace.model.stream import Stream
from millrace.sources.memory import Happening
from millrace.testing import Answers, Script, run_script
from millrace.views.consolidate import consolidate
from millrace.views.shape import shape_of
from strategies import all_windows, deduped_streams, latenesses, micro_batches, modes, query, streams, triggers

ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENGINES = ["panes", pytest.param("spark", marks=pytest.mark.spark)]


def at(minutes: float) -> str:
    return (NOON + timedelta(minutes=minutes)).isoformat()


def example(name: str, variable: str) -> Pipeline:
    """A pipeline of examples/, as it is."""
    found = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))[variable]
    assert isinstance(found, Pipeline)
    return found


def play(user: str, track: str, minutes: float) -> dict[str, Any]:
    return {"user": user, "track": track, "ms": 40_000, "at": at(minutes)}


def charts() -> tuple[Pipeline, Script]:
    """Retractions, a clock trigger, late rows, records that cannot be taken in."""
    script = (
        Script(start=NOON)
        .rows("plays", play("ann", "A", 1), play("bob", "B", 2), "no JSON", {"ms": 40_000}, {"ms": "x"})
        .clock("4s")
        .clock("6s")
        .rows("plays", play("bob", "A", 3))
        .watermark(at(60))
        .rows("plays", play("cal", "A", 5), {**play("dan", "B", 8), "ms": 1})
        .watermark("2026-01-03T12:00:00Z")
        .rows("plays", play("eve", "A", 7))
        .end()
    )
    return example("hourly_charts", "charts"), script


def sensors() -> tuple[Pipeline, Script]:
    """A union of two sources, one of which falls silent, and panes to a topic."""

    def reading(sensor: str, celsius: float, minutes: float) -> dict[str, Any]:
        return {"sensor": sensor, "celsius": celsius, "at": at(minutes)}

    script = (
        Script()
        .rows("hall_a", reading("s1", 20, 0), reading("s1", 64, 0.2))
        .rows("hall_b", reading("s2", 21, 0.1))
        .clock("2s")
        .rows("hall_a", reading("s1", 80, 0.4), reading("s1", 22, 2))
        .clock("4s")
        .clock("3s")
        .rows("hall_b", reading("s2", 70, 0.3))
        .clock("10s")
        .end()
    )
    return example("sensor_alerts", "sensors"), script


def clickstream() -> tuple[Pipeline, Script]:
    """Sessions that merge, and a join with a table that changes."""

    def view(user: str, page: str, minutes: float) -> dict[str, Any]:
        return {"user": user, "page": page, "at": at(minutes)}

    free = {"user": "ann", "since": at(-60), "plan": "free"}
    script = (
        Script()
        .table("users", free)
        .rows("page_views", view("ann", "home", 0), view("ann", "cart", 40), view("guest", "home", 1))
        .table("users", free, {"user": "ann", "since": at(35), "plan": "paid"})
        .rows("page_views", view("ann", "search", 20))
        .rows("page_views", view("ann", "pay", 45))
        .end()
    )
    return example("clickstream_enrichment", "clickstream"), script


def orders() -> tuple[Pipeline, Script]:
    """Dedup, a plain stream to a sink, a table that is another pipeline's view, a row and an answer without a value."""
    source = files("incoming/orders", "id BIGINT, item STRING, cents BIGINT, at TIMESTAMP")
    once = source.event_time("at", delay="1m").dedup("id", within="10m")
    stock = table("stock", "item STRING, left_over BIGINT", view="stock")
    joined = source.join(stock, on="item", how="left").where("left_over IS NULL OR left_over < 2")
    sums = once.group_by("item").window(window.fixed("1h"), lateness="1h")
    big = sums.trigger(on.watermark(late=on.each())).accumulating().aggregate(cents=agg.sum("cents"), n=agg.count())
    each = once.with_columns(rate="100 / cents").window(window.count(2)).aggregate(rate=agg.sum("rate"))
    pipeline = Pipeline(
        "orders",
        {"sums": big, "rates": each},
        [joined.to(to_files("low")), once.where("cents > 1").to(to_topic("paid"))],
    )

    def order(number: int, item: str, cents: int, minutes: float) -> dict[str, Any]:
        return {"id": number, "item": item, "cents": cents, "at": at(minutes)}

    nothing = order(2, "pot", 0, 1)
    script = (
        Script()
        .table("stock", {"item": "tea", "left_over": 1}, {"item": "pot", "left_over": 9})
        .rows("incoming/orders", order(1, "tea", 300, 0), order(1, "tea", 300, 0), nothing, nothing)
        .rows("incoming/orders", order(1, "tea", 300, 2), order(3, "pot", 2**63 - 1, 3), order(4, "pot", 2**62, 4))
        .table("stock")
        .rows("incoming/orders", order(5, "pot", 5, 70), order(6, "tea", 50, 5))
        .watermark(at(90))
        .rows("incoming/orders", order(7, "tea", 8, 50))
        .end()
    )
    return pipeline, script


def visits() -> tuple[Pipeline, Script]:
    """Accumulating sessions, whose merging no retraction says, beside all of time without keys."""
    clicks = memory("clicks", "user STRING, n BIGINT, at TIMESTAMP")
    timed = clicks.event_time("at", delay="5m")
    sessions = timed.group_by("user").window(window.session("10m")).trigger(on.watermark(early=on.each()))
    total = clicks.window(window.all_time()).trigger(on.every("1m")).discarding().aggregate(n=agg.sum("n"))
    pipeline = Pipeline(
        "visits", {"sessions": sessions.accumulating().aggregate(n=agg.sum("n")), "total": total}
    )  # fmt: skip
    script = (
        Script()
        .rows("clicks", {"user": "ann", "n": 1, "at": NOON}, {"user": "ann", "n": 2, "at": at(15)})
        .clock("90s")
        .rows("clicks", {"user": None, "n": 3, "at": at(12)}, {"user": "ann", "n": "x"}, {"user": "ann", "n": 4})
        .rows("clicks", {"user": "ann", "n": 5, "at": at(8)})
        .clock("30s")
    )
    return pipeline, script


def renamed() -> tuple[Pipeline, Script]:
    """A row that is set aside after a dedup of a column that was computed."""
    source = memory("rows", "k BIGINT, v BIGINT")
    once = source.with_columns(key="k % 10").dedup("key")
    pipeline = Pipeline("p", sinks=[once.where("10 / v > 1").to(to_topic("out"))])
    script = Script().rows("rows", {"k": 1, "v": 1}, {"k": 11, "v": 0}, {"k": 2, "v": 0}, {"k": 12, "v": 0})
    return pipeline, script.clock("1s")


def ahead_of_time() -> tuple[Pipeline, Script]:
    """Rows far ahead of the clock, before every kind of operator that follows event time."""
    source = memory("rows", "k STRING, v BIGINT, at TIMESTAMP, closes TIMESTAMP")
    timed = source.event_time("at", delay="0s", ahead="1h")
    lax = source.event_time("at", delay="0s", ahead=None)
    closed = source.event_time("at", watermark=punctuated("closes"))
    minutes = window.fixed("1m")
    pipeline = Pipeline(
        "p",
        {
            "told": timed.group_by("k").window(minutes).aggregate(n=agg.sum("v")),
            "asked": timed.where("v > 0").window(minutes).aggregate(n=agg.sum("10 / v")),
            "lifted": timed.window(minutes).aggregate(n=agg.approx_distinct("k")),
            "lax": lax.window(minutes).aggregate(n=agg.count()),
            "percentile": source.event_time("at", watermark=percentile(1.0)).window(minutes).aggregate(n=agg.count()),
            "closed": closed.window(minutes).aggregate(n=agg.count()),
            "before": timed.dedup("k", "v").window(minutes).aggregate(n=agg.count()),
            "after": source.dedup("k", "v").event_time("at", delay="0s").window(minutes).aggregate(n=agg.count()),
            "both": timed.union(lax).window(minutes).aggregate(n=agg.count()),
        },
        [timed.select("k", "at").to(to_topic("out"))],
    )

    def row(k: str, v: int | None, minutes: float, closes: float | None = None) -> dict[str, Any]:
        return {"k": k, "v": v, "at": at(minutes), "closes": None if closes is None else at(closes)}

    year = 365 * 24 * 60
    script = (
        Script(start=NOON)
        .rows("rows", row("a", 1, -60), row("a", 2, 60), row("a", 3, 61), row("b", 4, year), row("b", 5, 1, year))
        .rows("rows", {"k": "c", "at": None, "closes": at(year)}, {"k": "c", "at": None, "closes": at(2)})
        .clock("1m")
        .rows("rows", row("a", 6, 61), row("a", 0, 3), row("d", 7, -year))
        .end()
    )
    return pipeline, script


def functions() -> tuple[Pipeline, Script]:
    """Functions before and after a dedup, an explode after event time, and rows that functions reject."""
    posts = memory("posts", "id BIGINT, text STRING, at TIMESTAMP").event_time("at", delay="5m")

    def tagged(row: dict[str, Any]) -> dict[str, Any]:
        ratio = 12 // row["id"]
        return {"id": row["id"], "tags": row["text"].split(), "ratio": ratio}

    rows = posts.map(tagged, "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>, ratio BIGINT")
    tags = rows.explode("tags").group_by("tags").window(window.fixed("10m"))
    once = rows.dedup("id").filter(lambda row: 6 // (row["ratio"] - 12) != 0)
    pipeline = Pipeline(
        "posts", {"tags": tags.aggregate(n=agg.count(), ratio=agg.sum("ratio"))}, [once.to(to_topic("once"))]
    )

    def post(number: int | None, text: str | None, minutes: float) -> dict[str, Any]:
        return {"id": number, "text": text, "at": at(minutes)}

    script = (
        Script()
        .rows("posts", post(0, "a", 0), post(1, "a b", 1), post(2, "", 2), post(3, None, 12), post(3, "b b", 1))
        .rows("posts", post(3, "c", 1), post(4, "a", 30), post(None, "late", 40))
        .end()
    )
    return pipeline, script


def two_schemas() -> tuple[Pipeline, Script]:
    """A topic that is read with three schemas: fused, with a join that has a column of its own, and natively."""
    users = log("plays", "user STRING, at TIMESTAMP").event_time("at", delay="5m")
    places = table("places", "user STRING, country STRING", [{"user": "ann", "country": "here"}])
    joined = users.join(places, on="user").group_by("country").window(window.fixed("10m"))
    paid = log("plays", "at TIMESTAMP, ms BIGINT, country STRING").event_time("at", delay="5m")
    loud = paid.where("upper(country) = 'FR'").group_by("country").window(window.fixed("10m"))
    names = log("plays", "user STRING, at TIMESTAMP").map(lambda row: {"names": sorted(row)}, "names ARRAY<STRING>")
    pipeline = Pipeline(
        "plays",
        {"by_place": joined.aggregate(n=agg.count()), "loud": loud.aggregate(ms=agg.sum("ms"))},
        [users.to(to_topic("users")), names.to(to_topic("names"))],
    )

    def play(user: str, minutes: float, **more: Any) -> dict[str, Any]:
        return {"user": user, "at": at(minutes), **more}

    script = (
        Script()
        .rows("plays", play("ann", 1, ms=3, country="fr"), play("bob", 2, country="de"), play("ann", 3))
        .rows("plays", play("ann", 12, ms=4, country="FR"), '{"user": "cal", "ms": "x"}')
        .end()
    )
    return pipeline, script


CASES: list[Callable[[], tuple[Pipeline, Script]]] = [
    charts, sensors, clickstream, orders, visits, renamed, ahead_of_time, functions, two_schemas,
]  # fmt: skip


def comparable(answers: Answers, pipeline: Pipeline) -> Any:
    """All of some answers but the wording of reasons; floats without their last digits."""

    def near(row: dict[str, Any]) -> dict[str, Any]:
        return {name: float(f"{value:.12g}") if isinstance(value, float) else value for name, value in row.items()}

    steps = [{name: [near(row) for row in rows] for name, rows in step.outputs.items()} for step in answers.steps]
    letters = [[(each.source, each.row, each.output) for each in step.dead_letters] for step in answers.steps]
    views = {name: [near(row) for row in answers.view(name)] for name in pipeline.views}
    return steps, letters, views, dict(answers.dropped)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_engines_agree(case: Callable[[], tuple[Pipeline, Script]], engine: Any, request: Any) -> None:
    pipeline, script = case()
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    expected = comparable(run_script(pipeline, script), pipeline)
    found = comparable(run_script(pipeline, script, engine, spark), pipeline)
    for one, other in zip(found, expected, strict=True):
        assert one == other


def numbers(answers: Answers, view: str, *columns: str) -> list[list[tuple[Any, ...]]]:
    """Some columns of the answers of a view, step by step."""
    return [[tuple(row[name] for name in columns) for row in step[view]] for step in answers.steps]


def test_a_topic_with_two_schemas_has_the_columns_of_each_where_it_is_read() -> None:
    answers = run_script(*two_schemas())
    assert [list(row) for row in answers["topic users"]] == [["user", "at"]] * 4
    assert [row["names"] for row in answers["topic names"]] == [["at", "user"]] * 4
    assert [(row["country"], row["n"]) for row in answers["by_place"]] == [("here", 2), ("here", 1)]
    assert [(row["country"], row["ms"]) for row in answers["loud"]] == [("FR", 4), ("fr", 3)]
    assert len(answers.dead_letters) == 1


def test_charts_step_by_step() -> None:
    answers = run_script(*charts())
    assert numbers(answers, "hourly_plays", "track", "plays", "listeners", "diff", "timing", "index") == [
        [],
        [],
        [("A", 1, 1, 1, "early", 0), ("B", 1, 1, 1, "early", 0)],
        [],
        [
            ("A", 1, 1, -1, "early", 0),
            ("A", 2, 2, 1, "on-time", 1),
            ("B", 1, 1, -1, "early", 0),
            ("B", 1, 1, 1, "on-time", 1),
        ],
        [("A", 2, 2, -1, "on-time", 1), ("A", 3, 3, 1, "late", 2)],
        [],
        [],
        [],
    ]
    hour = {"window_start": NOON, "window_end": NOON + timedelta(hours=1)}
    assert answers.view("hourly_plays") == [
        {"track": "A", **hour, "plays": 3, "listeners": 3},
        {"track": "B", **hour, "plays": 1, "listeners": 1},
    ]
    assert answers.dropped == {"hourly_plays": 1, "top_tracks": 1}
    assert [(each.source, each.row) for each in answers.dead_letters] == [
        ("plays", "no JSON"), ("plays", {"ms": "x"}), ("plays", {"ms": 40_000})
    ]  # fmt: skip
    assert answers.dead_letters[1].reason == "ms is not BIGINT: 'x'"


def test_rows_far_ahead_of_the_clock_are_set_aside_and_make_nothing_late() -> None:
    answers = run_script(*ahead_of_time())
    assert (answers.dropped["told"], answers.dropped["lax"]) == (2, 3)
    assert [row["k"] for row in answers["topic out"]] == ["a", "a", "b", "a", "a", "d"]
    first = [each.reason for each in answers.steps[0].dead_letters]
    assert first == [
        "event time at is 2026-01-01 13:01:00, more than 1h after its record was logged, 2026-01-01 12:00:00",
        "event time at is 2027-01-01 12:00:00, more than 1h after its record was logged, 2026-01-01 12:00:00",
        "closes is 2027-01-01 12:00:00, more than 1d after its record was logged, 2026-01-01 12:00:00",
    ]


def test_records_that_are_too_late_for_every_window_are_dead_letters_if_they_are_kept() -> None:
    timed = memory("events", "at TIMESTAMP").event_time("at", delay="0s")
    script = Script(NOON).rows("events", {"at": at(0)}, {"at": at(60)}).rows("events", {"at": at(1)}, {"at": at(35)})
    for late, kept in (("keep", [{"at": at(1)}]), ("drop", [])):
        counts = timed.window(window.sliding("10m", every="5m"), lateness="20m", late=late).aggregate(n=agg.count())
        for engine in ("reference", "panes"):
            answers = run_script(Pipeline("p", {"counts": counts}), script, engine)
            assert [letter.row for letter in answers.dead_letters] == kept
            assert answers.dropped["counts"] == 1
            assert all("by 30m: its last window ended" in letter.reason for letter in answers.dead_letters)


def test_a_script_whose_clock_counts_from_zero_has_no_time_to_be_ahead_of() -> None:
    pipeline, script = ahead_of_time()
    assert run_script(pipeline, replace(script, start=None, steps=script.steps[:1])).dead_letters == []


def test_sinks_answer_too() -> None:
    answers = run_script(*orders())
    assert [row["item"] for row in answers["parquet files in low"]] == ["tea", "tea", "tea", "pot", "tea", "tea"]
    assert [row["id"] for row in answers["topic paid"]] == [1, 3, 4, 5, 6, 7]
    assert [(each.row, each.output) for each in answers.dead_letters if each.output is not None] == [
        ({"item": "pot", "window_start": NOON, "window_end": NOON + timedelta(hours=1)}, "sums")
    ]


def test_sinks_are_not_written_to(tmp_path: Path) -> None:
    called: list[Any] = []
    source = log("numbers", "n BIGINT")
    pipeline = Pipeline(
        "p",
        sinks=[source.to(to_files(str(tmp_path / "out"))), source.to(to_function(lambda *all_: called.append(all_)))],
    )
    answers = run_script(pipeline, Script().rows("numbers", {"n": 2}, {"n": 1}))
    assert answers["function <lambda>"] == [{"n": 1}, {"n": 2}]
    assert (called, list(tmp_path.iterdir())) == ([], [])


def test_a_record_that_came_twice_and_was_taken_in_once_is_set_aside_once() -> None:
    letters = run_script(*orders()).dead_letters
    assert [letter.row["cents"] for letter in letters if isinstance(letter.row, dict) and letter.source] == [0]


def test_retractions_come_before_what_replaces_them() -> None:
    merged = run_script(*clickstream()).steps[3]["sessions"]
    assert [(row["diff"], row["window_start"], row["pages"]) for row in merged] == [
        (-1, NOON, 1),
        (-1, NOON + timedelta(minutes=40), 1),
        (1, NOON, 3),
    ]


def test_a_merged_session_stands_in_a_view_for_its_parts() -> None:
    pipeline, script = visits()
    answers = run_script(pipeline, script)
    assert [(row["user"], row["n"]) for row in answers.view("sessions")] == [(None, 3), ("ann", 8)]
    assert [row["n"] for row in answers.view("total")] == [3, 12]


def test_tables_are_read_from_their_files_unless_the_script_gives_them(tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    path.write_text("n,name\n1,one\n")
    numbers = memory("numbers", "n BIGINT")
    names = table("names", "n BIGINT, name STRING", path=str(path))
    pipeline = Pipeline("p", sinks=[numbers.join(names, on="n").to(to_topic("named"))])
    script = Script().rows("numbers", {"n": 1}).table("names", {"n": 1, "name": "uno"}).rows("numbers", {"n": 1})
    assert [row["name"] for row in run_script(pipeline, script)["topic named"]] == ["one", "uno"]


def test_values_of_every_kind_are_given_as_json_or_as_python() -> None:
    schema = "i INT, d DECIMAL(5, 2), s STRING, b BOOLEAN, f DOUBLE, day DATE, at TIMESTAMP"
    row = {"i": 1, "d": "1.50", "s": "x", "b": True, "f": 0.5, "day": "2026-01-01", "at": "2026-01-01T13:00:00+01:00"}
    found = []
    for source in (log("rows", schema), files("rows", schema, "parquet")):
        given = row if source.kind == "log" else {**row, "d": 1}
        pipeline = Pipeline("p", sinks=[source.to(to_topic("out"))])
        (answer,) = run_script(pipeline, Script().rows("rows", given))["topic out"]
        assert (answer["at"], answer["day"]) == (NOON, NOON.date())
        found.append(str(answer["d"]))
    assert found == ["1.50", "1.00"]


COUNTED = (
    memory("numbers", "k STRING, n BIGINT, at TIMESTAMP")
    .event_time("at", delay="0s")
    .group_by("k")
    .window(window.fixed("1m"))
    .aggregate(n=agg.sum("n"))
)
SMALL = Pipeline("small", {"sums": COUNTED})
ONE = Script().rows("numbers", {"k": "a", "n": 1, "at": NOON})
MISTAKES: list[tuple[str, Callable[[], Any]]] = [
    ("unknown source 'number'; did you mean 'numbers'", lambda: run_script(SMALL, Script().rows("number", {"n": 1}))),
    ("source 'numbers': unknown column 'm'", lambda: run_script(SMALL, Script().rows("numbers", {"m": 1}))),
    ("are not JSON, so a row must be a dict", lambda: run_script(SMALL, Script().rows("numbers", "{}"))),
    ("unknown view or sink 'sum'", lambda: run_script(SMALL, ONE)["sum"]),
    ("unknown view or sink 'sum'", lambda: run_script(SMALL, ONE).steps[0]["sum"]),
    ("unknown view 'topic x'", lambda: run_script(SMALL, ONE).view("topic x")),
    ("unknown table 'names'", lambda: run_script(SMALL, Script().table("names", {"n": 1}).rows("numbers", {"n": 1}))),
    ("unknown engine 'flink'", lambda: run_script(SMALL, ONE, "flink")),  # type: ignore[arg-type]
    ("does not take spark=", lambda: run_script(SMALL, ONE, spark=object())),  # type: ignore[arg-type]
    ("takes a Pipeline", lambda: run_script(COUNTED, ONE)),  # type: ignore[arg-type]
    ("takes a Script", lambda: run_script(SMALL, [])),  # type: ignore[arg-type]
    ("the script has no rows, watermarks or clock steps", lambda: run_script(SMALL, Script())),
    ("the watermark cannot go back", lambda: Script().watermark(at(1)).watermark(at(0))),
    ("the watermark is already at 2026-01-01T12:00:00", lambda: run_script(SMALL, ONE.watermark(at(-1)))),
    ("the clock must advance", lambda: Script(start=NOON).clock(NOON)),
    ("clock() '10 parsecs' does not parse", lambda: Script().clock("10 parsecs")),
    ("clock() must be longer than 0", lambda: Script().clock("0s")),
    ("watermark() takes a datetime or a time like", lambda: Script().watermark("1h")),
    ("start= takes a datetime", lambda: Script(start="noon")),
    ("no step can follow end()", lambda: Script().end().clock("1s")),
    ("rows('numbers') has no rows", lambda: Script().rows("numbers")),
    ("pass each row as an argument of its own", lambda: Script().rows("numbers", [{"n": 1}])),  # type: ignore[arg-type]
    ("the first argument of rows() must be the name of a source", lambda: Script().rows({"n": 1})),  # type: ignore[arg-type]
    ("takes rows, each a dict", lambda: Script().table("names", "{}")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("message", "mistake"), MISTAKES, ids=[message for message, _ in MISTAKES])
def test_mistakes_are_refused_with_the_line_of_the_test(message: str, mistake: Callable[[], Any]) -> None:
    with pytest.raises(PipelineError) as refused:
        mistake()
    assert message in refused.value.message
    assert str(refused.value).startswith(f"{Path(__file__).name}:{mistake.__code__.co_firstlineno}:")


def test_a_mistake_in_a_long_script_names_the_line_of_its_step() -> None:
    script = (
        Script()
        .rows("numbers", {"k": "a", "n": 1, "at": NOON})
        .clock("1s")
        .rows("numbers", {"k": "a", "m": 2})
        .end()
    )  # fmt: skip
    line = sys._getframe().f_lineno - 3
    with pytest.raises(PipelineError, match=f"test_user_testing.py:{line}: source 'numbers': unknown column 'm'"):
        run_script(SMALL, script)


def test_tables_that_cannot_be_joined_are_refused() -> None:
    numbers = memory("numbers", "n BIGINT")
    names = table("names", "n BIGINT, name STRING", view="names")
    pipeline = Pipeline("p", sinks=[numbers.join(names, on="n").to(to_topic("named"))])
    with pytest.raises(PipelineError, match="is read from view 'names'; start the script with"):
        run_script(pipeline, Script().rows("numbers", {"n": 1}))
    with pytest.raises(PipelineError, match="table 'names': n is not BIGINT: 'one'"):
        run_script(pipeline, Script().table("names", {"n": "one"}).rows("numbers", {"n": 1}))
    both = Pipeline("p", sinks=[numbers.to(to_topic("a")), log("numbers", "n BIGINT").to(to_topic("b"))])
    with pytest.raises(PipelineError, match="two sources named 'numbers', of kinds memory and log"):
        run_script(both, Script().rows("numbers", {"n": 1}))


def scripted(happenings: list[Happening]) -> Script:
    script, now = Script().clock("1us"), 1
    for happening in happenings:
        if (happening.now or 0) > now:
            now = happening.now or 0
            script = script.clock(to_datetime(now))
        if happening.rows:
            script = script.rows("input", *happening.rows)
    return script.end()


@examples(150)
@given(micro_batches(), st.tuples(all_windows, triggers, modes, latenesses), st.one_of(streams(), deduped_streams()))
def test_engines_agree_on_random_queries(happenings: list[Happening], asked: Any, rows: Stream) -> None:
    windowing, trigger, mode, lateness = asked
    pipeline = Pipeline("p", {"v": query(windowing, trigger, mode, lateness, rows)}, [rows.to(to_topic("rows"))])
    script = scripted(happenings)
    slow, fast = run_script(pipeline, script), run_script(pipeline, script, "panes")
    assert comparable(fast, pipeline) == comparable(slow, pipeline)


@examples(200)
@given(micro_batches(), st.tuples(all_windows, triggers, modes, latenesses))
def test_a_view_holds_what_a_store_would_hold(happenings: list[Happening], asked: Any) -> None:
    """By the function with which stores decide what is left of many answers."""
    pipeline = Pipeline("p", {"v": query(*asked)})
    script = scripted([Happening([_timed(row) for row in each.rows], each.now) for each in happenings])
    answers = run_script(pipeline, script)
    shape = shape_of("v", pipeline.views["v"])
    said = [{**row, "values": repr(row["values"])} for row in answers["v"]]
    columns = [pa.array([row[name] for row in said]) for name in shape.columns.names]
    net = consolidate(shape, columns, pa.array([row["diff"] for row in said], pa.int16())).to_pylist()
    kept = [tuple(row[f"c{place}"] for place in range(len(columns) - 3)) for row in net if row["diff"] > 0]
    held = [tuple({**row, "values": repr(row["values"])}.values()) for row in answers.view("v")]
    assert sorted(held, key=repr) == sorted(kept, key=repr)


def _timed(row: Any) -> Any:
    return {name: row[name] for name in ("k", "v")} | {"at": row["at"] or to_datetime(5 * SECOND)}


def run_python(code: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments, "-c", textwrap.dedent(code)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_testing_is_imported_without_spark(tmp_path: Path) -> None:
    done = run_python("import millrace.testing, sys; sys.exit('pyspark' in sys.modules)", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def pytest_in(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(textwrap.dedent(test))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "millrace_pytest", "-p", "no:cacheprovider", *options, "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_plugin_does_not_import_millrace(tmp_path: Path) -> None:
    done = pytest_in(
        tmp_path, "import sys\ndef test_it():\n    assert not {'millrace', 'pyspark'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.spark
def test_the_fixture_gives_one_session_and_stops_it(tmp_path: Path) -> None:
    done = pytest_in(
        tmp_path,
        """
        import pytest
        from pyspark.sql import SparkSession
        from millrace import Pipeline, memory, to_topic
        from millrace.testing import Script, run_script

        numbers = Pipeline("p", sinks=[memory("numbers", "n BIGINT").to(to_topic("out"))])
        seen = []

        @pytest.fixture(scope="session", autouse=True)
        def stopped():
            yield
            assert SparkSession.getActiveSession() is None
            print("stopped")

        @pytest.mark.parametrize("engine", ["reference", "spark"])
        def test_it(engine, request):
            if engine == "spark":
                seen.append(request.getfixturevalue("millrace_spark"))
            answers = run_script(numbers, Script().rows("numbers", {"n": 1}), engine)
            assert answers["topic out"] == [{"n": 1}]

        def test_again(millrace_spark):
            assert seen == [millrace_spark] and millrace_spark is SparkSession.getActiveSession()
        """,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.spark
def test_a_script_on_spark_prints_nothing_of_spark_and_of_its_libraries(tmp_path: Path) -> None:
    """No banner, and no report of leaks by the library of sketches, though nobody stops the session."""
    done = run_python(
        """
        from millrace import Pipeline, agg, log, window
        from millrace.testing import Script, run_script

        plays = log("plays", "user STRING, at TIMESTAMP").event_time("at", delay="0s")
        users = plays.window(window.fixed("1h")).aggregate(users=agg.approx_distinct("user"))
        script = Script().rows("plays", {"user": "ann", "at": "2026-01-01T12:00:00Z"}).end()
        answers = run_script(Pipeline("p", {"users": users}), script, "spark")
        print(answers.view("users")[0]["users"])
        """,
        folder=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def page() -> str:
    """The programs of docs/testing.md, as one file of tests."""
    text = (ROOT / "docs" / "testing.md").read_text()
    return "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_the_tests_of_the_page_on_testing_pass(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, page(), "-k", "not spark and not shared")
    assert "3 passed, 2 deselected" in done.stdout, done.stdout


@pytest.mark.spark
def test_the_tests_of_the_page_on_testing_pass_on_spark(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, page(), "-k", "spark or shared")
    assert "2 passed, 3 deselected" in done.stdout, done.stdout


def test_batch_stays_a_function_when_all_of_testing_is_imported() -> None:
    """A module of the same name would take its place in the package."""
    for path in (ROOT / "src" / "millrace" / "testing").glob("*.py"):
        importlib.import_module(f"millrace.testing.{path.stem}")
    for name in millrace.testing.__all__:
        assert not isinstance(getattr(millrace.testing, name), ModuleType), name
