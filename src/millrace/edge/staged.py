"""The row operators of a stream as nested DuckDB queries.

Each query transforms the rows of the query inside it. A row for which an expression has no value is marked with the
number of the expression; it then passes every later filter and join, and is separated at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from millrace.edge.connection import ROW_NUMBER
from millrace.formats.sql import CannotFuseError, quoted, to_duckdb, tried
from millrace.model.expression import Expression
from millrace.model.schema import UNKNOWN
from millrace.model.stream import (
    AnswerStream,
    AnswerTime,
    Applying,
    Dedup,
    EventTime,
    Explode,
    Filter,
    Join,
    JoinStream,
    Map,
    Select,
    Source,
    Stream,
    Union,
    Where,
    WithColumns,
    find_event_time,
    node_of,
)
from millrace.model.typed import is_fallible
from millrace.sources.bundle import LOGGED

SIDE = "__side"
"""The side of a union that a row came from: all rows of the first side precede those of the second."""
BAD = "__bad"
"""The number of the expression for which a row has no value; NULL if it has a value for each."""
_MATCHED = "__matched"


@dataclass(frozen=True, slots=True)
class Staged:
    """A query for the rows after some steps."""

    sql: str
    is_marked: bool = False
    """Whether some rows may be bad: `__bad` is then the number of the expression that has no value."""
    is_logged: bool = False
    """Whether the rows have the log times of their records."""

    @property
    def hidden(self) -> list[str]:
        """The hidden columns that the rows have from their source."""
        return [ROW_NUMBER, SIDE, *([LOGGED] if self.is_logged else [])]

    @property
    def own(self) -> list[str]:
        """All hidden columns."""
        return [*self.hidden, *([BAD] if self.is_marked else [])]

    @property
    def good(self) -> str:
        """The rows that have a value for every expression so far, as SQL to follow FROM."""
        return f"({self.sql})" + (f" WHERE {BAD} IS NULL" if self.is_marked else "")

    def kept(self, condition: str) -> str:
        """A condition that also keeps bad rows, which become dead letters."""
        return f"({condition}) OR {BAD} IS NOT NULL" if self.is_marked else condition

    def then(self, sql: str, is_marked: bool | None = None) -> "Staged":
        """The rows after one more step, with the same hidden columns; `is_marked` is None if no row became bad."""
        return Staged(sql, self.is_marked if is_marked is None else is_marked, self.is_logged)


@dataclass(frozen=True, slots=True)
class Call:
    """A step that runs in Python, between two statements."""

    name: str
    """The name that its rows have in later statements."""
    step: Applying
    statement: str
    """The query for the rows that it takes."""
    hidden: tuple[str, ...]
    """The hidden columns that its rows have, too."""
    is_marked: bool
    """Whether some of them may be bad."""


class Stages:
    """The steps of one stream over the rows of one of its sources."""

    def __init__(self, decoded: str, keeps_timeless: bool, is_logged: bool) -> None:
        """`decoded` is the query that the rows come from, with log times if it `is_logged`.

        With `keeps_timeless`, rows without an event time stay, and so do those that are ahead of the clock.
        """
        self._decoded, self._keeps_timeless, self._is_logged = decoded, keeps_timeless, is_logged
        self.joins: dict[str, Join] = {}
        """The joins, by the name that the table has in the queries."""
        self.timed: list[tuple[EventTime, Staged]] = []
        """Each node that assigns event time, and the rows that it assigns it to."""
        self.calls: list[Call] = []
        """The steps that run in Python, each after those that it reads."""
        self.tried: list[Expression] = []
        """The expressions that may have no value for a row, by number."""

    def rows(self, stream: Stream, source: Source) -> Staged:
        """The query for a stream. Raises CannotFuseError with the reason if there is none."""
        staged = self._stream(stream, source)
        if staged is None:
            raise CannotFuseError(f"source {source.name} is not part of the query")
        if len(self.timed) > 1:
            raise CannotFuseError(f"source {source.name} is read with several event times")
        return staged

    def _stream(self, node: Stream, source: Source) -> Staged | None:
        """A stream as a query over the rows of one source; None if the stream does not read that source."""
        match node_of(node):
            case Source() as own:
                logged = [LOGGED] if self._is_logged else []
                columns = ", ".join([*logged, *map(quoted, own.schema.names)])
                rows = f"SELECT {ROW_NUMBER}, 0 AS {SIDE}, {columns} FROM {self._decoded}"
                return Staged(rows, is_logged=self._is_logged) if own == source else None
            case AnswerStream() | JoinStream():
                return None  # another edge reads it
            case AnswerTime(parent=parent):
                return self._stream(parent, source)
            case Union() as union:
                return self._union(union, source)
            case Dedup():
                raise CannotFuseError("dedup() needs state")
            case (Where() | Select() | WithColumns() | Join() | EventTime()) as step:
                above = self._stream(step.parent, source)
                return None if above is None else self._step(step, above)
            case (Map() | Filter() | Explode()) as step:
                above = self._stream(step.parent, source)
                return None if above is None else self._applied(step, above)
            case never:
                assert_never(never)

    def _applied(self, step: Applying, above: Staged) -> Staged:
        """The rows that a step in Python makes: it runs over the answer of a statement, and bad rows stop there."""
        for column in (*step.parent.schema, *step.schema):
            if UNKNOWN in column.type:
                raise CannotFuseError(f"{column.name} has a type that only Spark can resolve")
        name = f"__applied{len(self.calls)}"
        columns = ", ".join([*above.own, *map(quoted, step.parent.schema.names)])
        statement = f"SELECT {columns} FROM ({above.sql})"
        self.calls.append(Call(name, step, statement, tuple(above.hidden), above.is_marked))
        made = ", ".join(map(quoted, step.schema.names))
        return above.then(f"SELECT {', '.join(above.hidden)}, {made} FROM {name}", is_marked=False)

    def _union(self, node: Union, source: Source) -> Staged | None:
        many, found = len(node.parents), [self._stream(side, source) for side in node.parents]
        sides = [(number, side) for number, side in enumerate(found) if side is not None]
        if not sides:
            return None
        is_marked = any(side.is_marked for _, side in sides)
        logged = [LOGGED] if self._is_logged else []
        names = ", ".join(map(quoted, (ROW_NUMBER, *logged, *node.schema.names)))
        parts = []
        for number, side in sides:
            bad = f", {BAD if side.is_marked else 'CAST(NULL AS INTEGER)'} AS {BAD}" if is_marked else ""
            parts.append(f"SELECT {SIDE} * {many} + {number} AS {SIDE}, {names}{bad} FROM ({side.sql})")
        return Staged(" UNION ALL ".join(parts), is_marked, self._is_logged)

    def _step(self, node: Where | Select | WithColumns | Join | EventTime, above: Staged) -> Staged:
        match node:
            case Where(condition=condition):
                return self._where(node, condition, above)
            case Select(columns=columns):
                return self.computed(above, (), columns)
            case WithColumns(parent=parent, columns=columns):
                kept = [name for name in parent.schema.names if name not in dict(columns)]
                made = self.computed(above, kept, columns)
                names = [*made.own, *map(quoted, node.schema.names)]  # keeps the order of columns
                return made.then(f"SELECT {', '.join(names)} FROM ({made.sql})")
            case Join(as_of=as_of):
                return self._join(node, above) if as_of is None else self._as_of(node, above, as_of)
            case EventTime(column=column):
                self.timed.append((node, above))
                if self._keeps_timeless:
                    return above
                in_time = "" if node.ahead is None else f" AND ({ahead(node)}) IS NOT TRUE"
                there = above.kept(f"{quoted(column)} IS NOT NULL{in_time}")
                return above.then(f"SELECT * FROM ({above.sql}) WHERE {there}")
            case never:
                assert_never(never)

    def _where(self, node: Where, condition: Expression, above: Staged) -> Staged:
        if not may_fail(condition):
            return above.then(f"SELECT * FROM ({above.sql}) WHERE {above.kept(to_duckdb(condition))}")
        made = self.computed(above, node.schema.names, (("__holds", condition),))
        names = ", ".join([*made.own, *map(quoted, node.schema.names)])
        return made.then(f"SELECT {names} FROM ({made.sql}) WHERE {made.kept('__holds')}")

    def computed(
        self, above: Staged, kept: Sequence[str], columns: Sequence[tuple[str, Expression]],
        more: Sequence[str] = (), elements: str = "TRUE",
    ) -> Staged:  # fmt: skip
        """Rows with kept columns and computed columns; a row for which a computed column has no value is marked.

        `more` names hidden columns to keep. Only rows for which the condition `elements` holds are marked.
        """
        risky = {name: f"__t{number}" for number, (name, each) in enumerate(columns) if may_fail(each)}
        chosen = [f"{_field(risky[name])} AS {quoted(name)}" if name in risky else
                  f"{to_duckdb(each)} AS {quoted(name)}" for name, each in columns]  # fmt: skip
        names = [*above.hidden, *more, *map(quoted, kept), *chosen]
        if not risky:
            own = [BAD] if above.is_marked else []
            return above.then(f"SELECT {', '.join([*names, *own])} FROM ({above.sql})")
        before = f" WHEN {BAD} IS NOT NULL THEN {BAD}" if above.is_marked else ""
        failed = "".join(
            f" WHEN {risky[name]} IS NULL AND {elements} THEN {self._number(each)}"
            for name, each in columns
            if name in risky
        )
        attempts = ", ".join(f"{tried(to_duckdb(each))} AS {risky[name]}" for name, each in columns if name in risky)
        # The new numbers have another name at first, because DuckDB might confuse them with the earlier ones.
        marked = f"SELECT *, CASE{before}{failed} END AS __failed FROM (SELECT *, {attempts} FROM ({above.sql}))"
        return above.then(f"SELECT {', '.join(names)}, __failed AS {BAD} FROM ({marked})", is_marked=True)

    def _number(self, expression: Expression) -> int:
        """The number that marks rows for which an expression has no value."""
        self.tried.append(expression)
        return len(self.tried) - 1

    def _join(self, join: Join, above: Staged) -> Staged:
        names = ", ".join([*above.own, *map(quoted, join.schema.names)])
        same = ", ".join(map(quoted, join.on))
        table = self._table(join)
        if not above.is_marked or join.how == "left":
            kind = join.how.upper()
            return above.then(f"SELECT {names} FROM ({above.sql}) {kind} JOIN {table} USING ({same})")
        found = f"({above.sql}) LEFT JOIN (SELECT *, TRUE AS {_MATCHED} FROM {table}) USING ({same})"
        return above.then(f"SELECT {names} FROM {found} WHERE {above.kept(_MATCHED)}")

    def _as_of(self, join: Join, above: Staged, since: str) -> Staged:
        event_time = find_event_time(join)
        assert event_time is not None
        kept = ", ".join([*(f"a.{name}" for name in above.own), *(f"a.{quoted(n)}" for n in join.parent.schema.names)])
        added = [name for name in join.table.schema.names if name not in join.on]
        found = ", ".join(f"b.{quoted(name)}" for name in added)
        same = " AND ".join(f"a.{quoted(name)} = b.{quoted(name)}" for name in join.on)
        # Of two rows that hold from the same time, the later one counts.
        by = ", ".join(map(quoted, (*join.on, since)))
        numbered = f"SELECT *, row_number() OVER () AS __row FROM {self._table(join)}"
        held = (
            f"SELECT * EXCLUDE (__row), TRUE AS {_MATCHED} FROM ({numbered}) "
            f"WHERE {quoted(since)} IS NOT NULL QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY __row DESC) = 1"
        )
        outer = join.how == "left" or above.is_marked
        kind = "ASOF LEFT JOIN" if outer else "ASOF JOIN"
        at = f"a.{quoted(event_time.column)} >= b.{quoted(since)}"
        rows = f"SELECT {kept}, {found} FROM ({above.sql}) a {kind} ({held}) b ON {same} AND {at}"
        if above.is_marked and join.how != "left":
            rows += f" WHERE b.{_MATCHED} OR a.{BAD} IS NOT NULL"
        return above.then(rows)

    def _table(self, join: Join) -> str:
        name = f"__table_{len(self.joins)}"
        self.joins[name] = join
        return name


def _field(attempt: str) -> str:
    return f"struct_extract({attempt}, 'v')"


def ahead(node: EventTime) -> str:
    """The condition for rows that are too far ahead of the log times of their records; NULL counts as false."""
    if node.ahead is None:
        return "FALSE"
    return " OR ".join(f"epoch_us({quoted(name)}) - {node.ahead} > {LOGGED}" for name in node.watched)


def may_fail(expression: Expression) -> bool:
    """Whether some row may have no value for an expression."""
    return expression.node is not None and is_fallible(expression.node)
