"""Windowed aggregations: what is computed, where in event time, when in processing time, and how panes relate."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from millrace.model.aggregate import Aggregate, First, check_types
from millrace.model.changes import ANSWER_ONCE, check_over_changes
from millrace.model.duration import Duration, parse_duration, to_datetime
from millrace.model.errors import Place, caller, refuse, shown
from millrace.model.expression import Expression, parse_expression
from millrace.model.pane import Mode, Pane
from millrace.model.schema import Column, Schema
from millrace.model.stream import (
    AnswerStream,
    AnswerTime,
    EventTime,
    Source,
    Stream,
    Table,
    derived_in,
    find_event_time,
    is_timed,
    no_method,
    reads_changes,
    streams_read,
    with_sources,
)
from millrace.model.trigger import Trigger, default, fires_once, is_trigger, may_finish, waits_for_the_end
from millrace.model.udf import RowValue
from millrace.model.watermark import Policy
from millrace.model.window import CountWindow, Global, Session, Window, Windowing

if TYPE_CHECKING:
    from millrace.model.pipeline import Output, Sink

WINDOW_COLUMNS = (Column("window_start", "TIMESTAMP"), Column("window_end", "TIMESTAMP"))


@dataclass(frozen=True, slots=True)
class Windowed:
    """An incomplete query; `aggregate` completes it."""

    stream: Stream
    place: Place = field(compare=False, repr=False)
    keys: tuple[str, ...] = ()
    windowing: Windowing | None = None
    lateness: int = 0
    keeps_late: bool = False
    when: Trigger | None = None
    mode: Mode | None = None

    def group_by(self, *keys: str) -> "Windowed":
        """Aggregate for each combination of values of these columns."""
        if self.keys:
            raise refuse("group_by() was called already", advice="pass all columns in one call")
        if not keys:
            advice = "name one, or leave group_by() out to aggregate the whole stream"
            raise refuse("group_by() needs at least one column", advice=advice)
        for name in keys:
            self.stream.schema.type_of(name)
        if len(set(keys)) < len(keys):
            raise refuse("group_by() names a column twice")
        return replace(self, keys=keys)

    def window(self, windowing: Windowing, lateness: Duration = "0s", late: str = "drop") -> "Windowed":
        """Set the windows: `window(window.fixed("1h"), lateness="1d")`.

        A closed window still accepts late events for `lateness` of event time. A record that is too late for all its
        windows is dropped; with `late="keep"` it also becomes a dead letter.
        """
        if not isinstance(windowing, Windowing):
            raise refuse(
                f"window() takes windows such as window.fixed('1h') or window.session('30m'), not {shown(windowing)}"
            )
        if self.windowing is not None:
            raise refuse("window() was called already", advice="call it once; a query has one kind of window")
        allowed = parse_duration(lateness, "lateness")
        if isinstance(windowing, Global):
            allowed = 0  # the global window closes when the input ends, so no event is late for it
        if allowed and isinstance(windowing, CountWindow):
            raise refuse("a count window has no lateness: it does not use event time", advice="leave lateness= out")
        if not isinstance(windowing, Global | CountWindow) and not is_timed(self.stream):
            advice = "call .event_time(column, delay=...) before it"
            raise refuse(f"{windowing} needs an event time", advice=advice)
        if late not in ("drop", "keep"):
            raise refuse(f"late= is 'drop' or 'keep', not {shown(late)}")
        if late == "keep" and isinstance(windowing, Global | CountWindow):
            raise refuse(f"no event is too late for {windowing}", advice="leave late= out")
        if late == "keep" and reads_changes(self.stream):
            advice = "leave late= out: late answers are counted"
            raise refuse("an answer that is too late has no record to keep", advice=advice)
        return replace(self, windowing=windowing, lateness=allowed, keeps_late=late == "keep")

    def trigger(self, when: Trigger) -> "Windowed":
        """Set when windows answer: `trigger(on.watermark(early=on.every("10s"), late=on.each()))`."""
        if not is_trigger(when):
            raise refuse(f"trigger() takes a trigger such as on.every('10s'), not {shown(when)}")
        if self.when is not None:
            advice = "combine triggers with on.any_of(...) or on.in_order(...)"
            raise refuse("trigger() was called already", advice=advice)
        return replace(self, when=when)

    def discarding(self) -> "Windowed":
        """Make each pane cover only the elements since the previous pane."""
        return self._in_mode(Mode.DISCARDING)

    def accumulating(self) -> "Windowed":
        """Make each pane cover all elements so far; it replaces the previous pane."""
        return self._in_mode(Mode.ACCUMULATING)

    def retracting(self) -> "Windowed":
        """Make each pane cover all elements so far, and retract the previous pane first."""
        return self._in_mode(Mode.RETRACTING)

    def aggregate(self, /, *unnamed: Aggregate, **aggregates: Aggregate) -> "Query":
        """Set the aggregates by name: `aggregate(plays=agg.count(), listeners=agg.approx_distinct("user"))`."""
        if unnamed:
            raise refuse("an aggregate needs a name", advice=f"write aggregate(n={unnamed[0]})")
        if self.windowing is None:
            advice = "call .window(window.fixed('1h')) or .window(window.all_time()) before .aggregate(...)"
            raise refuse("the query has no window", advice=advice)
        if self.when is not None and self.mode is None:
            raise refuse(
                f"the trigger {self.when} may fire more than once for a window, and the mode of its panes is not set",
                advice="call .discarding(), .accumulating() or .retracting()",
            )
        if self.keeps_late and self.when is not None and may_finish(self.when):
            raise refuse(
                f"the trigger {self.when} can finish, and then drops events that are not too late, which late='keep' "
                "cannot keep",
                advice="use a trigger that does not finish: give on.watermark(...) a late=, or use on.repeat(...)",
            )
        if not aggregates:
            raise refuse("aggregate() needs at least one aggregate, such as plays=agg.count()")
        for column in WINDOW_COLUMNS:
            if column.name in self.keys:
                advice = f"rename the key: with_columns(during={column.name!r}).group_by('during')"
                raise refuse(f"the result has a column {column.name!r} of its own", advice=advice)
        computed = []
        for name, aggregate in aggregates.items():
            arguments = self._arguments(name, aggregate)
            computed.append(Computed(name, aggregate.over([each.type for each in arguments]), arguments))
        query = Query(
            self.stream,
            self.keys,
            self.windowing,
            self.lateness,
            self.when or default(),
            self.mode or Mode.ACCUMULATING,
            tuple(computed),
            caller(),
            self.keeps_late,
            self.mode is not None,
        )
        check_input(query)
        return query

    if not TYPE_CHECKING:  # a type checker knows the methods

        def __getattr__(self, name: str) -> object:
            """Raise an AttributeError that says where an unknown or misplaced method belongs."""
            if name in ("event_time", "where", "select", "with_columns", "dedup", "join", "union"):
                raise AttributeError(f"a windowed stream has no {name}(); call it before .group_by() and .window()")
            raise AttributeError(no_method("a windowed stream", name, dir(type(self))))

    def _in_mode(self, mode: Mode) -> "Windowed":
        if self.mode is not None:
            raise refuse(f"panes cannot be {mode}: they are {self.mode} already")
        return replace(self, mode=mode)

    def _arguments(self, name: str, aggregate: Aggregate) -> tuple[Expression, ...]:
        if not isinstance(aggregate, Aggregate):
            raise refuse(f"{name}= takes an aggregate such as agg.count() or agg.sum('ms'), not {shown(aggregate)}")
        if name in self.keys or name in (column.name for column in WINDOW_COLUMNS):
            raise refuse(f"the result has a column {name!r} already", advice="give the aggregate another name")
        if isinstance(self.windowing, Session) and not aggregate.mergeable:
            raise refuse(
                f"session windows merge, and {name}={aggregate} cannot be merged",
                advice="pass merge= to the fold, or use another window",
            )
        if isinstance(aggregate, First) and not is_timed(self.stream):
            advice = "call .event_time(column, delay=...) before it"
            raise refuse(f"{name}={aggregate} needs an event time", advice=advice)
        arguments = tuple(parse_expression(sql, self.stream.schema) for sql in aggregate.arguments)
        check_types(aggregate, [argument.type for argument in arguments])
        return arguments


@dataclass(frozen=True, slots=True)
class Computed:
    """One aggregate of a query: its name, and its arguments over the columns of the stream."""

    name: str
    aggregate: Aggregate
    arguments: tuple[Expression, ...]

    @property
    def column(self) -> Column:
        """The column of the result."""
        return Column(self.name, self.aggregate.result_type([argument.type for argument in self.arguments]))


@dataclass(frozen=True, slots=True)
class Query:
    """A complete windowed aggregation: what, where, when and how."""

    stream: Stream
    keys: tuple[str, ...]
    windowing: Windowing
    lateness: int
    when: Trigger
    mode: Mode
    computed: tuple[Computed, ...]
    place: Place = field(compare=False, repr=False)
    keeps_late: bool = False
    """Whether records that are too late for all their windows become dead letters."""
    has_chosen_mode: bool = field(default=True, compare=False, repr=False)
    """Whether the user has chosen the mode."""

    @property
    def answers_once(self) -> bool:
        """Whether each key and window has one answer, which is never corrected."""
        if isinstance(self.windowing, CountWindow) and waits_for_the_end(self.when):
            return True
        return fires_once(self.when)

    @property
    def takes_back(self) -> bool:
        """Whether its changes may hold a retraction, a diff of -1."""
        return self.mode is Mode.RETRACTING and (not self.answers_once or isinstance(self.windowing, Session))

    @property
    def reads_retractions(self) -> bool:
        """Whether its input may hold retractions."""
        return any(each.takes_back for each in derived_in(self.stream))

    def changes(self) -> AnswerStream:
        """The answers as a stream, which other queries, joins and sinks can read.

        If no mode was chosen, a correction takes the previous answer back. So does a session that grows.
        """
        merges = isinstance(self.windowing, Session) and self.answers_once and self.mode is Mode.ACCUMULATING
        mode = Mode.RETRACTING if merges or not self.has_chosen_mode else self.mode
        return AnswerStream(replace(self, mode=mode, has_chosen_mode=True), self.schema, self.place)

    @property
    def needs_an_end(self) -> bool:
        """Whether it answers only at the end of the input, which a stream does not have."""
        return isinstance(self.windowing, Global) and waits_for_the_end(self.when)

    @property
    def schema(self) -> Schema:
        """The columns of the answers: keys, window, aggregates."""
        keys = tuple(Column(name, self.stream.schema.type_of(name)) for name in self.keys)
        ordinal = isinstance(self.windowing, CountWindow)
        bounds = (Column(column.name, "BIGINT" if ordinal else column.type) for column in WINDOW_COLUMNS)
        return Schema((*keys, *bounds, *(computed.column for computed in self.computed)))

    @property
    def key_names(self) -> tuple[str, ...]:
        """The columns that tell its answers apart: keys and window."""
        return (*self.keys, *(column.name for column in WINDOW_COLUMNS))

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key columns of partials and panes; they do not depend on the names of the keys."""
        return tuple(f"key{number}" for number in range(len(self.keys)))

    @property
    def partial_columns(self) -> tuple[tuple[str, ...], ...]:
        """The names of the columns of partials, for each aggregate."""
        return tuple(
            tuple(f"p{number}_{part}" for part in range(computed.aggregate.width))
            for number, computed in enumerate(self.computed)
        )

    @property
    def timed_by(self) -> EventTime | AnswerTime | None:
        """The event time column of the stream, if it has one; count and global windows do not need one."""
        return find_event_time(self.stream)

    @property
    def aggregates(self) -> Mapping[str, Aggregate]:
        """The aggregates by name."""
        return {computed.name: computed.aggregate for computed in self.computed}

    def of_key(self, key: tuple[Any, ...]) -> str:
        """A key as the end of a message; empty for a query without keys."""
        named = [f"{name}={value!r:.40}" for name, value in zip(self.keys, key, strict=True)]
        return f", where {', '.join(named)}" if named else ""

    def explain(self) -> str:
        """The flow as text."""
        from millrace.model.explain import flow_as_text

        return flow_as_text(self)

    def row(self, pane: Pane) -> dict[str, Any]:
        """A pane as a row: the columns of `schema`, then diff, timing, index and last."""
        bounds = {column.name: at for column, at in zip(WINDOW_COLUMNS, self.bounds(pane.window), strict=True)}
        about = {"diff": pane.diff, "timing": str(pane.timing), "index": pane.index, "last": pane.last}
        return {**dict(zip(self.keys, pane.key, strict=True)), **bounds, **pane.values, **about}

    def bounds(self, window: Window) -> tuple[Any, Any]:
        """The start and end of a window in answers: times, ordinals for count windows, None for the global window."""
        if isinstance(self.windowing, CountWindow):
            return window.start, window.end
        if isinstance(self.windowing, Global):
            return None, None
        return to_datetime(window.start), to_datetime(window.end)

    # What a stream can do, the answers of a query can: each of these is a method of `changes()`.

    def where(self, condition: RowValue) -> Stream:
        """Keep the answers for which the condition holds: `hourly.where("plays > 100")`."""
        return self.changes().where(condition)

    def select(self, /, *names: str, **columns: RowValue) -> Stream:
        """Keep only these columns of the answers, and computed ones."""
        return self.changes().select(*names, **columns)

    def with_columns(self, /, *unnamed: str, **columns: RowValue) -> Stream:
        """Add or replace columns of the answers: `hourly.with_columns(share="plays / listeners")`."""
        return self.changes().with_columns(*unnamed, **columns)

    def map(
        self, function: Callable[[Any], Any], schema: str | Mapping[str, str] | Schema, *, over: str = "rows",
        version: str | None = None,
    ) -> Stream:  # fmt: skip
        """Make one row of each answer, as `Stream.map` does."""
        return self.changes().map(function, schema, over=over, version=version)

    def flat_map(
        self, function: Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]],
        schema: str | Mapping[str, str] | Schema, *, version: str | None = None,
    ) -> Stream:  # fmt: skip
        """Make any number of rows of each answer, as `Stream.flat_map` does."""
        return self.changes().flat_map(function, schema, version=version)

    def filter(self, function: Callable[[Any], Any], *, over: str = "rows", version: str | None = None) -> Stream:
        """Keep the answers for which a function is true."""
        return self.changes().filter(function, over=over, version=version)

    def explode(self, column: str, *, outer: bool = False) -> Stream:
        """Make one row of each element of an ARRAY in an answer."""
        return self.changes().explode(column, outer=outer)

    def union(self, *others: "Stream | Query") -> Stream:
        """Combine the answers of queries that have the same columns."""
        return self.changes().union(*others)

    def join(
        self, other: "Table | Stream | Query", on: str | Iterable[str], how: str = "inner", as_of: str | None = None,
        *, within: tuple[Duration, Duration] | None = None, window: Windowing | None = None,
        lateness: Duration | tuple[Duration, Duration] = "0s", unmatched: str = "final", late: str = "drop",
    ) -> Stream:  # fmt: skip
        """Look up each answer in a table, or pair it with the rows of another stream, as `Stream.join` does."""
        return self.changes().join(
            other, on, how, as_of, within=within, window=window, lateness=lateness, unmatched=unmatched, late=late
        )

    def event_time(
        self, column: str, delay: Duration | None = None, watermark: Policy | None = None,
        idle: Duration | None = None, ahead: Duration | None = "1d",
    ) -> Stream:  # fmt: skip
        """Name another TIMESTAMP column as the event time of the answers; not after the end of their window.

        The answers have the watermark of their query, so the other arguments are refused.
        """
        return self.changes().event_time(column, delay, watermark, idle, ahead)

    def group_by(self, *keys: str) -> Windowed:
        """Aggregate the answers for each combination of values of these columns."""
        return self.changes().group_by(*keys)

    def window(self, windowing: Windowing, lateness: Duration = "0s", late: str = "drop") -> Windowed:
        """Aggregate all answers over windows, without keys."""
        return self.changes().window(windowing, lateness, late)

    if not TYPE_CHECKING:  # a type checker knows the methods

        def __getattr__(self, name: str) -> object:
            """Raise an AttributeError that names the method that was probably meant."""
            if name in ("dedup", "trigger", "discarding", "accumulating", "retracting"):
                raise AttributeError(f"a query has no {name}(); call it before .aggregate()")
            if name == "aggregate":
                advice = "to aggregate its answers, call .window(...) first"
                raise AttributeError(f"a query has its aggregates already; {advice}")
            methods = [each for each in dir(type(self)) if callable(getattr(type(self), each))]
            raise AttributeError(no_method("a query", name, methods))

    def to(self, sink: "Sink") -> "Output":
        """Send the panes of this query to a sink of a pipeline."""
        from millrace.model.pipeline import send

        return send(self, sink)


def streams_of(of: Query | Stream) -> tuple[Stream, ...]:
    """The stream of a query, or a stream; then those of the queries whose answers it reads."""
    own = of.stream if isinstance(of, Query) else of
    read = (stream for each in derived_in(own) for stream in streams_read(each))
    return (own, *(stream for each in read for stream in streams_of(each)))


def queries_of(of: Query | Stream) -> tuple[Query, ...]:
    """A query, and those whose answers it reads, directly or through others."""
    own = (of,) if isinstance(of, Query) else ()
    found: list[Query] = []
    for each in derived_in(of.stream if isinstance(of, Query) else of):
        read: Sequence[Query | Stream] = (each.query,) if isinstance(each, AnswerStream) else each.sides
        found += [query for one in read for query in queries_of(one)]
    return (*own, *found)


def of_sources(of: Query | Stream, made: Callable[[Source], Stream]) -> Query | Stream:
    """The same query or stream with its sources replaced."""
    if isinstance(of, Query):
        return replace(of, stream=with_sources(of.stream, made))
    return with_sources(of, made)


def check_input(query: Query) -> None:
    """Refuse a query over the answers of others that could not be right."""
    for each in derived_in(query.stream):
        if isinstance(each, AnswerStream):
            check_not_counted_twice(each.query)
    if not query.reads_retractions:
        return
    if isinstance(query.windowing, CountWindow):
        advice = f"use windows of time, or {ANSWER_ONCE}"
        raise refuse(f"{query.windowing} over answers that may be taken back", advice=advice)
    for computed in query.computed:
        check_over_changes(computed.aggregate, query.mode)


def check_not_counted_twice(query: Query) -> None:
    """Refuse an accumulating query as the input of an aggregate or of a join."""
    if query.mode is Mode.ACCUMULATING and not query.answers_once:
        raise refuse(
            f"each answer of the query at {query.place} replaces the one before it, and what reads them would count "
            "both",
            advice="call .retracting() in that query, which takes the old answer back, or .discarding()",
        )
