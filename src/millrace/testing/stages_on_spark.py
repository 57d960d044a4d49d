"""Runs transcripts with stages on Spark, all together as one pipeline.

As a stream, every step is a micro-batch. The answers of a batch must equal those of the reference.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from millrace.model.changes import Change
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME
from millrace.model.graph import GraphEngine
from millrace.model.pane import Pane
from millrace.model.pipeline import FunctionSink, Output, Pipeline
from millrace.model.query import Query, of_sources, streams_of
from millrace.model.reference import Reference
from millrace.model.rows import RowDeadLetter
from millrace.model.stream import JoinStream, Source, Stream, reads_changes, sources
from millrace.model.window import Row
from millrace.plan.compile import sink_id
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import batch as spark_batch
from millrace.spark import stream
from millrace.spark.progress import BatchProgress
from millrace.testing.answers import plain_value
from millrace.testing.stage_steps import MicroBatch, StagesTranscript
from millrace.testing.stream import alone_if_not_together, panes_of, spark


@dataclass(frozen=True, slots=True)
class StagesSaid:
    """The answers of the stages in a micro-batch, with their dropped elements and watermarks afterwards."""

    said: Mapping[str, list[Pane | Change]]
    dropped: Mapping[str, int]
    watermarks: Mapping[str, int]


@dataclass(slots=True)
class RecordedStages:
    """An engine that plays back the recorded results of a stream."""

    batches: list[StagesSaid]
    has_times: bool = False
    """Rows of a stream do not have their event time on Spark."""
    _last: StagesSaid = field(default_factory=lambda: StagesSaid({}, {}, {}))
    _number: int = 0

    def step(
        self, rows: Mapping[str, Sequence[Row]], watermarks: Mapping[str, int], now: int, derived: bool
    ) -> Mapping[str, Sequence[Pane | Change]]:
        """The answers of the next micro-batch."""
        self._last = self.batches[self._number]
        self._number += 1
        return self._last.said

    def dropped(self, stage: str) -> int:
        """The number of elements that a stage has dropped."""
        return self._last.dropped.get(stage, 0)

    def event_time(self, stage: str) -> int:
        """The watermark of a stage."""
        return self._last.watermarks.get(stage, BEGINNING_OF_TIME)

    def dead(self, stage: str) -> list[RowDeadLetter]:
        """No dead letters are recorded."""
        return []


def record_stages(transcripts: Sequence[StagesTranscript], fuse: bool = True) -> list[RecordedStages | Exception]:
    """The results of a stream for each transcript; or the error."""
    results = alone_if_not_together(partial(_stream, fuse=fuse), transcripts)
    return [result if isinstance(result, Exception) else RecordedStages(result) for result in results]


def batch_differences(transcripts: Sequence[StagesTranscript], fuse: bool = True) -> list[list[str] | Exception]:
    """For each transcript, the answers that only Spark's batch or only the reference's gives; or the error of Spark."""
    return alone_if_not_together(partial(_batch, fuse=fuse), transcripts)


def _stream(transcripts: Sequence[StagesTranscript], fuse: bool) -> list[list[StagesSaid]]:
    steps = [[step for step in each.steps if isinstance(step, MicroBatch)] for each in transcripts]
    most = max(map(len, steps), default=0)
    scripts = {}
    for number, each in enumerate(transcripts):
        for source in _sources(each):
            happenings = [_happening(step, source.name) for step in steps[number]]
            idle = [Happening()] * (most - len(happenings))
            scripts[f"case_{number}_{source.name}"] = MemoryScript([*happenings, *idle], derived=each.derived)
    batches: list[list[StagesSaid]] = [[] for _ in transcripts]

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        for number, each in enumerate(transcripts):
            ids = {name: _id(number, name) for name in each.stages}
            said = {name: _said(of, answers[ids[name]]) for name, of in each.stages.items()}
            parts = {name: progress.parts[id] for name, id in ids.items()}
            marks = {name: part.watermark for name, part in parts.items() if part.watermark is not None}
            stateful = [name for name, of in each.stages.items() if isinstance(of, Query | JoinStream)]
            batches[number].append(StagesSaid(said, {name: parts[name].dropped for name in stateful}, marks))

    with TemporaryDirectory(prefix="millrace-check-") as folder:
        run = stream.start(
            spark(), _pipeline(transcripts), Path(folder, "checkpoint"), until_caught_up=True, scripts=scripts,
            on_batch=listen, guarantee="at-least-once", fuse=fuse,
        )  # fmt: skip
        try:
            run.wait()
        finally:
            run.stop()
    return batches


def _batch(transcripts: Sequence[StagesTranscript], fuse: bool) -> list[list[str]]:
    scripts: dict[str, MemoryScript] = {}
    rows: list[dict[str, list[Row]]] = []
    for number, each in enumerate(transcripts):
        steps = [step for step in each.steps if isinstance(step, MicroBatch)]
        given = {
            source.name: [row for step in steps for row in step.rows.get(source.name, ())] for source in _sources(each)
        }
        rows.append(given)
        scripts |= {f"case_{number}_{name}": MemoryScript([Happening(tuple(all_))]) for name, all_ in given.items()}
    found = spark_batch.collect(spark(), _pipeline(transcripts), scripts=scripts, shards=2, fuse=fuse).answers
    return [
        _differences(each, rows[number], {name: found[_id(number, name)] for name in each.stages})
        for number, each in enumerate(transcripts)
    ]


def _differences(
    transcript: StagesTranscript, rows: Mapping[str, list[Row]], found: Mapping[str, pa.Table]
) -> list[str]:
    """The answers of stages with state that differ from those of the reference, rules 11 and 18."""
    graph = GraphEngine(transcript.stages, Reference)
    expected = graph.step(rows, END_OF_TIME)
    lines = []
    for name, of in transcript.stages.items():
        if not isinstance(of, Query | JoinStream):
            continue
        wanted, got = _final(of, expected[name]), _final(of, _said(of, found[name]))
        lines += [f"{name}: missing answer    {row}" for row in wanted - got]
        lines += [f"{name}: unexpected answer {row}" for row in got - wanted]
    return lines


def _final(of: Query | Stream, said: Iterable[Pane | Change]) -> Counter[str]:
    """The last panes of keys and windows; for a join, the rows that remain."""
    if not isinstance(of, Query):
        counts: Counter[str] = Counter()
        for change in said:
            assert isinstance(change, Change)
            counts[repr(plain_value(dict(change.row)))] += change.diff
        return +counts
    last = {(repr(pane.key), pane.window): pane for pane in said if isinstance(pane, Pane)}
    return Counter(repr(plain_value(dict(of.row(pane)))) for pane in last.values() if pane.diff > 0)


def _pipeline(transcripts: Sequence[StagesTranscript]) -> Pipeline:
    outputs = []
    for number, each in enumerate(transcripts):
        prefix = f"case_{number}_"
        for name, of in each.stages.items():
            renamed = of_sources(of, lambda source, prefix=prefix: replace(source, name=f"{prefix}{source.name}"))  # type: ignore[misc]
            outputs.append(Output(renamed, _sink(number, name), of.place))
    return Pipeline("check", sinks=outputs)


def _said(of: Query | Stream, answers: pa.Table) -> list[Pane | Change]:
    if isinstance(of, Query):
        return list(panes_of(of, answers))
    names, rows = of.schema.names, answers.to_pylist()
    if not reads_changes(of):  # rows of a source
        return [Change(row, 0) for row in rows]
    diff = answers.column_names[len(names)]
    return [Change({name: row[name] for name in names}, 0, row[diff]) for row in rows]


def _happening(step: MicroBatch, source: str) -> Happening:
    return Happening(step.rows.get(source, ()), step.clock, step.watermarks.get(source))


def _sources(transcript: StagesTranscript) -> list[Source]:
    streams = [each for of in transcript.stages.values() for each in streams_of(of)]
    return list(dict.fromkeys(source for each in streams for source in sources(each)))


def _sink(number: int, stage: str) -> FunctionSink:
    def ignore(rows: list[Mapping[str, Any]], batch: int) -> None:
        """Write nothing: the rows are among the answers."""

    return FunctionSink(ignore, f"case_{number}_{stage}")


def _id(number: int, stage: str) -> str:
    return sink_id(_sink(number, stage))
