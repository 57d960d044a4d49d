"""State that is written, read back and carried on is the state that never left memory."""

from typing import Any

import pytest
from hypothesis import given

from comparison import said
from examples import examples
from millrace import ConflictError, on, window
from millrace.model.duration import END_OF_TIME, to_datetime
from millrace.panes import blobs
from millrace.panes.advance import PaneState
from millrace.testing.engines import PaneEngine
from strategies import all_windows, latenesses, modes, query, steps, triggers


@pytest.mark.no_cover
@examples(400)
@given(steps(), all_windows, triggers, modes, latenesses)
def test_a_state_read_back_goes_on_as_if_nothing_had_happened(
    happening: list[tuple[str, Any]], windowing: Any, trigger: Any, mode: str, lateness: str
) -> None:
    asked = query(windowing, trigger, mode, lateness)
    kept, restarted, stale = PaneEngine(asked), PaneEngine(asked), None
    disk: dict[str, bytes] = {}
    on_disk = None
    for number, (kind, value) in enumerate([*happening, ("watermark", END_OF_TIME)]):
        assert said(getattr(restarted, kind)(value)) == said(getattr(kept, kind)(value))
        on_disk, changes = blobs.write(on_disk, restarted.state, str(number))
        disk.update(changes.put)
        for name in changes.remove:
            del disk[name]
        # Sometimes all of it is read, sometimes what a state of some time ago does not have.
        on_disk = blobs.read(disk.get, stale)
        assert on_disk is not None
        if number % 3 == 0:
            stale = on_disk
        restarted.state = on_disk.state
        assert restarted.dropped == kept.dropped
    assert len(restarted.state.groups) == len(kept.state.groups)


def test_of_a_state_that_is_known_only_its_changes_are_read() -> None:
    engine = PaneEngine(query(window.fixed("10s"), on.each(), "accumulating", "20s"))
    at = to_datetime(0)
    engine.input([{"k": f"key {number}", "v": number, "at": at} for number in range(5_000)])
    first, changes = blobs.write(None, engine.state, "first")
    disk = dict(changes.put)
    engine.input([{"k": "key 7", "v": 1, "at": at}])
    disk.update(blobs.write(first, engine.state, "second")[1].put)
    asked: list[str] = []

    def fetch(name: str) -> bytes | None:
        asked.append(name)
        return disk.get(name)

    second = blobs.read(fetch, first)
    assert "groups/0/rows" not in asked
    assert second is not None
    assert len(second.state.groups) == 5_000
    asked.clear()
    assert blobs.read(fetch, second) is second
    assert asked == ["state"]


def test_a_segment_of_another_attempt_is_not_taken_for_the_same() -> None:
    """Two attempts at a micro-batch give their segments the same numbers, but not the same rows."""
    asked = query(window.fixed("10s"), on.each(), "accumulating", "20s")
    rows = [{"k": "a", "v": 1, "at": to_datetime(0)}, {"k": "b", "v": 2, "at": to_datetime(0)}]
    failed, again = PaneEngine(asked), PaneEngine(asked)
    failed.input(rows[:1])
    again.input(rows)
    in_memory, _ = blobs.write(None, failed.state, "failed")
    _, changes = blobs.write(None, again.state, "again")
    found = blobs.read(dict(changes.put).get, in_memory)
    assert found is not None
    assert len(found.state.groups) == 2


def test_a_small_change_writes_little() -> None:
    asked = query(window.fixed("10s"), on.each(), "accumulating", "20s")
    engine = PaneEngine(asked)
    at = to_datetime(0)
    engine.input([{"k": f"key {number}", "v": number, "at": at} for number in range(20_000)])
    before, changes = blobs.write(None, engine.state, "first")
    whole = sum(map(len, changes.put.values()))
    engine.input([{"k": "key 7", "v": 1, "at": at}])
    _, changes = blobs.write(before, engine.state, "second")
    assert sum(map(len, changes.put.values())) < whole / 50
    assert changes.remove == ()


def test_state_of_another_format_is_refused() -> None:
    written = dict(blobs.write(None, PaneState(), "it")[1].put)
    written["state"] = written["state"].replace(b'"format": %d' % blobs.FORMAT, b'"format": 99')
    with pytest.raises(ConflictError, match="format 99"):
        blobs.read(written.get)
