"""The fused edge: rows to partials in one DuckDB statement.

For each bundle: filter, project, join small tables, cut event time into slices and aggregate by (key,
slice), in columns and without a Python loop. Where SQL has no words for the window or the aggregate (sketches, count
windows), the statement stops before them, and `panes.lift` does the rest. A row expression that cannot be said in
DuckDB's SQL with Spark's meaning is refused with the reason (`CannotFuseError`), and the query runs natively instead.

Beside the partials goes what the bundle shows of event time, which carries the watermark; rows without an event time
are set aside. So is a row for which an expression has no value: from there on it carries the number of the expression
past every filter and join, and is told apart from the rest at the end. An expression that always has a value costs
nothing of this.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.edge.connection import PLACE, Prepared
from millrace.edge.decode import MISFIT
from millrace.edge.dedup import deduped
from millrace.edge.partials import AT, NotInSqlError, partials_of, slice_of
from millrace.edge.tables import columns_of
from millrace.log.sql import CannotFuseError, quoted, to_duckdb, tried
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.evaluate import no_value
from millrace.model.expression import Expression
from millrace.model.query import Computed, Query
from millrace.model.stream import (
    Dedup,
    EventTime,
    Join,
    Select,
    Source,
    Stream,
    Table,
    Union,
    Where,
    WithColumns,
    find_event_time,
    parents,
)
from millrace.model.typed import ColumnOf, is_fallible
from millrace.model.watermark import Punctuated, Seen
from millrace.model.window import Custom

_SIDE = "__side"
"""By which side of a union it came: all rows of the first are before those of the second."""
_NEWEST, _CLOSED = "__newest", "__closed"
_BAD, _MATCHED = "__bad", "__matched"
_MOST_TIMES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What became of a bundle."""

    rows: pa.Table
    """Partials, or rows to be lifted; for a plain stream, its rows."""
    seen: Seen = field(default_factory=Seen)
    timeless: tuple[int, ...] = ()
    """The places of the rows that have no event time, though they need one."""
    bad: tuple[tuple[int, str], ...] = ()
    """The places of the rows that have no value somewhere, and why."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A query for rows, on the way."""

    sql: str
    is_marked: bool = False
    """Whether some of its rows may have no value: `__bad` is then the number of the expression that has none."""

    @property
    def own(self) -> list[str]:
        """The columns that are not the user's."""
        return [PLACE, _SIDE, *([_BAD] if self.is_marked else [])]

    @property
    def good(self) -> str:
        """The rows that have a value for everything so far, as what stands after FROM."""
        return f"({self.sql})" + (f" WHERE {_BAD} IS NULL" if self.is_marked else "")

    def kept(self, condition: str) -> str:
        """The rows for which a condition holds, and those that are only on their way to be set aside."""
        return f"({condition}) OR {_BAD} IS NOT NULL" if self.is_marked else condition


class Fused:
    """One source of a query, or of a plain stream, compiled to statements."""

    def __init__(
        self,
        of: Query | Stream,
        source: Source,
        tables: Mapping[str, pa.Table] | None = None,
        ordered: bool = False,
        decoded: str = "__rows",
    ) -> None:
        """Write the statements. Raises CannotFuseError with the reason if there are none.

        `tables` holds what tables that may change now hold, by name; without it, they are read. The rows of a plain
        stream are in the order of arrival if that is asked for. Where `take` is given records that are not decoded
        yet, `decoded` is the query that decodes them.
        """
        self._decoded = decoded
        self._decodes_all: bool | None = None
        self._given = tables
        self.lifts: str | None = None
        """Why the statement gives rows that are still to be lifted, and not partials."""
        self._stream_of = of.stream if isinstance(of, Query) else of
        # Where nothing leaves rows out between the event time and the aggregate, one statement does for both.
        self._tells = isinstance(of, Query) and isinstance(of.stream, EventTime) and not of.stream.estimator.needs_times
        self._marked: Staged | None = None
        """The rows of which some may have no value, if there may be any."""
        if not isinstance(of, Query):
            order = f" ORDER BY {_SIDE}, {PLACE}" if ordered else ""
            staged = self._staged(source)
            self._marked = staged if staged.is_marked else None
            names = [*map(quoted, of.schema.names), *([PLACE, _BAD] if staged.is_marked else [])]
            self.statement = f"SELECT {', '.join(names)} FROM ({staged.sql}){order}"
            return
        try:
            self.statement = self._aggregated(of, self._staged(source))
        except NotInSqlError as error:
            self.lifts, self._tells = str(error), False
            self.statement = self._unaggregated(of, self._staged(source))

    def _staged(self, source: Source) -> Staged:
        self._tried: list[Expression] = []
        self.tables: dict[str, pa.Table] = {}
        self.looked_up: dict[str, pa.Table] = {}
        """The rows of tables that may change, by the name of the table."""
        self._timed: list[tuple[EventTime, Staged]] = []
        staged = self._stream(self._stream_of, source)
        if staged is None:
            raise CannotFuseError(f"source {source.name} is not part of the query")
        if len(self._timed) > 1:
            raise CannotFuseError(f"source {source.name} is read with several event times")
        return staged

    @property
    def is_one_statement(self) -> bool:
        """Whether a bundle is looked at once only, as long as none of its rows is set aside."""
        return self._tells or not self._timed

    def decodes_all(self, rows: pa.Table) -> bool:
        """Whether the statement looks at every record, given records such as these.

        DuckDB leaves out what does not change the answer: all values, if they are only counted.
        """
        if self._decodes_all is None:
            with self._prepared.over(_placed(rows)):
                self._decodes_all = MISFIT in self._prepared.plan(self.statement)
        return self._decodes_all

    @property
    def event_time(self) -> EventTime | None:
        """The node that says what event time is for this source."""
        return self._timed[0][0] if self._timed else None

    def take(self, rows: pa.Table) -> Taken:
        """What a bundle comes to."""
        with self._prepared.over(_placed(rows)) as ask:
            made = ask(self.statement).to_arrow_table()
            if self._tells:
                return self._told(ask, made)
            good, bad = self._apart(ask, made)
            return Taken(good, *self._times(ask), bad)

    def _apart(
        self, ask: Callable[[str], duckdb.DuckDBPyRelation], made: pa.Table
    ) -> tuple[pa.Table, tuple[tuple[int, str], ...]]:
        """What was made of the rows that have a value for everything; and the others, with why they have none."""
        if self._marked is None:
            return made, ()
        if "slice" in made.column_names:
            good = made["slice"].is_valid()
            bad = self._bad(ask) if made["slice"].null_count else ()
            return made.filter(good), bad
        good = made[_BAD].is_null()
        failed = made.filter(pc.invert(good)).select([PLACE, _BAD])
        unneeded = [_BAD] if self.lifts else [_BAD, PLACE]
        return made.filter(good).drop_columns(unneeded), self._reasons(zip(*failed.to_pydict().values(), strict=True))

    def _bad(self, ask: Callable[[str], duckdb.DuckDBPyRelation]) -> tuple[tuple[int, str], ...]:
        """The rows that have no value somewhere, and why."""
        if self._marked is None:
            return ()
        found = f"SELECT DISTINCT {PLACE}, {_BAD} FROM ({self._marked.sql}) WHERE {_BAD} IS NOT NULL"
        return self._reasons(ask(found).fetchall())

    def _reasons(self, found: Iterable[tuple[int, int]]) -> tuple[tuple[int, str], ...]:
        return tuple((place, no_value(self._tried[number].sql)) for place, number in sorted(set(found)))

    @cached_property
    def _prepared(self) -> Prepared:
        return Prepared(self.tables)

    def _told(self, ask: Callable[[str], duckdb.DuckDBPyRelation], made: pa.Table) -> Taken:
        """Partials that tell the time beside them; rows without an event time are in a slice that is NULL."""
        newest, closed = (pc.max(made[name]).as_py() for name in (_NEWEST, _CLOSED))
        seen = Seen(*(BEGINNING_OF_TIME if each is None else each for each in (newest, closed)))  # type: ignore[arg-type]
        rows = made.drop_columns([_NEWEST, _CLOSED])
        if not rows["slice"].null_count:
            return Taken(rows, seen)
        node, above = self._timed[0]
        timeless = ask(f"SELECT {PLACE} FROM (SELECT * FROM {above.good}) WHERE {_missing(node)}").fetchall()
        good = rows.filter(rows["slice"].is_valid())
        return Taken(good, seen, tuple(place for (place,) in timeless), self._bad(ask))

    def _times(self, ask: Callable[[str], duckdb.DuckDBPyRelation]) -> tuple[Seen, tuple[int, ...]]:
        """What the bundle shows of event time, and which rows have none."""
        if not self._timed:
            return Seen(), ()
        node, above = self._timed[0]
        at, missing = f"epoch_us({quoted(node.column)})", _missing(node)
        asked = f"SELECT max({at}), {_closes(node)}, count(*) FILTER ({missing}) FROM {above.good}"
        ((newest, closed, many),) = ask(asked).fetchall()
        good = f"(SELECT * FROM {above.good})"
        timeless = ask(f"SELECT {PLACE} FROM {good} WHERE {missing}").fetchall() if many else []
        times: Mapping[int, int] = {}
        if node.estimator.needs_times and newest is not None:
            counted = ask(f"SELECT {at} AS t, count(*) AS n FROM {good} WHERE {at} IS NOT NULL GROUP BY {at}")
            times = _rounded(newest, counted.to_arrow_table())
        newest, closed = (BEGINNING_OF_TIME if each is None else each for each in (newest, closed))
        return Seen(newest, closed, times), tuple(place for (place,) in timeless)

    def _stream(self, node: Stream, source: Source) -> Staged | None:
        """A stream as a query over the rows of one source; None if that source is not part of it."""
        if isinstance(node, Source):
            columns = ", ".join(map(quoted, node.schema.names))
            rows = f"SELECT {PLACE}, 0 AS {_SIDE}, {columns} FROM {self._decoded}"
            return Staged(rows) if node == source else None
        if isinstance(node, Union):
            return self._union(node, source)
        if not isinstance(node, Where | Select | WithColumns | Join | EventTime):
            raise CannotFuseError(f"{type(node).__name__.lower()} needs to remember rows")
        above = self._stream(node.parent, source)
        return None if above is None else self._step(node, above)

    def _union(self, node: Union, source: Source) -> Staged | None:
        many, found = len(node.parents), [self._stream(side, source) for side in node.parents]
        sides = [(number, side) for number, side in enumerate(found) if side is not None]
        if not sides:
            return None
        is_marked = any(side.is_marked for _, side in sides)
        names = ", ".join(map(quoted, (PLACE, *node.schema.names)))
        parts = []
        for number, side in sides:
            bad = f", {_BAD if side.is_marked else 'CAST(NULL AS INTEGER)'} AS {_BAD}" if is_marked else ""
            parts.append(f"SELECT {_SIDE} * {many} + {number} AS {_SIDE}, {names}{bad} FROM ({side.sql})")
        return Staged(" UNION ALL ".join(parts), is_marked)

    def _step(self, node: Where | Select | WithColumns | Join | EventTime, above: Staged) -> Staged:
        match node:
            case Where(condition=condition):
                return self._where(node, condition, above)
            case Select(columns=columns):
                return self._computed(above, (), columns)
            case WithColumns(parent=parent, columns=columns):
                kept = [name for name in parent.schema.names if name not in dict(columns)]
                made = self._computed(above, kept, columns)
                names = [*made.own, *map(quoted, node.schema.names)]  # which keeps the order of columns
                return Staged(f"SELECT {', '.join(names)} FROM ({made.sql})", made.is_marked)
            case Join(as_of=as_of):
                return self._join(node, above) if as_of is None else self._as_of(node, above, as_of)
            case EventTime(column=column):
                self._timed.append((node, above))
                if self._tells:
                    return above
                there = above.kept(f"{quoted(column)} IS NOT NULL")
                return Staged(f"SELECT * FROM ({above.sql}) WHERE {there}", above.is_marked)

    def _where(self, node: Where, condition: Expression, above: Staged) -> Staged:
        if not _may_fail(condition):
            return Staged(f"SELECT * FROM ({above.sql}) WHERE {above.kept(to_duckdb(condition))}", above.is_marked)
        made = self._computed(above, node.schema.names, (("__holds", condition),))
        names = ", ".join([*made.own, *map(quoted, node.schema.names)])
        return Staged(f"SELECT {names} FROM ({made.sql}) WHERE {made.kept('__holds')}", is_marked=True)

    def _computed(
        self, above: Staged, kept: Sequence[str], columns: Sequence[tuple[str, Expression]], more: Sequence[str] = ()
    ) -> Staged:
        """Rows with columns that are kept, and others that are computed; those that have no value are marked."""
        risky = {name: f"__t{number}" for number, (name, each) in enumerate(columns) if _may_fail(each)}
        chosen = [f"{_field(risky[name])} AS {quoted(name)}" if name in risky else
                  f"{to_duckdb(each)} AS {quoted(name)}" for name, each in columns]  # fmt: skip
        names = [PLACE, _SIDE, *more, *map(quoted, kept), *chosen]
        if not risky:
            own = [_BAD] if above.is_marked else []
            return Staged(f"SELECT {', '.join([*names, *own])} FROM ({above.sql})", above.is_marked)
        before = f" WHEN {_BAD} IS NOT NULL THEN {_BAD}" if above.is_marked else ""
        failed = "".join(
            f" WHEN {risky[name]} IS NULL THEN {self._number(each)}" for name, each in columns if name in risky
        )
        attempts = ", ".join(f"{tried(to_duckdb(each))} AS {risky[name]}" for name, each in columns if name in risky)
        # The numbers are given another name first, as DuckDB might take the one for the other.
        marked = f"SELECT *, CASE{before}{failed} END AS __failed FROM (SELECT *, {attempts} FROM ({above.sql}))"
        return Staged(f"SELECT {', '.join(names)}, __failed AS {_BAD} FROM ({marked})", is_marked=True)

    def _number(self, expression: Expression) -> int:
        """The number that marks a row that has no value for an expression."""
        self._tried.append(expression)
        return len(self._tried) - 1

    def _join(self, join: Join, above: Staged) -> Staged:
        names = ", ".join([*above.own, *map(quoted, join.schema.names)])
        same = ", ".join(map(quoted, join.on))
        table = self._table(join.table, join)
        if not above.is_marked or join.how == "left":
            kind = join.how.upper()
            return Staged(f"SELECT {names} FROM ({above.sql}) {kind} JOIN {table} USING ({same})", above.is_marked)
        found = f"({above.sql}) LEFT JOIN (SELECT *, TRUE AS {_MATCHED} FROM {table}) USING ({same})"
        return Staged(f"SELECT {names} FROM {found} WHERE {above.kept(_MATCHED)}", is_marked=True)

    def _as_of(self, join: Join, above: Staged, since: str) -> Staged:
        event_time = find_event_time(join)
        assert event_time is not None
        kept = ", ".join([*(f"a.{name}" for name in above.own), *(f"a.{quoted(n)}" for n in join.parent.schema.names)])
        added = [name for name in join.table.schema.names if name not in join.on]
        found = ", ".join(f"b.{quoted(name)}" for name in added)
        same = " AND ".join(f"a.{quoted(name)} = b.{quoted(name)}" for name in join.on)
        # Of two rows that hold from the same time on, the later one does.
        by = ", ".join(map(quoted, (*join.on, since)))
        numbered = f"SELECT *, row_number() OVER () AS __row FROM {self._table(join.table, join)}"
        held = (
            f"SELECT * EXCLUDE (__row), TRUE AS {_MATCHED} FROM ({numbered}) "
            f"WHERE {quoted(since)} IS NOT NULL QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY __row DESC) = 1"
        )
        outer = join.how == "left" or above.is_marked
        kind = "ASOF LEFT JOIN" if outer else "ASOF JOIN"
        at = f"a.{quoted(event_time.column)} >= b.{quoted(since)}"
        rows = f"SELECT {kept}, {found} FROM ({above.sql}) a {kind} ({held}) b ON {same} AND {at}"
        if above.is_marked and join.how != "left":
            rows += f" WHERE b.{_MATCHED} OR a.{_BAD} IS NOT NULL"
        return Staged(rows, above.is_marked)

    def _aggregated(self, query: Query, staged: Staged) -> str:
        event_time = find_event_time(query.stream)
        keys = [f"{_key(query, name)} AS {key}" for name, key in zip(query.keys, query.key_columns, strict=True)]
        timed = Staged(f"SELECT *, {_at(event_time, staged)} AS {AT} FROM ({staged.sql})", staged.is_marked)
        argued, computed = self._argued(query, timed)
        partials = []
        for each, names in zip(computed, query.partial_columns, strict=True):
            partials += [f"{sql} AS {name}" for sql, name in zip(partials_of(each), names, strict=True)]
        slice_ = slice_of(query.windowing)
        tells = self._tells and event_time is not None
        if tells or argued.is_marked:
            good = [f"{AT} IS NOT NULL"] if tells else []
            good += [f"{_BAD} IS NULL"] if argued.is_marked else []
            slice_ = f"CASE WHEN {' AND '.join(good)} THEN {slice_} END"
        if tells and event_time is not None:
            partials += [f"max({AT}) AS {_NEWEST}", f"{_closes(event_time)} AS {_CLOSED}"]
        self._marked = argued if argued.is_marked else None
        chosen = [*keys, f"{slice_} AS slice", "count(*) AS elements", *partials]
        return (
            f"SELECT {', '.join(chosen)} FROM ({argued.sql}) "
            f"GROUP BY {', '.join(str(place + 1) for place in range(len(keys) + 1))}"
        )

    def _argued(self, query: Query, rows: Staged) -> tuple[Staged, list[Computed]]:
        """Rows with those arguments of aggregates as columns that may have no value, and the aggregates over them."""
        columns: dict[str, Expression] = {}
        computed = []
        for number, each in enumerate(query.computed):
            arguments = list(each.arguments)
            for place, argument in enumerate(arguments):
                if _may_fail(argument):
                    name = f"__a{number}_{place}"
                    columns[name] = argument
                    arguments[place] = replace(argument, columns=(name,), node=ColumnOf((name,), argument.type))
            computed.append(replace(each, arguments=tuple(arguments)))
        if not columns:
            return rows, computed
        return self._computed(rows, query.stream.schema.names, list(columns.items()), [AT]), computed

    def _unaggregated(self, query: Query, staged: Staged) -> str:
        """What `panes.lift` takes, in the order of arrival: keys, time, arguments; for a user's windows, the row.

        Beside it is the place of each row, for those that a function of the user's has no value for.
        """
        event_time = find_event_time(query.stream)
        timed = Staged(f"SELECT *, {_at(event_time, staged)} AS {AT} FROM ({staged.sql})", staged.is_marked)
        argued, computed = self._argued(query, timed)
        chosen = [f"{quoted(name)} AS {key}" for name, key in zip(query.keys, query.key_columns, strict=True)]
        chosen.append(f"{AT} AS at")
        for number, each in enumerate(computed):
            chosen += [f"{to_duckdb(argument)} AS a{number}_{place}" for place, argument in enumerate(each.arguments)]
        if isinstance(query.windowing, Custom):
            chosen += [f"{quoted(name)} AS {quoted(f'row_{name}')}" for name in query.stream.schema.names]
        self._marked = argued if argued.is_marked else None
        own = [PLACE, _BAD] if argued.is_marked else [PLACE]
        return f"SELECT {', '.join([*own, *chosen])} FROM ({argued.sql}) ORDER BY {_SIDE}, {PLACE}"

    def _table(self, table: Table, join: Join) -> str:
        name = f"__table_{len(self.tables)}"
        if table.rows:
            self.tables[name] = columns_of(table, join.place)
        else:
            found = columns_of(table, join.place) if self._given is None else self._given[table.name]
            self.tables[name] = self.looked_up[table.name] = found
        return name


def how(of: Query | Stream, source: Source) -> str:
    """How the edge of a query runs: fused, or natively and why."""
    try:
        parts = deduped(of)
        if parts is not None:
            Fused(parts.above, source, ordered=True)
            Fused(parts.below, parts.source)
            return "fused up to the dedup, which one shard does"
        fused = Fused(of, source)
    except CannotFuseError as error:
        return f"native: {error}"
    return f"fused up to the aggregate: {fused.lifts}" if fused.lifts else "fused"


def columns_read(of: Query | Stream) -> set[str]:
    """The names of all columns that a query looks at, in its source or made on the way."""
    if not isinstance(of, Query):
        return {*of.schema.names, *_looked_at(of)}
    if isinstance(of.windowing, Custom):  # a function of the user's may look at anything
        return {*of.stream.schema.names, *_looked_at(of.stream)}
    arguments = (argument for computed in of.computed for argument in computed.arguments)
    return {*of.keys, *(name for each in arguments for name in each.columns), *_looked_at(of.stream)}


def _looked_at(node: Stream) -> set[str]:
    above = {name for parent in parents(node) for name in _looked_at(parent)}
    match node:
        case Where(condition=condition):
            return above | set(condition.columns)
        case Select(columns=columns) | WithColumns(columns=columns):
            return above.union(*(expression.columns for _, expression in columns))
        case Join(on=on):
            return above | set(on)
        case Dedup(by=by):
            return above | set(by)
        case EventTime(column=column, estimator=estimator):
            return above | {column} | ({estimator.policy.column} if isinstance(estimator.policy, Punctuated) else set())
    return above


def _placed(rows: pa.Table) -> pa.Table:
    return rows if PLACE in rows.column_names else rows.append_column(PLACE, pa.array(np.arange(len(rows))))


def _missing(node: EventTime) -> str:
    """Which rows have no event time though they need one: a row may do nothing but close an epoch."""
    policy = node.estimator.policy
    closes = f" AND {quoted(policy.column)} IS NULL" if isinstance(policy, Punctuated) else ""
    return f"{quoted(node.column)} IS NULL{closes}"


def _closes(node: EventTime) -> str:
    policy = node.estimator.policy
    return f"max(epoch_us({quoted(policy.column)}))" if isinstance(policy, Punctuated) else "CAST(NULL AS BIGINT)"


def _at(event_time: EventTime | None, rows: Staged) -> str:
    """The time of a row in microseconds; none for one that has no value, and tells no time."""
    if event_time is None:
        return "0"
    at = f"epoch_us({quoted(event_time.column)})"
    return f"CASE WHEN {_BAD} IS NULL THEN {at} END" if rows.is_marked else at


def _field(attempt: str) -> str:
    return f"struct_extract({attempt}, 'v')"


def _may_fail(expression: Expression) -> bool:
    return expression.node is not None and is_fallible(expression.node)


def _rounded(newest: int, counted: pa.Table) -> Mapping[int, int]:
    """How many events there are of each time; where there are too many times, how long ago it was, to three digits."""
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
