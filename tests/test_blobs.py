"""State that is written, read back and carried on is the state that never left memory."""

from typing import Any

import pytest
from hypothesis import given, settings

from millrace import fixed, on
from millrace.model.duration import END_OF_TIME, to_datetime
from millrace.panes import blobs
from millrace.panes.advance import State
from millrace.testing.engines import PaneEngine
from strategies import all_windows, latenesses, modes, query, steps, triggers
from test_panes import said

pytestmark = pytest.mark.no_cover


@settings(max_examples=400)
@given(steps(), all_windows, triggers, modes, latenesses)
def test_a_state_read_back_goes_on_as_if_nothing_had_happened(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    asked = query(windowing, trigger, mode, lateness)
    kept, restarted = PaneEngine(asked), PaneEngine(asked)
    disk: dict[str, bytes] = {}
    for kind, value in [*happening, ("watermark", END_OF_TIME)]:
        before = restarted.state if disk else None
        assert said(getattr(restarted, kind)(value)) == said(getattr(kept, kind)(value))
        changes = blobs.write(before, restarted.state)
        disk.update(changes.put)
        for name in changes.remove:
            del disk[name]
        restarted.state = blobs.read(disk)
        assert restarted.dropped == kept.dropped
    assert len(restarted.state.groups) == len(kept.state.groups)


def test_a_small_change_writes_little() -> None:
    asked = query(fixed("10s"), on.each(), "accumulating", "20s")
    engine = PaneEngine(asked)
    at = to_datetime(0)
    engine.input([{"k": f"key {number}", "v": number, "at": at} for number in range(20_000)])
    before = engine.state
    whole = sum(map(len, blobs.write(None, before).put.values()))
    engine.input([{"k": "key 7", "v": 1, "at": at}])
    changes = blobs.write(before, engine.state)
    assert sum(map(len, changes.put.values())) < whole / 50
    assert changes.remove == ()


def test_state_of_another_format_is_refused() -> None:
    written = dict(blobs.write(None, State()).put)
    written["state"] = written["state"].replace(b'"format": 1', b'"format": 99')
    with pytest.raises(ValueError, match="format 99"):
        blobs.read(written)
