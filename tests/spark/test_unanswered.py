"""Answers that have no value, and functions of the user's that raise: errors of a group or a record, not of the run."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from rich.console import Console

from comparison import said
from examples import examples
from millrace import ConflictError, Pipeline, agg, log, memory, on, window
from millrace.eventlog.sealed import sealed
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.model.duration import SECOND, to_datetime
from millrace.model.pane import Pane
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.plan.compile import compile
from millrace.running.replay import replay
from millrace.running.run import run_batch, run_stream
from millrace.running.settings import Locations, StreamOptions
from millrace.running.status import all_under
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import batch
from millrace.spark import session as sessions
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.progress import BatchProgress
from millrace.testing.engines import PaneEngine
from millrace.views.store import open_store
from stream_run import run

BIGGEST = 2**63 - 1
EVENTS = memory("events", "k STRING, v BIGINT, at TIMESTAMP")
TIMED = EVENTS.event_time("at", delay="0s").group_by("k")


def row(v: int | None, second: float = 0, k: str = "a") -> dict[str, Any]:
    return {"k": k, "v": v, "at": to_datetime(int(second * SECOND))}


def totals(mode: str = "retracting", windowing: Any = None) -> Query:
    asked = TIMED.window(windowing or window.fixed("10s"), lateness="1h").trigger(on.each())
    query: Query = getattr(asked, mode)().aggregate(total=agg.sum("v"), n=agg.count())
    return query


def net(panes: list[Pane]) -> list[Any]:
    """The answers that hold after diffs are added up."""
    standing: dict[Any, int] = {}
    for pane in panes:
        answer = (pane.key, pane.window, pane.values["total"], pane.values["n"])
        standing[answer] = standing.get(answer, 0) + pane.diff
        assert standing[answer] in (0, 1)
    return sorted(answer for answer, many in standing.items() if many)


some_values = st.sampled_from([BIGGEST, -BIGGEST - 1, 5, -10, 1, None])


@examples(60)
@given(
    st.lists(st.lists(st.tuples(some_values, st.integers(0, 30)), min_size=1, max_size=4), max_size=5), st.booleans()
)
def test_the_net_of_diffs_is_the_answers_that_hold(bundles: list[list[tuple[int, int]]], sessions_: bool) -> None:
    query = totals(windowing=window.session("6s") if sessions_ else None)
    slow, fast = Reference(query), PaneEngine(query)
    panes: list[Pane] = []
    for bundle in bundles:
        rows = [row(*each) for each in bundle]
        expected = slow.input(rows)
        assert said(fast.input(rows)) == said(expected)
        panes += expected
    assert sorted(map(repr, fast.failed)) == sorted(map(repr, slow.failed))
    assert fast.state.errors == len(slow.failed)
    at_once = Reference(query)
    assert net(panes) == net(at_once.input([row(*each) for bundle in bundles for each in bundle]))


@pytest.mark.parametrize("mode", ["discarding", "accumulating", "retracting"])
def test_what_has_no_answer_is_known_with_its_key_window_and_reason(mode: str) -> None:
    for engine in (Reference(totals(mode)), PaneEngine(totals(mode))):
        engine.input([row(BIGGEST), row(5), row(1, k="b")])
        (failure,) = engine.failed
        assert (failure.key, failure.window.start, failure.window.end) == (("a",), 0, 10 * SECOND)
        assert failure.reason == (
            "total: sum(v) is 9223372036854775812, which BIGINT cannot hold; cast its argument to a wider type"
        )


def strict(state: int, value: int) -> int:
    if value == 13:
        raise ValueError("unlucky")
    return state + value


def joined(a: int, b: int) -> int:
    if a + b > 100:
        raise OverflowError("more than\n100")
    return a + b


def half(state: int) -> Any:
    if state == 7:
        raise KeyError("seven")
    return "odd" if state % 2 else state // 2


OWN = agg.fold("v", 0, strict, merge=joined, result=half, type="INT")


def folds(windowing: Any = None) -> Query:
    asked = TIMED.window(windowing or window.fixed("10s"), lateness="1h").trigger(on.each()).retracting()
    return asked.aggregate(own=OWN, n=agg.count())


def line_of(function: Callable[..., Any]) -> str:
    """The line at which one of these functions raises: the second of its body."""
    return f"test_unanswered.py:{function.__code__.co_firstlineno + 2}"


def test_a_fold_that_raises_is_an_error_of_its_record_or_group() -> None:
    query = folds()
    for engine in (Reference(query), PaneEngine(query)):
        panes = engine.input([row(13), row(4), row(60, k="b"), row(60, k="b"), row(7, k="c"), row(9, k="d")])
        assert [(pane.key, pane.values) for pane in panes] == [(("a",), {"own": 2, "n": 1})]
        assert [letter.reason for letter in engine.dead] == [
            f"{line_of(strict)}: fold(v, strict) of 13: ValueError: unlucky, where k='a'"
        ]  # fmt: skip
        reasons = {failure.key: failure.reason for failure in engine.failed}
        assert reasons[("b",)] == f"own: {line_of(joined)}: fold(v, strict): OverflowError: more than 100"
        assert reasons[("c",)] == f"own: {line_of(half)}: fold(v, strict): KeyError: 'seven'"
        assert reasons[("d",)] == "own: fold(v, strict): 'odd' is not INT"
    plain = (
        TIMED.window(window.fixed("10s"))
        .trigger(on.each())
        .accumulating()
        .aggregate(own=agg.fold("v", 0, strict, type="INT"))
    )
    for engine in (Reference(plain), PaneEngine(plain)):
        assert engine.input([row(1), row(13)]) == []
        assert engine.failed[0].key == ("a",)
        assert engine.failed[0].reason == f"own: {line_of(strict)}: fold(v, strict) of 13: ValueError: unlucky"


def by_half_hour(at: datetime, row: Mapping[str, Any]) -> list[tuple[datetime, datetime]]:
    if row["v"] == 13:
        raise LookupError("no window")
    return [(at, at + timedelta(minutes=30))] if row["v"] != 14 else [(at, at)]


def test_a_window_function_that_raises_sets_its_record_aside() -> None:
    query = TIMED.window(window.custom(by_half_hour)).trigger(on.each()).retracting().aggregate(n=agg.count())
    for engine in (Reference(query), PaneEngine(query)):
        assert len(engine.input([row(13), row(1), row(14)])) == 1
        reasons = [letter.reason for letter in engine.dead]
        assert reasons[0] == f"{line_of(by_half_hour)}: custom(by_half_hour): LookupError: no window, where k='a'"
        assert "ends before it starts" in reasons[1]


@pytest.mark.spark
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
def test_errors_on_a_stream_are_counted_and_the_run_goes_on(fuse: bool, spark: SparkSession, tmp_path: Path) -> None:
    steps = [[row(BIGGEST), row(13)], [row(5), row(1, k="b")], [row(-10)]]
    pipeline = Pipeline("p", {"totals": totals(), "own": folds()})
    script = {"events": MemoryScript([Happening(rows) for rows in steps])}
    batches = run(spark, pipeline, tmp_path, script, fuse=fuse)
    slow = Reference(totals())
    panes = [pane for rows in steps for pane in slow.micro_batch(rows, now=0)]
    found = [each for _, answers in batches for each in answers["view totals"].to_pylist()]
    assert [(each["k"], each["total"], each["diff"]) for each in found] == [
        (pane.key[0], pane.values["total"], pane.diff) for pane in panes
    ]
    progress: BatchProgress = batches[-1][0]
    assert progress.parts["view totals"].errors == len(slow.failed)
    written = [letter.rejected for letter in box_of(tmp_path, "p").letters()]
    unanswered = [each for each in written if each.origin == "view totals"]
    assert len(unanswered) == len(slow.failed)
    assert json.loads(unanswered[0].value or "")["k"] == "a"
    assert "BIGINT cannot hold" in unanswered[0].reason
    assert any("unlucky, where k='a'" in each.reason for each in written)
    answered = batch.collect(spark, pipeline, scripts=script, fuse=fuse)
    assert answered.answers["view totals"].select(["k", "total"]).to_pylist() == [{"k": "b", "total": 1}]
    assert answered.progress(0, {}).parts["view totals"].errors == 1


@pytest.fixture
def home(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Locations:
    monkeypatch.setattr(sessions, "start", lambda *_: spark)
    monkeypatch.setattr(sessions, "stop", lambda _: None)
    return Locations(tmp_path / "log.db", str(tmp_path / "views.db"), tmp_path / "checkpoint")


ONCE = StreamOptions(until_caught_up=True)
QUIET = Console(quiet=True)


def running() -> Pipeline:
    source = log("events", "k STRING, v BIGINT, at TIMESTAMP")
    asked = (
        source.event_time("at", delay="0s").group_by("k").window(window.all_time()).trigger(on.each()).accumulating()
    )
    return Pipeline("shop", {"totals": asked.aggregate(total=agg.sum("v"))})


def send(home: Locations, *values: int) -> None:
    opened = Log(home.log)
    if not opened.topics():
        opened.create("events", partitions=1)
    opened.append("events", [json.dumps({"k": "a", "v": value, "at": "2026-01-01T00:00:00Z"}) for value in values])


def viewed(home: Locations) -> list[Any]:
    store = open_store(home.store)
    try:
        return store.query("SELECT k, total FROM totals").rows
    finally:
        store.close()


@pytest.mark.spark
def test_a_view_holds_the_answers_that_have_a_value_and_status_counts_the_others(home: Locations) -> None:
    send(home, BIGGEST)
    assert "error" not in run_stream(QUIET, running(), home, ONCE)
    assert viewed(home) == [("a", BIGGEST)]
    send(home, 5)
    assert "1 error, 1 dead letter" in run_stream(QUIET, running(), home, ONCE)
    assert viewed(home) == []
    (status,) = all_under(home.checkpoint.parent)
    assert status.progress["parts"]["view totals"]["errors"] == 1
    assert "1 error, 1 dead letter" in run_batch(QUIET, running(), home)
    send(home, -10)
    run_stream(QUIET, running(), home, ONCE)
    assert viewed(home) == [("a", BIGGEST - 5)]


def as_format(home: Locations, number: int) -> Path:
    file = home.checkpoint / "millrace.json"
    file.write_text(json.dumps(sealed({**json.loads(file.read_text()), "format": number})))
    return file


@pytest.mark.spark
def test_a_checkpoint_of_before_is_refused_and_what_it_says_to_do_works(home: Locations) -> None:
    send(home, 1, 2)
    run_stream(QUIET, running(), home, ONCE)
    as_format(home, 2)
    send(home, 4)
    with pytest.raises(ConflictError, match=r"has format 2, .* reads format 5; .*: millrace replay FILE$") as refused:
        run_stream(QUIET, running(), home, ONCE)
    assert "\n" not in str(refused.value)
    assert "generation 2 of totals is now served" in replay(QUIET, running(), home, StreamOptions())
    assert viewed(home) == [("a", 7)]
    send(home, 8)
    run_stream(QUIET, running(), home, ONCE)
    assert viewed(home) == [("a", 15)]


def test_a_checkpoint_of_another_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    home = Locations(tmp_path / "log.db", str(tmp_path / "views.db"), tmp_path / "checkpoint")
    plan = compile(running())
    checkpoint = Checkpoint(home.checkpoint)
    opened = checkpoint.open(plan, (1, 2))
    assert checkpoint.open(plan, (1, 2)) == opened
    as_format(home, 3)
    with pytest.raises(ConflictError, match="compute it again from the log: millrace replay FILE"):
        checkpoint.open(plan, (1, 2))
    assert not checkpoint.is_of(plan), "a replay that was stopped begins again"
    as_format(home, 99)
    with pytest.raises(ConflictError, match="run the Millrace that made it"):
        checkpoint.open(plan, (1, 2))


KEYS: dict[str, list[Any]] = {
    "DATE": [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31), None],
    "BOOLEAN": [True, False, None],
    "DECIMAL(10, 2)": [Decimal("1.10"), Decimal("-99999999.99"), Decimal("0.00"), None],
    "TIMESTAMP": [datetime(2024, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), None],
    "DOUBLE": [0.0, -0.0, float("nan"), float("inf"), -1.5, None],
    "FLOAT": [0.0, -0.0, float("nan"), float("-inf"), 1.5, None],
    "INT": [0, 2**31 - 1, None],
    "STRING": ["", "a\0b", "\U0001f600", None],
}


@pytest.mark.spark
def test_rows_are_grouped_by_keys_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    views, scripts = {}, {}
    for number, (kind, values) in enumerate(KEYS.items()):
        source = memory(f"s{number}", f"k {kind}, at TIMESTAMP").event_time("at", delay="0s")
        views[f"v{number}"] = (
            source.group_by("k").window(window.fixed("10s")).trigger(on.each()).retracting().aggregate(n=agg.count())
        )
        rows = [{"k": value, "at": to_datetime(0)} for value in values]
        scripts[f"s{number}"] = MemoryScript([Happening(rows), Happening(rows[::-1])])
    pipeline = Pipeline("p", views)
    streamed = run(spark, pipeline, tmp_path, scripts, store=tmp_path / "views.db")
    batched = batch.collect(spark, pipeline, scripts=scripts).answers
    for number, values in enumerate(KEYS.values()):
        slow = Reference(views[f"v{number}"])
        rows = [{"k": value, "at": to_datetime(0)} for value in values]
        expected = [pane for given_ in (rows, rows[::-1]) for pane in slow.micro_batch(given_, now=0)]
        found = pa.concat_tables([answers[f"view v{number}"] for _, answers in streamed]).to_pylist()
        assert sorted((str(each["k"]), each["n"], each["diff"]) for each in found) == sorted(
            (str(pane.key[0]), pane.values["n"], pane.diff) for pane in expected
        )
        once = {(str(each["k"]), each["n"]) for each in batched[f"view v{number}"].to_pylist()}
        assert once == {(str(pane.key[0]), pane.values["n"]) for pane in expected if pane.index == 1 and pane.diff > 0}
