"""Runs scripts on a real Spark stream: each step is a micro-batch, except those that set tables."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from millrace.eventlog.durable import write_whole
from millrace.letters.box import box_of
from millrace.letters.letter import Rejected
from millrace.model.arrow import arrow_type
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.graph import inputs_of
from millrace.model.pipeline import FunctionSink, Pipeline
from millrace.model.query import Query, streams_of
from millrace.model.stream import (
    AnswerStream,
    Join,
    JoinStream,
    Source,
    Stream,
    Table,
    Union,
    parents,
    with_streams_read,
)
from millrace.model.window import Row
from millrace.plan.compile import sink_id, view_id
from millrace.sources.memory import Happening
from millrace.sources.memory import MemoryScript as SourceScript
from millrace.spark import session, stream
from millrace.spark.progress import BatchProgress
from millrace.spark.snapshots import tables_of
from millrace.testing.answers import Answer, Answers, DeadLetter, StepAnswers, in_order
from millrace.testing.checked import Checked, check_mark, stream_of
from millrace.testing.local import letters_of
from millrace.testing.records import with_times
from millrace.testing.script import Arrival, Contents, ScriptMark, Tick


@contextmanager
def shared_session() -> Iterator[SparkSession]:
    """The active session, or one that is started here and stopped at the end."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with session.quiet("millrace tests", "local[2]") as started:
        yield started


def session_of_process() -> SparkSession:
    """The active session, or one that is stopped when the process ends."""
    return session.until_the_end("millrace tests", "local[2]")


@dataclass(slots=True)
class SparkStep:
    """The answers, progress and dead letters of a micro-batch."""

    answers: Mapping[str, pa.Table]
    progress: BatchProgress
    letters: list[Rejected] = field(default_factory=list)


def run_on_spark(checked: Checked, spark: SparkSession) -> Answers:
    """Run a script as a stream on Spark."""
    with TemporaryDirectory(prefix="millrace-test-") as name:
        folder = Path(name)
        tables = TableFiles(folder / "tables", checked)
        parts = {part: name for name, part in zip(checked.outputs, _part_names(checked.pipeline), strict=True)}
        batches = _run(checked, spark, folder / "checkpoint", tables)
    numbers = [number for number, step in enumerate(checked.script.steps) if not isinstance(step, Contents)]
    by_step = dict(zip(numbers, batches, strict=True))
    positions = dict.fromkeys((source.name for source in checked.pipeline.sources), 0)
    steps, dropped = [], dict.fromkeys(checked.outputs, 0)
    watermarks = dict.fromkeys(checked.outputs, BEGINNING_OF_TIME)
    for number, step in enumerate(checked.script.steps):
        if number not in by_step:
            steps.append(StepAnswers({name: [] for name in checked.outputs}, []))
            continue
        batch = by_step[number]
        if isinstance(step, ScriptMark):
            check_mark(checked, step, watermarks)
        answers: dict[str, list[Answer]] = {}
        for part, name in parts.items():
            answers[name] = in_order(checked.outputs[name], batch.answers[part].to_pylist(maps_as_pydicts="lossy"))
            dropped[name] = batch.progress.parts[part].dropped
        watermarks = {name: _watermark(batch.progress, part) for part, name in parts.items()}
        steps.append(StepAnswers(answers, _letters(checked, number, batch.letters, positions, parts)))
        if isinstance(step, Arrival):
            positions[step.source] += len(checked.admitted[number].rows)
    return Answers(steps, dropped, checked.outputs, checked.pipeline.views)


def _run(checked: Checked, spark: SparkSession, checkpoint: Path, tables: "TableFiles") -> list[SparkStep]:
    batches: list[SparkStep] = []
    box = box_of(checkpoint.parent, checked.pipeline.name)
    read = 0

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        nonlocal read
        new = [letter for letter in box.letters() if letter.number > read]
        read = max([read, *(letter.number for letter in new)])
        batches.append(SparkStep(answers, progress, [letter.rejected for letter in new]))
        tables.change(len(batches))  # Spark plans the next micro-batch after this

    run = stream.start(
        spark, _rewritten(checked.pipeline, tables.paths), checkpoint, until_caught_up=True,
        scripts=_scripts(checked), on_batch=listen,
    )  # fmt: skip
    try:
        run.wait()
    finally:
        run.stop()
    return batches


def _scripts(checked: Checked) -> dict[str, SourceScript]:
    """The input of each source in each micro-batch. Clock and watermark steps are the same for all sources."""
    scripts = {}
    for source in checked.pipeline.sources:
        happenings = []
        for number, step in enumerate(checked.script.steps):
            match step:
                case Arrival(name):
                    happenings.append(Happening(checked.admitted[number].rows if name == source.name else ()))
                case Tick(now):
                    happenings.append(Happening(now=now))
                case ScriptMark(at):
                    happenings.append(Happening(watermark=at))
        scripts[source.name] = SourceScript(happenings, start=checked.script.started)
    return scripts


class TableFiles:
    """The files of tables whose rows the script sets; they are replaced between micro-batches."""

    def __init__(self, folder: Path, checked: Checked) -> None:
        """Write the rows for the first micro-batch."""
        folder.mkdir()
        self._schemas = tables_of(stream_of(of) for of in checked.outputs.values())
        given = sorted({step.table for step in checked.script.steps if isinstance(step, Contents)})
        self.paths = {name: folder / f"{number}.parquet" for number, name in enumerate(given)}
        self._changes: list[list[tuple[str, Sequence[Row]]]] = [[]]
        """The tables to replace before each micro-batch."""
        for number, step in enumerate(checked.script.steps):
            if isinstance(step, Contents):
                self._changes[-1].append((step.table, checked.contents[number]))
            else:
                self._changes.append([])
        for name in given:
            self._write(name, checked.tables[name])

    def change(self, batch: int) -> None:
        """Replace the tables that change before a micro-batch, by its number."""
        for name, rows in self._changes[batch]:
            self._write(name, rows)

    def _write(self, name: str, rows: Sequence[Row]) -> None:
        columns = {
            column.name: pa.array([row[column.name] for row in rows], arrow_type(column.type))
            for column in self._schemas[name].schema
        }
        write_whole(self.paths[name], lambda path: pq.write_table(pa.table(columns), path))


def _rewritten(pipeline: Pipeline, paths: Mapping[str, Path]) -> Pipeline:
    """The pipeline with sources in memory, tables in files of the test, and sinks that write nothing."""
    rewrite = _rewriter(paths)

    def of(asked: Query | Stream) -> Query | Stream:
        return replace(asked, stream=rewrite(asked.stream)) if isinstance(asked, Query) else rewrite(asked)

    views = {name: of(asked) for name, asked in pipeline.views.items()}
    sinks = [replace(output, of=of(output.of), sink=_sink(number)) for number, output in enumerate(pipeline.sinks)]
    return Pipeline(pipeline.name, views, sinks, pipeline.place)


def _rewriter(paths: Mapping[str, Path]) -> Callable[[Stream], Stream]:
    done: dict[int, Stream] = {}

    def rewrite(node: Stream) -> Stream:
        # A node that two streams share stays one node, as state belongs to a node.
        if id(node) not in done:
            done[id(node)] = made(node)
        return done[id(node)]

    def made(node: Stream) -> Stream:
        match node:
            case Source():
                return replace(node, kind="memory", options=())
            case AnswerStream() | JoinStream():
                return with_streams_read(node, rewrite)
            case Union():
                return replace(node, parents=tuple(map(rewrite, node.parents)))
            case Join():
                return replace(node, parent=rewrite(node.parent), table=_table(node.table, paths))
        (parent,) = parents(node)
        return replace(node, parent=rewrite(parent))  # type: ignore[type-var]

    return rewrite


def _table(table: Table, paths: Mapping[str, Path]) -> Table:
    return replace(table, path=str(paths[table.name]), view=None) if table.name in paths else table


def _sink(number: int) -> FunctionSink:
    def ignore(rows: list[Mapping[str, Any]], batch: int) -> None:
        """Write nothing: the rows are among the answers."""

    return FunctionSink(ignore, f"sink_{number}")


def _part_names(pipeline: Pipeline) -> list[str]:
    """The ids of the outputs of the rewritten pipeline on Spark."""
    sinks = [sink_id(_sink(number)) for number, _ in enumerate(pipeline.sinks)]
    return [*(view_id(name) for name in pipeline.views), *sinks]


def _watermark(progress: BatchProgress, part: str) -> int:
    known = progress.parts[part].watermark
    return BEGINNING_OF_TIME if known is None else known


def _letters(
    checked: Checked, number: int, letters: Sequence[Rejected], positions: Mapping[str, int],
    parts: Mapping[str, str],
) -> list[DeadLetter]:  # fmt: skip
    """The dead letters of a micro-batch: those of records, then those of answers that have no value."""
    step = checked.script.steps[number]
    reasons: dict[int, str] = {}
    failed = []
    for letter in letters:
        if letter.origin == letter.output:  # a stage
            failed.append(_failed(checked, parts.get(letter.origin, letter.origin), letter))
        elif isinstance(step, Arrival):
            if letter.offset is None:  # it failed after a dedup, which loses offsets
                place = _place_of(checked.admitted[number].rows, json.loads(letter.value or "{}"))
            else:
                place = letter.offset - positions[step.source]
            reasons.setdefault(place, letter.reason)
    return [*letters_of(step, number, checked, reasons), *failed]


def _place_of(rows: Sequence[Row], held: Mapping[str, Any]) -> int:
    """The index of the row that a letter after a dedup stems from: the first with the most equal values."""
    texts = [json.loads(json.dumps(row, default=str)) for row in rows]
    same = [sum(name in held and held[name] == value for name, value in text.items()) for text in texts]
    return same.index(max(same))


def _failed(checked: Checked, output: str, letter: Rejected) -> DeadLetter:
    """The letter of an answer that has no value, or of one that a stage could not read.

    The output of a stage that only other stages read is the label of the stage.
    """
    held, of = json.loads(letter.value or "{}"), checked.outputs.get(output)
    read = [root.schema for root in (() if of is None else inputs_of(of))]
    if of is None or isinstance(of, JoinStream):  # a row of a side of a join
        read += [stream.schema for each in checked.outputs.values() for stream in streams_of(each)]
    for schema in read:
        if schema.names == tuple(held):
            return DeadLetter(None, with_times(schema, held), letter.reason, output)
    if isinstance(of, Query):
        held = with_times(of.schema, held)
        held = {name: held[name] for name in of.key_names}
    return DeadLetter(None, held, letter.reason, output)
