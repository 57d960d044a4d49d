"""Runs scripts on the in-process engines, the reference and the panes: step by step, each output separately."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from millrace.model.changes import Change
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.graph import GraphEngine, JoinEngine, PlainRows
from millrace.model.pane import Failure, Pane
from millrace.model.query import WINDOW_COLUMNS, Query
from millrace.model.reference import Reference
from millrace.model.rows import RowDeadLetter
from millrace.model.stream import Stream, own_sources, reads_changes, sources
from millrace.model.window import Row
from millrace.testing.answers import PANE_COLUMNS, Answers, DeadLetter, StepAnswers, in_order
from millrace.testing.checked import Checked, check_mark, stream_of
from millrace.testing.engines import PaneEngine, PaneJoin, pane_engine
from millrace.testing.records import Admitted
from millrace.testing.script import Arrival, Contents, ScriptMark, Step, Tick
from millrace.views.shape import free_names

Tables = Mapping[str, Iterable[Row]]
_OUTPUT = "output"


class LocalEngine(Protocol):
    """The engine of one output; `Reference` documents the members."""

    @property
    def dropped(self) -> int: ...  # noqa: D102
    @property
    def event_time(self) -> int: ...  # noqa: D102
    @property
    def dead(self) -> list[RowDeadLetter]: ...  # noqa: D102
    @property
    def failed(self) -> list[Failure]: ...  # noqa: D102
    def table(self, name: str, rows: Iterable[Row]) -> None: ...  # noqa: D102
    def input(self, rows: Iterable[Row], source: str | None = None) -> Sequence[Any]: ...  # noqa: D102
    def watermark(self, at: int) -> Sequence[Any]: ...  # noqa: D102
    def advance(self, now: int) -> Sequence[Any]: ...  # noqa: D102


class GraphOutput:
    """The engine of an output that reads the answers of queries: `GraphEngine`, with one output."""

    def __init__(self, of: Query | Stream, tables: Tables, now: int, panes: bool) -> None:
        """Start with no input."""
        starts = (pane_engine, PaneJoin) if panes else (Reference, JoinEngine)
        self._graph = GraphEngine({_OUTPUT: of}, starts[0], tables, now, starts[1])
        self._readers = [reader for stage in self._graph.stages for reader in stage.readers]
        self._rows: dict[str, list[Row]] = {}

    @property
    def dropped(self) -> int:
        """The number of changes that came too late for the last stage."""
        return self._graph[_OUTPUT].dropped

    @property
    def event_time(self) -> int:
        """The watermark of the last stage."""
        return self._graph[_OUTPUT].time[0]

    @property
    def dead(self) -> list[RowDeadLetter]:
        """The rows of sources that could not be processed, by any stage."""
        return [letter for reader in self._readers for letter in reader.rows.dead if letter.has_record]

    @property
    def unread(self) -> list[RowDeadLetter]:
        """The answers that a stage that reads them could not process, and rows that were too late for a join."""
        return [letter for reader in self._readers for letter in reader.rows.dead if not letter.has_record]

    @property
    def failed(self) -> list[Failure]:
        """The answers of the last stage that have no value."""
        return self._graph[_OUTPUT].failed

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace the rows of a table."""
        held = list(rows)
        for reader in self._readers:
            reader.rows.table(name, held)

    def input(self, rows: Iterable[Row], source: str | None = None) -> list[Any]:
        """Keep a bundle for the micro-batch that `advance` ends."""
        self._rows.setdefault(source or "", []).extend(rows)
        return []

    def watermark(self, at: int) -> list[Any]:
        """Advance the watermark."""
        return self._graph.step(watermark=at)[_OUTPUT]

    def advance(self, now: int) -> list[Any]:
        """Run a micro-batch over the bundles, with the watermark by the policy of their sources."""
        rows, self._rows = self._rows, {}
        return self._graph.step(rows, now=now, derived=True)[_OUTPUT]


class LocalOutput:
    """One output and its engine."""

    def __init__(
        self, name: str, of: Query | Stream, start: Callable[[Tables, int], LocalEngine], checked: Checked
    ) -> None:
        """Start with no input."""
        self.name, self.of = name, of
        self._start = start
        self._tables: dict[str, Iterable[Row]] = dict(checked.tables)
        self._now = checked.script.started
        self.engine = start(self._tables, self._now)
        self._reads = {source.name for source in sources(stream_of(of))}
        self._watermark = BEGINNING_OF_TIME
        """The watermark before the last step."""
        self._known_unread = 0

    def take(self, step: Step, number: int, checked: Checked) -> list[dict[str, Any]]:
        """The answers to a step of a script."""
        self._watermark = self.engine.event_time
        match step:
            case Contents(table):
                self._tables[table] = checked.contents[number]
                self.engine.table(table, checked.contents[number])
                return []
            case Arrival(source):
                answers: list[Any] = []
                if source in self._reads:
                    answers += self.engine.input(checked.admitted[number].rows, source)
                answers += self.engine.advance(self._now)
            case Tick(now):
                self._now = now
                answers = list(self.engine.advance(now))
            case ScriptMark(at):
                answers = list(self.engine.watermark(at))
        return in_order(self.of, map(self._row, answers))

    def records_of(self, letters: Sequence[RowDeadLetter], source: str, admitted: Admitted) -> list[tuple[int, str]]:
        """The indexes of the rows of a bundle that caused dead letters, with the reasons.

        A letter holds the row as the failing operator received it. To find its origin, each row of the bundle is
        processed again, alone, by a fresh engine at the same watermark.
        """
        waiting = [(repr(letter.row), letter.reason) for letter in letters]
        causes = []
        for index, row in enumerate(admitted.rows):
            if not waiting:
                break
            alone = self._start(self._tables, self._now)
            alone.watermark(self._watermark)
            alone.input([row], source)
            alone.advance(self._now)
            for letter in alone.dead:
                if (repr(letter.row), letter.reason) in waiting:
                    waiting.remove((repr(letter.row), letter.reason))
                    causes.append((index, letter.reason))
        return causes

    def without_value(self, failures: Sequence[Failure]) -> list[DeadLetter]:
        """The dead letters of answers that have no value, in the order of the failures."""
        assert isinstance(self.of, Query) or not failures
        return [DeadLetter(None, self._key(failure), failure.reason, self.name) for failure in failures]

    def not_read(self) -> list[DeadLetter]:
        """The dead letters, since the last call, of answers that another stage could not process."""
        if not isinstance(self.engine, GraphOutput):
            return []
        letters = self.engine.unread[self._known_unread :]
        self._known_unread += len(letters)
        return [DeadLetter(None, letter.row, letter.reason, self.name) for letter in letters]

    def _key(self, failure: Failure) -> dict[str, Any]:
        assert isinstance(self.of, Query)
        bounds = zip(WINDOW_COLUMNS, self.of.bounds(failure.window), strict=True)
        return dict(zip(self.of.keys, failure.key, strict=True)) | {column.name: at for column, at in bounds}

    def _row(self, answer: Pane | Change | Row) -> Mapping[str, Any]:
        if isinstance(answer, Change):
            pane = None if isinstance(self.of, Stream) and own_sources(self.of) else answer.pane
            about = (answer.diff,) if pane is None else (answer.diff, str(pane.timing), pane.index, pane.last)
            named = zip(free_names(self.of.schema.names, PANE_COLUMNS), about, strict=False)
            return {**{name: answer.row[name] for name in self.of.schema.names}, **dict(named)}
        if not isinstance(answer, Pane):
            return {name: answer[name] for name in self.of.schema.names}
        assert isinstance(self.of, Query)
        about = (answer.diff, str(answer.timing), answer.index, answer.last)
        bounds = zip(WINDOW_COLUMNS, self.of.bounds(answer.window), strict=True)
        return {
            **dict(zip(self.of.keys, answer.key, strict=True)),
            **{column.name: at for column, at in bounds},
            **answer.values,
            **dict(zip(free_names(self.of.schema.names, PANE_COLUMNS), about, strict=True)),
        }


def run_here(checked: Checked, panes: bool) -> Answers:
    """Run a script on the reference or on the pane engine."""
    outputs = [LocalOutput(name, of, _engine(of, panes), checked) for name, of in checked.outputs.items()]
    steps = []
    for number, step in enumerate(checked.script.steps):
        if isinstance(step, ScriptMark):
            check_mark(checked, step, {output.name: output.engine.event_time for output in outputs})
        steps.append(_take(outputs, step, number, checked))
    dropped = {output.name: output.engine.dropped for output in outputs}
    return Answers(steps, dropped, checked.outputs, checked.pipeline.views)


def _engine(of: Query | Stream, panes: bool) -> Callable[[Tables, int], LocalEngine]:
    if reads_changes(stream_of(of)):
        return lambda tables, now: GraphOutput(of, tables, now, panes)
    if not isinstance(of, Query):
        return lambda tables, now: PlainRows(of, tables, now)
    query = of
    return lambda tables, now: PaneEngine(query, tables, now) if panes else Reference(query, tables, now)


def _take(outputs: Sequence[LocalOutput], step: Step, number: int, checked: Checked) -> StepAnswers:
    answers = {}
    reasons: dict[int, str] = {}
    failed: list[DeadLetter] = []
    for output in outputs:
        dead, failures = len(output.engine.dead), len(output.engine.failed)
        answers[output.name] = output.take(step, number, checked)
        letters = output.engine.dead[dead:]
        if letters and isinstance(step, Arrival):
            # A record becomes one dead letter, even if several outputs reject it.
            found = output.records_of(letters, step.source, checked.admitted[number])
            reasons = dict(reversed(found)) | reasons
        failed += output.without_value(output.engine.failed[failures:])
        failed += output.not_read()
    return StepAnswers(answers, [*letters_of(step, number, checked, reasons), *failed])


def letters_of(step: Step, number: int, checked: Checked, reasons: Mapping[int, str]) -> list[DeadLetter]:
    """The dead letters of the records of a step: first those that do not fit, then those that operators rejected."""
    if not isinstance(step, Arrival):
        return []
    admitted = checked.admitted[number]
    misfits = [DeadLetter(step.source, record, reason) for record, reason in admitted.misfits]
    return misfits + [
        DeadLetter(step.source, admitted.records[place], reason) for place, reason in sorted(reasons.items())
    ]
