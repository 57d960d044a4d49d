"""Processing time follows a clock that was set back: rule 15 of docs/transcripts.md, as properties of the reference."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparison import said
from examples import examples
from millrace.model.clock import JITTER, after_step
from millrace.model.duration import SECOND
from millrace.model.reference import Reference
from millrace.model.stream import Stream
from millrace.model.watermark import Progress, delay
from millrace.sources.bundle import Times, together
from millrace.sources.memory import Happening, MemoryScript
from strategies import all_windows, latenesses, micro_batches, modes, query, streams, triggers

PERIODS = 15 * SECOND
"""A multiple of every period of `every` in the strategies: multiples stay multiples after a shift by it."""


def test_a_step_back_by_more_than_jitter_is_followed() -> None:
    assert after_step(100, 101) == 101
    assert after_step(JITTER, 0) == JITTER
    assert after_step(JITTER + 1, 0) == 0


@pytest.mark.no_cover
@examples(500)
@given(micro_batches(), st.data(), all_windows, triggers, modes, latenesses, streams())
def test_a_clock_set_back_by_whole_periods_changes_no_pane(
    happenings: list[Happening],
    data: st.DataObject,
    windowing: Any,
    trigger: Any,
    mode: str,
    lateness: str,
    rows: Stream,
) -> None:
    """No pane is lost, repeated, early or late: the panes equal those of a clock that was not set back.

    A micro-batch of its own sets the clock back, because no engine can know the time that passes while that happens.
    """
    asked = query(windowing, trigger, mode, lateness, rows)
    back = PERIODS * data.draw(st.integers(1, 10_000))
    since = data.draw(st.integers(0, max(0, len(happenings) - 1)))
    one, other, now = Reference(asked), Reference(asked), 0
    for number, happening in enumerate(happenings):
        if number == since:
            assert said(one.micro_batch([], now)) == said(other.micro_batch([], now - back))
            assert one.event_time == other.event_time
        now = max(now, happening.now or 0)
        shifted = now - back if number >= since else now
        assert said(one.micro_batch(happening.rows, now)) == said(other.micro_batch(happening.rows, shifted)), number
        assert one.event_time == other.event_time, number
    assert said(one.end()) == said(other.end())


def test_the_idle_clock_of_a_source_moves_back_and_its_watermark_stays() -> None:
    seen = Progress(newest=5, active=100)
    assert seen.moved_back(40) == Progress(newest=5, active=60)
    assert delay("0s").watermark(seen.moved_back(40)) == delay("0s").watermark(seen)


def test_a_script_follows_its_clock_back_and_keeps_it_without_one() -> None:
    steps = [Happening(now=100 * SECOND), Happening(), Happening(now=95 * SECOND), Happening(now=0)]
    script = MemoryScript(steps, derived=True)
    times = [script.times(number, number + 1) for number in range(4)]
    assert [each and (each.before // SECOND, each.now // SECOND) for each in times] == [
        (0, 100),
        (100, 100),
        (100, 100),
        (100, 0),
    ]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([Times(1, 5), Times(2, 6, 3)], Times(1, 6, 3)),
        ([Times(100, 5), Times(100, 101)], Times(100, 5)),
        ([Times(100, 5), Times(1, 6)], Times(100, 5)),
    ],
    ids=["ahead", "one source is not there yet", "one source had no batch while the clock was ahead"],
)
def test_sources_planned_apart_go_back_together(times: list[Times], expected: Times) -> None:
    assert together(times) == expected
