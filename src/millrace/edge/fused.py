"""The fused edge: rows to partials in one DuckDB statement.

For each bundle: filter, project, join small tables, cut event time into slices and aggregate by (key,
slice), in columns and without a Python loop. Where SQL has no words for the window or the aggregate (sketches, count
windows), the statement stops before them, and `panes.lift` does the rest. A row expression that cannot be said in
DuckDB's SQL with Spark's meaning is refused with the reason (`CannotFuseError`), and the query runs natively instead.

Beside the partials goes what the bundle shows of event time, which carries the watermark; rows without an event time
are set aside. A bundle with a row that has no value somewhere makes the statement fail (`duckdb.Error`). Nothing of it
has been taken in then; its host can take it in piece by piece, so that only that row is set aside.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.edge.connection import PLACE, Prepared
from millrace.edge.decode import MISFIT
from millrace.edge.dedup import deduped
from millrace.edge.partials import AT, NotInSqlError, partials_of, slice_of
from millrace.edge.sql import CannotFuseError, quoted, to_duckdb
from millrace.edge.tables import columns_of
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.query import Query
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
from millrace.model.watermark import Punctuated, Seen
from millrace.model.window import Custom

_SIDE = "__side"
"""By which side of a union it came: all rows of the first are before those of the second."""
_NEWEST, _CLOSED = "__newest", "__closed"
_MOST_TIMES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What became of a bundle."""

    rows: pa.Table
    """Partials, or rows to be lifted; for a plain stream, its rows."""
    seen: Seen = field(default_factory=Seen)
    timeless: tuple[int, ...] = ()
    """The places of the rows that have no event time, though they need one."""


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
        if not isinstance(of, Query):
            order = f" ORDER BY {_SIDE}, {PLACE}" if ordered else ""
            self.statement = f"SELECT {', '.join(map(quoted, of.schema.names))} FROM ({self._staged(source)}){order}"
            return
        try:
            self.statement = _aggregated(of, self._staged(source), self._tells)
        except NotInSqlError as error:
            self.lifts, self._tells = str(error), False
            self.statement = _unaggregated(of, self._staged(source))

    def _staged(self, source: Source) -> str:
        self.tables: dict[str, pa.Table] = {}
        self.looked_up: dict[str, pa.Table] = {}
        """The rows of tables that may change, by the name of the table."""
        self._timed: list[tuple[EventTime, str]] = []
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
        """What a bundle comes to. Raises duckdb.Error if a row has no value somewhere."""
        with self._prepared.over(_placed(rows)) as ask:
            made = ask(self.statement).to_arrow_table()
            return self._told(ask, made) if self._tells else Taken(made, *self._times(ask))

    def seen(self, rows: pa.Table) -> Seen:
        """What a bundle shows of event time, taken in or not. Raises duckdb.Error as `take` does."""
        with self._prepared.over(_placed(rows)) as ask:
            return self._times(ask)[0]

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
        timeless = ask(f"SELECT {PLACE} FROM ({above}) WHERE {_missing(node)}").fetchall()
        return Taken(rows.filter(rows["slice"].is_valid()), seen, tuple(place for (place,) in timeless))

    def _times(self, ask: Callable[[str], duckdb.DuckDBPyRelation]) -> tuple[Seen, tuple[int, ...]]:
        """What the bundle shows of event time, and which rows have none."""
        if not self._timed:
            return Seen(), ()
        node, above = self._timed[0]
        at, missing = f"epoch_us({quoted(node.column)})", _missing(node)
        asked = f"SELECT max({at}), {_closes(node)}, count(*) FILTER ({missing}) FROM ({above})"
        ((newest, closed, many),) = ask(asked).fetchall()
        timeless = ask(f"SELECT {PLACE} FROM ({above}) WHERE {missing}").fetchall() if many else []
        times: Mapping[int, int] = {}
        if node.estimator.needs_times and newest is not None:
            counted = ask(f"SELECT {at} AS t, count(*) AS n FROM ({above}) WHERE {at} IS NOT NULL GROUP BY {at}")
            times = _rounded(newest, counted.to_arrow_table())
        newest, closed = (BEGINNING_OF_TIME if each is None else each for each in (newest, closed))
        return Seen(newest, closed, times), tuple(place for (place,) in timeless)

    def _stream(self, node: Stream, source: Source) -> str | None:
        """A stream as a query over the rows of one source; None if that source is not part of it."""
        if isinstance(node, Source):
            columns = ", ".join(map(quoted, node.schema.names))
            return f"SELECT {PLACE}, 0 AS {_SIDE}, {columns} FROM {self._decoded}" if node == source else None
        if isinstance(node, Union):
            names = ", ".join(map(quoted, (PLACE, *node.schema.names)))
            many, sides = len(node.parents), [self._stream(side, source) for side in node.parents]
            return (
                " UNION ALL ".join(
                    f"SELECT {_SIDE} * {many} + {number} AS {_SIDE}, {names} FROM ({side})"
                    for number, side in enumerate(sides)
                    if side is not None
                )
                or None
            )
        if not isinstance(node, Where | Select | WithColumns | Join | EventTime):
            raise CannotFuseError(f"{type(node).__name__.lower()} needs to remember rows")
        above = self._stream(node.parent, source)
        return None if above is None else self._step(node, above)

    def _step(self, node: Where | Select | WithColumns | Join | EventTime, above: str) -> str:
        match node:
            case Where(condition=condition):
                return f"SELECT * FROM ({above}) WHERE {to_duckdb(condition)}"
            case Select(columns=columns):
                chosen = [f"{to_duckdb(sql)} AS {quoted(name)}" for name, sql in columns]
                return f"SELECT {', '.join([PLACE, _SIDE, *chosen])} FROM ({above})"
            case WithColumns(parent=parent, columns=columns):
                made = {name: to_duckdb(sql) for name, sql in columns}
                kept = {name: quoted(name) for name in parent.schema.names}
                chosen = [f"{sql} AS {quoted(name)}" for name, sql in {**kept, **made}.items()]
                return f"SELECT {', '.join([PLACE, _SIDE, *chosen])} FROM ({above})"
            case Join(table=table, on=on, how=how, as_of=as_of) if as_of is not None:
                return self._as_of(node, above, as_of)
            case Join(table=table, on=on, how=how):
                names = ", ".join(quoted(name) for name in (PLACE, _SIDE, *node.schema.names))
                same = ", ".join(map(quoted, on))
                return f"SELECT {names} FROM ({above}) {how.upper()} JOIN {self._table(table, node)} USING ({same})"
            case EventTime(column=column):
                self._timed.append((node, above))
                return above if self._tells else f"SELECT * FROM ({above}) WHERE {quoted(column)} IS NOT NULL"

    def _as_of(self, join: Join, above: str, since: str) -> str:
        event_time = find_event_time(join)
        assert event_time is not None
        kept = ", ".join(f"a.{quoted(name)}" for name in (PLACE, _SIDE, *join.parent.schema.names))
        added = [name for name in join.table.schema.names if name not in join.on]
        found = ", ".join(f"b.{quoted(name)}" for name in added)
        same = " AND ".join(f"a.{quoted(name)} = b.{quoted(name)}" for name in join.on)
        # Of two rows that hold from the same time on, the later one does.
        by = ", ".join(map(quoted, (*join.on, since)))
        numbered = f"SELECT *, row_number() OVER () AS __row FROM {self._table(join.table, join)}"
        held = (
            f"SELECT * EXCLUDE (__row) FROM ({numbered}) "
            f"WHERE {quoted(since)} IS NOT NULL QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY __row DESC) = 1"
        )
        kind = "ASOF LEFT JOIN" if join.how == "left" else "ASOF JOIN"
        at = f"a.{quoted(event_time.column)} >= b.{quoted(since)}"
        return f"SELECT {kept}, {found} FROM ({above}) a {kind} ({held}) b ON {same} AND {at}"

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


def _aggregated(query: Query, staged: str, tells: bool) -> str:
    event_time = find_event_time(query.stream)
    at = "0" if event_time is None else f"epoch_us({quoted(event_time.column)})"
    keys = [f"{_key(query, name)} AS {key}" for name, key in zip(query.keys, query.key_columns, strict=True)]
    partials = []
    for computed, names in zip(query.computed, query.partial_columns, strict=True):
        columns = partials_of(computed)
        partials += [f"{sql} AS {name}" for sql, name in zip(columns, names, strict=True)]
    slice_ = slice_of(query.windowing)
    if tells and event_time is not None:
        slice_ = f"CASE WHEN {AT} IS NOT NULL THEN {slice_} END"
        partials += [f"max({AT}) AS {_NEWEST}", f"{_closes(event_time)} AS {_CLOSED}"]
    chosen = [*keys, f"{slice_} AS slice", "count(*) AS elements", *partials]
    return (
        f"SELECT {', '.join(chosen)} FROM (SELECT *, {at} AS {AT} FROM ({staged})) "
        f"GROUP BY {', '.join(str(place + 1) for place in range(len(keys) + 1))}"
    )


def _unaggregated(query: Query, staged: str) -> str:
    """What `panes.lift` takes, in the order of arrival: keys, time, arguments; for a user's windows, the whole row.

    Beside it is the place of each row, for those that turn out to have no value.
    """
    event_time = find_event_time(query.stream)
    chosen = [f"{quoted(name)} AS {key}" for name, key in zip(query.keys, query.key_columns, strict=True)]
    chosen.append(f"{'0' if event_time is None else f'epoch_us({quoted(event_time.column)})'} AS at")
    for number, computed in enumerate(query.computed):
        chosen += [f"{to_duckdb(argument)} AS a{number}_{place}" for place, argument in enumerate(computed.arguments)]
    if isinstance(query.windowing, Custom):
        chosen += [f"{quoted(name)} AS {quoted(f'row_{name}')}" for name in query.stream.schema.names]
    return f"SELECT {', '.join([PLACE, *chosen])} FROM ({staged}) ORDER BY {_SIDE}, {PLACE}"


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
