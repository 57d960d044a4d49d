"""The steps of an edge that run in Python, between DuckDB statements.

Each takes the answer of a statement and gives its rows a name for later statements. A row that it makes has a new
number, so that rows keep their order; `Traced` maps the numbers back to the records of the bundle.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.edge.connection import ROW_NUMBER, Given
from millrace.edge.staged import BAD, SIDE, Call
from millrace.edge.taken import Taken
from millrace.model.applied import Ints, apply
from millrace.model.arrow import arrow_schema
from millrace.model.evaluate import no_value
from millrace.model.expression import Expression


@dataclass(slots=True)
class Traced:
    """The rows that the steps of a bundle have made so far."""

    places: Ints
    """The index of the record that each row comes from, by the number of the row."""
    bad: list[tuple[int, str]]
    """The indexes of the records that have a row without a value, with the reasons."""

    def back(self, taken: Taken) -> Taken:
        """A result with the numbers of records instead of those of rows."""
        rows = taken.rows
        if ROW_NUMBER in rows.column_names:
            place = rows.schema.get_field_index(ROW_NUMBER)
            rows = rows.set_column(place, ROW_NUMBER, pa.array(self.places[rows[ROW_NUMBER].to_numpy()]))
        return replace(
            taken,
            rows=rows,
            timeless=tuple((int(self.places[number]), why) for number, why in taken.timeless),
            bad=(*self.bad, *((int(self.places[number]), reason) for number, reason in taken.bad)),
            late=tuple((int(self.places[number]), slice_) for number, slice_ in taken.late),
        )


class Calls:
    """The steps in Python between the statements of one edge."""

    def __init__(self, calls: Sequence[Call], tried: Sequence[Expression]) -> None:
        """Prepare their tables. `tried` holds the expressions that may have no value, by number."""
        self._calls, self._tried = calls, tried
        self.tables = {
            call.name: Given(
                pa.schema([*arrow_schema(call.step.schema), *(pa.field(name, pa.int64()) for name in call.hidden)])
            )
            for call in calls
        }
        """The rows that each step made, by name, as tables for DuckDB."""

    @contextmanager
    def made(self, rows: pa.Table, ask: Callable[[str], duckdb.DuckDBPyRelation]) -> Iterator[Traced]:
        """Run the steps over a bundle; inside the block, later statements read what they made."""
        traced = Traced(np.arange(1 + (pc.max(rows[ROW_NUMBER]).as_py() or 0)), [])
        try:
            for call in self._calls:
                self.tables[call.name].rows = self._made(call, ask(call.statement).to_arrow_table(), traced)
            yield traced
        finally:
            for table in self.tables.values():
                table.rows = None

    def _made(self, call: Call, taken: pa.Table, traced: Traced) -> pa.Table:
        taken = _in_order(taken)
        if call.is_marked:
            marks = taken[BAD]
            marked = taken.filter(marks.is_valid())
            for number, mark in zip(marked[ROW_NUMBER].to_pylist(), marked[BAD].to_pylist(), strict=True):
                traced.bad.append((int(traced.places[number]), no_value(self._tried[mark].sql)))
            taken = taken.filter(marks.is_null())
        applied = apply(call.step, taken)
        places = traced.places[taken[ROW_NUMBER].to_numpy()]
        traced.bad += [(int(places[row]), reason) for row, reason in applied.failed.items()]
        first, many = len(traced.places), len(applied.origins)
        traced.places = np.concatenate([traced.places, places[applied.origins]])
        hidden = taken.select(call.hidden).take(pa.array(applied.origins))
        numbers = hidden.schema.get_field_index(ROW_NUMBER)
        hidden = hidden.set_column(numbers, ROW_NUMBER, pa.array(np.arange(first, first + many)))
        columns = [*applied.rows.columns, *(column.cast(pa.int64()) for column in hidden.columns)]
        return pa.table(columns, names=[*applied.rows.column_names, *call.hidden])


def _in_order(rows: pa.Table) -> pa.Table:
    """Rows in the order of arrival, which most statements keep."""
    sides, numbers = (rows[name].to_numpy() for name in (SIDE, ROW_NUMBER))
    if (np.diff(sides) == 0).all() and (np.diff(numbers) >= 0).all():
        return rows
    return rows.take(pa.array(np.lexsort((numbers, sides))))
