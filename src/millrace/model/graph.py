"""The graph of stages of some outputs, and how a micro-batch passes through it.

A stage is a query, or a stream that reads the answers of queries. Stages run in topological order: a stage takes its
whole input of the micro-batch, then its watermark advances, then the clock. What it answers in any of the three is
input of the next stage in the same micro-batch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from millrace.model.changes import Change
from millrace.model.duration import BEGINNING_OF_TIME, to_instant
from millrace.model.pane import Failure, Mode, Pane
from millrace.model.query import Query
from millrace.model.refined import is_view_row
from millrace.model.rows import RowDeadLetter, RowEvaluator
from millrace.model.stream import Derived, Stream, derived_in, find_event_time, sources
from millrace.model.window import Row

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
        read = of.stream if isinstance(of, Query) else of
        inputs = tuple((each, number_of(each.query)) for each in derived_in(read))
        found.append(GraphStage(of, inputs))
        return len(found) - 1

    named: dict[int, list[str]] = {}
    for name, of in outputs.items():
        named.setdefault(number_of(of), []).append(name)
    return tuple(GraphStage(each.of, each.inputs, tuple(named.get(n, ()))) for n, each in enumerate(found))


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
    def input(self, rows: Iterable[Row], source: str | None = None) -> list[Pane]: ...  # noqa: D102
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


class StageEngine:
    """One stage of a graph, in one process."""

    def __init__(self, stage: GraphStage, start: Start, tables: Tables, now: int) -> None:
        """Start with no input."""
        self.stage = stage
        of = stage.of
        self.engine: Any = start(of, tables, now) if isinstance(of, Query) else PlainRows(of, tables, now)
        self.reads = frozenset() if stage.inputs else frozenset(source.name for source in sources(stage.stream))
        """The sources that it reads itself."""
        self._now = now

    @property
    def rows(self) -> RowEvaluator:
        """Its row operators."""
        evaluator: RowEvaluator = self.engine.rows
        return evaluator

    @property
    def is_idle(self) -> bool:
        """Whether none of the sources that it reads itself has had input for its idle timeout."""
        return self.rows.is_idle(self._now)

    def take(self, rows: Mapping[str, Iterable[Row]]) -> list[Any]:
        """Its answers to bundles of its sources, which it takes as one."""
        column = find_event_time(self.stage.stream)
        changes = [
            Change(row, 0 if column is None else to_instant(row[column.column]))
            for source, bundle in rows.items()
            if source in self.reads
            for row in self.rows.take(bundle, source, self.engine.event_time, self._now)
        ]
        return list(self.engine.change(changes)) if changes else []

    def change(self, said: Sequence[tuple[Derived, Sequence[Said]]]) -> list[Any]:
        """Its answers to the answers of the stages it reads."""
        changes = [made for root, each in said for one in each for made in self._changes(root, one)]
        return list(self.engine.change(changes)) if changes else []

    def time(self, watermark: int | None, now: int | None) -> list[Any]:
        """Advance its watermark, then the clock."""
        said = [] if watermark is None or watermark <= self.engine.event_time else self.engine.watermark(watermark)
        if now is not None:
            self._now = now
            said = [*said, *self.engine.clock(now)]
        return list(said)

    def advance(self, now: int) -> list[Any]:
        """Advance its watermark by the policy of its sources, then the clock."""
        self._now = now
        return list(self.engine.advance(now))

    def _changes(self, root: Derived, said: Said) -> list[Change]:
        """A change of another stage as changes of this stage's stream."""
        change = as_change(root.query, said) if isinstance(said, Pane) else said
        made = [] if change is None else self._rows_of(root, change)
        if made or not isinstance(said, Pane) or isinstance(self.stage.of, Query):
            return made
        if root.query.mode is not Mode.ACCUMULATING or not is_view_row(self.stage.of):
            return []
        # The pane replaces the one before it, but gives no row: a view drops the row of the pane before.
        about = {name: value for name, value in root.query.row(said).items() if name in root.query.key_names}
        nothing = dict.fromkeys(self.stage.of.schema.names)
        return [Change({**nothing, **about}, said.at, -1, replace(said, diff=-1))]

    def _rows_of(self, root: Derived, change: Change) -> list[Change]:
        column = find_event_time(self.stage.stream)
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


def as_change(query: Query, pane: Pane) -> Change | None:
    """A pane as a change; None for the removal of an answer that has no values, which only views understand."""
    if pane.diff < 0 and query.mode is Mode.ACCUMULATING:
        return None
    row = {name: value for name, value in query.row(pane).items() if name in query.schema}
    return Change(row, pane.at, pane.diff, pane)


def time_reason(column: str, named: int | None, at: int) -> str | None:
    """The reason why the event time that a stage names is refused; None if it is fine."""
    if named is None:
        return f"event time {column} is NULL"
    return f"event time {column} is after the end of the window" if named > at + 1 else None


class GraphEngine:
    """The engine of a graph of stages, driven step by step."""

    def __init__(
        self, outputs: Mapping[str, Query | Stream], start: Start, tables: Tables | None = None, now: int = 0
    ) -> None:
        """Start with no input."""
        self.stages = [StageEngine(stage, start, tables or {}, now) for stage in graph_of(outputs)]
        self._names = {name: stage for stage in self.stages for name in stage.stage.outputs}
        self._marks = {source: BEGINNING_OF_TIME for stage in self.stages for source in stage.reads}

    def __getitem__(self, output: str) -> StageEngine:
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
            given = watermark if isinstance(watermark, Mapping) else dict.fromkeys(self._marks, watermark)
            self._marks |= {source: max(at, self._marks[source]) for source, at in given.items()}
        said: list[list[Any]] = []
        idle: list[bool] = []
        for each in self.stages:
            inputs = each.stage.inputs
            if not inputs:
                own = each.take(rows or {})
                own += each.advance(now) if derived and now is not None else each.time(self._least(each), now)
            else:
                own = each.change([(root, said[number]) for root, number in inputs])
                marks = [(self.stages[number].engine.event_time, idle[number]) for _, number in inputs]
                own += each.time(least(marks), now)
            said.append(own)
            idle.append(all(idle[number] for _, number in inputs) if inputs else each.is_idle)
        return {name: said[n] for n, each in enumerate(self.stages) for name in each.stage.outputs}

    def _least(self, stage: StageEngine) -> int:
        """The least of the watermarks of the sources that a stage reads."""
        return min((self._marks[source] for source in stage.reads), default=BEGINNING_OF_TIME)
