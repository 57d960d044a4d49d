"""One stage in one shard: a query, or a dedup, advanced by the messages of a micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.clock import after_step
from millrace.model.graph import least
from millrace.model.trigger import Watermark, may_finish
from millrace.model.watermark import Estimator, Progress, Seen, combine, follows_clock, next_idle
from millrace.panes.advance import PaneState
from millrace.panes.blobs import StoredState, from_bytes
from millrace.panes.grouping import identify
from millrace.panes.joining import JoinState
from millrace.panes.store import RowStore, stack
from millrace.plan.plan import Stage
from millrace.sources.bundle import Times, together
from millrace.spark.deduplicating import Deduplicating
from millrace.spark.messages import PANES, ROWS, Message, TaskReport
from millrace.spark.task import panes_of
from millrace.spark.unanswered import letters_of


@dataclass(frozen=True, slots=True, eq=False)
class StageState:
    """The state of one stage in a shard, between two micro-batches."""

    kept: StoredState[Any]
    progress: tuple[Progress, ...]
    is_stored: bool = True
    """Whether Spark's store has its blobs; not so for state that was handed over by other shards."""


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The times and sizes of a stage of a shard after a micro-batch."""

    watermark: int
    now: int
    groups: int
    """The number of open (key, window) groups, or of rows that a join keeps."""
    bytes: int
    dropped: int


@dataclass(frozen=True, slots=True, eq=False)
class Advanced:
    """A stage of a shard after a micro-batch."""

    state: PaneState | JoinState
    figures: StageFigures
    progress: tuple[Progress, ...]
    said: pa.Table | None
    """Its panes, or the rows of a plain stream; None if there are none."""
    letters: list[dict[str, Any]]
    errors: int
    """Answers without a value, since the start."""
    due: int | None
    """The next instant of processing time at which the stage may answer without input; None if there is none."""
    elements: int
    """The elements of the micro-batch, with those that were too late."""
    late: int
    """The elements of the micro-batch that were too late; 0 if others are dropped with them."""
    changes: pa.Table | None = None
    """All its panes, for the stages that read them; None if there are none."""
    before: int = 0
    """The clock before the micro-batch."""
    is_idle: bool = False
    """Whether all its sources are idle."""


class StageShard:
    """One stage in one shard, ready to be advanced by messages."""

    keeps = PaneState

    def __init__(self, number: int, stage: Stage, last_only: bool) -> None:
        """Prepare its panes. With `last_only`, it answers with the last pane of each key and window, as batches do."""
        self.number, self.id, self._stage, self._last_only = number, stage.id, stage, last_only
        self.says = ROWS if stage.query is None else PANES
        self.is_output = stage.is_output
        self._dedup = None if stage.dedup is None else Deduplicating(stage.id, stage.dedup, stage.is_read)
        self._panes = panes_of(stage)
        self._estimators = stage.estimators()
        trigger = None if stage.query is None else stage.query.when
        self._drops_late_only = trigger is None or isinstance(trigger, Watermark) or not may_finish(trigger)
        """Whether elements are dropped only because they are too late, not because the trigger has finished."""

    def advance(self, before: StageState | None, messages: Sequence[Message]) -> Advanced:
        """Advance the stage by the messages of all tasks, or of all shards of the stages that it reads."""
        reports = [TaskReport.from_json(message.report or "") for message in messages]
        times = together([each.times for each in reports])
        state = PaneState(now=times.before) if before is None else before.kept.state
        assert isinstance(state, PaneState)
        sent = [from_bytes(message.payload) for message in messages if message.payload is not None]
        seen: list[Seen] | None = None
        letters: list[dict[str, Any]] = []
        if self._dedup is not None:
            passed = self._dedup.take(state, sent)
            state, sent, letters = passed.state, passed.tables, passed.letters
            seen = [passed.seen] if passed.seen is not None and self._estimators else None
        now, progress = observed(self._estimators, before, state.now, reports, times, seen)
        watermark = state.watermark if times.watermark is None else times.watermark
        sources = list(zip(self._estimators, progress, strict=True))
        if times.watermark is None and sources:
            watermark = combine(sources, now)
        marks = list({stage: mark for each in reports for stage, mark in each.marks.items()}.values())
        if marks:
            own = [(watermark, follows_clock(sources, now))] if self._stage.edges else []
            marks += own
            watermark = least(marks)
        elements, dropped = 0, state.dropped
        if self._panes is None:
            state, tables = replace(state, watermark=max(state.watermark, watermark), now=now), sent
        else:
            elements = sum(pc.sum(table["elements"]).as_py() or 0 for table in sent)
            state, tables = self._panes.advance(state, stack(sent) if sent else None, watermark, now)
        said = [table for table in tables if len(table)]
        changes = stack(said) if said and self._stage.is_read else None
        is_idle = all(mark[1] for mark in marks) if marks else follows_clock(sources, now)
        unanswered, errors = letters_of(self._stage, state.failed), state.errors
        if self._last_only:
            said = [_last(stack(said), self._panes.keys)] if said and self._panes is not None else said
            unanswered = list({letter["value"]: letter for letter in unanswered}.values())
            errors = len(unanswered)
        due = self._due(state, sources)
        late = state.dropped - dropped if self._drops_late_only else 0
        answer = stack(said) if said else None
        letters += unanswered
        figures = StageFigures(
            state.watermark,
            state.now,
            len(state.groups),
            size_of(state.groups, state.arrivals, state.seen),
            state.dropped,
        )
        return Advanced(
            state, figures, progress, answer, letters, errors, due, elements, late, changes, times.before, is_idle
        )

    def _due(self, state: PaneState, sources: Sequence[tuple[Estimator, Progress]]) -> int | None:
        if self._panes is None or self._last_only:
            return None
        found = [next_idle(sources, state.now), self._panes.due(state, follows_clock(sources, state.now))]
        return min((instant for instant in found if instant is not None), default=None)


def observed(
    estimators: Sequence[Estimator], before: StageState | None, was: int, reports: Sequence[TaskReport], times: Times,
    seen: Sequence[Seen] | None = None,
) -> tuple[int, tuple[Progress, ...]]:  # fmt: skip
    """Processing time after a micro-batch, and the progress of the sources of a stage.

    `was` is processing time before it. `seen` holds the event times, if they are not those that the tasks reported.
    """
    progress = tuple(Progress(active=times.before) for _ in estimators) if before is None else before.progress
    now = after_step(was, times.now if times.goes_back else max(was, times.now))
    if now < was:
        progress = tuple(each.moved_back(was - now) for each in progress)
    if seen is None:
        seen = [sum((each.seen[n] for each in reports if n in each.seen), Seen()) for n in range(len(estimators))]
    each_source = zip(estimators, progress, seen, strict=True)
    return now, tuple(estimator.observe(so_far, bundle, now) for estimator, so_far, bundle in each_source)


def _last(said: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """The last pane of each key and window; a retraction is no answer."""
    same = identify([said[name].combine_chunks() for name in (*keys, "start", "end")], len(said))
    last = said.take(pa.array(same.lasts))
    return last.filter(pc.greater(last["diff"], 0))


def size_of(*stores: RowStore) -> int:
    """The bytes of stores in memory."""
    return sum(segment.rows.nbytes for store in stores for segment in store.segments)
