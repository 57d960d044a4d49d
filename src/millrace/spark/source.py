"""The sources of a pipeline as Spark data sources; the one for all fused stages contains the fused edge.

An offset holds the position of every source, the clock and the names of snapshots. Spark logs it before a micro-batch,
so a repeated micro-batch reads the same records at the same time. A fused stage sends Spark messages, never raw rows.
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from millrace.edge.decode import JsonDecoder
from millrace.model.duration import END_OF_TIME, SECOND
from millrace.model.schema import backticked
from millrace.model.stream import Source, event_times
from millrace.model.trigger import waits
from millrace.plan.plan import Stage
from millrace.sources.bundle import SourceFollower, Split, Times
from millrace.sources.custom import CustomFollower
from millrace.sources.feed import Feed
from millrace.sources.files import Files
from millrace.sources.memory import Scripted
from millrace.sources.skipped import read_skipped
from millrace.spark.answers import arrow_schema
from millrace.spark.checkpoint import FUSED, journal_of
from millrace.spark.clock import ClockFollower, seconds_elapsed, wall_clock
from millrace.spark.crash import reach
from millrace.spark.envelope import reported
from millrace.spark.job import Job, PackedJob
from millrace.spark.messages import TO_SHARD, to_batch
from millrace.spark.native import CARRIED, CONTROL, OFFSET, ORIGIN, messages_of
from millrace.spark.snapshots import FileLookup, Snapshots, tables_of
from millrace.spark.task import Letters, decoded, reader_of

_FASTEST, _SLOWEST = SECOND // 5, SECOND
"""The bounds, in microseconds, of the interval at which micro-batches only advance the clock, where that matters."""


_LONG = 512 << 20
"""The approximate maximum of bytes that one task reads."""


@dataclass(slots=True)
class Task(InputPartition):
    """The splits that one task reads."""

    number: int
    splits: list[tuple[int, Split]]
    times: dict[int, Times]
    """The clock of each output that the task reports to."""
    tables: tuple[tuple[str, str], ...] = ()
    """The tables that may change, with the paths of their snapshots."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The scope of one Spark source: all fused outputs, or the rows of one source of a native output."""

    packed: PackedJob
    cores: int
    stages: tuple[int, ...]
    source: int | None = None

    @property
    def sources(self) -> list[int]:
        """The numbers of the sources that are read."""
        return self.packed.job.read_by(self.stages) if self.source is None else [self.source]

    @property
    def journal(self) -> str:
        """The name that distinguishes the journals of its sources: `FUSED`, or the id of the native stage."""
        return FUSED if self.source is None else self.packed.job.stages[self.stages[0]].id


class Reader:
    """The sources of a job, read by offset."""

    def __init__(self, reads: Reads) -> None:
        """Open the sources."""
        self._job, self._reads = reads.packed.job, reads
        self._inputs = self._job.plan.sources
        self._sources = {
            self._inputs[number].id: _open(self._inputs[number].source, self._job, reads.journal)
            for number in reads.sources
        }
        self._tick = _tick([self._job.stages[number] for number in reads.stages])
        self._target: dict[str, Any] | None = None
        self._told = False
        self._clock = ClockFollower()
        joined = tables_of(self._job.stages[number].stream for number in reads.stages)
        lookups = {name: self._job.lookups.get(name) or FileLookup(table) for name, table in joined.items()}
        self._tables = Snapshots(Path(self._job.folder or "") / "tables", lookups)

    def start(self) -> dict[str, Any]:
        """The offset before the first record."""
        # Spark does not log this offset but asks for it again, so it must not hold the current time.
        return {"now": None, "at": {key: source.start() for key, source in self._sources.items()}}

    def end(self) -> dict[str, Any]:
        """The offset after everything that is available now."""
        at = {key: source.end() for key, source in self._sources.items()}
        return {"now": wall_clock(), "at": at, "tables": self._tables.now()}

    def stop_at_the_end(self) -> None:
        """Read no further than the end of what is available now."""
        self._target = self.end()["at"]

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """The offset after the next micro-batch; `start` if there is none to run.

        Spark always runs a first micro-batch, even without input. It advances the clock, so every offset after the
        start holds a time.
        """
        begun = {key: self._position(key, start) for key in self._sources}
        until = self._target or {}
        at = {key: source.latest(begun[key], until.get(key)) for key, source in self._sources.items()}
        before = start["now"] or 0
        now = self._clock.now(before, wall_clock(), seconds_elapsed())
        if at == begun and start["now"] is not None:
            is_due = self._tick is not None and (now < before or now >= before + self._tick)
            # A run until caught up advances the clock once, which fires the triggers that came due since the last run.
            if not is_due or (self._target is not None and self._told):
                return start
        self._told = True
        read = {key: source.identity(at[key]) for key, source in self._sources.items()}
        return {
            "now": now,
            "at": {**start["at"], **at},
            "read": {key: identity for key, identity in read.items() if identity is not None},
            "tables": self._tables.now(),
        }

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        """The tasks that read between two offsets, of about equal size and in the order of arrival."""
        splits: list[tuple[int, Split]] = []
        for number in self._reads.sources:
            key = self._inputs[number].id
            first, last = self._position(key, start), self._position(key, end)
            if first != last:
                splits += [(number, split) for split in self._sources[key].splits(first, last)]
        times: dict[int, Times] = {}
        # Old checkpoints that were begun without input may hold a first batch without a time: it does nothing.
        if end["now"] is not None:
            times = {number: self._times(self._job.stages[number], start, end) for number in self._reads.stages}
        shares = _shares(splits, self._reads.cores) or [[]]
        tables = tuple(sorted(self._tables.paths(end.get("tables", {})).items()))
        tasks = [Task(number, share, self._read_by(share, times), tables) for number, share in enumerate(shares)]
        tasks[0].times = times  # every output receives the clock, even without input
        return tasks

    def _position(self, key: str, offset: dict[str, Any]) -> Any:
        """The position of a source at an offset; a source that was added later begins at its start."""
        return offset["at"][key] if key in offset["at"] else self._sources[key].start()

    def _read_by(self, share: list[tuple[int, Split]], times: dict[int, Times]) -> dict[int, Times]:
        read = {self._inputs[number].id for number, _ in share}
        return {n: at for n, at in times.items() if read & set(self._job.stages[n].inputs)}

    def _times(self, stage: Stage, start: dict[str, Any], end: dict[str, Any]) -> Times:
        """The clock of a stage: that of its script, if it has one."""
        for key in stage.inputs:
            reader = self._sources.get(key)
            if isinstance(reader, Scripted):
                scripted = reader.script.times(self._position(key, start), self._position(key, end))
                if scripted is not None:
                    return scripted
        return Times(end["now"] if start["now"] is None else start["now"], end["now"])

    def tasks_of_all(self) -> list[Task]:
        """The tasks of a batch: they read everything available, with the watermark at the end of time."""
        tasks = self.tasks(self.start(), self.end())
        for task in tasks:
            task.times = dict.fromkeys(task.times, Times(0, 0, END_OF_TIME))
        return tasks


def read_messages(spark: SparkSession, packed: PackedJob, stream: bool) -> DataFrame:
    """The messages from edges to shards: one Spark source for all fused stages, a Spark plan for each native one."""
    job = packed.job
    frames = []
    if job.plan.fused:
        frames.append(_load(spark, TO_SHARD, Reads(packed, _cores(spark), job.plan.fused), stream))
    for number in job.plan.native:
        rows = {}
        for place in job.read_by([number]):
            source = job.sources[place]
            columns = ", ".join(f"{backticked(column.name)} {column.type}" for column in source.schema)
            reads = Reads(packed, _cores(spark), (number,), place)
            rows[source.name] = _load(spark, f"{columns}, {CARRIED}", reads, stream)
        frames.append(messages_of(spark, packed, number, rows))
    return reduce(DataFrame.union, frames)


def _load(spark: SparkSession, schema: str, reads: Reads, stream: bool) -> DataFrame:
    name = f"millrace_{uuid.uuid4().hex}"  # all sessions share the names of data sources
    spark.dataSource.register(_data_source(name, schema, reads))
    return (spark.readStream if stream else spark.read).format(name).load()


def _data_source(called: str, columns: str, reads: Reads) -> type[DataSource]:
    packed, rest = reads.packed.data, (reads.cores, reads.stages, reads.source)

    class Sources(DataSource):
        """The sources of a plan. Some processes only ask for the schema, so Millrace is imported on the first read."""

        @classmethod
        def name(cls) -> str:
            return called

        def schema(self) -> str:
            return columns

        def reader(self, schema: Any) -> Any:
            from millrace.spark.job import PackedJob
            from millrace.spark.source import BatchReader, Reads

            return BatchReader(Reads(PackedJob(packed), *rest))

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            from millrace.spark.job import PackedJob
            from millrace.spark.source import Reads, StreamReader

            return StreamReader(Reads(PackedJob(packed), *rest))

    return Sources


def _cores(spark: SparkSession) -> int:
    return spark.sparkContext.defaultParallelism


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The sources of a plan as a stream reader, on the driver and in tasks."""

    def __init__(self, reads: Reads) -> None:
        """Open nothing yet, because the reader is also sent to tasks."""
        self._reads = reads
        self._opened: Reader | None = None

    @reported
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802, D102
        return self._reader().start()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, D102
        return ReadAllAvailable()

    @reported
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, D102
        self._reader().stop_at_the_end()

    @reported
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, D102
        latest = self._reader().latest(start)
        reach("offsets planned")
        return latest

    @reported
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: D102
        return self._reader().tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: D102
        return _read(self._reads, partition)

    def commit(self, end: dict[str, Any]) -> None:  # noqa: D102
        reach("offsets committed")

    def _reader(self) -> Reader:
        if self._opened is None:
            self._opened = Reader(self._reads)
        return self._opened


class BatchReader(DataSourceReader):
    """The sources of a plan as a batch reader."""

    def __init__(self, reads: Reads) -> None:
        """Open nothing yet, because the reader is also sent to tasks."""
        self._reads = reads

    @reported
    def partitions(self) -> Sequence[InputPartition]:  # noqa: D102
        return Reader(self._reads).tasks_of_all()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: D102
        return _read(self._reads, partition)


def _tick(stages: Iterable[Stage]) -> int | None:
    """How long the clock may stand still without input; None if no trigger or watermark depends on it."""
    given = list(stages)
    spans = [wait for stage in given if stage.query is not None for wait in waits(stage.query.trigger)]
    idle = [node.estimator.idle for stage in given for node in event_times(stage.stream)]
    spans += [wait for wait in idle if wait is not None]
    return min(max(min(spans) // 4, _FASTEST), _SLOWEST) if spans else None


@reported
def _read(reads: Reads, task: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(task, Task)
    if not task.times:
        return
    if reads.source is None:
        messages = reader_of(reads.packed, task.tables).messages(task.splits, task.times, task.number)
        reach("bundle read")
        yield to_batch(messages, reads.packed.job.labels)
    else:
        yield from _rows(reads.packed.job.sources[reads.source], task)


def _rows(source: Source, task: Task) -> Iterator[pa.RecordBatch]:
    """The rows of a source, then a control row with the clock and the dead letters."""
    began = time.process_time()
    schema = arrow_schema(source.schema)
    for name, kind in ((ORIGIN, pa.string()), (OFFSET, pa.int64()), (CONTROL, pa.string())):
        schema = schema.append(pa.field(name, kind))
    letters: list[dict[str, Any]] = []
    read = 0
    for _, split in task.splits:
        bundle = split.read()
        read += len(bundle)
        aside = Letters(source, bundle, split)
        rows, places = bundle.rows, np.arange(len(bundle))
        if rows is None:
            rows, places = decoded(JsonDecoder(source.schema), aside)
        letters += aside.rows
        carried = [pa.array([bundle.origin] * len(rows)), pa.array(bundle.offsets[places]), pa.nulls(len(rows))]
        columns = [rows[name] for name in source.schema.names] + carried
        whole = pa.table(
            [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
        yield from whole.to_batches(max_chunksize=100_000)
    for times in task.times.values():
        told = [times.before, times.now, times.watermark]
        spent = time.process_time() - began
        control = json.dumps({"times": told, "letters": letters, "rows": read, "spent": spent})
        yield pa.RecordBatch.from_pylist([{CONTROL: control}], schema)


def _open(source: Source, job: Job, journal: str) -> SourceFollower:
    if source.kind == "memory":
        return Scripted(job.scripts[source.name], source)
    folder = Path(job.folder or "")
    if source.kind == "files":
        return Files(source, journal_of(folder, journal, source.name, "jsonl"))
    if source.reader is not None:
        return CustomFollower(source, source.reader)
    member = "" if journal == FUSED else journal
    kept = journal_of(folder, journal, source.name, "json")
    skipped = None if job.folder is None else read_skipped(folder)
    return Feed(source, job.log, kept, job.latency / SECOND, time.monotonic, job.group, member, skipped)


def _shares(splits: list[tuple[int, Split]], cores: int) -> list[list[tuple[int, Split]]]:
    """Splits in one share for each core; if those would exceed `_LONG`, in two for each core, and so on.

    A task reads one split after the other, so its memory does not depend on how much it reads.
    """
    total = sum(split.size for _, split in splits)
    most = total / (cores * max(1, ceil(total / (cores * _LONG))))
    shares: list[list[tuple[int, Split]]] = []
    held = 0
    for number, split in splits:
        if not shares or held + split.size / 2 > most:
            shares.append([])
            held = 0
        shares[-1].append((number, split))
        held += split.size
    return shares
