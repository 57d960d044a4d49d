"""Runs transcripts with stages: drives a graph through the steps and compares what the watched stages say."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, assert_never

from millrace.model.changes import Change
from millrace.model.clock import after_step
from millrace.model.duration import to_instant
from millrace.model.graph import GraphEngine, JoinEngine, Start
from millrace.model.joining import JoinSpec
from millrace.model.pane import Pane
from millrace.model.query import WINDOW_COLUMNS, Query
from millrace.model.reference import Reference
from millrace.model.rows import RowDeadLetter
from millrace.model.stream import Stream
from millrace.model.window import Row
from millrace.testing.engines import PaneJoin, pane_engine
from millrace.testing.matching import DifferenceError, attributes, differences, seconds
from millrace.testing.stage_steps import (
    DroppedByStages,
    ExpectOfStages,
    MicroBatch,
    StagesTranscript,
    WatermarksOfStages,
)


class StagesEngine(Protocol):
    """An engine that can run a transcript with stages."""

    has_times: bool
    """Whether the rows of streams have their event time."""

    def step(
        self, rows: Mapping[str, Sequence[Row]], watermarks: Mapping[str, int], now: int, derived: bool
    ) -> Mapping[str, Sequence[Pane | Change]]:
        """Run one micro-batch. Returns what each stage said, by name: panes of a query, changes of a stream."""
        ...

    def dropped(self, stage: str) -> int:
        """The number of elements that a stage has dropped."""
        ...

    def event_time(self, stage: str) -> int:
        """The watermark of a stage."""
        ...

    def dead(self, stage: str) -> list[RowDeadLetter]:
        """The rows that could not be processed by a stage."""
        ...


class InProcess:
    """A graph of stages in this process."""

    has_times = True

    def __init__(
        self, transcript: StagesTranscript, start: Start, start_join: Callable[[JoinSpec], JoinEngine]
    ) -> None:
        """Start with no input. `start` starts the engine of a query, `start_join` that of a join."""
        self._graph = GraphEngine(transcript.stages, start, start_join=start_join)

    def step(
        self, rows: Mapping[str, Sequence[Row]], watermarks: Mapping[str, int], now: int, derived: bool
    ) -> Mapping[str, Sequence[Pane | Change]]:
        """Run one micro-batch."""
        return self._graph.step(rows, watermarks, now, derived)

    def dropped(self, stage: str) -> int:
        """The number of elements that a stage has dropped."""
        return self._graph[stage].dropped

    def event_time(self, stage: str) -> int:
        """The watermark of a stage."""
        return self._graph[stage].time[0]

    def dead(self, stage: str) -> list[RowDeadLetter]:
        """The rows that could not be processed by a stage."""
        return [letter for reader in self._graph[stage].readers for letter in reader.rows.dead]


STAGES_ENGINES: dict[str, Callable[[StagesTranscript], StagesEngine]] = {
    "reference": lambda transcript: InProcess(transcript, Reference, JoinEngine),
    "panes": lambda transcript: InProcess(transcript, pane_engine, PaneJoin),
}


def run_stages(transcript: StagesTranscript, engine: StagesEngine) -> None:
    """Run a transcript. Raises DifferenceError at the first step that differs."""
    said: dict[str, list[Pane | Change]] = {name: [] for name in transcript.watched}
    now = 0
    for number, step in enumerate(transcript.steps, 1):
        match step:
            case MicroBatch(rows, watermarks, clock):
                now = now if clock is None else after_step(now, clock)
                new = engine.step(rows, watermarks, now, transcript.derived)
                for name, each in said.items():
                    each += new[name]
            case ExpectOfStages(expected):
                _compare(number, "expect", transcript, expected, said, engine)
                said = {name: [] for name in transcript.watched}
            case DroppedByStages(counts):
                for name, count in counts.items():
                    if engine.dropped(name) != count:
                        difference = f"expected {count}, got {engine.dropped(name)}"
                        raise DifferenceError(number, f"dropped, {name}", [difference])
            case WatermarksOfStages(marks):
                for name, at in marks.items():
                    if engine.event_time(name) != at:
                        difference = f"expected {seconds(at)}, got {seconds(engine.event_time(name))}"
                        raise DifferenceError(number, f"watermark_is, {name}", [difference])
            case never:
                assert_never(never)
    _compare(len(transcript.steps), "the end", transcript, {}, said, engine)


def _compare(
    step: int,
    what: str,
    transcript: StagesTranscript,
    expected: Mapping[str, tuple[Mapping[str, Any], ...]],
    said: Mapping[str, Sequence[Pane | Change]],
    engine: StagesEngine,
) -> None:
    for name, each in said.items():
        actual = [_attributes(one, transcript.stages[name]) for one in each]
        wanted = expected.get(name, ())
        if not engine.has_times and not isinstance(transcript.stages[name], Query):
            wanted = tuple({key: value for key, value in one.items() if key != "at"} for one in wanted)
        found = differences(wanted, actual, engine.dropped(name), engine.dead(name))
        if found:
            raise DifferenceError(step, f"{what}, {name}", found)


def _attributes(said: Pane | Change, of: Query | Stream) -> dict[str, Any]:
    """What a stage said, in the notation of transcripts."""
    if isinstance(said, Pane):
        assert isinstance(of, Query)
        return attributes(said, of)
    bounds = [said.row.get(column.name) for column in WINDOW_COLUMNS]
    window = [each if each is None or isinstance(each, int) else seconds(to_instant(each)) for each in bounds]
    return {"window": window, "at": seconds(said.at), "diff": said.diff, **said.row}
