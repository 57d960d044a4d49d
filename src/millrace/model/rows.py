"""The reference semantics of row operators: turns bundles of a source into rows of a stream.

A row for which a step has no value (a failing cast, no event time) becomes a dead letter with the
reason; the other rows are processed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any, assert_never

import pyarrow as pa

from millrace.model.aggregate import sort_key
from millrace.model.applied import apply
from millrace.model.arrow import arrow_schema
from millrace.model.clock import after_step
from millrace.model.duration import BEGINNING_OF_TIME, to_instant
from millrace.model.errors import at_place, refuse, refuse_unknown, shown, unknown
from millrace.model.evaluate import RowError, check_known, evaluate
from millrace.model.expression import Expression
from millrace.model.fitting import fits, held
from millrace.model.operators import operator_of
from millrace.model.query import Computed
from millrace.model.schema import missing
from millrace.model.stream import (
    AnswerStream,
    AnswerTime,
    Applying,
    Dedup,
    Derived,
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
    event_times,
    find_event_time,
    node_of,
    parents,
    sources,
)
from millrace.model.watermark import Progress, combine, follows_clock
from millrace.model.window import Row


@dataclass(frozen=True, slots=True)
class RowDeadLetter:
    """A row that has no value, with the reason."""

    row: Row
    reason: str
    has_record: bool = True
    """Whether it comes from one record of a source; an answer of another stage does not, nor does a row of a join."""


class RowEvaluator:
    """The row operators of one stream, and their state between bundles."""

    NO_VALUE = object()
    """Stands for the value of an expression that has none."""

    def __init__(self, stream: Stream, tables: Mapping[str, Iterable[Row]], now: int) -> None:
        """Start with no input. `tables` holds the rows of tables that are read from a file."""
        self.dead: list[RowDeadLetter] = []
        self._stream = stream
        for node, expression in _expressions(stream):
            with at_place(node.place):
                check_known(expression)
        self._tables = {name: list(rows) for name, rows in tables.items()}
        self._progress = {id(node): (node.estimator, Progress(active=now)) for node in event_times(stream)}
        self._now = now
        self._spoke: set[int] = set()
        """The event time nodes that saw rows since the last call of `watermark`."""
        self._seen: dict[int, dict[tuple[Any, ...], int]] = {}

    def take(self, rows: Iterable[Row], source: str | None, watermark: int, now: int) -> list[Row]:
        """The rows that the stream gives for a bundle of one of its sources."""
        return self._flow(self._stream, _named(sources(self._stream), source), list(rows), watermark, now)

    def take_change(self, root: Derived, row: Row) -> list[Row]:
        """The rows that the stream gives for an answer of one of the queries it reads."""
        return self._flow(self._stream, root, [row], BEGINNING_OF_TIME, self._now)

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace the rows of a table that is read from a file or a view."""
        self._tables[name] = list(rows)

    def clock(self, now: int) -> int:
        """Move the clock and return processing time. If it goes back, so do the idle clocks of sources: rule 15."""
        after = after_step(self._now, now)
        if after < self._now:
            by = self._now - after
            self._progress = {node: (known, seen.moved_back(by)) for node, (known, seen) in self._progress.items()}
        self._now = after
        return after

    def watermark(self, now: int) -> int:
        """The watermark by the stream's own policies. Rows since the last call count as arrived at `now`."""
        for node in self._spoke:
            estimator, progress = self._progress[node]
            self._progress[node] = estimator, replace(progress, active=max(progress.active, now))
        self._spoke.clear()
        return combine(list(self._progress.values()), now) if self._progress else BEGINNING_OF_TIME

    def is_idle(self, now: int) -> bool:
        """Whether none of its sources has had input for its idle timeout."""
        return follows_clock(list(self._progress.values()), now)

    def value(self, row: Row, expression: Expression) -> Any:
        """The value of an expression, or NO_VALUE; the row is then a dead letter."""
        try:
            return evaluate(expression, row)
        except RowError as error:
            self.dead.append(RowDeadLetter(row, str(error)))
            return self.NO_VALUE

    def arguments(self, row: Row, computed: Iterable[Computed]) -> tuple[tuple[Any, ...], ...] | None:
        """The argument values of each aggregate; None if one has no value, and the row is then a dead letter."""
        values = []
        for each in computed:
            own = []
            for argument in each.arguments:
                own.append(self.value(row, argument))
                if own[-1] is self.NO_VALUE:
                    return None
            values.append(tuple(own))
        return tuple(values)

    def _flow(self, node: Stream, root: Source | Derived, rows: list[Row], watermark: int, now: int) -> list[Row]:
        above = [row for parent in parents(node) for row in self._flow(parent, root, rows, watermark, now)]
        match node_of(node):
            case Source() as own:
                return self._fitting(own, rows) if own == root else []
            case (AnswerStream() | JoinStream()) as own:
                return rows if own == root else []
            case Union() | AnswerTime():
                return above
            case Where(condition=condition):
                return [row for row in above if self.value(row, condition) is True]
            case Select(columns=columns):
                return [made for row in above if (made := self._computed(row, columns)) is not None]
            case WithColumns(columns=columns):
                return [{**row, **made} for row in above if (made := self._computed(row, columns)) is not None]
            case (Map() | Filter() | Explode()) as step:
                return [made for row in above for made in self._applied(step, row)]
            case Join() as join:
                return [joined for row in above for joined in self._matches(join, row)]
            case Dedup() as dedup:
                return self._first_seen(dedup, above, watermark)
            case EventTime() as timed:
                return self._observe(timed, above, now)
            case never:
                assert_never(never)

    def _fitting(self, source: Source, rows: list[Row]) -> list[Row]:
        """The rows whose values have the types of their columns; a missing column is NULL."""
        fitting: list[Row] = []
        for row in rows:
            if not isinstance(row, Mapping):
                raise refuse(f"a row must be a mapping of columns to values, not {shown(row)}")
            wrong = [column for column in source.schema if not fits(row.get(column.name), column.type)]
            absent = [name for name in source.schema.required if row.get(name) is None]
            extra = [name for name in row if name not in source.schema] if source.is_strict else []
            if wrong:
                value = shown(row[wrong[0].name])
                self.dead.append(RowDeadLetter(row, f"{wrong[0].name}: {value} is not {wrong[0].type}"))
            elif absent:
                self.dead.append(RowDeadLetter(row, missing(absent[0])))
            elif extra:
                self.dead.append(RowDeadLetter(row, unknown("field", extra[0], source.schema.names)))
            else:
                fitting.append({column.name: held(row.get(column.name), column.type) for column in source.schema})
        return fitting

    def _computed(self, row: Row, columns: tuple[tuple[str, Expression], ...]) -> dict[str, Any] | None:
        values = {}
        for name, expression in columns:
            values[name] = self.value(row, expression)
            if values[name] is self.NO_VALUE:
                return None
        return values

    def _applied(self, step: Applying, row: Row) -> list[Row]:
        """The rows that a step makes of a row; a row for which it fails is a dead letter."""
        columns = [(name, [row[name]]) for name in step.parent.schema.names]
        schema = arrow_schema(step.parent.schema)
        applied = apply(step, pa.table({name: pa.array(value, schema.field(name).type) for name, value in columns}))
        self.dead += [RowDeadLetter(row, reason) for reason in applied.failed.values()]
        rows: list[Row] = applied.rows.to_pylist(maps_as_pydicts="lossy")
        return rows

    def _matches(self, join: Join, row: Row) -> list[Row]:
        table = join.table
        if not table.rows and table.name not in self._tables:
            advice = "pass them to Reference(query, tables=...)"
            raise refuse(f"the reference engine needs the rows of table {table.name!r}", advice=advice)
        given = [dict(zip(table.schema.names, values, strict=True)) for values in table.rows]
        found: list[Row] = [
            {**row, **other}
            for other in self._tables.get(table.name, given)
            if all(_is_same(row[name], other[name]) for name in join.on)
        ]
        if join.as_of is not None:
            found = self._newest(join, row, found)
        if not found and join.how == "left":
            return [{**dict.fromkeys(table.schema.names), **row}]
        return found

    def _newest(self, join: Join, row: Row, found: list[Row]) -> list[Row]:
        """The table row with the latest `as_of` time that is not after the row's event time; the last one on a tie."""
        event_time = find_event_time(join)
        assert event_time is not None
        assert join.as_of is not None
        at = to_instant(row[event_time.column])
        since = [None if each[join.as_of] is None else to_instant(each[join.as_of]) for each in found]
        held = [(when, place) for place, when in enumerate(since) if when is not None and when <= at]
        return [found[max(held)[1]]] if held else []

    def _first_seen(self, dedup: Dedup, rows: list[Row], watermark: int) -> list[Row]:
        event_time = find_event_time(dedup)
        seen = self._seen.setdefault(id(dedup), {})
        if dedup.within is not None:
            for key in [key for key, at in seen.items() if at + dedup.within < watermark]:
                del seen[key]
        kept = []
        for row in rows:
            key = tuple(as_key(row[name]) for name in dedup.by)
            if key not in seen:
                seen[key] = to_instant(row[event_time.column]) if event_time else 0
                kept.append(row)
        return kept

    def _observe(self, node: EventTime, rows: list[Row], now: int) -> list[Row]:
        """Update the watermark progress from the rows. Returns the rows that have an event time.

        The rows were logged `now`.
        """
        timed: list[Row] = []
        times: list[int] = []
        closes: list[int] = []
        for row in rows:
            at, *closed = (None if row[name] is None else to_instant(row[name]) for name in node.watched)
            untimely = node.untimely((at, *closed), now)
            if untimely is not None:
                self.dead.append(RowDeadLetter(row, untimely.reason))
                continue
            closes += [each for each in closed if each is not None]
            if at is not None:
                times.append(at)
                timed.append(row)
        estimator, before = self._progress[id(node)]
        bundle = estimator.see(times, closes)
        self._progress[id(node)] = estimator, estimator.observe(before, bundle, now)
        if bundle.is_something:
            self._spoke.add(id(node))
        return timed


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values match in a join: NULL matches nothing, NaN matches NaN."""
    return one is not None and other is not None and sort_key(one) == sort_key(other)


def as_key(value: Any) -> Any:
    """A value in the form in which keys are compared: all NaNs are one key, and -0.0 is 0.0."""
    if not isinstance(value, float):
        return value
    return nan if isnan(value) else value + 0.0


def _named(known: tuple[Source, ...], name: str | None) -> Source:
    if name is None and len(known) == 1:
        return known[0]
    for source in known:
        if source.name == name:
            return source
    names = [source.name for source in known]
    if name is None:
        raise refuse("the query reads several sources", advice=f"name the source of the rows: {', '.join(names)}")
    raise refuse_unknown("source", name, names)


def _expressions(stream: Stream) -> list[tuple[Stream, Expression]]:
    """Every row expression of a stream, with the node it belongs to."""
    above = [found for parent in parents(stream) for found in _expressions(parent)]
    return [*above, *((stream, expression) for expression in operator_of(stream).expressions)]
