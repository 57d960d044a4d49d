"""A join of streams in one shard, advanced by the messages of a micro-batch."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.model.arrow import arrow_schema
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.graph import join_watermark, least
from millrace.model.joining import LEFT, RIGHT
from millrace.model.late import late_for_join
from millrace.model.plain import to_json
from millrace.model.stream import sources
from millrace.model.watermark import Estimator, Progress, combine, follows_clock, next_idle
from millrace.panes.blobs import from_bytes
from millrace.panes.joining import Joining, JoinState
from millrace.panes.sides import AT
from millrace.plan.plan import Stage
from millrace.sources.bundle import Times, together
from millrace.spark.answers import schema_of
from millrace.spark.messages import ROWS, Message, TaskReport
from millrace.spark.stage_shard import Advanced, StageFigures, StageState, observed, size_of


class JoinShard:
    """A join of streams in one shard, ready to be advanced by messages."""

    keeps = JoinState
    says = ROWS

    def __init__(self, number: int, stage: Stage) -> None:
        """Prepare its engine."""
        assert stage.join is not None
        self.number, self.id, self.is_output, self._is_read = number, stage.id, stage.is_output, stage.is_read
        self._joining, self._spec = Joining(stage.join.spec), stage.join.spec
        self._estimators = [stage.estimators(side) for side in (LEFT, RIGHT)]
        self._schema = arrow_schema(schema_of(stage.of))
        self._named = [", ".join(source.name for source in sources(side)) for side in stage.join.sides]

    def advance(self, before: StageState | None, messages: Sequence[Message]) -> Advanced:
        """Advance the join by the messages of all tasks, and of all shards of the stages that it reads."""
        reports = [TaskReport.from_json(message.report or "") for message in messages]
        times = together([each.times for each in reports])
        state = JoinState(now=times.before) if before is None else before.kept.state
        assert isinstance(state, JoinState)
        every = [*self._estimators[LEFT], *self._estimators[RIGHT]]
        now, progress = observed(every, before, state.now, reports, times)
        sources = list(zip(every, progress, strict=True))
        split = len(self._estimators[LEFT])
        given = sources[:split], sources[split:]
        sides = [self._time(side, state, reports, given[side], times, now) for side in (LEFT, RIGHT)]
        tables: tuple[list[pa.Table], list[pa.Table]] = [], []
        for report, message in zip(reports, messages, strict=True):
            if message.payload is not None:
                tables[report.side].append(from_bytes(message.payload))
        left, right = (pa.concat_tables(each).combine_chunks() if each else None for each in tables)
        after, said = self._joining.advance(state, left, right, (sides[LEFT][0], sides[RIGHT][0]))
        after = replace(after, now=now)
        idle = sides[LEFT][1], sides[RIGHT][1]
        kept = len(after.left) + len(after.right)
        watermark, dropped = join_watermark(self._spec, after.watermarks, idle), sum(after.dropped)
        figures = StageFigures(watermark, now, kept, size_of(after.left, after.right), dropped)
        elements = sum(len(table) for side in tables for table in side)
        rows = said.drop_columns([AT]).rename_columns(self._schema.names).cast(self._schema) if len(said) else None
        changes = said if len(said) and self._is_read else None
        letters = []
        if self._spec.keeps_late:
            letters = [*self._late(LEFT, left, state), *self._late(RIGHT, right, state)]
        return Advanced(
            after, figures, progress, rows, letters, 0, next_idle(sources, now), elements, dropped - sum(state.dropped),
            changes, times.before, all(idle),
        )  # fmt: skip

    def _late(self, side: int, rows: pa.Table | None, before: JoinState) -> Iterator[dict[str, Any]]:
        """The dead letters of the rows of a side that the join drops."""
        if rows is None:
            return
        watermark = before.watermarks[side]
        at = rows[AT].to_numpy()
        for row in np.flatnonzero(at < max(watermark - self._spec.lateness[side], BEGINNING_OF_TIME)).tolist():
            late = late_for_join(self._spec, side, int(at[row]), watermark)
            value = rows.select(self._spec.columns(side).names).slice(row, 1).to_pylist()[0]
            yield {
                "source": self._named[side], "origin": self.id, "partition": None, "offset": None, "output": self.id,
                "problem": late.problem, "reason": late.reason, "hint": late.hint, "value": to_json(value),
            }  # fmt: skip

    def _time(
        self, side: int, state: JoinState, reports: Sequence[TaskReport],
        sources: Sequence[tuple[Estimator, Progress]], times: Times, now: int,
    ) -> tuple[int, bool]:  # fmt: skip
        """The watermark of a side, and whether it is idle; it then stays where it was, rule 15 of stages."""
        marks = {stage: mark for each in reports if each.side == side for stage, mark in each.marks.items()}
        times_read = list(marks.values())
        if sources or not marks:
            times_read.append(self._own_time(side, sources, times, now))
        is_idle = all(idle for _, idle in times_read)
        return (state.watermarks[side] if is_idle else least(times_read)), is_idle

    def _own_time(
        self, side: int, sources: Sequence[tuple[Estimator, Progress]], times: Times, now: int
    ) -> tuple[int, bool]:
        """The watermark of the sources of a side, and whether they are idle."""
        if times.sides is not None:
            return times.sides[side], False
        if times.watermark is not None:
            return times.watermark, False
        return combine(sources, now) if sources else BEGINNING_OF_TIME, follows_clock(sources, now)
