"""The pane engine says what the reference says: on transcripts, and on random queries and inputs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparison import said
from documents import DOCUMENTS
from examples import examples
from millrace import on, window
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME, SECOND, to_datetime
from millrace.model.reference import Reference
from millrace.model.stream import Stream
from millrace.panes.advance import Panes
from millrace.sources.memory import Happening
from millrace.testing.check import check
from millrace.testing.engines import PaneEngine
from millrace.testing.transcript import Document
from strategies import all_windows, bundles, latenesses, micro_batches, modes, query, rows, steps, streams, triggers


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_transcript(document: Document) -> None:
    verdict = check(document, "panes")
    assert verdict.passed, verdict.failure


@pytest.mark.no_cover
@examples(2000)
@given(steps(), all_windows, triggers, modes, latenesses)
def test_every_step_of_a_random_query(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    asked = query(windowing, trigger, mode, lateness)
    slow, fast = Reference(asked), PaneEngine(asked)
    for kind, value in [*happening, ("watermark", END_OF_TIME)]:
        assert said(getattr(fast, kind)(value)) == said(getattr(slow, kind)(value)), (kind, value)
        assert fast.dropped == slow.dropped


@pytest.mark.no_cover
@examples(1000)
@given(steps(), all_windows, triggers, latenesses)
def test_no_pane_comes_before_the_instant_that_is_due(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, lateness: str
) -> None:
    asked = query(windowing, trigger, "accumulating", lateness)
    fast, panes = PaneEngine(asked), Panes(asked)
    for kind, value in happening:
        getattr(fast, kind)(value)
        state = fast.state
        for follows_clock in (False, True) if state.watermark > BEGINNING_OF_TIME else (False,):
            due = panes.due(state, follows_clock)
            assert due is None or due > state.now
            later = 1_000 * SECOND if due is None else due - 1 - state.now
            watermark = state.watermark + later if follows_clock else state.watermark
            after, said_before = panes.advance(state, None, watermark, state.now + later)
            assert not any(map(len, said_before)), (kind, value, due)
            assert follows_clock is False or len(after.groups) == len(state.groups), "no group expires before it"


def test_timers_are_due_at_the_instant_that_fires_them() -> None:
    row = {"k": "a", "v": 1, "at": to_datetime(12 * SECOND)}
    for trigger, due in ((on.after("5s"), 12), (on.every("10s"), 10), (on.all_of(on.after("5s"), on.every("4s")), 8)):
        asked = query(window.fixed("10s"), trigger, "accumulating")
        fast, panes = PaneEngine(asked), Panes(asked)
        fast.clock(7 * SECOND)
        fast.input([row])
        assert panes.due(fast.state, False) == due * SECOND, trigger
    assert panes.due(fast.state, True) == 8 * SECOND
    fast.watermark(15 * SECOND)
    assert panes.due(fast.state, True) == 8 * SECOND
    asked = query(window.fixed("10s"), on.default(), "accumulating", "4s")
    fast, panes = PaneEngine(asked), Panes(asked)
    fast.input([row])
    fast.watermark(15 * SECOND)
    fast.clock(7 * SECOND)
    assert (panes.due(fast.state, False), panes.due(fast.state, True)) == (None, 12 * SECOND), "the window closes at 20"
    fast.watermark(20 * SECOND)
    assert panes.due(fast.state, True) == 11 * SECOND + 1, "it expires after 24"


@pytest.mark.no_cover
@examples(500)
@given(st.data(), all_windows, triggers, modes, latenesses)
def test_micro_batches_of_a_random_query(
    data: st.DataObject, windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    asked = query(windowing, trigger, mode, lateness)
    slow, fast = Reference(asked), PaneEngine(asked)
    for number, bundle in enumerate(data.draw(bundles(data.draw(rows(most=30))))):
        now = number * data.draw(st.sampled_from([0, 1_000_000, 4_000_000]))
        assert said(fast.micro_batch(bundle, now)) == said(slow.micro_batch(bundle, now))
    assert said(fast.end()) == said(slow.end())
    assert fast.dropped == slow.dropped


@pytest.mark.no_cover
@examples(500)
@given(micro_batches(), all_windows, triggers, modes, latenesses, streams())
def test_a_clock_that_goes_back_in_micro_batches_of_a_random_query(
    happenings: list[Happening], windowing: Any, trigger: Any, mode: str, lateness: str, stream: Stream
) -> None:
    asked = query(windowing, trigger, mode, lateness, stream)
    slow, fast = Reference(asked), PaneEngine(asked)
    for number, happening in enumerate(happenings):
        now = happening.now or 0
        assert said(fast.micro_batch(happening.rows, now)) == said(slow.micro_batch(happening.rows, now)), number
        assert fast.event_time == slow.event_time, number
    assert said(fast.end()) == said(slow.end())
    assert fast.dropped == slow.dropped
