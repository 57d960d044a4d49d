"""The edge between two stages: the answers of one become the input of another, in the shard that computed them."""

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
from millrace.model.stream import find_event_time, sources
from millrace.panes.arms import Ints
from millrace.plan.compile import changes_edge
from millrace.plan.plan import Stage, StageInput
from millrace.spark.answers import answers, schema_of
from millrace.spark.task import lifted, panes_of


@dataclass(slots=True)
class ChangesTaken:
    """What a stage makes of the answers of another."""

    rows: pa.Table | None = None
    """Partials; for a stream, its rows with the columns of panes. None if there are none."""
    letters: list[dict[str, Any]] = field(default_factory=list)


class ChangesEdge:
    """The statements of one stage over the answers of another, ready to run."""

    def __init__(self, number: int, stage: Stage, read: StageInput) -> None:
        """Compile them; `number` is that of the reading stage."""
        self.number, self.stage = number, stage
        self._answering: Query = read.root.query
        self._fused, _ = changes_edge(stage.of, read.root)
        self.panes = panes_of(stage)
        self._time = find_event_time(stage.stream)
        self._named = ", ".join(source.name for source in sources(stage.stream))

    def take(self, said: pa.Table, last_only: bool = False) -> ChangesTaken:
        """Process the panes of a micro-batch; with `last_only`, those of a batch, which has nothing to remove."""
        panes = answers(self._answering, said)
        taken = ChangesTaken()
        many = len(self._answering.schema.names)
        given = panes.select(range(many)).append_column(ROW_NUMBER, pa.array(np.arange(len(panes))))
        # An accumulating query removes an answer by a retraction without values, which only a view understands.
        removes = self._answering.mode is Mode.ACCUMULATING and pc.any(pc.less(said["diff"], 0)).as_py()
        made = self._fused.take(given.filter(pc.greater(said["diff"], 0)) if removes else given)
        for row, reason in made.bad:
            taken.letters.append(self._letter(given, row, reason))
        if self.panes is None:
            taken.rows = self._rows(panes, made.rows, removes=not last_only)
        else:
            taken.rows = self._partials(given, said, made.rows, taken)
        return taken

    def _rows(self, panes: pa.Table, made: pa.Table, removes: bool) -> pa.Table | None:
        """Rows with the diff, timing, index and last flag of their panes.

        Where a pane replaces the one before it, a pane that gives no row removes that row from the view.
        """
        about = panes.select(range(len(self._answering.schema.names), len(panes.column_names)))
        places = made[ROW_NUMBER]
        schema = arrow_schema(schema_of(self.stage.of))
        rows = pa.table(
            [
                *(made[name] for name in self.stage.of.schema.names),
                *(about[name].take(places) for name in about.column_names),
            ],
            names=schema.names,
        ).cast(schema)
        if removes and self._answering.mode is Mode.ACCUMULATING and is_view_row(self.stage.stream):
            gone = np.setdiff1d(np.arange(len(panes)), places.to_numpy())
            rows = pa.concat_tables([self._removed(panes.take(pa.array(gone)), schema), rows])
        return rows if len(rows) else None

    def _removed(self, panes: pa.Table, schema: pa.Schema) -> pa.Table:
        """Retractions that remove the rows of these keys and windows."""
        diff, *about = schema.names[len(self.stage.of.schema.names) :]
        kept = {*self._answering.key_names, *about}
        columns = [
            panes[field.name].cast(field.type)
            if field.name in kept and field.name in panes.column_names
            else pa.nulls(len(panes), field.type)
            for field in schema
        ]
        columns[schema.get_field_index(diff)] = pa.array(np.full(len(panes), -1), schema.field(diff).type)
        return pa.table(columns, schema=schema)

    def _partials(self, given: pa.Table, said: pa.Table, made: pa.Table, taken: ChangesTaken) -> pa.Table | None:
        places, times = made[ROW_NUMBER].to_numpy(), said["at"].to_numpy()
        at: Ints = times[places]
        if self._time is not None:
            named = made["at"].to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(np.isnan(named.astype(np.float64)) | (named.astype(np.float64) > at + 1))
            for row in wrong.tolist():
                value = made["at"][row].as_py()
                reason = time_reason(self._time.column, value, int(at[row]))
                if reason is not None:
                    taken.letters.append(self._letter(given, int(places[row]), reason))
            good = np.delete(np.arange(len(made)), wrong)
            made, places = made.take(pa.array(good)), places[good]
            at = made["at"].cast(pa.int64()).to_numpy()
        made = made.set_column(made.schema.get_field_index("at"), "at", pa.array(at))
        assert self.panes is not None
        diffs = said["diff"].to_numpy().astype(np.int64)[places] if self.panes.changes else None
        rows, failed = lifted(self.panes, made, diffs)
        for row, reason in failed.items():
            taken.letters.append(self._letter(given, int(places[row]), reason))
        return rows if len(rows) else None

    def _letter(self, given: pa.Table, row: int, reason: str) -> dict[str, Any]:
        """The dead letter of an answer that the stage cannot read; its value is the answer."""
        value = given.slice(row, 1).drop_columns([ROW_NUMBER]).to_pylist()[0]
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
