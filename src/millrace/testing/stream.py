"""Runs transcripts on a real Spark stream: each step is a micro-batch; all transcripts run in one pipeline."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.model.duration import BEGINNING_OF_TIME, to_instant
from millrace.model.pane import Pane, Timing
from millrace.model.pipeline import Pipeline
from millrace.model.query import Query
from millrace.model.rows import RowDeadLetter
from millrace.model.stream import with_sources
from millrace.model.window import GLOBAL_WINDOW, CountWindow, Global, Row, Window
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import session, stream
from millrace.spark.answers import schema_of
from millrace.spark.progress import BatchProgress
from millrace.testing.transcript import ClockStep, InputStep, Transcript, WatermarkStep

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StreamCase:
    """A query with one source in memory, and its input, clock and watermark by micro-batch."""

    query: Query
    happenings: Sequence[Happening]
    derived: bool = True


@dataclass(frozen=True, slots=True)
class Said:
    """The panes of a query in a micro-batch, with its dropped elements and watermark afterwards."""

    panes: list[Pane]
    dropped: int
    watermark: int


@dataclass(slots=True)
class Recorded:
    """An engine that plays back the recorded results of a stream; `Reference` documents the members."""

    batches: list[Said]
    dropped: int = 0
    event_time: int = BEGINNING_OF_TIME
    dead: list[RowDeadLetter] = field(default_factory=list)
    _number: int = 0
    _after_input: bool = False

    def input(self, rows: Iterable[Row]) -> list[Pane]:  # noqa: D102
        self._after_input = True
        return self._next()

    def watermark(self, at: int) -> list[Pane]:  # noqa: D102
        return self._next()

    def clock(self, now: int) -> list[Pane]:  # noqa: D102
        return self._next()

    def advance(self, now: int) -> list[Pane]:  # noqa: D102
        if self._after_input:  # the watermark after an input is part of the same micro-batch
            self._after_input = False
            return []
        return self._next()

    def _next(self) -> list[Pane]:
        batch = self.batches[self._number]
        self._number += 1
        self.dropped, self.event_time = batch.dropped, batch.watermark
        return batch.panes


def record(transcripts: Sequence[Transcript]) -> list[Recorded | Exception]:
    """The results of a stream for each transcript; or the error."""
    results = drive(spark(), map(_case, transcripts))
    return [result if isinstance(result, Exception) else Recorded(result) for result in results]


def drive(spark: SparkSession, cases: Iterable[StreamCase], fuse: bool = True) -> list[list[Said] | Exception]:
    """Run cases together, micro-batch by micro-batch; if that fails, run each alone."""
    return alone_if_not_together(lambda given: _drive(spark, given, fuse), list(cases))


def alone_if_not_together(run: Callable[[Sequence[T]], list[R]], cases: Sequence[T]) -> list[R | Exception]:
    """Run cases together; if that fails, run each alone to find the failing ones."""
    try:
        return list(run(cases))
    except Exception as error:
        if len(cases) == 1:
            return [error]
        return [result for case in cases for result in alone_if_not_together(run, [case])]


def _drive(spark: SparkSession, cases: Sequence[StreamCase], fuse: bool) -> list[list[Said]]:
    if not cases:
        return []
    most = max(len(case.happenings) for case in cases)
    views, scripts = {}, {}
    for number, case in enumerate(cases):
        name = f"case_{number}"
        views[name] = renamed(case.query, name)
        idle = [Happening()] * (most - len(case.happenings))
        scripts[name] = MemoryScript([*case.happenings, *idle], derived=case.derived)
    batches: list[list[Said]] = [[] for _ in cases]

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        for number, case in enumerate(cases):
            part = progress.parts[f"view case_{number}"]
            panes = panes_of(case.query, answers[f"view case_{number}"])
            watermark = BEGINNING_OF_TIME if part.watermark is None else part.watermark
            batches[number].append(Said(panes, part.dropped, watermark))

    with TemporaryDirectory(prefix="millrace-check-") as folder:
        run = stream.start(
            spark, Pipeline("check", views), Path(folder, "checkpoint"), until_caught_up=True, scripts=scripts,
            on_batch=listen, guarantee="at-least-once", fuse=fuse,
        )  # fmt: skip
        try:
            run.wait()
        finally:
            run.stop()
    return batches


def panes_of(query: Query, answers: pa.Table) -> list[Pane]:
    """The panes of answers."""
    return [_pane(query, row) for row in answers.to_pylist()]


def _pane(query: Query, row: dict[str, Any]) -> Pane:
    diff, timing, index, last = (row[name] for name in schema_of(query).names[-4:])
    start, end = row["window_start"], row["window_end"]
    if isinstance(query.windowing, Global):
        window = GLOBAL_WINDOW
    elif isinstance(query.windowing, CountWindow):
        window = Window(start, end)
    else:
        window = Window(to_instant(start), to_instant(end))
    values = {computed.name: row[computed.name] for computed in query.computed}
    keys = tuple(row[name] for name in query.keys)
    return Pane(keys, window, values, Timing(timing), index, last, diff)


def _case(transcript: Transcript) -> StreamCase:
    happenings = []
    for step in transcript.steps:
        match step:
            case InputStep(rows):
                happenings.append(Happening(rows))
            case WatermarkStep(at):
                happenings.append(Happening(watermark=at))
            case ClockStep(at):
                happenings.append(Happening(now=at))
    return StreamCase(transcript.query, happenings, transcript.derived)


def renamed(query: Query, name: str) -> Query:
    """A query with another name for its only source."""
    return replace(query, stream=with_sources(query.stream, lambda source: replace(source, name=name)))


def spark() -> SparkSession:
    """The Spark session of `millrace check`."""
    return session.until_the_end("millrace check", "local[*]")
