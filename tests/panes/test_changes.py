"""The pane engine over changes says what the reference says."""

from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from changing import query, scripts
from examples import examples
from millrace import agg, on, window
from millrace.model.changes import Change
from millrace.model.duration import END_OF_TIME, to_datetime
from millrace.model.pane import Pane
from millrace.model.reference import Reference
from millrace.panes import blobs
from millrace.panes.advance import Panes, PaneState
from millrace.panes.lift import lift
from millrace.testing.engines import PaneEngine
from strategies import all_windows, latenesses, modes, steps, triggers
from strategies import query as query_over_rows


def place(pane: Pane) -> tuple[Any, ...]:
    about = (pane.diff, pane.index, str(pane.timing), pane.last, pane.at)
    return (repr(pane.key), pane.window, *about, repr(pane.values.get("n")))


def agree(fast: list[Pane], slow: list[Pane]) -> None:
    ours, theirs = sorted(fast, key=place), sorted(slow, key=place)
    assert list(map(place, ours)) == list(map(place, theirs)), (fast, slow)
    for one, other in zip(ours, theirs, strict=True):
        for name, value in other.values.items():
            assert repr(value) == repr(one.values[name]), name  # sums of floats are exact too


@pytest.mark.no_cover
@examples(150)
@given(scripts(), all_windows, triggers, modes, latenesses)
def test_every_step_of_a_random_query_over_changes(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    asked = query(windowing, trigger, mode, lateness)
    slow, fast = Reference(asked), PaneEngine(asked, changes=True, timed=True)
    for kind, value in [*happening, ("watermark", END_OF_TIME)]:
        agree(getattr(fast, kind)(value), getattr(slow, kind)(value))
        assert fast.dropped == slow.dropped
    assert len(fast.dead) == len(slow.dead)
    assert sorted(map(repr, fast.failed)) == sorted(map(repr, slow.failed))


@pytest.mark.no_cover
@examples(30)
@given(scripts(), all_windows, triggers, modes, latenesses)
def test_a_state_over_changes_read_back_goes_on_as_if_nothing_had_happened(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    asked = query(windowing, trigger, mode, lateness)
    kept, restarted = (PaneEngine(asked, changes=True, timed=True) for _ in range(2))
    for number, (kind, value) in enumerate([*happening, ("watermark", END_OF_TIME)]):
        agree(getattr(restarted, kind)(value), getattr(kept, kind)(value))
        written = blobs.read(blobs.write(None, restarted.state, str(number))[1].put.get, None)
        assert written is not None
        restarted.state = written.state


@pytest.mark.no_cover
@examples(100)
@given(steps(), all_windows, triggers, modes, latenesses)
def test_the_event_times_of_panes_over_rows(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    asked = query_over_rows(windowing, trigger, mode, lateness)
    slow, fast = Reference(asked), PaneEngine(asked, timed=True)
    for kind, value in [*happening, ("watermark", END_OF_TIME)]:
        agree(getattr(fast, kind)(value), getattr(slow, kind)(value))


def test_one_stage_pays_nothing_for_changes() -> None:
    for windowing in (window.fixed("5s"), window.all_time(), window.count(2)):
        engine = PaneEngine(query_over_rows(windowing, on.each(), "retracting"))
        engine.input([{"k": "a", "v": 1, "at": to_datetime(0)}])
        (segment,) = engine.state.groups.segments
        assert segment.rows.column_names == [
            "key0", "hash", "start", "end", "new", "first", "index", "filled", "arm",
            "p0_0", "p1_0", "p1_1", "p2_0", "said",
        ]  # fmt: skip
        (said,) = segment.rows["said"].to_pylist()
        assert list(said[0]) == ["start", "end", "index", "timing", "last", "value0", "value1", "value2"]


def test_what_was_taken_back_leaves_nothing_in_the_state() -> None:
    asked = query(window.all_time(), on.each(), "accumulating", v=agg.collect("v"), least=agg.min("v"))
    engine = PaneEngine(asked, changes=True, timed=True)
    added = [Change({"k": "a", "v": number, "f": 0.0, "c": None, "s": None}, number) for number in range(100)]
    engine.change(added)
    engine.change([Change(each.row, each.at, -1) for each in added[1:]])
    (segment,) = engine.state.groups.segments
    assert [segment.rows[name].to_pylist() for name in ("p0_0", "p0_1", "p1_0", "at_0", "at_1")] == [
        [[0]], [[1]], [[0]], [[0]], [[1]]
    ]  # fmt: skip


def test_many_changes_are_merged_at_once() -> None:
    """A loop over rows would take a minute."""
    asked = query(window.all_time(), on.each(), "accumulating", least=agg.min("v"), all=agg.collect("v"))
    panes, many = Panes(asked, changes=True), 200_000
    chance = np.random.default_rng(7)
    keys, values, at = pa.array(chance.integers(0, 20_000, many).astype(str)), chance.integers(0, 50, many), np.zeros
    began = process_time()
    state = PaneState()
    for sign in (1, -1):
        diffs = np.full(many, sign)
        lifted = lift(panes, [keys], at(many, np.int64), [[pa.array(values)], [pa.array(values)]], None, diffs)
        state, said = panes.advance(state, lifted, 0, 0)
    assert process_time() - began < 10
    assert [len(table) for table in said if len(table)] == [20_000]
    assert said[0]["value0"].null_count == 20_000
