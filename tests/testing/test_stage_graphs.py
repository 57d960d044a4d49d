"""Random graphs of stages: the pane engine says what the reference says, and both say what the rules promise."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from graphs import SOURCES, MicroBatch, bundled, graph_rows, graphs, micro_batches_of_graphs
from millrace import agg, memory, window
from millrace.model.duration import END_OF_TIME, SECOND, to_datetime, to_instant
from millrace.model.graph import GraphEngine, JoinEngine
from millrace.model.pane import Pane
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.model.stream import Stream
from millrace.testing.engines import PaneJoin, pane_engine
from strategies import SCHEMA, lasting_triggers

END = MicroBatch({}, dict.fromkeys(SOURCES, END_OF_TIME), 1_000 * SECOND)


def reference(stages: Mapping[str, Query | Stream]) -> GraphEngine:
    return GraphEngine(stages, Reference, start_join=JoinEngine)


def columnar(stages: Mapping[str, Query | Stream]) -> GraphEngine:
    return GraphEngine(stages, pane_engine, start_join=PaneJoin)


def run(engine: GraphEngine, batch: MicroBatch, derived: bool = False) -> dict[str, list[Any]]:
    read = {source for stage in engine.stages for reader in stage.readers for source in reader.sources}
    marks = {name: at for name, at in batch.watermarks.items() if name in read}
    return engine.step(batch.rows, None if derived else marks, batch.now, derived)


def comparable(said: Sequence[Any]) -> list[str]:
    """What a stage said in a micro-batch, in an order of its own."""
    return sorted(
        repr((each.key, each.window, each.diff, each.index, str(each.timing), each.last, each.at, dict(each.values)))
        if isinstance(each, Pane)
        else repr((sorted(each.row.items()), each.at, each.diff))
        for each in said
    )


def net(engine: GraphEngine, batches: Sequence[MicroBatch]) -> dict[str, Counter[str]]:
    """What remains of the answers of each stage: rows with their counts."""
    counts: dict[str, Counter[str]] = {}
    for batch in batches:
        for name, said in run(engine, batch).items():
            for each in said:
                row = (each.key, each.window, dict(each.values)) if isinstance(each, Pane) else sorted(each.row.items())
                counts.setdefault(name, Counter())[repr(row)] += each.diff
    left = {name: Counter({row: many for row, many in each.items() if many}) for name, each in counts.items()}
    return {name: each for name, each in left.items() if each}


@pytest.mark.no_cover
@examples(150)
@given(graphs(), micro_batches_of_graphs(), st.booleans())
def test_the_pane_engine_says_what_the_reference_says(
    stages: dict[str, Query | Stream], batches: list[MicroBatch], derived: bool
) -> None:
    slow, fast = reference(stages), columnar(stages)
    for number, batch in enumerate([*batches, END]):
        wanted, got = run(slow, batch, derived), run(fast, batch, derived)
        for name in stages:
            assert comparable(got[name]) == comparable(wanted[name]), (number, name)
            assert fast[name].dropped == slow[name].dropped, (number, name)
            assert fast[name].time == slow[name].time, (number, name)


@pytest.mark.no_cover
@examples(60)
@given(
    graphs(lasting=True),
    graph_rows(),
    st.lists(st.integers(1, 4), max_size=4),
    st.lists(st.integers(1, 4), max_size=4),
)
def test_the_division_into_bundles_does_not_change_what_remains(
    stages: dict[str, Query | Stream], rows: list[tuple[str, dict[str, Any]]], some: list[int], others: list[int]
) -> None:
    """Rule 12 of transcripts, for stages: all watermarks come after all input."""
    divided = [[*(MicroBatch(bundle, {}, 0) for bundle in bundled(rows, sizes)), END] for sizes in (some, others)]
    assert net(reference(stages), divided[0]) == net(reference(stages), divided[1])


@pytest.mark.no_cover
@examples(60)
@given(graphs(lasting=True), micro_batches_of_graphs())
def test_what_is_taken_back_was_said_at_the_same_time(
    stages: dict[str, Query | Stream], batches: list[MicroBatch]
) -> None:
    """Rule 3: a row with diff -1 is equal to one with diff +1 that is there, and has its event time."""
    engine = columnar(stages)
    there: Counter[str] = Counter()
    for batch in [*batches, END]:
        for name, said in run(engine, batch).items():
            for each in said:
                row = (each.key, each.window, dict(each.values)) if isinstance(each, Pane) else sorted(each.row.items())
                there[repr((name, row, each.at))] += each.diff
        assert not [row for row, many in there.items() if many < 0]


@pytest.mark.no_cover
@examples(60)
@given(micro_batches_of_graphs(), lasting_triggers, lasting_triggers, lasting_triggers)
def test_three_stages_leave_what_a_computation_from_scratch_gives(
    batches: list[MicroBatch], first: Any, second: Any, third: Any
) -> None:
    """Counts by key and window, then keys by count, then the greatest count, however often each of them answers."""
    counted = (
        memory("plays", SCHEMA).event_time("at", delay="0s").group_by("k").window(window.fixed("5s"), "1h")
        .trigger(first).retracting().aggregate(n=agg.count())
    )  # fmt: skip
    histogram = (
        counted.group_by("n").window(window.fixed("10s"), "1h").trigger(second).retracting().aggregate(keys=agg.count())
    )
    most = histogram.window(window.fixed("10s"), "1h").trigger(third).retracting().aggregate(n=agg.max("n"))
    counts = Counter(
        (row["k"], to_instant(row["at"]) // (5 * SECOND)) for batch in batches for row in batch.rows.get("plays", [])
    )
    wanted: dict[int, int] = {}
    for (_, span), many in counts.items():
        wanted[span // 2] = max(many, wanted.get(span // 2, 0))
    for start in (reference, columnar):
        engine = start({"most": most})
        remaining: Counter[tuple[int, int]] = Counter()
        for batch in [*batches, END]:
            for pane in run(engine, batch)["most"]:
                remaining[pane.window.start // (10 * SECOND), pane.values["n"]] += pane.diff
        assert {key: many for key, many in remaining.items() if many} == dict.fromkeys(wanted.items(), 1)


@pytest.mark.parametrize("start", [reference, columnar])
def test_both_sides_of_a_join_may_read_one_query(start: Any) -> None:
    plays = memory("plays", SCHEMA).event_time("at", delay="0s")
    totals = plays.group_by("k").window(window.fixed("10s")).aggregate(n=agg.sum("v"))
    pairs = totals.select("k", one="n").join(totals.select("k", other="n"), on="k", within=("0s", "0s"))
    engine = start({"pairs": pairs})
    rows = [{"k": key, "v": value, "at": to_datetime(SECOND)} for key, value in (("a", 2), ("a", 3), ("b", 7))]
    said = run(engine, MicroBatch({"plays": rows}, {"plays": 60 * SECOND}, 0))["pairs"]
    assert sorted((each.row["k"], each.row["one"], each.row["other"], each.diff) for each in said) == [
        ("a", 5, 5, 1), ("b", 7, 7, 1),
    ]  # fmt: skip
