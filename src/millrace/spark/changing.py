"""The edge between two stages: the answers of one become the input of another, in the shard that computed them.

If an expression runs only in Spark, the answers pass through a Spark plan instead: `spark.native_changes`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.edge.connection import ROW_NUMBER
from millrace.model.arrow import arrow_schema
from millrace.model.graph import time_reason
from millrace.model.pane import Mode
from millrace.model.plain import to_json
from millrace.model.query import Query
from millrace.model.refined import is_view_row
from millrace.model.schema import Schema
from millrace.model.stream import AnswerStream, find_event_time, only_from, sources
from millrace.model.window import Session
from millrace.panes.arms import Bools, Ints
from millrace.panes.blobs import to_bytes
from millrace.panes.sides import AT, DIFF
from millrace.plan.plan import Stage
from millrace.plan.stages import changes_edge
from millrace.spark.answers import answers, schema_of
from millrace.spark.messages import PARTIALS, ROWS, Message, TaskReport
from millrace.spark.side_rows import as_changes, by_key
from millrace.spark.task import by_shard, lifted, panes_of


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The answers of a stage in a micro-batch, as changes."""

    rows: pa.Table
    """The columns of the answers."""
    at: Ints
    """Their event times, in microseconds."""
    diffs: Ints
    about: pa.Table
    """The columns that outputs have beside: the diff; for panes, also timing, index and last flag."""


@dataclass(slots=True)
class ChangesTaken:
    """What a stage makes of the answers of another."""

    rows: pa.Table | None = None
    """Partials, changes of a side of a join, or the rows of a stream; None if there are none."""
    letters: list[dict[str, Any]] = field(default_factory=list)


class ChangesEdge:
    """The statements of one stage over the answers of another, ready to run."""

    def __init__(self, number: int, stage: Stage, place: int) -> None:
        """Compile them; `number` is that of the reading stage, and `place` that of the input among those it reads."""
        self.number, self.stage, self.place = number, stage, place
        read = stage.reads[place]
        self.side = read.side
        """The side of a join that the rows are of."""
        self._root = read.root
        of = stage.of if stage.join is None else stage.join.sides[read.side]
        self._fused = None if read.native is not None else changes_edge(of, read.root)
        self._panes = panes_of(stage)
        stream = of.stream if isinstance(of, Query) else of
        self._time = find_event_time(only_from(stream, read.root))
        self._named = ", ".join(source.name for source in sources(stream))

    @property
    def is_stateless(self) -> bool:
        """Whether the reading stage has no state, so that its rows are answers."""
        return self._panes is None and self.stage.join is None

    def take(self, said: pa.Table, last_only: bool = False) -> ChangesTaken:
        """Process the answers of a micro-batch; with `last_only`, those of a batch, which has nothing to remove."""
        assert self._fused is not None, "the answers pass through a Spark plan"
        changes = self.read(said)
        made = self._fused.take(self.given(changes))
        return self.finish(changes, made.rows, made.bad, last_only)

    @property
    def columns(self) -> Schema:
        """The columns of the answers."""
        return self._root.schema

    @property
    def is_native(self) -> bool:
        """Whether the answers pass through a Spark plan."""
        return self._fused is None

    def given(self, changes: Changes) -> pa.Table:
        """The rows that the row operators take, each with the number of its change."""
        given = changes.rows.append_column(ROW_NUMBER, pa.array(np.arange(len(changes.rows))))
        # An accumulating query removes an answer by a retraction without values, which only a view understands.
        return given.filter(pa.array(changes.diffs > 0)) if self._accumulates else given

    def finish(self, changes: Changes, made: pa.Table, bad: Sequence[tuple[int, str]], last_only: bool) -> ChangesTaken:
        """What the reading stage gets of the rows that the row operators made, each with the number of its change.

        `bad` are the changes without a value, with the reasons.
        """
        taken = ChangesTaken()
        for row, reason in bad:
            taken.letters.append(self._letter(changes.rows, row, reason))
        if self.is_stateless:
            taken.rows = self._rows(changes, made, removes=not last_only)
            return taken
        places = made[ROW_NUMBER].to_numpy()
        rows, places, at = self._timed(changes, made, places, taken)
        diffs = changes.diffs[places]
        if self.stage.join is not None:
            kinds = pa.array(diffs.astype(np.int8))
            taken.rows = as_changes(self.stage.join.spec, self.side, rows, pa.array(at), kinds)
            return taken
        assert self._panes is not None
        rows = rows.set_column(rows.schema.get_field_index("at"), "at", pa.array(at))
        taken.rows, failed = lifted(self._panes, rows, diffs if self._panes.changes else None)
        for row, reason in failed.items():
            taken.letters.append(self._letter(changes.rows, int(places[row]), reason))
        return taken

    def messages(
        self, shard: int, sequence: int, taken: ChangesTaken, report: TaskReport, shards: int, is_local: bool
    ) -> Iterator[Message]:
        """What the reading stage gets: one message to each of its shards, or to this one if it `is_local`."""
        rows = taken.rows if taken.rows is not None and len(taken.rows) else None
        payload = None if rows is None or not (self.is_stateless or is_local) else to_bytes(rows)
        if self.is_stateless:
            if payload is not None:
                yield Message(shard, self.number, sequence, ROWS, payload=payload)
        elif is_local:
            yield Message(shard, self.number, sequence, PARTIALS, report.to_json(), payload)
        elif self.stage.join is not None:
            tables = [] if rows is None else [rows]
            yield from by_key(self.stage.join.spec, self.number, shard, tables, report, shards)
        else:
            assert self._panes is not None
            yield from by_shard(self._panes, self.number, shard, [] if rows is None else [rows], report, shards)

    @property
    def _accumulates(self) -> bool:
        return isinstance(self._root, AnswerStream) and self._root.query.mode is Mode.ACCUMULATING

    def read(self, said: pa.Table) -> Changes:
        """The answers of a stage as changes."""
        names = list(self._root.schema.names)
        if not isinstance(self._root, AnswerStream):
            diffs = said[DIFF].to_numpy().astype(np.int64)
            return Changes(said.select(names), said[AT].to_numpy(), diffs, said.select([DIFF]))
        panes = answers(self._root.query, said)
        about = panes.select(range(len(names), len(panes.column_names)))
        times = said["at"].to_numpy() if "at" in said.column_names else np.zeros(len(said), np.int64)
        return Changes(panes.select(names), times, said["diff"].to_numpy().astype(np.int64), about)

    def _rows(self, changes: Changes, made: pa.Table, removes: bool) -> pa.Table:
        """Rows with what outputs have beside.

        Where a pane replaces the one before it, a pane that gives no row removes that row from the view.
        """
        places = made[ROW_NUMBER]
        schema = arrow_schema(schema_of(self.stage.of))
        about = changes.about.select(range(len(schema) - len(self.stage.of.schema.names)))
        columns = [made[name] for name in self.stage.of.schema.names]
        columns += [about[name].take(places) for name in about.column_names]
        rows = pa.table(columns, names=schema.names).cast(schema)
        if not removes or not self._accumulates or not is_view_row(self.stage.stream):
            return rows
        gone = np.ones(len(changes.rows), np.bool_)
        gone[places.to_numpy()] = False
        return pa.concat_tables([self._removed(changes, gone, schema), rows])

    def _removed(self, changes: Changes, gone: Bools, schema: pa.Schema) -> pa.Table:
        """Retractions that remove the rows of these panes, if an earlier pane may have given one."""
        assert isinstance(self._root, AnswerStream)
        index = changes.about.column_names[2]
        if not isinstance(self._root.query.windowing, Session):
            gone &= (changes.about[index].to_numpy() > 0) | (changes.diffs < 0)
        mask = pa.array(gone)
        panes, about = changes.rows.filter(mask), changes.about.filter(mask)
        kept = {name: panes[name] for name in self._root.query.key_names}
        told = zip(schema.names[len(self.stage.of.schema.names) :], about.column_names, strict=True)
        kept |= {name: about[known] for name, known in told}
        kept[schema.names[len(self.stage.of.schema.names)]] = pa.array(np.full(len(panes), -1))
        columns = [
            kept[each.name].cast(each.type) if each.name in kept else pa.nulls(len(panes), each.type) for each in schema
        ]
        return pa.table(columns, schema=schema)

    def _timed(
        self, changes: Changes, made: pa.Table, places: Ints, taken: ChangesTaken
    ) -> tuple[pa.Table, Ints, Ints]:
        """The rows that have a valid event time, the numbers of their answers, and the times."""
        at: Ints = changes.at[places]
        if self._time is None:
            return made, places, at
        column = made["at"] if "at" in made.column_names and self._panes is not None else made[self._time.column]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        wrong = pc.fill_null(pc.greater(column, pa.array(at + 1)), True)
        if pc.any(wrong).as_py():
            for row in np.flatnonzero(wrong.to_numpy()).tolist():
                reason = time_reason(self._time.column, column[row].as_py(), int(at[row]))
                taken.letters.append(self._letter(changes.rows, int(places[row]), reason or ""))
            good = pc.invert(wrong)
            made, places, column = made.filter(good), places[good.to_numpy()], column.filter(good)
        return made, places, column.to_numpy().astype(np.int64)

    def _letter(self, answers: pa.Table, row: int, reason: str) -> dict[str, Any]:
        """The dead letter of an answer that the stage cannot read; its value is the answer."""
        value = answers.slice(row, 1).to_pylist()[0]
        return {
            "source": self._named,
            "origin": self.stage.id,
            "partition": None,
            "offset": None,
            "output": self.stage.id,
            "problem": reason,
            "reason": reason,
            "hint": None,
            "value": to_json(value),
        }
