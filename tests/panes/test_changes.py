"""The pane engine over changes says what the reference says."""

from typing import Any

import pytest
from hypothesis import given

from changing import query, scripts
from comparison import same
from examples import examples
from millrace.model.duration import END_OF_TIME
from millrace.model.pane import Pane
from millrace.model.reference import Reference
from millrace.testing.engines import PaneEngine
from strategies import all_windows, latenesses, modes, triggers


def place(pane: Pane) -> tuple[Any, ...]:
    about = (pane.diff, pane.index, str(pane.timing), pane.last, pane.at)
    return (repr(pane.key), pane.window, *about, repr(pane.values.get("n")))


def agree(fast: list[Pane], slow: list[Pane]) -> None:
    ours, theirs = sorted(fast, key=place), sorted(slow, key=place)
    assert list(map(place, ours)) == list(map(place, theirs)), (fast, slow)
    for one, other in zip(ours, theirs, strict=True):
        for name, value in other.values.items():
            assert same(value, one.values[name]), (name, value, one.values[name])


@pytest.mark.no_cover
@examples(60)
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
