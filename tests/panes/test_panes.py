"""The pane engine says what the reference says: on transcripts, and on random queries and inputs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparison import said
from documents import DOCUMENTS
from examples import examples
from millrace.model.duration import END_OF_TIME
from millrace.model.reference import Reference
from millrace.model.stream import Stream
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
