"""The fused edge: rows to partials in DuckDB statements, usually one.

For each bundle, the statement filters, projects, joins small tables, cuts event time into slices and aggregates by
(key, slice), in columns and without a Python loop. If SQL cannot express the window or the aggregate (sketches, count
windows), the statement stops before them, and `panes.lift` does the rest. A row expression that DuckDB's SQL cannot
express with Spark's meaning is refused with the reason (`CannotFuseError`), and the query runs natively instead.

A step that runs in Python (`map`, `explode`) divides the work: one statement before it, one after it.

With the partials, the edge returns the event times of the bundle, which advance the watermark; rows without an event
time, or with one that is too far ahead of the log time, become dead letters. So does a row for which an expression has
no value: it carries the number of the expression past every later filter and join, and is separated at the end. An
expression that always has a value adds no such cost.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.edge.calls import Calls
from millrace.edge.connection import ROW_NUMBER, Prepared
from millrace.edge.decode import MISFIT
from millrace.edge.partials import AT, NotInSqlError, partials_of, slice_of
from millrace.edge.staged import BAD, SIDE, Staged, Stages, ahead, may_fail
from millrace.edge.tables import columns_of
from millrace.edge.taken import Taken
from millrace.formats.sql import quoted, to_duckdb
from millrace.model import operators
from millrace.model.clock import Untimely
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME
from millrace.model.evaluate import no_value
from millrace.model.expression import Expression
from millrace.model.query import Computed, Query
from millrace.model.stream import (
    AnswerTime,
    EventTime,
    Join,
    JoinStream,
    Source,
    Stream,
    find_event_time,
    is_guarded,
)
from millrace.model.typed import ColumnOf
from millrace.model.watermark import Punctuated, Seen
from millrace.model.window import Custom
from millrace.panes.columns import Columns
from millrace.sources.bundle import LOGGED

IsLate: TypeAlias = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""Which slices are too late."""
Finished: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], Callable[[Columns], Columns]]
"""Columns of a statement, and the partial columns that a function makes of them."""

_NEWEST, _CLOSED = "__newest", "__closed"
_MOST_TIMES = 4096


class Fused:
    """One source of a query, or of a plain stream, compiled to statements."""

    def __init__(
        self,
        of: Query | Stream,
        source: Source,
        tables: Mapping[str, pa.Table] | None = None,
        ordered: bool = False,
        logged: bool = False,
        decoded: str = "__rows",
        numbered: bool = False,
        lifts: str | None = None,
    ) -> None:
        """Write the statements. Raises CannotFuseError with the reason if there are none.

        `tables` holds the current rows of tables that may change, by name; without it, they are read. If `ordered`, the
        rows of a plain stream are in the order of arrival; if `logged`, they have the log times of their records. If
        `take` receives records that are not decoded yet, `decoded` is the query that decodes them. If `numbered`, the
        rows of a plain stream have the number of the row that each comes from. With `lifts`, the reason why, rows of a
        query are not aggregated.
        """
        self._decoded = decoded
        stream = of.stream if isinstance(of, Query) else of
        self._is_logged = logged or is_guarded(stream)
        self._decodes_all: bool | None = None
        self._given = tables
        self.lifts = lifts
        """The reason why the statement returns rows to be lifted; None if it returns partials."""
        self._stream_of = stream
        # If no operator drops rows between event time and aggregate, one statement computes both.
        self._tells = isinstance(of, Query) and isinstance(of.stream, EventTime) and not of.stream.estimator.needs_times
        self._is_aggregated = isinstance(of, Query)
        self._is_numbered = numbered
        self._marked: Staged | None = None
        """The query whose rows may be marked as bad; None if no expression can fail."""
        self._finished: list[Finished] = []
        self._sliced = ""
        """For partials: the query for the number and the slice of each row; it is NULL for a row that is in none."""
        if not isinstance(of, Query):
            order = f" ORDER BY {SIDE}, {ROW_NUMBER}" if ordered else ""
            staged = self._staged(source)
            self._marked = staged if staged.is_marked else None
            names = [*map(quoted, of.schema.names), *([LOGGED] if logged else [])]
            names += [ROW_NUMBER] if staged.is_marked or numbered else []
            names += [BAD] if staged.is_marked else []
            self.statement = f"SELECT {', '.join(names)} FROM ({staged.sql}){order}"
            return
        if self.lifts is None:
            try:
                self.statement = self._aggregated(of, self._staged(source))
            except NotInSqlError as error:
                self.lifts = str(error)
        if self.lifts is not None:
            self._tells = self._is_aggregated = False
            self.statement = self._unaggregated(of, self._staged(source))

    def _staged(self, source: Source) -> Staged:
        self._stages = Stages(self._decoded, self._tells, self._is_logged)
        return self._stages.rows(self._stream_of, source)

    @property
    def hidden(self) -> list[str]:
        """The hidden columns that `take` needs in the rows, and adds if they are missing."""
        return [ROW_NUMBER, *([LOGGED] if self._is_logged else [])]

    @property
    def has_tables(self) -> bool:
        """Whether the statement joins tables."""
        return bool(self._stages.joins)

    @property
    def is_one_statement(self) -> bool:
        """Whether one statement is enough for a bundle without dead letters."""
        return not self._stages.calls and (self._tells or not self._stages.timed)

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements that run for a bundle without dead letters; a step in Python follows each but the last."""
        return (*(call.statement for call in self._stages.calls), self.statement)

    def decodes_all(self, rows: pa.Table) -> bool:
        """Whether the statement decodes every record, given records such as these.

        DuckDB skips work that does not change the answer: decoding values, if they are only counted.
        """
        if self._decodes_all is None:
            with self._prepared.over(self._placed(rows)):
                self._decodes_all = MISFIT in self._prepared.plan(self.statement)
        return self._decodes_all

    @property
    def event_time(self) -> EventTime | None:
        """The node that assigns event time to the rows of this source."""
        return self._stages.timed[0][0] if self._stages.timed else None

    def take(self, rows: pa.Table, late: IsLate | None = None) -> Taken:
        """Process a bundle. With `late`, which tells the slices that are too late, find the rows of those partials."""
        placed = self._placed(rows)
        with self._prepared.over(placed) as ask:
            if not self._stages.calls:
                return self._taken(ask, late)
            with self._calls.made(placed, ask) as traced:
                return traced.back(self._taken(ask, late))

    def _taken(self, ask: Callable[[str], duckdb.DuckDBPyRelation], late: IsLate | None) -> Taken:
        taken = self._all_taken(ask)
        if late is None or not self._is_aggregated or not len(taken.rows):
            return taken
        slices = taken.rows["slice"].to_numpy()
        is_late = late(slices)
        if not is_late.any():
            return taken
        asked = f"SELECT {ROW_NUMBER}, slice FROM ({self._sliced}) WHERE slice <= {slices[is_late].max()}"
        found = ask(asked).to_arrow_table()
        found = found.filter(pa.array(late(found["slice"].to_numpy())))
        return replace(taken, late=tuple(zip(*found.to_pydict().values(), strict=True)))

    def _all_taken(self, ask: Callable[[str], duckdb.DuckDBPyRelation]) -> Taken:
        made = self._whole(ask(self.statement).to_arrow_table())
        if self._tells:
            return self._told(ask, made)
        good, bad = self._apart(ask, made)
        seen, timeless = self._times(ask)
        return Taken(good, seen, timeless, bad)

    def _whole(self, made: pa.Table) -> pa.Table:
        """The result of the statement with all partial columns."""
        for given, names, finish in self._finished:
            columns = finish([made[name].combine_chunks() for name in given])
            made = made.drop_columns(list(given))
            for name, column in zip(names, columns, strict=True):
                made = made.append_column(name, column)
        return made

    def _placed(self, rows: pa.Table) -> pa.Table:
        for name in self.hidden:
            if name not in rows.column_names:
                added = np.arange(len(rows)) if name == ROW_NUMBER else np.full(len(rows), END_OF_TIME)
                rows = rows.append_column(name, pa.array(added))
        return rows

    def _apart(
        self, ask: Callable[[str], duckdb.DuckDBPyRelation], made: pa.Table
    ) -> tuple[pa.Table, tuple[tuple[int, str], ...]]:
        """The results of the good rows, and the numbers of the bad rows with the reasons."""
        if self._marked is None:
            return made, ()
        if self._is_aggregated:
            good = made["slice"].is_valid()
            bad = self._bad(ask) if made["slice"].null_count else ()
            return made.filter(good), bad
        good = made[BAD].is_null()
        failed = made.filter(pc.invert(good)).select([ROW_NUMBER, BAD])
        unneeded = [BAD] if self.lifts or self._is_numbered else [BAD, ROW_NUMBER]
        return made.filter(good).drop_columns(unneeded), self._reasons(zip(*failed.to_pydict().values(), strict=True))

    def _bad(self, ask: Callable[[str], duckdb.DuckDBPyRelation]) -> tuple[tuple[int, str], ...]:
        """The numbers of the rows for which an expression has no value, with the reasons."""
        if self._marked is None:
            return ()
        found = f"SELECT DISTINCT {ROW_NUMBER}, {BAD} FROM ({self._marked.sql}) WHERE {BAD} IS NOT NULL"
        return self._reasons(ask(found).fetchall())

    def _reasons(self, found: Iterable[tuple[int, int]]) -> tuple[tuple[int, str], ...]:
        return tuple((place, no_value(self._stages.tried[number].sql)) for place, number in sorted(set(found)))

    @cached_property
    def _prepared(self) -> Prepared:
        joined = {name: self._rows_of(join) for name, join in self._stages.joins.items()}
        return Prepared({**joined, **self._calls.tables})

    @cached_property
    def _calls(self) -> Calls:
        return Calls(self._stages.calls, self._stages.tried)

    def _rows_of(self, join: Join) -> pa.Table:
        """The current rows of a table; those of a table that may change are given, or else read."""
        if join.table.rows or self._given is None:
            return columns_of(join.table, join.place)
        return self._given[join.table.name]

    def _told(self, ask: Callable[[str], duckdb.DuckDBPyRelation], made: pa.Table) -> Taken:
        """The result from partials that also hold event times; rows that have no valid one are in the slice NULL."""
        newest, closed = (pc.max(made[name]).as_py() for name in (_NEWEST, _CLOSED))
        seen = Seen(*(BEGINNING_OF_TIME if each is None else each for each in (newest, closed)))  # type: ignore[arg-type]
        rows = made.drop_columns([_NEWEST, _CLOSED])
        if not rows["slice"].null_count:
            return Taken(rows, seen)
        good = rows.filter(rows["slice"].is_valid())
        return Taken(good, seen, self._timeless(ask), self._bad(ask))

    def _timeless(self, ask: Callable[[str], duckdb.DuckDBPyRelation]) -> tuple[tuple[int, Untimely], ...]:
        """The numbers of the rows that have no event time, or one that is too far ahead, with the reasons."""
        node, above = self._stages.timed[0]
        at = ", ".join(f"epoch_us({quoted(name)})" for name in node.watched)
        logged = LOGGED if self._is_logged else "0"
        asked = f"SELECT {ROW_NUMBER}, {logged}, {at} FROM (SELECT * FROM {above.good}) WHERE {_timeless(node)}"
        found = {place: node.untimely(at, logged) for place, logged, *at in ask(asked).fetchall()}
        return tuple((place, why) for place, why in found.items() if why is not None)

    def _times(self, ask: Callable[[str], duckdb.DuckDBPyRelation]) -> tuple[Seen, tuple[tuple[int, Untimely], ...]]:
        """The event times of the bundle, and the numbers of the rows that have no valid one, with the reasons."""
        if not self._stages.timed:
            return Seen(), ()
        node, above = self._stages.timed[0]
        at, timeless = f"epoch_us({quoted(node.column)})", _timeless(node)
        good = f"(SELECT * FROM (SELECT * FROM {above.good}) WHERE ({timeless}) IS NOT TRUE)"
        marks = ", ".join(f"max({each}) FILTER (({timeless}) IS NOT TRUE)" for each in (at, _closing(node)))
        asked = f"SELECT {marks}, count(*) FILTER ({timeless}) FROM {above.good}"
        ((newest, closed, many),) = ask(asked).fetchall()
        times: Mapping[int, int] = {}
        if node.estimator.needs_times and newest is not None:
            counted = ask(f"SELECT {at} AS t, count(*) AS n FROM {good} WHERE {at} IS NOT NULL GROUP BY {at}")
            times = _rounded(newest, counted.to_arrow_table())
        newest, closed = (BEGINNING_OF_TIME if each is None else each for each in (newest, closed))
        return Seen(newest, closed, times), self._timeless(ask) if many else ()

    def _aggregated(self, query: Query, staged: Staged) -> str:
        event_time = find_event_time(query.stream)
        keys = [f"{_key(query, name)} AS {key}" for name, key in zip(query.keys, query.key_columns, strict=True)]
        timed = _timed(event_time, staged, is_checked=not self._tells)
        argued, computed = self._argued(query, timed)
        partials: list[str] = []
        finished: list[Finished] = []
        near: dict[str, str] = {}
        for each, names in zip(computed, query.partial_columns, strict=True):
            written, given = partials_of(each, near), names
            if written.finish is not None:
                given = tuple(f"__{names[0]}_{number}" for number in range(len(written.sql)))
                finished.append((given, names, written.finish))
            partials += [f"{sql} AS {name}" for sql, name in zip(written.sql, given, strict=True)]
        slice_ = slice_of(query.windowing)
        tells = self._tells and isinstance(event_time, EventTime)
        if tells or argued.is_marked:
            good = [f"{AT} IS NOT NULL"] if tells else []
            good += [f"{BAD} IS NULL"] if argued.is_marked else []
            slice_ = f"CASE WHEN {' AND '.join(good)} THEN {slice_} END"
        if tells and isinstance(event_time, EventTime):
            closes = isinstance(event_time.estimator.policy, Punctuated)
            closed = f"max({_CLOSED})" if closes else "CAST(NULL AS BIGINT)"
            partials += [f"max({AT}) AS {_NEWEST}", f"{closed} AS {_CLOSED}"]
        self._marked, self._finished = argued if argued.is_marked else None, finished
        self._sliced = f"SELECT {ROW_NUMBER}, {slice_} AS slice FROM ({argued.sql})"
        chosen = [*keys, f"{slice_} AS slice", "count(*) AS elements", *partials]
        added = [f"{sql} AS {name}" for sql, name in near.items()]
        rows = f"SELECT *, {', '.join(added)} FROM ({argued.sql})" if added else argued.sql
        return (
            f"SELECT {', '.join(chosen)} FROM ({rows}) "
            f"GROUP BY {', '.join(str(place + 1) for place in range(len(keys) + 1))}"
        )

    def _argued(self, query: Query, rows: Staged) -> tuple[Staged, list[Computed]]:
        """Rows with the fallible arguments of aggregates as columns, and the aggregates over those columns."""
        columns: dict[str, Expression] = {}
        computed = []
        for number, each in enumerate(query.computed):
            arguments = list(each.arguments)
            for place, argument in enumerate(arguments):
                if may_fail(argument):
                    name = f"__a{number}_{place}"
                    columns[name] = argument
                    arguments[place] = replace(argument, columns=(name,), node=ColumnOf((name,), argument.type))
            computed.append(replace(each, arguments=tuple(arguments)))
        if not columns:
            return rows, computed
        return self._stages.computed(
            rows, query.stream.schema.names, list(columns.items()), [AT, _CLOSED], f"{AT} IS NOT NULL"
        ), computed

    def _unaggregated(self, query: Query, staged: Staged) -> str:
        """The input of `panes.lift`, in the order of arrival: keys, time, arguments; for a user's windows, the row.

        It includes the number of each row, to identify rows for which a user's function has no value.
        """
        event_time = find_event_time(query.stream)
        argued, computed = self._argued(query, _timed(event_time, staged, is_checked=True))
        chosen = [f"{quoted(name)} AS {key}" for name, key in zip(query.keys, query.key_columns, strict=True)]
        chosen.append(f"{AT} AS at")
        for number, each in enumerate(computed):
            chosen += [f"{to_duckdb(argument)} AS a{number}_{place}" for place, argument in enumerate(each.arguments)]
        if isinstance(query.windowing, Custom):
            chosen += [f"{quoted(name)} AS {quoted(f'row_{name}')}" for name in query.stream.schema.names]
        self._marked = argued if argued.is_marked else None
        own = [ROW_NUMBER, BAD] if argued.is_marked else [ROW_NUMBER]
        return f"SELECT {', '.join([*own, *chosen])} FROM ({argued.sql}) ORDER BY {SIDE}, {ROW_NUMBER}"


def columns_read(of: Query | Stream) -> set[str]:
    """The names of all columns that a query reads, from its source or computed."""
    if isinstance(of, JoinStream):
        return {name for side in of.sides for name in columns_read(side)}
    if not isinstance(of, Query):
        return {*of.schema.names, *operators.columns_read(of)}
    if isinstance(of.windowing, Custom):  # a user's function may read any column
        return {*of.stream.schema.names, *operators.columns_read(of.stream)}
    arguments = (argument for computed in of.computed for argument in computed.arguments)
    return {*of.keys, *(name for each in arguments for name in each.columns), *operators.columns_read(of.stream)}


def _timeless(node: EventTime) -> str:
    """The condition for rows that have no valid event time, and need one: a row that only closes an epoch does not."""
    missing = " AND ".join(f"{quoted(name)} IS NULL" for name in node.watched)
    return f"({missing}) OR {ahead(node)}"


def _closing(node: EventTime) -> str:
    policy = node.estimator.policy
    return f"epoch_us({quoted(policy.column)})" if isinstance(policy, Punctuated) else "CAST(NULL AS BIGINT)"


def _timed(event_time: EventTime | AnswerTime | None, rows: Staged, is_checked: bool) -> Staged:
    """Rows with their event time and the end of the epoch they close, in microseconds; a bad row has neither.

    Nor does a row that is too far ahead of the clock, unless it `is_checked` already that there is none.
    """
    at = "0" if event_time is None else f"epoch_us({quoted(event_time.column)})"
    closes = _closing(event_time) if isinstance(event_time, EventTime) else "NULL"
    if isinstance(event_time, EventTime) and event_time.ahead is not None and not is_checked:
        at, closes = (f"CASE WHEN {ahead(event_time)} THEN NULL ELSE {each} END" for each in (at, closes))
    if rows.is_marked and event_time is not None:
        at, closes = (f"CASE WHEN {BAD} IS NULL THEN {each} END" for each in (at, closes))
    return rows.then(f"SELECT *, {at} AS {AT}, CAST({closes} AS BIGINT) AS {_CLOSED} FROM ({rows.sql})")


def _rounded(newest: int, counted: pa.Table) -> Mapping[int, int]:
    """The number of events at each time; if there are too many times, their ages are rounded to three digits."""
    times, counts = counted["t"].to_numpy(), counted["n"].to_numpy()
    if len(times) > _MOST_TIMES:
        ago = newest - times
        unit = 10 ** np.maximum(0, np.floor(np.log10(np.maximum(ago, 1))).astype(np.int64) - 2)
        times, same = np.unique(newest - -(-ago // unit) * unit, return_inverse=True)
        counts = np.bincount(same, counts).astype(np.int64)
    return dict(zip(times.tolist(), counts.tolist(), strict=True))


def _key(query: Query, name: str) -> str:
    """A key as it is compared: -0.0 is 0.0, and there is one NaN."""
    kind = query.stream.schema.type_of(name)
    if kind not in ("DOUBLE", "FLOAT"):
        return quoted(name)
    return f"CASE WHEN isnan({quoted(name)}) THEN CAST('nan' AS {kind}) ELSE {quoted(name)} + 0.0 END"
