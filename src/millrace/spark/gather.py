"""Gathers the messages from the shards of a micro-batch on the driver."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from millrace.model.arrow import arrow_schema
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.panes.blobs import from_bytes
from millrace.plan.plan import Plan, Stage
from millrace.sources.arrived import arrivals, latency_of
from millrace.sources.looked import combined
from millrace.spark.answers import answers, schema_of
from millrace.spark.messages import DEAD, DEAD_LETTERS, PANES, PARTIALS, ROWS, STATUS, TaskReport
from millrace.spark.progress import BatchProgress, ShardStatus, part_progress


@dataclass(frozen=True)
class Gathered:
    """The messages of all shards, in order."""

    plan: Plan
    messages: list[dict[str, Any]]

    @cached_property
    def answers(self) -> Mapping[str, pa.Table]:
        """The answers of each output, by id."""
        return {stage.id: self._of(number, stage) for number, stage in enumerate(self.plan.stages)}

    @cached_property
    def dead_letters(self) -> pa.Table:
        """The dead letters: one for each record and output, however many edges have read the record."""
        letters = [from_bytes(each["payload"]) for each in self.messages if each["kind"] == DEAD]
        if not letters:
            return DEAD_LETTERS.empty_table()
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in pa.concat_tables(letters).to_pylist():
            key = (row["origin"], row["offset"], row["output"])
            rows.setdefault(key if row["offset"] is not None else tuple(row.values()), row)
        labels = {stage.id: stage.label for stage in self.plan.stages}
        for row in rows.values():
            row |= {name: labels.get(row[name], row[name]) for name in ("origin", "output")}
        return pa.Table.from_pylist(list(rows.values()), DEAD_LETTERS)

    @cached_property
    def statuses(self) -> Sequence[ShardStatus]:
        """The status of every stateful stage in every shard."""
        return [ShardStatus(**json.loads(each["report"])) for each in self.messages if each["kind"] == STATUS]

    def timers(self) -> tuple[int, int | None] | None:
        """Processing time, and the next instant at which a trigger is due; None if no stage has state."""
        if not self.statuses:
            return None
        due = [each.due for each in self.statuses if each.due is not None]
        return max(each.now for each in self.statuses), min(due, default=None)

    def watermarks(self) -> dict[str, int]:
        """The watermark of each stage that took part in the micro-batch, by id."""
        marks: dict[str, int] = {}
        for each in self.statuses:
            stage = self.plan.stages[each.stage].id
            marks[stage] = max(each.watermark, marks.get(stage, BEGINNING_OF_TIME))
        return marks

    def progress(
        self,
        batch: int,
        phases: Mapping[str, float],
        clock_moved: int = 0,
        dead: int | None = None,
        committed: int | None = None,
    ) -> BatchProgress:
        """The progress event of a micro-batch; `phases` holds the seconds of each phase.

        `dead` is the number of its dead letters, without those that an earlier micro-batch has listed. `committed` is
        when its answers were written, if they were, in microseconds since 1970.
        """
        reports = [TaskReport.from_json(each["report"]) for each in self.messages if each["kind"] == PARTIALS]
        parts = {
            stage.id: part_progress(
                (each for each in self.statuses if each.stage in self._told_by(number, stage)),
                len(self.answers[stage.id]),
                self.plan.sources_of(stage),
                bool(stage.reads and not stage.is_stateful)
                or any(stage.of == other.of for other in self.plan.stages[:number]),
                stage.is_output,
            )
            for number, stage in enumerate(self.plan.stages)
        }
        spent = {"edge": sum(each.spent for each in reports), "panes": sum(each.spent for each in self.statuses)}
        arrived = arrivals(each.arrived for each in reports)
        latency = None if committed is None else latency_of(arrived.values(), committed)
        rows = {source: each.records for source, each in arrived.items()}
        dead = len(self.dead_letters) if dead is None else dead
        looked = combined(each.looked for each in reports)
        by_shape = sum((Counter(each.by_shape) for each in reports), Counter[str]())
        return BatchProgress(
            batch, sum(rows.values()), sum(phases.values()), dead, parts, {**phases, **spent}, clock_moved, looked,
            rows, latency, by_shape,
        )  # fmt: skip

    def _told_by(self, number: int, stage: Stage) -> set[int]:
        """The numbers of the stages whose status is that of a stage: rows of answers have that of their queries."""
        if stage.is_stateful or not stage.reads:
            return {number}
        read = {each.stage for each in stage.reads}
        return {other for other, each in enumerate(self.plan.stages) if each.id in read}

    def _of(self, number: int, stage: Stage) -> pa.Table:
        schema = arrow_schema(schema_of(stage.of))
        kind = ROWS if stage.query is None else PANES
        said = [
            from_bytes(each["payload"]) for each in self.messages if (each["stage"], each["kind"]) == (number, kind)
        ]
        tables = [table.cast(schema) if stage.query is None else answers(stage.query, table) for table in said]
        return pa.concat_tables(tables or [schema.empty_table()])


def gather(plan: Plan, messages: pa.Table) -> Gathered:
    """Sort the messages of all shards by stage, sequence and shard."""
    ordered = messages.sort_by([("stage", "ascending"), ("sequence", "ascending"), ("shard", "ascending")])
    return Gathered(plan, ordered.to_pylist())
