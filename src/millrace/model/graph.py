"""The graph of stages of some outputs, and how a micro-batch passes through it.

A stage is a query, or a stream that reads the answers of queries. Stages run in topological order: a stage takes its
whole input of the micro-batch, then its watermark advances, then the clock. What it answers in any of the three is
input of the next stage in the same micro-batch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from millrace.model.changes import Change
from millrace.model.duration import BEGINNING_OF_TIME, to_instant
from millrace.model.joining import LEFT, RIGHT, JoinReference, JoinSpec, out_watermark
from millrace.model.late import late_for_join
from millrace.model.pane import Failure, Mode, Pane
from millrace.model.query import Query
from millrace.model.refined import is_view_row
from millrace.model.rows import RowDeadLetter, RowEvaluator
from millrace.model.stream import (
    AnswerStream,
    Derived,
    JoinStream,
    Stream,
    derived_in,
    find_event_time,
    only_from,
    own_sources,
)
from millrace.model.window import Row, Session

Tables: TypeAlias = Mapping[str, Iterable[Row]]
Said: TypeAlias = Pane | Change
"""What a stage answers: a query gives panes, any other stage gives changes."""


@dataclass(frozen=True, slots=True)
class GraphStage:
    """One stage: a query, or a stream."""

    of: Query | Stream
    inputs: tuple[tuple[Derived, int], ...]
    """The streams of changes that it reads, each with the number of the stage that computes it."""
    outputs: tuple[str, ...] = ()
    """The names of the outputs that it answers to; none if only other stages read it."""

    @property
    def stream(self) -> Stream:
        """The rows that it reads."""
        return self.of.stream if isinstance(self.of, Query) else self.of


def graph_of(outputs: Mapping[str, Query | Stream]) -> tuple[GraphStage, ...]:
    """The stages of some outputs, each after those that it reads; a query that several of them read is there once."""
    found: list[GraphStage] = []

    def number_of(of: Query | Stream) -> int:
        for number, known in enumerate(found):
            if known.of == of:
                return number
        found.append(GraphStage(of, tuple((each, number_of(computed_by(each))) for each in inputs_of(of))))
        return len(found) - 1

    named: dict[int, list[str]] = {}
    for name, of in outputs.items():
        named.setdefault(number_of(of), []).append(name)
    return tuple(GraphStage(each.of, each.inputs, tuple(named.get(n, ()))) for n, each in enumerate(found))


def inputs_of(of: Query | Stream) -> tuple[Derived, ...]:
    """The streams of changes that a stage reads, each once, also if both sides of a join read it."""
    if isinstance(of, JoinStream):
        return tuple(dict.fromkeys(root for side in of.sides for root in derived_in(side)))
    return derived_in(of.stream if isinstance(of, Query) else of)


def computed_by(root: Derived) -> "Query | JoinStream":
    """What the stage computes that a stream of changes comes from."""
    return root.query if isinstance(root, AnswerStream) else root


def least(marks: Sequence[tuple[int, bool]]) -> int:
    """The watermark of a stage that reads others: the least of theirs. Those that are idle are left out."""
    active = [mark for mark, is_idle in marks if not is_idle]
    begun = [mark for mark, _ in marks if mark > BEGINNING_OF_TIME]
    return min(active or begun or [BEGINNING_OF_TIME])


class QueryEngine(Protocol):
    """The engine of one query; `Reference` documents the members."""

    rows: RowEvaluator

    @property
    def dropped(self) -> int: ...  # noqa: D102
    @property
    def event_time(self) -> int: ...  # noqa: D102
    @property
    def failed(self) -> list[Failure]: ...  # noqa: D102
    def change(self, changes: Iterable[Change]) -> list[Pane]: ...  # noqa: D102
    def watermark(self, at: int) -> list[Pane]: ...  # noqa: D102
    def clock(self, now: int) -> list[Pane]: ...  # noqa: D102
    def advance(self, now: int) -> list[Pane]: ...  # noqa: D102


class PlainRows:
    """The engine of a stream that is not aggregated: its rows are its answers."""

    def __init__(self, stream: Stream, tables: Tables, now: int) -> None:
        """Start with no input."""
        self.rows, self._now = RowEvaluator(stream, tables, now), now
        self.dropped, self.failed = 0, list[Failure]()
        self.event_time = BEGINNING_OF_TIME

    @property
    def dead(self) -> list[RowDeadLetter]:
        """The rows that could not be processed."""
        return self.rows.dead

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace the rows of a table."""
        self.rows.table(name, rows)

    def input(self, rows: Iterable[Row], source: str | None = None) -> list[Row]:
        """The rows that one bundle of a source gives."""
        return self.rows.take(rows, source, self.event_time, self._now)

    def change(self, changes: Iterable[Change]) -> list[Change]:
        """The changes, which the row operators have processed."""
        return list(changes)

    def watermark(self, at: int) -> list[Any]:
        """Advance the watermark."""
        self.event_time = max(self.event_time, at)
        return []

    def clock(self, now: int) -> list[Any]:
        """Advance the clock."""
        self._now = max(self._now, now)
        return []

    def advance(self, now: int) -> list[Any]:
        """Advance the clock to `now`, and the watermark by the policy of the stream."""
        self.clock(now)
        return self.watermark(self.rows.watermark(now))


Start: TypeAlias = Callable[[Query, Tables, int], QueryEngine]
"""Starts the engine of a query, with the rows of tables and the clock."""


class StreamReader:
    """Reads one stream as changes: bundles of its sources, or the answers of other stages."""

    def __init__(self, stream: Stream, rows: RowEvaluator, is_answer: bool = False) -> None:
        """`rows` are its row operators. If the stream `is_answer`, rows that leave it are removed from views."""
        self.stream, self.rows, self._is_answer = stream, rows, is_answer
        self.sources = frozenset(source.name for source in own_sources(stream))
        """The sources that it reads itself."""
        roots = (*own_sources(stream), *derived_in(stream))
        self._times = {root: find_event_time(only_from(stream, root)) for root in roots}

    def take(self, rows: Mapping[str, Iterable[Row]], watermark: int, now: int) -> list[Change]:
        """The changes that bundles of sources give, as one bundle."""
        columns = {source.name: self._times[source] for source in own_sources(self.stream)}
        return [
            Change(row, 0 if column is None else to_instant(row[column.column]))
            for source, bundle in rows.items()
            if source in self.sources
            for column in (columns[source],)
            for row in self.rows.take(bundle, source, watermark, now)
        ]

    def change(self, root: Derived, said: Said) -> list[Change]:
        """The changes that an answer of another stage gives."""
        before = len(self.rows.dead)
        made = self._changes(root, said)
        self.rows.dead[before:] = [replace(each, has_record=False) for each in self.rows.dead[before:]]
        return made

    def _changes(self, root: Derived, said: Said) -> list[Change]:
        if not isinstance(root, AnswerStream) or not isinstance(said, Pane):
            assert isinstance(said, Change)
            return self._rows_of(root, said)
        change = as_change(root.query, said)
        made = [] if change is None else self._rows_of(root, change)
        if made or not self._is_answer or not replaces(root.query, said) or not is_view_row(self.stream):
            return made
        # The pane replaces the one before it, but gives no row: a view drops the row of the pane before.
        about = {name: value for name, value in root.query.row(said).items() if name in root.query.key_names}
        nothing = dict.fromkeys(self.stream.schema.names)
        return [Change({**nothing, **about}, said.at, -1, replace(said, diff=-1))]

    def _rows_of(self, root: Derived, change: Change) -> list[Change]:
        column = self._times[root]
        made = []
        for row in self.rows.take_change(root, change.row):
            at = change.at
            if column is not None:
                named = row[column.column]
                reason = time_reason(column.column, None if named is None else to_instant(named), change.at)
                if reason is not None:
                    self.rows.dead.append(RowDeadLetter(row, reason))
                    continue
                at = to_instant(named)
            made.append(Change(row, at, change.diff, change.pane))
        return made


@dataclass(frozen=True, slots=True)
class StepInput:
    """What a micro-batch gives to the stages of a graph."""

    rows: Mapping[str, Iterable[Row]]
    """Bundles by source."""
    marks: Mapping[str, int]
    """The watermarks of sources by name, if they are given."""
    now: int | None
    derived: bool
    """Whether the watermarks of sources follow from their policies."""
    said: list[list[Any]] = field(default_factory=list)
    """The answers of the stages so far."""
    times: list[tuple[int, bool]] = field(default_factory=list)
    """The watermark of each stage so far, and whether it is idle."""


class StageEngine:
    """One stage of a graph, in one process: a query, or a stream."""

    def __init__(self, stage: GraphStage, start: Start, tables: Tables, now: int) -> None:
        """Start with no input."""
        self.stage = stage
        of = stage.of
        self.engine: Any = start(of, tables, now) if isinstance(of, Query) else PlainRows(of, tables, now)
        self.readers = (StreamReader(stage.stream, self.engine.rows, not isinstance(of, Query)),)
        self._now, self._is_idle = now, False

    def step(self, given: StepInput) -> list[Any]:
        """Its answers to a micro-batch."""
        (reader,) = self.readers
        changes = reader.take(given.rows, self.engine.event_time, self._now)
        changes += [made for each in self.stage.inputs for made in changes_of(reader, each, given)]
        said = list(self.engine.change(changes)) if changes else []
        self._now = self._now if given.now is None else given.now
        if given.derived and not self.stage.inputs:
            said += self.engine.advance(self._now)
            self._is_idle = reader.rows.is_idle(self._now)
            return said
        marks = times_of(reader, self.stage.inputs, given, self._now)
        self._is_idle = all(is_idle for _, is_idle in marks)
        if marks and least(marks) > self.engine.event_time:
            said += self.engine.watermark(least(marks))
        return said if given.now is None else said + list(self.engine.clock(given.now))

    @property
    def time(self) -> tuple[int, bool]:
        """Its watermark, and whether all that it reads is idle."""
        return self.engine.event_time, self._is_idle

    @property
    def dropped(self) -> int:
        """The number of changes that came too late."""
        return int(self.engine.dropped)

    @property
    def failed(self) -> list[Failure]:
        """The answers that have no value."""
        failures: list[Failure] = self.engine.failed
        return failures


class JoinEngine:
    """The engine of one join of streams; `JoinReference` documents the members."""

    def __init__(self, spec: JoinSpec) -> None:
        """Start with no input."""
        self._reference = JoinReference(spec)

    @property
    def dropped(self) -> int:
        """The number of changes of both sides that came too late."""
        return sum(self._reference.dropped)

    def step(self, left: Sequence[Change], right: Sequence[Change], marks: tuple[int, int]) -> list[Change]:
        """The answers to one bundle of both sides, then to their watermarks."""
        return self._reference.input(left, right) + self._reference.watermark(*marks)


class JoinStage:
    """One stage of a graph that joins two streams."""

    def __init__(self, stage: GraphStage, start: Callable[[JoinSpec], JoinEngine], tables: Tables, now: int) -> None:
        """Start with no input."""
        assert isinstance(stage.of, JoinStream)
        self.stage, self.engine, self.failed = stage, start(stage.of.spec), list[Failure]()
        self._spec = stage.of.spec
        self.readers = tuple(StreamReader(side, RowEvaluator(side, tables, now)) for side in stage.of.sides)
        self._marks = (BEGINNING_OF_TIME, BEGINNING_OF_TIME)
        self._idle = (False, False)
        self._now = now

    def step(self, given: StepInput) -> list[Any]:
        """Its answers to a micro-batch. The watermark of an idle side stays where it was, rule 15."""
        sides = []
        for reader, before in zip(self.readers, self._marks, strict=True):
            changes = reader.take(given.rows, before, self._now)
            read = [each for each in self.stage.inputs if each[0] in derived_in(reader.stream)]
            sides.append(changes + [made for each in read for made in changes_of(reader, each, given)])
        for number in (LEFT, RIGHT) if self._spec.keeps_late else ():
            self._keep_late(number, sides[number])
        self._now = self._now if given.now is None else given.now
        times = [self._side(number, given) for number in (0, 1)]
        self._idle = times[0][1], times[1][1]
        self._marks = max(times[0][0], self._marks[0]), max(times[1][0], self._marks[1])
        return self.engine.step(sides[0], sides[1], self._marks)

    def _keep_late(self, side: int, changes: Iterable[Change]) -> None:
        """Make dead letters of the rows that the join drops."""
        watermark = self._marks[side]
        self.readers[side].rows.dead += [
            RowDeadLetter(each.row, late_for_join(self._spec, side, each.at, watermark).reason, has_record=False)
            for each in changes
            if self._spec.is_late(side, each.at, watermark)
        ]

    def _side(self, number: int, given: StepInput) -> tuple[int, bool]:
        """The watermark of a side, and whether it is idle."""
        reader, before = self.readers[number], self._marks[number]
        read = [each for each in self.stage.inputs if each[0] in derived_in(reader.stream)]
        marks = times_of(reader, read, given, self._now)
        is_idle = all(idle for _, idle in marks)
        return (before if is_idle else least(marks)), is_idle

    @property
    def time(self) -> tuple[int, bool]:
        """Its watermark, rule 17, and whether both sides are idle."""
        return join_watermark(self._spec, self._marks, self._idle), all(self._idle)

    @property
    def dropped(self) -> int:
        """The number of changes of both sides that came too late."""
        return self.engine.dropped


def join_watermark(spec: JoinSpec, marks: tuple[int, int], idle: tuple[bool, bool]) -> int:
    """The watermark after a join; a side that is idle is not waited for."""
    left, right = marks
    if idle[0] != idle[1]:
        left = right = right if idle[0] else left
    return out_watermark(spec, left, right)


def changes_of(reader: StreamReader, read: tuple[Derived, int], given: StepInput) -> Iterator[Change]:
    """The changes that a reader makes of the answers of one of the stages it reads."""
    root, number = read
    for said in given.said[number]:
        yield from reader.change(root, said)


def times_of(
    reader: StreamReader, inputs: Sequence[tuple[Derived, int]], given: StepInput, now: int
) -> list[tuple[int, bool]]:
    """The watermarks of what a stream reads, and whether each is idle: those of stages, and one for its sources."""
    marks = [given.times[number] for _, number in inputs]
    if reader.sources:
        after = reader.rows.clock(now)
        own = reader.rows.watermark(after) if given.derived else min(given.marks[each] for each in reader.sources)
        marks.append((own, reader.rows.is_idle(after)))
    return marks


def as_change(query: Query, pane: Pane) -> Change | None:
    """A pane as a change; None for the removal of an answer that has no values, which only views understand."""
    if pane.diff < 0 and query.mode is Mode.ACCUMULATING:
        return None
    row = {name: value for name, value in query.row(pane).items() if name in query.schema}
    return Change(row, pane.at, pane.diff, pane)


def replaces(query: Query, pane: Pane) -> bool:
    """Whether a pane replaces an earlier one, which is not taken back."""
    return query.mode is Mode.ACCUMULATING and (pane.index > 0 or pane.diff < 0 or isinstance(query.windowing, Session))


def time_reason(column: str, named: int | None, at: int) -> str | None:
    """The reason why the event time that a stage names is refused; None if it is fine."""
    if named is None:
        return f"event time {column} is NULL"
    return f"event time {column} is after the end of the window" if named > at + 1 else None


class GraphEngine:
    """The engine of a graph of stages, driven step by step."""

    def __init__(
        self,
        outputs: Mapping[str, Query | Stream],
        start: Start,
        tables: Tables | None = None,
        now: int = 0,
        start_join: Callable[[JoinSpec], JoinEngine] = JoinEngine,
    ) -> None:
        """Start with no input."""
        self.stages: list[StageEngine | JoinStage] = [
            JoinStage(stage, start_join, tables or {}, now)
            if isinstance(stage.of, JoinStream)
            else StageEngine(stage, start, tables or {}, now)
            for stage in graph_of(outputs)
        ]
        self._names = {name: stage for stage in self.stages for name in stage.stage.outputs}
        readers = [reader for stage in self.stages for reader in stage.readers]
        self._marks = {source: BEGINNING_OF_TIME for reader in readers for source in reader.sources}

    def __getitem__(self, output: str) -> StageEngine | JoinStage:
        """The stage of an output."""
        return self._names[output]

    def step(
        self,
        rows: Mapping[str, Iterable[Row]] | None = None,
        watermark: int | Mapping[str, int] | None = None,
        now: int | None = None,
        derived: bool = False,
    ) -> dict[str, list[Any]]:
        """Run one micro-batch: bundles by source, then event time, then the clock. Returns the answers of each output.

        `watermark` is that of all sources, or of some by name; a stage that reads several sources has the least of
        theirs. If the watermark is `derived`, it follows from the policies of the sources; `now` must then be given.
        """
        if watermark is not None:
            marks = watermark if isinstance(watermark, Mapping) else dict.fromkeys(self._marks, watermark)
            self._marks |= {source: max(at, self._marks[source]) for source, at in marks.items()}
        given = StepInput(rows or {}, self._marks, now, derived)
        for each in self.stages:
            given.said.append(each.step(given))
            given.times.append(each.time)
        return {name: given.said[n] for n, each in enumerate(self.stages) for name in each.stage.outputs}
