"""Streams of rows: sources and row operators.

Every node is a value that is validated when it is built and stores the line of the user's code. Building a node runs
nothing. Each method of `Stream` returns a new node on top of the one it is called on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from millrace.model.clock import Untimely, is_ahead, too_far_ahead
from millrace.model.connectors import CustomSource
from millrace.model.duration import Duration, parse_duration, parse_positive
from millrace.model.errors import Place, caller, refuse, refuse_unknown, shown, unknown
from millrace.model.expression import Expression, RowSql, named, parse_expression
from millrace.model.function import Function, checked
from millrace.model.joining import JoinSpec
from millrace.model.nested import ArrayType, MapType, nested
from millrace.model.schema import UNKNOWN, Column, Schema, parse_schema
from millrace.model.udf import RowValue, UserCall
from millrace.model.watermark import Estimator, Policy, Punctuated
from millrace.model.watermark import delay as bounded_delay
from millrace.model.window import Windowing

if TYPE_CHECKING:
    from millrace.model.pipeline import Output, Sink
    from millrace.model.query import Query, Windowed


STRICT = "strict"
"""The option of a source whose records have no other fields than its columns."""
ARCHIVE = "archive"
"""The option of a source that names the folder where its records are archived."""
METADATA = "metadata "
"""The beginning of an option of a source: then the name of a column, which is a part of the record beside its value."""


class Stream:
    """Rows without end. Each method returns a new stream."""

    __slots__ = ()
    schema: Schema
    place: Place

    def where(self, condition: RowValue) -> "Where | Select":
        """Keep the rows for which the condition holds: SQL, a `Column` of Spark's, or a call of a `udf`."""
        if isinstance(condition, UserCall):
            above, asked = self._called({"condition": condition})
            return above.where(asked["condition"]).select(*self.schema.names)
        expression = parse_expression(condition, self.schema)
        if expression.type not in ("BOOLEAN", UNKNOWN):
            raise refuse(f"where({condition!r}) needs a condition, but this is {expression.type}")
        return Where(self, expression, self.schema, caller())

    def select(self, /, *names: str, **columns: RowValue) -> "Select":
        """Keep only these columns and computed ones: `select("user", seconds="ms / 1000")`."""
        if _has_calls(columns):
            above, asked = self._called(columns)
            return above.select(*names, **asked)
        chosen = {name: parse_expression(f"`{name}`", Schema((self._column(name),))) for name in names}
        for name, sql in columns.items():
            if name in chosen:
                raise refuse(f"column {name!r} is selected twice")
            chosen[name] = parse_expression(sql, self.schema)  # type: ignore[arg-type]
        if not chosen:
            raise refuse("select() needs at least one column")
        self._keeps_event_time(chosen)
        schema = Schema(tuple(named(name, expression) for name, expression in chosen.items()))
        return Select(self, tuple(chosen.items()), schema, caller())

    def with_columns(self, /, *unnamed: str, **columns: RowValue) -> "WithColumns | Select":
        """Add or replace columns: `with_columns(seconds="ms / 1000")`."""
        if unnamed:
            raise refuse("a computed column needs a name", advice=f"write with_columns(x={unnamed[0]!r})")
        if not columns:
            raise refuse("with_columns() needs at least one column, such as seconds='ms / 1000'")
        if _has_calls(columns):
            above, asked = self._called(columns)
            return above.with_columns(**asked).select(*dict.fromkeys((*self.schema.names, *columns)))
        added = {name: parse_expression(sql, self.schema) for name, sql in columns.items()}  # type: ignore[arg-type]
        for column in event_time_columns(self):
            if column in added:
                problem = f"with_columns() cannot replace column {column!r}, which the event time needs"
                raise refuse(problem, advice="call with_columns() before .event_time(...)")
        schema = self.schema.with_columns(named(name, expression) for name, expression in added.items())
        return WithColumns(self, tuple(added.items()), schema, caller())

    def map(
        self,
        function: Callable[[Any], Any],
        schema: str | Mapping[str, str] | Schema,
        *,
        over: str = "rows",
        version: str | None = None,
    ) -> "Map":
        """Make one row of each row: `map(parse, "track STRING, ms BIGINT")`.

        The function takes a row as a dict and returns a mapping of columns to values. With `over="arrow"` or
        `over="pandas"` it takes many rows as a table or a DataFrame, and returns one with as many rows, in the same
        order. A row for which it raises becomes a dead letter. `version` is as for `agg.fold`.
        """
        return self._map(checked("map", function, over, version), schema, many=False)

    def flat_map(
        self,
        function: Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]],
        schema: str | Mapping[str, str] | Schema,
        *,
        version: str | None = None,
    ) -> "Map":
        """Make any number of rows of each row: the function takes a dict and returns an iterable of mappings."""
        return self._map(checked("flat_map", function, "rows", version), schema, many=True)

    def filter(self, function: Callable[[Any], Any], *, over: str = "rows", version: str | None = None) -> "Filter":
        """Keep the rows for which a function is true: `filter(is_valid)`.

        The function takes a row as a dict. With `over="arrow"` or `over="pandas"` it takes many rows, and returns an
        array or a Series of as many booleans.
        """
        if isinstance(function, str):
            raise refuse("filter() takes a function", advice=f"write where({function!r}) for an SQL condition")
        return Filter(self, checked("filter", function, over, version), self.schema, caller())

    def explode(self, column: str, *, outer: bool = False) -> "Explode":
        """Make one row of each element of an ARRAY, which takes the array's place: `explode("tags")`.

        An entry of a MAP takes two columns, `key` and `value`. A row whose array is NULL or empty gives no row; with
        `outer`, it gives one row in which the element is NULL.
        """
        return Explode(self, column, outer, exploded(self.schema, column), caller())

    def dedup(self, *by: str, within: Duration | None = None) -> "Dedup":
        """Keep the first of the rows with equal values in the columns `by`.

        With `within`, the state keeps a key until the watermark is that far past its event time; without, forever.
        """
        if not by:
            raise refuse("dedup() needs the columns that identify a row, such as dedup('event_id')")
        for name in by:
            self._column(name)
        if reads_changes(self):
            advice = "call dedup() on the streams that they read"
            raise refuse("dedup() keeps rows of a source, not the changes of a query or a join", advice=advice)
        horizon = None if within is None else parse_positive(within, "within= of dedup()")
        if horizon is not None and not is_timed(self):
            raise refuse("dedup(within=...) needs an event time", advice="call .event_time(...) before it")
        return Dedup(self, by, horizon, self.schema, caller())

    def union(self, *others: "Stream | Query") -> "Union":
        """Combine this stream with others that have the same columns. Each row keeps its event time and its diff."""
        if not others:
            raise refuse("union() needs another stream")
        sides = tuple(map(as_stream, others))
        for other in sides:
            if not isinstance(other, Stream):
                raise refuse(f"union() takes streams, not {shown(other)}")
            if set(other.schema.typed) != set(self.schema.typed):
                raise refuse(f"the streams of union() have different columns: ({self.schema}) and ({other.schema})")
        union = Union((self, *sides), self.schema, caller())
        check_times(union)
        return union

    def join(
        self,
        other: "Table | Stream | Query",
        on: str | Iterable[str],
        how: str = "inner",
        as_of: str | None = None,
        *,
        within: tuple[Duration, Duration] | None = None,
        window: Windowing | None = None,
        lateness: Duration | tuple[Duration, Duration] = "0s",
        unmatched: str = "final",
        late: str = "drop",
    ) -> "Join | JoinStream":
        """Look up each row in a table, or pair it with the rows of another stream.

        A table: `join(campaigns, on="ad_id")`; `how="left"` keeps rows without a match. With `as_of="since"`, where
        `since` is the table's column of the time from which a row is valid, each row joins the newest table row that is
        valid at its event time.

        A stream, or a query: `impressions.join(clicks, on="ad", within=("0s", "1h"))` pairs rows whose event times are
        that far apart: other less own, both bounds included. `window=window.fixed("1h")` pairs rows of one window
        instead. `how` is inner, left, right, full, semi or anti. A row that is more than `lateness` (of both sides, or
        a pair) behind the watermark of its side is dropped; with `late="keep"` it also becomes a dead letter. A row
        without a partner is answered when it can find none any more; with `unmatched="early"` at once, and it is taken
        back when a partner comes.
        """
        streamed = as_stream(other)
        if isinstance(streamed, Stream):
            if as_of is not None:
                raise refuse("join(as_of=...) takes a table", advice="leave it out, or join a table")
            return self._joined(streamed, on, how, within, window, lateness, unmatched, late)
        table = other
        if not isinstance(table, Table):
            raise refuse(f"join() takes a table, made with table(...), a stream or a query, not {shown(table)}")
        if (within, window, lateness, unmatched, late) != (None, None, "0s", "final", "drop"):
            given = {"within": within, "window": window}
            name = next((name for name, value in given.items() if value is not None), None)
            name = name or ("lateness" if lateness != "0s" else "unmatched" if unmatched != "final" else "late")
            raise refuse(f"join({name}=...) takes a stream, not a table", advice=f"leave {name}= out")
        if how not in ("inner", "left"):
            raise refuse_unknown("kind of join", how, ("inner", "left"))
        keys = (on,) if isinstance(on, str) else tuple(on)
        for name in keys:
            left, right = self._column(name).type, table.schema.type_of(name)
            if left != right and UNKNOWN not in (left, right):
                raise refuse(f"join on {name!r}: it is {left} in the stream, but {right} in table {table.name!r}")
        if not keys:
            raise refuse("join() needs on=, the columns that the stream and the table share")
        added = [column for column in table.schema if column.name not in keys]
        clash = [column.name for column in added if column.name in self.schema]
        if clash:
            raise refuse(f"both sides of the join have a column {clash[0]!r}", advice="rename one with select()")
        if as_of is not None:
            self._check_as_of(table, as_of)
        return Join(self, table, keys, how, as_of, self.schema.with_columns(added), caller())

    def event_time(
        self,
        column: str,
        delay: Duration | None = None,
        watermark: Policy | None = None,
        idle: Duration | None = None,
        ahead: Duration | None = "1d",
    ) -> "EventTime | AnswerTime":
        """Set the event time column and the watermark policy.

        The policy is either `delay="10s"` (no event is more than that older than the newest event before it) or
        `watermark=percentile(0.99)` or `punctuated("closes")`. A source without input for `idle` of processing time
        does not hold back the watermark. A row whose event time is more than `ahead` after the log time of its record
        becomes a dead letter, because the watermark that it sets would make all other rows late; None accepts all.

        The answers of a query have an event time and a watermark already: the end of their window, less a microsecond.
        `event_time("day")` names another column, whose time must not be after the end of the window.
        """
        type = self._column(column).type
        if type not in ("TIMESTAMP", UNKNOWN):
            advice = f"convert it, for example with_columns({column}='timestamp_millis({column})')"
            if reads_changes(self):
                advice = "name a TIMESTAMP that is not after the event time of the row, such as 'window_start'"
            elif type == "STRING":
                advice = "declare it as TIMESTAMP in the schema of the source"
            raise refuse(f"the event time must be a TIMESTAMP, but {column!r} is {type}", advice=advice)
        if find_event_time(self) is not None:
            raise refuse("the stream has an event time already")
        if reads_changes(self) and own_sources(self):
            advice = "name it on the streams that union() takes"
            raise refuse("rows of sources and answers have their own event times", advice=advice)
        if reads_changes(self):
            if (delay, watermark, idle, ahead) != (None, None, None, "1d"):
                advice = f"write event_time({column!r}) only"
                raise refuse("the answers of a query or a join have its watermark", advice=advice)
            return AnswerTime(self, column, self.schema, caller())
        if (delay is None) == (watermark is None):
            raise refuse(
                "event_time() needs either delay= or watermark=",
                advice="pass delay='10s' or watermark=percentile(0.99), for example",
            )
        policy = bounded_delay(delay) if delay is not None else watermark
        if not isinstance(policy, Policy):
            raise refuse(f"watermark= takes percentile(...) or punctuated(...), not {shown(watermark)}")
        if isinstance(policy, Punctuated) and self._column(policy.column).type not in ("TIMESTAMP", UNKNOWN):
            raise refuse(
                f"punctuated({policy.column!r}) needs a TIMESTAMP, but it is {self._column(policy.column).type}"
            )
        timeout = None if idle is None else parse_positive(idle, "idle timeout")
        limit = None if ahead is None else parse_duration(ahead, "ahead= of event_time()")
        return EventTime(self, column, Estimator(policy, timeout), limit, self.schema, caller())

    def group_by(self, *keys: str) -> "Windowed":
        """Aggregate for each combination of values of these columns."""
        from millrace.model.query import Windowed

        return Windowed(self, caller()).group_by(*keys)

    def window(self, windowing: Windowing, lateness: Duration = "0s", late: str = "drop") -> "Windowed":
        """Aggregate over windows of the whole stream, without keys."""
        from millrace.model.query import Windowed

        return Windowed(self, caller()).window(windowing, lateness, late)

    if not TYPE_CHECKING:  # a type checker knows the methods

        def __getattr__(self, name: str) -> object:
            """Raise an AttributeError that names the method that was probably meant."""
            raise AttributeError(no_method("a stream", name, dir(type(self))))

    def to(self, sink: "Sink") -> "Output":
        """Send the rows of this stream to a sink of a pipeline."""
        from millrace.model.pipeline import send

        return send(self, sink)

    def _joined(
        self, other: "Stream", on: str | Iterable[str], how: str, within: tuple[Duration, Duration] | None,
        windowing: Windowing | None, lateness: Duration | tuple[Duration, Duration], unmatched: str, late: str,
    ) -> "JoinStream":  # fmt: skip
        for side, name in ((self, "left"), (other, "right")):
            if not is_timed(side):
                advice = "call .event_time(column, delay=...) before it"
                raise refuse(f"join() needs an event time on both sides, and the {name} has none", advice=advice)
        bounds = None if within is None else _bounds(within)
        if windowing is not None and not isinstance(windowing, Windowing):
            raise refuse(f"window= of join() takes windows such as window.fixed('1h'), not {shown(windowing)}")
        if late not in ("drop", "keep"):
            raise refuse(f"late= is 'drop' or 'keep', not {shown(late)}")
        allowed = lateness if isinstance(lateness, tuple) else (lateness, lateness)
        if len(allowed) != 2:
            raise refuse(f"lateness= of join() is a duration, or one for each side, not {shown(lateness)}")
        both = (parse_duration(allowed[0], "lateness"), parse_duration(allowed[1], "lateness"))
        keys = (on,) if isinstance(on, str) else tuple(on)
        spec = JoinSpec(keys, how, bounds, windowing, both, unmatched, self.schema, other.schema, late == "keep")
        return JoinStream(self, other, spec, spec.schema, caller())

    def _called(self, columns: Mapping[str, RowValue]) -> "tuple[Stream, dict[str, RowSql]]":
        from millrace.model.calling import with_calls

        return with_calls(self, columns)

    def _column(self, name: str) -> Column:
        return Column(name, self.schema.type_of(name))

    def _check_as_of(self, table: "Table", column: str) -> None:
        if find_event_time(self) is None:
            raise refuse("join(as_of=...) needs an event time", advice="call .event_time(column) before it")
        if table.schema.type_of(column) != "TIMESTAMP":
            raise refuse(f"join(as_of={column!r}) needs a TIMESTAMP, but it is {table.schema.type_of(column)}")

    def _map(self, function: Function, given: str | Mapping[str, str] | Schema, *, many: bool) -> "Map":
        method, schema = "flat_map" if many else "map", parse_schema(given)
        for name in event_time_columns(self):
            if name not in schema or schema.type_of(name) != "TIMESTAMP":
                problem = f"the schema of {method}() has no TIMESTAMP {name!r}, which the event time needs"
                raise refuse(problem, advice=f"add it, or call .event_time(...) after {method}()")
        return Map(self, function, many, schema, caller())

    def _keeps_event_time(self, chosen: Mapping[str, Expression]) -> None:
        closing = closing_columns(self)
        for name in event_time_columns(self):
            kept = renamed(name, chosen.items())
            if kept is None or (name in closing and kept != name):
                problem = f"select() drops or changes column {name!r}, which the event time needs"
                raise refuse(problem, advice="select it unchanged, or call .event_time(...) after select()")


@dataclass(frozen=True, slots=True)
class Source(Stream):
    """A source of rows: topics of the log or of Kafka, files, a `CustomSource`, or rows given by a test."""

    kind: str
    name: str
    schema: Schema
    options: tuple[tuple[str, str], ...] = ()
    place: Place = field(default_factory=caller, compare=False, repr=False)
    reader: CustomSource | None = field(default=None, compare=False, repr=False)
    """The reader of a custom source; None for other kinds."""
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of a client that may hold passwords: never shown, and no part of a fingerprint."""

    @property
    def is_strict(self) -> bool:
        """Whether a record with a field that is no column is a dead letter."""
        return (STRICT, "true") in self.options

    @property
    def archive(self) -> str | None:
        """The folder where its records are archived, if they are."""
        return dict(self.options).get(ARCHIVE)

    @property
    def metadata(self) -> dict[str, str]:
        """The columns that are not in the value of a record, and the parts of the record that they are."""
        return {key.removeprefix(METADATA): part for key, part in self.options if key.startswith(METADATA)}

    @property
    def value_schema(self) -> Schema:
        """The columns that are in the value of a record."""
        metadata = self.metadata
        return Schema(tuple(each for each in self.schema if each.name not in metadata)) if metadata else self.schema


@dataclass(frozen=True, slots=True)
class Where(Stream):
    """The rows for which a condition is true; rows for which it is NULL are dropped."""

    parent: Stream
    condition: Expression
    schema: Schema
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Select(Stream):
    """The rows with only these columns."""

    parent: Stream
    columns: tuple[tuple[str, Expression], ...]
    schema: Schema
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class WithColumns(Stream):
    """The rows with these columns added or replaced."""

    parent: Stream
    columns: tuple[tuple[str, Expression], ...]
    schema: Schema
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Map(Stream):
    """The rows that a function makes of each row: one, or any number if `many`."""

    parent: Stream
    function: Function
    many: bool
    schema: Schema
    place: Place = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{'flat_map' if self.many else 'map'}({self.function})"


@dataclass(frozen=True, slots=True)
class Filter(Stream):
    """The rows for which a function is true."""

    parent: Stream
    function: Function
    schema: Schema
    place: Place = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"filter({self.function})"


@dataclass(frozen=True, slots=True)
class Explode(Stream):
    """One row for each element of an array, or for each entry of a map."""

    parent: Stream
    column: str
    outer: bool
    schema: Schema
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Dedup(Stream):
    """The first of the rows with equal values in `by`."""

    parent: Stream
    by: tuple[str, ...]
    within: int | None
    schema: Schema
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Union(Stream):
    """The rows of several streams."""

    parents: tuple[Stream, ...]
    schema: Schema
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A small table: given rows, or the rows of a file or a view, which may change while the pipeline runs."""

    name: str
    schema: Schema
    rows: tuple[tuple[Any, ...], ...] = ()
    path: str | None = None
    view: str | None = None


@dataclass(frozen=True, slots=True)
class Join(Stream):
    """Each row with the columns of the table's rows that match in `on`; with `as_of`, of the newest valid one only."""

    parent: Stream
    table: Table
    on: tuple[str, ...]
    how: str
    as_of: str | None
    schema: Schema
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EventTime(Stream):
    """The rows, with their event time in `column`."""

    parent: Stream
    column: str
    estimator: Estimator
    ahead: int | None
    """How far a time may be ahead of the log time of its record; None if it may be any time."""
    schema: Schema
    place: Place = field(compare=False, repr=False)

    @property
    def watched(self) -> tuple[str, ...]:
        """The columns that advance the watermark."""
        policy = self.estimator.policy
        return (self.column, policy.column) if isinstance(policy, Punctuated) else (self.column,)

    def untimely(self, at: Sequence[int | None], logged: int) -> Untimely | None:
        """Why a row is a dead letter, from the instants in its `watched` columns; None if it is none."""
        for name, instant in zip(self.watched, at, strict=True):
            if self.ahead is not None and instant is not None and is_ahead(instant, logged, self.ahead):
                what = f"event time {name}" if name == self.column else name
                return too_far_ahead(what, instant, logged, self.ahead)
        if any(instant is not None for instant in at):
            return None
        problem = f"event time {self.column} is NULL"
        return Untimely(problem, problem, f'leave such rows out before event_time: where("{self.column} IS NOT NULL")')


@dataclass(frozen=True, slots=True)
class AnswerStream(Stream):
    """The panes of a query as changes: rows that are added or, with a diff of -1, taken back."""

    query: "Query"
    schema: Schema
    place: Place = field(compare=False, repr=False)

    @property
    def takes_back(self) -> bool:
        """Whether its changes may hold a retraction, a diff of -1."""
        return self.query.takes_back


@dataclass(frozen=True, slots=True)
class JoinStream(Stream):
    """The pairs of rows of two streams as changes."""

    left: Stream
    right: Stream
    spec: JoinSpec
    schema: Schema
    place: Place = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a side whose rows would be counted twice."""
        from millrace.model.query import check_not_counted_twice

        for side in self.sides:
            for each in derived_in(side):
                if isinstance(each, AnswerStream):
                    check_not_counted_twice(each.query)

    @property
    def sides(self) -> tuple[Stream, Stream]:
        """The left and the right stream."""
        return self.left, self.right

    @property
    def takes_back(self) -> bool:
        """Whether its changes may hold a retraction, a diff of -1."""
        is_early = self.spec.unmatched == "early"
        return is_early or any(each.takes_back for side in self.sides for each in derived_in(side))


@dataclass(frozen=True, slots=True)
class AnswerTime(Stream):
    """The rows, with their event time in `column`; the watermark is that of the queries they come from."""

    parent: Stream
    column: str
    schema: Schema
    place: Place = field(compare=False, repr=False)

    @property
    def watched(self) -> tuple[str, ...]:
        """The column with the event time."""
        return (self.column,)


def _bounds(within: object) -> tuple[int, int]:
    """The bounds of `within=`, in microseconds; a negative one is written '-5m'."""
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise refuse(f"within= of join() is a pair of durations, such as ('0s', '1h'), not {shown(within)}")
    return _signed(within[0]), _signed(within[1])


def _signed(bound: Any) -> int:
    if isinstance(bound, str) and bound.strip().startswith("-"):
        return -parse_duration(bound.strip()[1:], "within= of join()")
    if isinstance(bound, timedelta) and bound < timedelta(0):
        return -parse_duration(-bound, "within= of join()")
    return parse_duration(bound, "within= of join()")


def _has_calls(columns: Mapping[str, object]) -> bool:
    return any(isinstance(each, UserCall) for each in columns.values())


_ELSEWHERE = {
    "groupBy": "group_by",
    "groupby": "group_by",
    "withColumn": "with_columns",
    "withColumns": "with_columns",
    "selectExpr": "select",
    "dropDuplicates": "dedup",
    "withWatermark": "event_time",
    "agg": "aggregate",
    "having": "where",
    "order_by": "agg.top_k(..., by=...) in a query that reads it",
    "orderBy": "agg.top_k(..., by=...) in a query that reads it",
    "limit": "agg.top_k(..., by=...) in a query that reads it",
    "flatMap": "flat_map",
    "explode_outer": "explode(..., outer=True)",
    "mapInArrow": "map(..., over='arrow')",
    "mapInPandas": "map(..., over='pandas')",
}


def no_method(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown method, with the name that was probably meant."""
    if name.startswith("_"):
        return name
    if name in _ELSEWHERE:
        known_here = _ELSEWHERE[name]
        return f"{what} has no {name}(); use {known_here if '(' in known_here else f'{known_here}()'}"
    return f"{what} has no {name}(): {unknown('method', name, [each for each in known if not each.startswith('_')])}"


Applying: TypeAlias = Map | Filter | Explode
"""The steps that run in Python over Arrow tables, on every engine: `model.applied` has their meaning."""

Node: TypeAlias = (
    Source
    | AnswerStream
    | JoinStream
    | Where
    | Select
    | WithColumns
    | Applying
    | Dedup
    | Union
    | Join
    | EventTime
    | AnswerTime
)
"""Every kind of stream. A function that matches on it ends in `assert_never`: a forgotten kind is a type error."""


def node_of(stream: Stream) -> Node:
    """The stream as one of the known kinds."""
    assert isinstance(stream, Node), f"{type(stream).__name__} is not a kind of stream"
    return stream


def parents(stream: Stream) -> tuple[Stream, ...]:
    """The streams that a node reads; none for a source, and none for the answers of a query."""
    match node_of(stream):
        case Source() | AnswerStream() | JoinStream():
            return ()
        case Union(parents=sides):
            return sides
        case Where(parent) | Select(parent) | WithColumns(parent) | Map(parent) | Filter(parent) | Explode(parent):
            return (parent,)
        case Dedup(parent) | Join(parent) | EventTime(parent) | AnswerTime(parent):
            return (parent,)
        case never:
            assert_never(never)


def with_parents(stream: Stream, given: Sequence[Stream]) -> Stream:
    """The same node on top of other streams."""
    match node_of(stream):
        case (Source() | AnswerStream() | JoinStream()) as root:
            return root
        case Union() as union:
            return replace(union, parents=tuple(given))
        case (
            Where() | Select() | WithColumns() | Map() | Filter() | Explode() | Dedup() | Join() | EventTime()
            | AnswerTime()
        ) as node:  # fmt: skip
            (parent,) = given
            return replace(node, parent=parent)
        case never:
            assert_never(never)


def with_sources(stream: Stream, of: Callable[[Source], Stream]) -> Stream:
    """The same stream with its sources replaced, also those of the queries whose answers it reads."""
    if isinstance(stream, Source):
        return of(stream)
    if isinstance(stream, Derived):
        return with_streams_read(stream, lambda read: with_sources(read, of))
    return with_parents(stream, [with_sources(parent, of) for parent in parents(stream)])


def sources(stream: Stream) -> tuple[Source, ...]:
    """The sources that a stream reads, each once, in the order in which the user wrote them."""
    if isinstance(stream, Source):
        return (stream,)
    if isinstance(stream, Derived):
        return tuple(dict.fromkeys(source for read in streams_read(stream) for source in sources(read)))
    return tuple(dict.fromkeys(source for parent in parents(stream) for source in sources(parent)))


def own_sources(stream: Stream) -> tuple[Source, ...]:
    """The sources whose rows a stream reads itself, each once; not those that the queries and joins it reads have."""
    if isinstance(stream, Source):
        return (stream,)
    return tuple(dict.fromkeys(source for parent in parents(stream) for source in own_sources(parent)))


Derived: TypeAlias = AnswerStream | JoinStream
"""A stream of changes, which a stage computes from other streams."""


def streams_read(derived: Derived) -> tuple[Stream, ...]:
    """The streams that a stream of changes is computed from."""
    return (derived.query.stream,) if isinstance(derived, AnswerStream) else derived.sides


def with_streams_read(derived: Derived, of: Callable[[Stream], Stream]) -> Derived:
    """The same computation over other streams."""
    if isinstance(derived, AnswerStream):
        return replace(derived, query=replace(derived.query, stream=of(derived.query.stream)))
    return replace(derived, left=of(derived.left), right=of(derived.right))


def derived_in(stream: Stream) -> tuple[Derived, ...]:
    """The streams of changes that a stream reads directly, each once; what those read is not among them."""
    if isinstance(stream, Derived):
        return (stream,)
    return tuple(dict.fromkeys(found for parent in parents(stream) for found in derived_in(parent)))


def with_derived(stream: Stream, of: Callable[[Derived], Stream]) -> Stream:
    """The same stream with the streams of changes that it reads directly replaced."""
    if isinstance(stream, Derived):
        return of(stream)
    return with_parents(stream, [with_derived(parent, of) for parent in parents(stream)])


def reads_changes(stream: Stream) -> bool:
    """Whether some of its rows are changes, which may be taken back, and not rows of a source."""
    return bool(derived_in(stream))


def only_from(stream: Stream, root: "Source | Derived") -> Stream:
    """The stream as rows of one of its sources, or one of the streams of changes that it reads, pass through it.

    Where a union has sides of both kinds, or with different event times, those that do not read it are left out.
    """
    above = parents(stream)
    if isinstance(stream, Union) and reads_changes(stream):
        above = tuple(side for side in above if root in own_sources(side) or root in derived_in(side))
    made = [only_from(parent, root) for parent in above]
    if len(made) == len(parents(stream)) and all(map(is_, made, parents(stream))):
        return stream
    return with_parents(stream, made)


def check_times(union: "Union") -> None:
    """Refuse a union of streams whose rows have no common way to an event time."""
    times = {node.column if (node := find_event_time(side)) else None for side in union.parents}
    if not reads_changes(union):
        if len(times) > 1:
            advice = "use the same column, or call .event_time(...) after union()"
            raise refuse("the streams of union() have different event time columns", advice=advice)
        return
    for side in union.parents:
        if not is_timed(side):
            advice = "call .event_time(column, delay=...) on them before union()"
            raise refuse("union() of answers and rows of a source that have no event time", advice=advice)
    for root in (*own_sources(union), *derived_in(union)):
        sides = only_from(union, root).parents  # type: ignore[attr-defined]
        if len({node.column if (node := find_event_time(side)) else None for side in sides}) > 1:
            advice = "use the same column on all sides"
            raise refuse("the streams of union() read the same rows with different event times", advice=advice)


def is_timed(stream: Stream) -> bool:
    """Whether its rows have an event time."""
    return find_event_time(stream) is not None or reads_changes(stream)


def as_stream(given: Any) -> Any:
    """A query as the stream of its answers; anything else as it is."""
    from millrace.model.query import Query

    return given.changes() if isinstance(given, Query) else given


def find_event_time(stream: Stream) -> EventTime | AnswerTime | None:
    """The node that names the event time of a stream, with the name that its column has in the stream.

    None if the stream has no event time, or that of the answers of a query, which is in no column, or if the sides of a
    union have different ones.
    """
    if isinstance(stream, EventTime | AnswerTime):
        return stream
    found = [find_event_time(parent) for parent in parents(stream)]
    columns = {None if node is None else node.column for node in found}
    node = found[0] if len(columns) == 1 else None
    if node is None or not isinstance(stream, Select):
        return node
    name = renamed(node.column, stream.columns)
    return node if name in (None, node.column) else replace(node, column=name)


def event_time_columns(stream: Stream) -> tuple[str, ...]:
    """The columns that hold event times and advance the watermark of a stream."""
    if isinstance(stream, EventTime | AnswerTime):
        return stream.watched
    above = [name for parent in parents(stream) for name in event_time_columns(parent)]
    if isinstance(stream, Select):
        above = [renamed(name, stream.columns) or name for name in above]
    return tuple(dict.fromkeys(above))


def closing_columns(stream: Stream) -> tuple[str, ...]:
    """The columns with which producers declare watermarks; they keep their names."""
    return tuple(name for node in event_times(stream) for name in node.watched[1:])


def renamed(name: str, columns: Iterable[tuple[str, Expression]]) -> str | None:
    """The name of a column among selected ones: its own, if it is there, or another; None if it is not selected."""
    found = [new for new, expression in columns if expression.is_column(name)]
    return name if name in found else found[0] if found else None


def exploded(schema: Schema, column: str) -> Schema:
    """The columns after `explode(column)`; a column that is no array and no map is refused."""
    type = schema.type_of(column)
    match nested(type):
        case ArrayType(element):
            added = [Column(column, element)]
        case MapType(key, value):
            added = [Column("key", key), Column("value", value)]
            taken = [each.name for each in added if each.name in schema and each.name != column]
            if taken:
                problem = f"explode({column!r}) makes a column {taken[0]!r}, but the stream has one already"
                raise refuse(problem, advice="rename it with select()")
        case _ if UNKNOWN in type:
            added = [Column(column, UNKNOWN)]
        case _:
            advice = None
            if type == "STRING":
                advice = f"make an ARRAY of the text first: with_columns({column}=\"split({column}, ',')\")"
            raise refuse(f"explode() needs an ARRAY or a MAP, but {column!r} is {type}", advice=advice)
    return Schema(tuple(new for each in schema for new in (added if each.name == column else [each])))


def event_times(stream: Stream) -> list[EventTime]:
    """The event time nodes of a stream, each once; every side of a union may have its own."""
    if isinstance(stream, EventTime):
        return [stream]
    found = (node for parent in parents(stream) for node in event_times(parent))
    return list({id(node): node for node in found}.values())


def is_guarded(stream: Stream) -> bool:
    """Whether a row of the stream may be too far ahead of the log time of its record."""
    return any(node.ahead is not None for node in event_times(stream))
