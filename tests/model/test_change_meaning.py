"""What changes mean: the answers are those over the rows that remain, as if no other had ever come."""

import math
from collections import Counter
from decimal import Decimal
from statistics import variance
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changing import INVERTIBLE, changes, query, remaining
from comparison import same
from examples import examples
from millrace import PipelineError, agg, on, window
from millrace.model.aggregate import Aggregate
from millrace.model.changes import Change, check_over_changes
from millrace.model.duration import END_OF_TIME, SECOND
from millrace.model.pane import Mode, Pane
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.model.window import Global, Windowing
from millrace.testing.engines import PaneEngine

ENGINES = {"reference": Reference, "panes": lambda asked: PaneEngine(asked, changes=True, timed=True)}
engines = pytest.mark.parametrize("engine", ENGINES)

fixed_places: st.SearchStrategy[Windowing] = st.one_of(
    st.builds(window.fixed, st.sampled_from(["5s", "10s"]), st.sampled_from(["0s", "3s"])),
    st.builds(window.sliding, st.sampled_from(["10s", "7s"]), st.sampled_from(["5s", "3s"])),
    st.just(window.all_time()),
)
"""Windows whose bounds do not depend on the rows."""


def row(v: Any = 1, **more: Any) -> dict[str, Any]:
    return {"k": "a", "v": v, "f": None, "c": None, "s": None, **more}


def last(panes: list[Pane]) -> dict[Any, Pane]:
    """The answers that a view holds after these panes."""
    view: dict[Any, Pane] = {}
    for pane in panes:
        view.pop((pane.key, pane.window), None)
        if pane.diff > 0:
            view[pane.key, pane.window] = pane
    return view


def run(engine: str, asked: Query, bundles: list[list[Change]]) -> list[Pane]:
    made: Any = ENGINES[engine](asked)  # type: ignore[operator]
    panes = [pane for bundle in bundles for pane in made.change(bundle)]
    assert made.dropped == 0
    assert not made.failed
    return panes


def equal(one: Pane, other: Pane) -> bool:
    return one.at == other.at and all(same(value, one.values[name]) for name, value in other.values.items())


@engines
@pytest.mark.parametrize("mode", ["accumulating", "retracting"])
@examples(40)
@given(changes(), fixed_places)
def test_the_last_answers_are_those_over_the_rows_that_remain(
    engine: str, mode: str, bundles: list[list[Change]], windowing: Windowing
) -> None:
    asked = query(windowing, on.each(), mode)
    answers = last(run(engine, asked, bundles))
    fresh = last(Reference(asked).change(remaining(bundles)))
    assert answers.keys() == fresh.keys()
    assert all(equal(answers[place], fresh[place]) for place in fresh)


@engines
@examples(40)
@given(changes(), fixed_places)
def test_the_last_answers_are_what_a_plain_loop_gives(
    engine: str, bundles: list[list[Change]], windowing: Windowing
) -> None:
    answers = last(run(engine, query(windowing, on.each(), "accumulating"), bundles))
    groups: dict[Any, list[Change]] = {}
    for change in remaining(bundles):
        for span in windowing.assign(change.at, change.row):  # type: ignore[union-attr]
            groups.setdefault(((change.row["k"],), span), []).append(change)
    assert answers.keys() == groups.keys()
    for (key, span), held in groups.items():
        pane, whole = answers[key, span], [each for each in held if each.row["v"] is not None]
        values = sorted(each.row["v"] for each in whole)
        assert pane.values["n"] == len(held)
        assert pane.values["all"] == values
        assert pane.values["total"] == (sum(values) if values else None)
        assert pane.values["top"] == values[:-3:-1]
        assert same(pane.values["spread"], float(variance(values)) if len(values) > 1 else None)
        first = min(((each.at, each.row["v"]) for each in whole), default=(0, None))[1]
        assert pane.values["first"] == first
        assert pane.at == (max(each.at for each in held) if isinstance(windowing, Global) else span.end - 1)


@engines
@examples(40)
@given(changes(), fixed_places)
def test_increments_add_up_to_the_net_of_a_group_that_has_rows(
    engine: str, bundles: list[list[Change]], windowing: Windowing
) -> None:
    names = ("n", "nv", "big", "total", "money")
    asked = query(windowing, on.each(), "discarding", **{name: INVERTIBLE[name] for name in names})
    added: Counter[Any] = Counter()
    for pane in run(engine, asked, bundles):
        assert pane.diff == 1
        for name in names:
            added[pane.key, pane.window, name] += pane.values[name] or 0
    for place, pane in last(Reference(asked).change(remaining(bundles))).items():
        for name in names:
            assert added[(*place, name)] == (pane.values[name] or 0), name


@engines
@examples(40)
@given(changes(), fixed_places)
def test_every_retraction_cancels_a_pane_that_stands(
    engine: str, bundles: list[list[Change]], windowing: Windowing
) -> None:
    standing: dict[Any, Pane] = {}
    for pane in run(engine, query(windowing, on.each(), "retracting"), bundles):
        if pane.diff > 0:
            assert (pane.key, pane.window) not in standing
            standing[pane.key, pane.window] = pane
        else:
            assert equal(pane, standing.pop((pane.key, pane.window)))


@engines
def test_an_emptied_group_takes_its_answer_back_and_goes_on_counting(engine: str) -> None:
    steps = [[Change(row(5), SECOND)], [Change(row(5), SECOND, -1)], [Change(row(7), SECOND)]]
    told = {}
    for mode in Mode:
        panes = run(engine, query(window.fixed("10s"), on.each(), mode, total=agg.sum("v")), steps)
        told[mode] = [(pane.diff, pane.index, pane.values["total"]) for pane in panes]
    assert told[Mode.RETRACTING] == [(1, 0, 5), (-1, 0, 5), (1, 1, 7)]
    assert told[Mode.ACCUMULATING] == [(1, 0, 5), (-1, 0, None), (1, 1, 7)]
    # The row that was taken back is part of the next increment, so that the increments add up to 7.
    assert told[Mode.DISCARDING] == [(1, 0, 5), (1, 1, 2)]


@engines
def test_an_emptied_group_is_no_failure_and_says_nothing_without_an_answer_before(engine: str) -> None:
    asked = query(window.fixed("10s"), on.each(), "accumulating", total=agg.sum("v"))
    assert run(engine, asked, [[Change(row(5), SECOND, -1), Change(row(5), SECOND)]]) == []
    # What is taken back does not fit into the sum of an increment, but nothing is left to say.
    large = [Change(row(2**62), SECOND)] * 3
    made: Any = ENGINES[engine](query(window.fixed("10s"), on.each(), "discarding", total=agg.sum("v")))  # type: ignore[operator]
    made.change(large)
    assert len(made.failed) == 1
    made.change([Change(each.row, each.at, -1) for each in large])
    assert len(made.failed) == 1


@engines
def test_equal_rows_are_kept_as_often_as_they_came(engine: str) -> None:
    kept = {"all": agg.collect("v"), "set": agg.collect_set("v"), "top": agg.top_k("v", 3), "least": agg.min("v")}
    asked = query(window.all_time(), on.each(), "accumulating", **kept)
    rows = [Change(row(v), 0) for v in (1, 1, 2, 2, 2, 2)]
    gone = [Change(row(v), 0, -1) for v in (1, 2, 2)]
    told = [tuple(pane.values.values()) for pane in run(engine, asked, [rows, gone])]
    assert told == [([1, 1, 2, 2, 2, 2], [1, 2], [2, 2, 2], 1), ([1, 2, 2], [1, 2], [2, 2, 1], 1)]


@engines
def test_changes_of_both_kinds_are_elements(engine: str) -> None:
    asked = query(window.fixed("10s"), on.repeat(on.elements(3)), "accumulating", n=agg.count())
    kept, gone = Change(row(5), SECOND), Change(row(6), SECOND)
    panes = run(engine, asked, [[kept], [gone], [Change(gone.row, gone.at, -1)]])
    assert [pane.values["n"] for pane in panes] == [1]


@engines
def test_late_changes_are_dropped_one_by_one(engine: str) -> None:
    asked = query(window.fixed("10s"), on.default(), "accumulating", n=agg.count())
    made: Any = ENGINES[engine](asked)  # type: ignore[operator]
    made.watermark(30 * SECOND)
    assert made.change([Change(row(5), SECOND), Change(row(5), SECOND, -1), Change(row(5), 35 * SECOND)]) == []
    assert (made.dropped, len(made.dead)) == (2, 2)


@engines
def test_a_session_does_not_shrink(engine: str) -> None:
    asked = query(window.session("5s"), on.each(), "retracting", n=agg.count())
    ends = [Change(row(1), 0), Change(row(2), 4 * SECOND)]
    panes = run(engine, asked, [ends, [Change(row(2), 4 * SECOND, -1)]])
    assert [(pane.window.end // SECOND, pane.diff, pane.values["n"]) for pane in panes] == [
        (9, 1, 2),
        (9, -1, 2),
        (9, 1, 1),
    ]


@engines
def test_floats_do_not_drift(engine: str) -> None:
    asked = query(
        window.all_time(), on.each(), "accumulating", f=agg.sum("f"), mean=agg.mean("f"), spread=agg.variance("f")
    )
    small = [Change(row(f=value), 0) for value in (0.1, 0.3)]
    wild = [Change(row(f=value), 0) for value in (1e16, math.inf, math.nan)]
    before = run(engine, asked, [small])[-1].values
    after = run(engine, asked, [small, wild, [Change(each.row, each.at, -1) for each in wild]])[-1].values
    assert after == before


@engines
def test_an_increment_has_a_sign(engine: str) -> None:
    asked = query(window.all_time(), on.each(), "discarding")
    kept = [Change(row(v, f=float(v), c=Decimal(v), s="x"), at * SECOND) for at, v in enumerate((1, 2, 4, 4), 1)]
    taken = [Change(each.row, each.at, -1) for each in kept[:2]]
    pane = run(engine, asked, [kept, taken])[-1]
    shown = {name: pane.values[name] for name in ("n", "nv", "big", "total", "mean", "money", "floats", "spread")}
    assert shown == {
        "n": -2, "nv": -2, "big": -1, "total": -3, "mean": 1.5, "money": Decimal("-3.00"), "floats": -3.0,
        "spread": None,
    }  # fmt: skip
    assert pane.at == 2 * SECOND
    swapped = run(engine, asked, [kept, [taken[0], Change(row(1), SECOND)], [taken[1], Change(row(9), 2 * SECOND)]])
    assert [(pane.values["n"], pane.values["total"], pane.values["mean"]) for pane in swapped[1:]] == [
        (0, None, None),
        (0, 7, None),
    ]


@engines
def test_the_event_time_of_a_pane_is_that_of_the_rows_it_holds(engine: str) -> None:
    rows = [Change(row(1), 3 * SECOND), Change(row(2), 8 * SECOND), Change(row(3), 5 * SECOND)]
    gone, more = [Change(row(2), 8 * SECOND, -1)], [Change(row(4), 4 * SECOND)]
    told = {}
    for mode in Mode:
        for windowing in (window.all_time(), window.count(10), window.fixed("1m")):
            panes = run(engine, query(windowing, on.each(), mode, n=agg.count()), [rows, gone, more])
            told[mode, windowing] = [(pane.at // SECOND, pane.diff) for pane in panes]
    for windowing in (window.all_time(), window.count(10)):
        assert told[Mode.RETRACTING, windowing] == [(8, 1), (8, -1), (5, 1), (5, -1), (5, 1)]
        assert told[Mode.ACCUMULATING, windowing] == [(8, 1), (5, 1), (5, 1)]
        assert told[Mode.DISCARDING, windowing] == [(8, 1), (8, 1), (4, 1)]
    assert told[Mode.RETRACTING, window.fixed("1m")] == [(59, 1), (59, -1), (59, 1), (59, -1), (59, 1)]


def test_an_empty_pane_of_a_discarding_query_has_the_time_of_the_elements_before() -> None:
    for engine in ENGINES:
        asked = query(window.all_time(), on.watermark(early=on.each()), "discarding", n=agg.count())
        made: Any = ENGINES[engine](asked)  # type: ignore[operator]
        panes = made.change([Change(row(1), 3 * SECOND)]) + made.watermark(END_OF_TIME)
        assert [(pane.values["n"], pane.at) for pane in panes] == [(1, 3 * SECOND), (0, 3 * SECOND)]


@pytest.mark.parametrize(
    ("aggregate", "mode", "problem"),
    [
        (agg.approx_distinct("v"), Mode.RETRACTING, "a sketch cannot forget"),
        (agg.approx_quantile("v", 0.5), Mode.ACCUMULATING, "a sketch cannot forget"),
        (agg.approx_top_k("v", 3), Mode.DISCARDING, "a sketch cannot forget"),
        (agg.fold("v", 0, max), Mode.RETRACTING, "has no inverse"),
        (agg.collect_set("v"), Mode.DISCARDING, r"collect_set\(v\) under discarding\(\)"),
        (agg.max("v"), Mode.DISCARDING, "a value that is gone"),
        (agg.last("v"), Mode.DISCARDING, r"call \.accumulating\(\)"),
        (agg.top_k("v", 2), Mode.DISCARDING, "a value that is gone"),
    ],
    ids=str,
)
def test_what_cannot_take_rows_back_is_refused(aggregate: Aggregate, mode: Mode, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        check_over_changes(aggregate, mode)


@pytest.mark.parametrize("aggregate", [agg.second_moment("v"), agg.sum("v"), agg.stddev("v"), agg.count()], ids=str)
def test_what_has_an_inverse_is_not_refused(aggregate: Aggregate) -> None:
    for mode in Mode:
        check_over_changes(aggregate, mode)
