"""A pipeline over a few records, micro-batch by micro-batch, on the reference engine: which answers come, and when.

The records of all sources arrive in order, some of each in every micro-batch. Then the input ends, so that the views
are those of a batch over the same records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from millrace.model.duration import END_OF_TIME, SECOND, to_datetime, to_instant
from millrace.model.errors import PipelineError, unknown_option
from millrace.model.pipeline import Pipeline
from millrace.model.query import Query, of_sources
from millrace.model.stream import STRICT, Source, Stream, event_times, sources
from millrace.model.window import Row
from millrace.spark.snapshots import tables_of
from millrace.testing.answers import Answer, Answers, DeadLetter
from millrace.testing.checked import check_script
from millrace.testing.local import run_here
from millrace.testing.records import Admitted, admit
from millrace.testing.script import Arrival, Contents, Record, Script, ScriptMark, Step, Tick

_MICRO_BATCHES = 100
"""How many micro-batches there are at most, unless the user sets their size."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast records arrive."""

    batch: int | None = None
    """The number of records of each source in a micro-batch; by default, so many that there are at most 100 batches."""
    every: int | None = None
    """The processing time between two micro-batches, in microseconds.

    By default the clock follows the event time of the records, and advances by a second if they have none.
    """
    until: int = END_OF_TIME
    """The clock does not follow event times after this instant: such an event has not happened yet."""


@dataclass(frozen=True, slots=True)
class TrialBatch:
    """The answers to one micro-batch, or to the end of the input."""

    number: int | None
    """From 1; None for the end of the input."""
    clock: int
    """The processing time, in microseconds."""
    outputs: Mapping[str, list[Answer]]
    """The answers of each view and sink."""
    dead_letters: list[DeadLetter]


@dataclass(frozen=True, slots=True)
class Trial:
    """What a pipeline answers to some records."""

    pipeline: Pipeline
    batches: list[TrialBatch]
    """The micro-batches, and the end of the input."""
    answers: Answers

    @property
    def outputs(self) -> tuple[str, ...]:
        """The views by name, then the sinks by their text in `explain()`."""
        return tuple(self.batches[-1].outputs)

    def of(self, output: str) -> Query | Stream:
        """What an output answers: the query of a view, the query or the stream of a sink."""
        sinks: dict[str, Query | Stream] = {str(each.sink): each.of for each in self.pipeline.sinks}
        return {**sinks, **self.pipeline.views}[output]


def try_out(
    pipeline: Pipeline, records: Mapping[str, Sequence[Record]], tables: Mapping[str, Sequence[Row]], pace: Pace
) -> Trial:
    """Run a pipeline over the records of each of its sources. `tables` are the rows of tables, by name.

    Records are JSON texts or rows, whatever the kind of the source. Refuses a source or a view to join that is not
    given, and expressions that only Spark can evaluate.
    """
    _check_given(pipeline, records, tables)
    as_json = _of_json(pipeline)
    arrivals = list(_arrivals(as_json, records, pace.batch))
    clocks = list(_clocks(as_json, arrivals, pace))
    steps: list[tuple[int | None, Step]] = [
        (1, Contents(name, tuple(rows), pipeline.place)) for name, rows in tables.items()
    ]
    for number, (batch, (before, now)) in enumerate(zip(arrivals, pairwise([clocks[0], *clocks]), strict=True), 1):
        steps += [(number, Tick(now, pipeline.place))] if now > before else []
        steps += [(number, arrival) for arrival in batch]
    steps.append((None, ScriptMark(END_OF_TIME, pipeline.place)))
    script = Script(to_datetime(clocks[0]), steps=tuple(step for _, step in steps))
    answers = run_here(check_script(as_json, script), panes=False)
    batches = []
    for number in [*range(1, len(arrivals) + 1), None]:
        done = [said for (of, _), said in zip(steps, answers.steps, strict=True) if of == number]
        batches.append(
            TrialBatch(
                number,
                clocks[-1 if number is None else number - 1],
                {name: [row for said in done for row in said.outputs[name]] for name in done[0].outputs},
                [letter for said in done for letter in said.dead_letters],
            )
        )
    return Trial(pipeline, batches, answers)


def _check_given(pipeline: Pipeline, records: Mapping[str, object], tables: Mapping[str, object]) -> None:
    names = [source.name for source in pipeline.sources]
    lookups = tables_of(pipeline.streams)
    for name in (*records, *tables):
        if name not in names and name not in lookups:
            raise unknown_option("source or table", name, (*names, *lookups))
    missing = [name for name in names if name not in records]
    missing += [name for name, table in lookups.items() if table.view is not None and name not in tables]
    if missing:
        each = " ".join(f"--from {name}=FILE" for name in missing)
        raise PipelineError(f"there are no records for {', '.join(missing)}", f"name a file for each: {each}")
    if not any(records.values()):
        raise PipelineError("there are no records to try", "name a file that has some")


def _of_json(pipeline: Pipeline) -> Pipeline:
    """The same pipeline over records of JSON, of which each is decoded or set aside as a record of a topic."""

    def output(of: Query | Stream) -> Query | Stream:
        return of_sources(of, as_log)

    def as_log(source: Source) -> Source:
        strict = tuple(option for option in source.options if option[0] == STRICT)
        return Source("log", source.name, source.schema, strict, place=source.place)

    views = {name: output(of) for name, of in pipeline.views.items()}
    return replace(pipeline, views=views, sinks=[replace(each, of=output(each.of)) for each in pipeline.sinks])


def _arrivals(
    pipeline: Pipeline, records: Mapping[str, Sequence[Record]], batch: int | None
) -> Iterator[list[Arrival]]:
    """The records of each micro-batch."""
    longest = max(map(len, records.values()))
    size = batch or -(-longest // _MICRO_BATCHES)
    for start in range(0, longest, size):
        parts = {name: tuple(each[start : start + size]) for name, each in records.items()}
        yield [Arrival(name, part, pipeline.place) for name, part in parts.items() if part]


def _clocks(pipeline: Pipeline, arrivals: Sequence[Sequence[Arrival]], pace: Pace) -> Iterator[int]:
    """The processing time of each micro-batch. It starts with the newest event time of the first."""
    newest = _newest(pipeline, arrivals, pace.until)
    now = next((at for at in newest if at is not None), None)
    follows, step = pace.every is None and now is not None, SECOND if pace.every is None else pace.every
    clock = now or 0
    for number, at in enumerate(newest):
        if follows:
            clock = max(clock, clock if at is None else at)
        elif number:
            clock += step
        yield clock


def _newest(pipeline: Pipeline, arrivals: Sequence[Sequence[Arrival]], until: int) -> list[int | None]:
    """The newest event time up to `until` in each micro-batch; None if no record has one that needs no computing."""
    times: list[list[int]] = [[] for _ in arrivals]
    for source in pipeline.sources:
        columns = _time_columns(pipeline, source)
        own = [(number, each) for number, batch in enumerate(arrivals) for each in batch if each.source == source.name]
        for (number, _), admitted in zip(own, admit(source, [arrival for _, arrival in own]), strict=True):
            times[number] += (at for at in _times(admitted, columns) if at <= until)
    return [max(each, default=None) for each in times]


def _time_columns(pipeline: Pipeline, source: Source) -> set[str]:
    """The columns of a source that are the event time of an output."""
    named = {node.column for of in pipeline.streams if source in sources(of) for node in event_times(of)}
    return {column.name for column in source.schema if column.name in named and column.type == "TIMESTAMP"}


def _times(admitted: Admitted, columns: set[str]) -> Iterator[int]:
    for row in admitted.rows:
        yield from (to_instant(row[column]) for column in columns if row[column] is not None)
