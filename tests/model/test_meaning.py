"""What must hold for every query and every input: the properties that docs/transcripts.md promises."""

from collections import Counter
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from millrace.model.clock import JITTER, after_step
from millrace.model.duration import END_OF_TIME, to_instant
from millrace.model.pane import Mode, Pane
from millrace.model.query import Query
from millrace.model.reference import Reference, batch
from millrace.model.trigger import default
from millrace.model.window import CountWindow, Session, Sliding, Window
from strategies import (
    all_windows,
    bundles,
    lasting_triggers,
    latenesses,
    modes,
    query,
    rows,
    steps,
    time_windows,
    triggers,
)


def drive(engine: Reference, happening: list[tuple[str, Any]]) -> list[Pane]:
    panes = []
    for kind, value in happening:
        panes += getattr(engine, kind)(value)
    return panes


def net(panes: list[Pane], asked: Query, given: list[dict[str, Any]]) -> object:
    """What remains of all panes: the sum of diffs, the last panes, or all that was held."""
    if asked.mode is Mode.RETRACTING:
        total: Counter[tuple[Any, ...]] = Counter()
        for pane in panes:
            total[pane.key, pane.window, tuple(pane.values["values"])] += pane.diff
        return {said for said, count in total.items() if count}
    if asked.mode is Mode.ACCUMULATING:
        last = {(pane.key, pane.window): pane.values["values"] for pane in panes}
        if isinstance(asked.windowing, Session):
            # A session that grew is another window; what it was before is not an answer any more.
            final = sessions(given, asked.windowing.gap)
            last = {place: values for place, values in last.items() if place in final}
        return last
    held: Counter[tuple[Any, ...]] = Counter()
    for pane in panes:
        window = None if isinstance(asked.windowing, Session) else pane.window
        held.update((pane.key, window, value) for value in pane.values["values"])
    return held


def sessions(given: list[dict[str, Any]], gap: int) -> set[tuple[tuple[str], Window]]:
    found = set()
    for key in {row["k"] for row in given}:
        times = sorted(to_instant(row["at"]) for row in given if row["k"] == key)
        start = last = times[0]
        for at in [*times[1:], END_OF_TIME]:
            if at - last >= gap:
                found.add(((key,), Window(start, last + gap)))
                start = at
            last = at
    return found


@examples(400)
@given(st.data(), all_windows, lasting_triggers, modes, latenesses)
def test_the_net_does_not_depend_on_how_input_is_divided(
    data: st.DataObject, windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    asked = query(windowing, trigger, mode, lateness)
    elements = data.draw(rows())
    whole, divided = Reference(asked), Reference(asked)
    said = whole.input(elements) + whole.end()
    order = elements if isinstance(windowing, CountWindow) else data.draw(st.permutations(elements))
    happening: list[tuple[str, Any]] = []
    for number, bundle in enumerate(data.draw(bundles(order))):
        happening += [("input", bundle), ("clock", number * data.draw(st.sampled_from([0, 2_000_000])))]
    said_divided = drive(divided, happening) + divided.end()
    assert net(said_divided, asked, elements) == net(said, asked, elements)
    assert divided.dropped == whole.dropped == 0


@examples(400)
@given(st.data(), all_windows, lasting_triggers, st.sampled_from(["accumulating", "retracting"]))
def test_a_batch_is_the_net_of_the_stream(data: st.DataObject, windowing: Any, trigger: Any, mode: str) -> None:
    asked = query(windowing, trigger, mode)
    elements = data.draw(rows())
    engine = Reference(asked)
    stream = drive(engine, [("input", bundle) for bundle in data.draw(bundles(elements))]) + engine.end()
    answer = {(pane.key, pane.window): pane.values["values"] for pane in batch(asked, elements)}
    if asked.mode is Mode.ACCUMULATING:
        assert net(stream, asked, elements) == answer
    else:
        assert net(stream, asked, elements) == {(*place, tuple(values)) for place, values in answer.items()}


@examples(400)
@given(steps(), all_windows, triggers, latenesses)
def test_retractions_cancel_exactly(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, lateness: str
) -> None:
    engine = Reference(query(windowing, trigger, "retracting", lateness))
    standing: list[Pane] = []
    for pane in drive(engine, happening) + engine.end():
        if pane.diff > 0:
            standing.append(pane)
        else:
            (said,) = [other for other in standing if other.retraction() == pane]
            standing.remove(said)
    # Each element stands in no more than one answer of each of its windows.
    assert len({(pane.key, pane.window) for pane in standing}) == len(standing)
    if not isinstance(windowing, Sliding):
        shown = [value for pane in standing for value in pane.values["values"]]
        assert len(shown) == len(set(shown))


@examples(400)
@given(steps(), all_windows, triggers, latenesses)
def test_nothing_accepted_is_lost_and_nothing_is_said_twice(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, lateness: str
) -> None:
    engine = Reference(query(windowing, trigger, "discarding", lateness))
    panes = drive(engine, happening) + engine.end()
    arrived = sum(len(value) for kind, value in happening if kind == "input")
    if isinstance(windowing, Sliding):
        said = {value for pane in panes for value in pane.values["values"]}
        per_window = [(pane.key, pane.window, value) for pane in panes for value in pane.values["values"]]
        assert len(per_window) == len(set(per_window))
    else:
        shown = [value for pane in panes for value in pane.values["values"]]
        said = set(shown)
        assert len(shown) == len(said)
    assert len(said) == arrived - engine.dropped


@examples(400)
@given(steps(), all_windows, triggers, modes, latenesses)
def test_no_pane_follows_the_last(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    engine = Reference(query(windowing, trigger, mode, lateness))
    over = set()
    indexes: Counter[Any] = Counter()
    for pane in drive(engine, happening) + engine.end():
        place = (pane.key, pane.window)
        if pane.diff > 0:
            assert place not in over
            if not isinstance(windowing, Session):
                assert pane.index == indexes[place]
                indexes[place] += 1
            if pane.last:
                over.add(place)


@examples(400)
@given(steps(), all_windows, triggers, modes, latenesses)
def test_time_that_does_not_move_says_nothing(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    engine = Reference(query(windowing, trigger, mode, lateness))
    drive(engine, happening)
    now = reduce(after_step, [value for kind, value in happening if kind == "clock"], 0)
    assert engine.watermark(0) == []
    assert engine.clock(now) == []
    assert engine.clock(now - JITTER) == []


@examples(400)
@given(rows(), time_windows)
def test_a_batch_is_what_a_plain_group_by_gives(elements: list[dict[str, Any]], windowing: Any) -> None:
    expected: dict[Any, list[int]] = {}
    for row in elements:
        at = to_instant(row["at"])
        if isinstance(windowing, Session):
            spans = [w for key, w in sessions(elements, windowing.gap) if key == (row["k"],) and w.start <= at < w.end]
        else:
            spans = list(windowing.assign(at, row))
        for window in spans:
            expected.setdefault(((row["k"],), window), []).append(row["v"])
    panes = batch(query(windowing, default(), "accumulating"), elements)
    assert {(pane.key, pane.window): pane.values["values"] for pane in panes} == {
        place: sorted(values) for place, values in expected.items()
    }
    assert all(pane.values["total"] == sum(pane.values["values"]) for pane in panes)
    assert all(pane.values["n"] == len(pane.values["values"]) for pane in panes)
