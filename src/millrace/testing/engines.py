"""The engines that run transcripts: one interface for the slow reference and the fast pane engine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.model.changes import Change
from millrace.model.duration import END_OF_TIME, to_instant
from millrace.model.graph import JoinEngine
from millrace.model.joining import JoinSpec
from millrace.model.pane import Failure, Pane
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.model.rows import RowDeadLetter, RowEvaluator
from millrace.model.window import Custom, Row, Window
from millrace.panes.advance import TIMINGS, Panes, PaneState
from millrace.panes.columns import RowsFailedError
from millrace.panes.joining import Joining, JoinState
from millrace.panes.late import LateJudge
from millrace.panes.lift import assigned, lift
from millrace.panes.sides import AT, DIFF


class Engine(Protocol):
    """An engine that can run a transcript; `Reference` documents the members."""

    @property
    def dropped(self) -> int: ...  # noqa: D102
    @property
    def event_time(self) -> int: ...  # noqa: D102
    @property
    def dead(self) -> list[RowDeadLetter]: ...  # noqa: D102
    def input(self, rows: Iterable[Row]) -> list[Pane]: ...  # noqa: D102
    def watermark(self, at: int) -> list[Pane]: ...  # noqa: D102
    def clock(self, now: int) -> list[Pane]: ...  # noqa: D102
    def advance(self, now: int) -> list[Pane]: ...  # noqa: D102


class PaneEngine:
    """`millrace.panes`; the row operators of the query are evaluated as in the reference."""

    def __init__(
        self,
        query: Query,
        tables: Mapping[str, Iterable[Row]] | None = None,
        now: int = 0,
        changes: bool = False,
        timed: bool = False,
    ) -> None:
        """Start without input. `tables` holds the rows of tables that the query reads from a file.

        With `changes`, input comes by `change` only. With `timed`, panes have their event time.
        """
        self._query = query
        self._panes = Panes(query, changes, timed)
        self.state = PaneState(now=now)
        self.failed: list[Failure] = []
        """The firings whose answer has no value."""
        self.rows = RowEvaluator(query.stream, tables or {}, now)

    @property
    def dropped(self) -> int:
        """The number of elements that came too late for every window."""
        return self.state.dropped

    @property
    def event_time(self) -> int:
        """The watermark."""
        return self.state.watermark

    @property
    def dead(self) -> list[RowDeadLetter]:
        """The rows that could not be processed."""
        return self.rows.dead

    def input(self, rows: Iterable[Row], source: str | None = None) -> list[Pane]:
        """Process one bundle."""
        return self._advance(self._partials(rows, source), self.state.watermark, self.state.now)

    def change(self, changes: Iterable[Change]) -> list[Pane]:
        """Process one bundle of changes."""
        given_values = ((change, self.rows.arguments(change.row, self._query.computed)) for change in changes)
        lifted = self._lifted([(change, values) for change, values in given_values if values is not None])
        return self._advance(lifted, self.state.watermark, self.state.now)

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace the rows of a table that the query reads from a file or a view."""
        self.rows.table(name, rows)

    def watermark(self, at: int) -> list[Pane]:
        """Advance the watermark."""
        return self._advance(None, at, self.state.now)

    def clock(self, now: int) -> list[Pane]:
        """Advance processing time."""
        return self._advance(None, self.state.watermark, self.rows.clock(now))

    def advance(self, now: int) -> list[Pane]:
        """Advance the watermark by the query's own policy, and processing time to `now`."""
        after = self.rows.clock(now)
        return self._advance(None, self.rows.watermark(after), after)

    def micro_batch(self, rows: Iterable[Row], now: int, source: str | None = None) -> list[Pane]:
        """Process input, watermark and clock in one call."""
        partials = self._partials(rows, source)
        after = self.rows.clock(now)
        return self._advance(partials, self.rows.watermark(after), after)

    def end(self) -> list[Pane]:
        """End the input: the watermark advances to the end of time."""
        return self.watermark(END_OF_TIME)

    def _advance(self, partials: pa.Table | None, watermark: int, now: int) -> list[Pane]:
        self.state, tables = self._panes.advance(self.state, partials, watermark, now)
        self.failed += [] if self.state.failed is None else as_failures(self.state.failed, self._query)
        return [pane for table in tables for pane in as_panes(table, self._query)]

    def _partials(self, given: Iterable[Row], source: str | None) -> pa.Table | None:
        taken = self.rows.take(given, source, self.state.watermark, self.state.now)
        event_time = self._query.timed_by
        times = [0 if event_time is None else to_instant(row[event_time.column]) for row in taken]
        given_values = (
            (row, at, self.rows.arguments(row, self._query.computed)) for row, at in zip(taken, times, strict=True)
        )
        return self._lifted([(Change(row, at), values) for row, at, values in given_values if values is not None])

    def _lifted(self, valued: list[tuple[Change, tuple[tuple[Any, ...], ...]]]) -> pa.Table | None:
        """Partials from rows and the arguments of their aggregates; rows that fail become dead letters."""
        if not valued:
            return None
        try:
            return self._all_lifted(valued)
        except RowsFailedError as error:
            for number, reason in error.rows.items():
                row = valued[number][0].row
                key = tuple(row[name] for name in self._query.keys)
                self.rows.dead.append(RowDeadLetter(row, reason + self._query.of_key(key)))
            return self._lifted([each for number, each in enumerate(valued) if number not in error.rows])

    def _keep_late(self, rows: list[Row], times: npt.NDArray[np.int64], partials: pa.Table) -> None:
        """Make dead letters of the rows that are too late, if the query keeps them."""
        if self._query.keeps_late:
            late = LateJudge(self._query, "the query", self.state.watermark).of_elements(times, partials)
            self.rows.dead += [RowDeadLetter(rows[number], letter.reason) for number, letter in late.items()]

    def _all_lifted(self, valued: list[tuple[Change, tuple[tuple[Any, ...], ...]]]) -> pa.Table:
        schema = self._query.stream.schema
        rows, times = [change.row for change, _ in valued], [change.at for change, _ in valued]
        keys = [pa.array([row[name] for row in rows], arrow_type(schema.type_of(name))) for name in self._query.keys]
        arguments = [
            [
                pa.array([values[number][place] for _, values in valued], arrow_type(argument.type))
                for place, argument in enumerate(computed.arguments)
            ]
            for number, computed in enumerate(self._query.computed)
        ]
        windows = None
        if isinstance(self._query.windowing, Custom):
            windows = assigned(self._query.windowing, times, rows)
        at = np.array(times, np.int64)
        diffs = np.array([change.diff for change, _ in valued], np.int64) if self._panes.changes else None
        partials = lift(self._panes, keys, at, arguments, windows, diffs)
        self._keep_late(rows, at, partials)
        return partials


def as_panes(table: pa.Table, query: Query) -> list[Pane]:
    """The panes in a table."""
    columns = {name: table[name].to_pylist() for name in table.column_names}

    def pane(row: int) -> Pane:
        values: dict[str, Any] = {
            computed.name: columns[f"value{number}"][row] for number, computed in enumerate(query.computed)
        }
        return Pane(
            tuple(columns[f"key{number}"][row] for number in range(len(query.keys))),
            Window(columns["start"][row], columns["end"][row]),
            values,
            TIMINGS[columns["timing"][row]],
            columns["index"][row],
            columns["last"][row],
            columns["diff"][row],
            columns["at"][row] if "at" in columns else 0,
        )

    return [pane(row) for row in range(len(table))]


def as_failures(table: pa.Table, query: Query) -> list[Failure]:
    """The failures in a table."""
    keys = query.key_columns
    return [
        Failure(tuple(row[key] for key in keys), Window(row["start"], row["end"]), row["reason"])
        for row in table.to_pylist()
    ]


class PaneJoin(JoinEngine):
    """The columnar engine of a join."""

    def __init__(self, spec: JoinSpec) -> None:
        """Start with no input."""
        self._spec, self._joining, self._state = spec, Joining(spec), JoinState()

    @property
    def dropped(self) -> int:
        """The number of changes of both sides that came too late."""
        return sum(self._state.dropped)

    def step(self, left: Sequence[Change], right: Sequence[Change], marks: tuple[int, int]) -> list[Change]:
        """The answers to one bundle of both sides, then to their watermarks."""
        tables = [self._table(side, changes) for side, changes in enumerate((left, right))]
        self._state, said = self._joining.advance(self._state, tables[0], tables[1], marks)
        names = self._spec.schema.names
        return [Change({name: row[name] for name in names}, row[AT], row[DIFF]) for row in said.to_pylist()]

    def _table(self, side: int, changes: Sequence[Change]) -> pa.Table | None:
        columns = {
            column.name: pa.array([change.row[column.name] for change in changes], arrow_type(column.type))
            for column in self._spec.columns(side)
        }
        columns[AT] = pa.array([change.at for change in changes], pa.int64())
        columns[DIFF] = pa.array([change.diff for change in changes], pa.int8())
        return pa.table(columns) if changes else None


def pane_engine(query: Query, tables: Mapping[str, Iterable[Row]], now: int) -> PaneEngine:
    """The engine of a stage in a graph."""
    return PaneEngine(query, tables, now, changes=query.reads_retractions, timed=True)


ENGINES: dict[str, Callable[[Query], Engine]] = {"reference": Reference, "panes": PaneEngine}
