"""All sources of a pipeline as one Spark data source, with the fused edge inside of it.

An offset holds the position of every source and the clock. It is what Spark logs before a micro-batch, so a batch that
is run again reads the same records at the same time. Spark sees messages to shards, never a raw row.
"""

import hashlib
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
from millrace.spark.answers import arrow_schema
from millrace.spark.crash import reach
from millrace.spark.envelope import reported
from millrace.spark.job import Job, PackedJob
from millrace.spark.messages import TO_SHARD, to_batch
from millrace.spark.native import CARRIED, CONTROL, OFFSET, ORIGIN, messages_of
from millrace.spark.snapshots import FileLookup, Snapshots, tables_of
from millrace.spark.task import Letters, decoded, reader_of

_FASTEST, _SLOWEST = SECOND // 5, SECOND
"""How often, at most and at least, a micro-batch is run that only lets the clock advance, where that may matter."""


_LONG = 512 << 20
"""How many bytes one task reads, at most, about."""


FUSED = "fused"
"""What the sources of all fused outputs are journaled as."""


@dataclass(slots=True)
class Task(InputPartition):
    """What one task reads."""

    number: int
    splits: list[tuple[int, Split]]
    times: dict[int, Times]
    """Of each output that the task has something to tell."""
    tables: tuple[tuple[str, str], ...] = ()
    """The tables that may change, with where they are kept as they were."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What one Spark source is for: several fused outputs, or one source of a native one, whose rows it gives."""

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
        """What tells the journals of its sources from those of others: the stage, unless all are fused."""
        return FUSED if self.source is None else self.packed.job.stages[self.stages[0]].id


class Reader:
    """Sources of a job, by offset."""

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
        joined = tables_of(self._job.stages[number].stream for number in reads.stages)
        lookups = {name: self._job.lookups.get(name) or FileLookup(table) for name, table in joined.items()}
        self._tables = Snapshots(Path(self._job.folder or "") / "tables", lookups)

    def start(self) -> dict[str, Any]:
        """The offset before anything."""
        # Spark does not log this one but asks for it again, so it must not hold the time of asking.
        return {"now": None, "at": {key: source.start() for key, source in self._sources.items()}}

    def end(self) -> dict[str, Any]:
        """The offset after all that is there now."""
        at = {key: source.end() for key, source in self._sources.items()}
        return {"now": _clock(), "at": at, "tables": self._tables.now()}

    def stop_at_the_end(self) -> None:
        """Go no further than to what is there now."""
        self._target = self.end()["at"]

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """The offset after the next micro-batch; the same if there is none to run.

        Spark always runs a first one, also if nothing has come yet. It tells the clock, so every offset after the start
        holds a time.
        """
        begun = {key: self._position(key, start) for key in self._sources}
        until = self._target or {}
        at = {key: source.latest(begun[key], until.get(key)) for key, source in self._sources.items()}
        before = start["now"] or 0
        now = max(before, _clock())
        if at == begun and start["now"] is not None:
            is_due = self._tick is not None and now >= before + self._tick
            # To catch up, the clock is told once, for what is due since the last run.
            if not is_due or (self._target is not None and self._told):
                return start
        self._told = True
        return {"now": now, "at": {**start["at"], **at}, "tables": self._tables.now()}

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        """What is read between two offsets, in about equal parts, and in the order of arrival."""
        splits: list[tuple[int, Split]] = []
        for number in self._reads.sources:
            key = self._inputs[number].id
            first, last = self._position(key, start), self._position(key, end)
            if first != last:
                splits += [(number, split) for split in self._sources[key].splits(first, last)]
        times: dict[int, Times] = {}
        if (
            end["now"] is not None
        ):  # checkpoints begun on nothing once held a first batch without a time: it does nothing
            times = {number: self._times(self._job.stages[number], start, end) for number in self._reads.stages}
        shares = _shares(splits, self._reads.cores) or [[]]
        tables = tuple(sorted(self._tables.paths(end.get("tables", {})).items()))
        tasks = [Task(number, share, self._read_by(share, times), tables) for number, share in enumerate(shares)]
        tasks[0].times = times  # the clock is told to every output, also to those that nothing came for
        return tasks

    def _position(self, key: str, offset: dict[str, Any]) -> Any:
        """Where a source is at an offset; one that came later begins now."""
        return offset["at"][key] if key in offset["at"] else self._sources[key].start()

    def _read_by(self, share: list[tuple[int, Split]], times: dict[int, Times]) -> dict[int, Times]:
        read = {self._inputs[number].id for number, _ in share}
        return {n: at for n, at in times.items() if read & set(self._job.stages[n].inputs)}

    def _times(self, stage: Stage, start: dict[str, Any], end: dict[str, Any]) -> Times:
        """The clock of a stage: that of its scripts, if it has any."""
        for key in stage.inputs:
            reader = self._sources.get(key)
            if isinstance(reader, Scripted):
                scripted = reader.script.times(self._position(key, start), self._position(key, end))
                if scripted is not None:
                    return scripted
        return Times(end["now"] if start["now"] is None else start["now"], end["now"])

    def tasks_of_all(self) -> list[Task]:
        """What a batch reads: everything there is, and then the watermark at the end of time."""
        tasks = self.tasks(self.start(), self.end())
        for task in tasks:
            task.times = dict.fromkeys(task.times, Times(0, 0, END_OF_TIME))
        return tasks


def read_messages(spark: SparkSession, packed: PackedJob, stream: bool) -> DataFrame:
    """What the edges send to the shards: one Spark source for all fused stages, a Spark plan for each other."""
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
    name = f"millrace_{uuid.uuid4().hex}"  # Spark has one name for one source, in all sessions
    spark.dataSource.register(_data_source(name, schema, reads))
    return (spark.readStream if stream else spark.read).format(name).load()


def _data_source(called: str, columns: str, reads: Reads) -> type[DataSource]:
    packed, rest = reads.packed.data, (reads.cores, reads.stages, reads.source)

    class Sources(DataSource):
        """The sources of a plan. Some processes only ask for the schema, so Millrace is imported when it is read."""

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
    """The sources of a plan as Spark asks for them, on the driver and in tasks."""

    def __init__(self, reads: Reads) -> None:
        """Open nothing yet, as this also travels to tasks."""
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
    """The same, all of it at once."""

    def __init__(self, reads: Reads) -> None:
        """Open nothing yet, as this also travels to tasks."""
        self._reads = reads

    @reported
    def partitions(self) -> Sequence[InputPartition]:  # noqa: D102
        return Reader(self._reads).tasks_of_all()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: D102
        return _read(self._reads, partition)


def _tick(stages: Iterable[Stage]) -> int | None:
    """How long the clock may stand still while nothing comes; None if nothing goes by it."""
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
    """The rows of a source as they are, and one that brings the clock and what was set aside."""
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
    name = hashlib.sha256(f"{journal} {source.name}".encode()).hexdigest()[:16]
    kept = Path(job.folder or "") / "sources"
    if source.kind == "files":
        return Files(source, kept / f"{name}.jsonl")
    if source.reader is not None:
        return CustomFollower(source, source.reader)
    member = "" if journal == FUSED else journal
    return Feed(source, job.log, kept / f"{name}.json", job.latency / SECOND, time.monotonic, job.group, member)


def _shares(splits: list[tuple[int, Split]], cores: int) -> list[list[tuple[int, Split]]]:
    """Splits in as many runs as there are cores; where that would make long tasks, in twice as many, and so on.

    A task reads one split after the other, so how much it reads does not decide how much memory it needs.
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


def _clock() -> int:
    return time.time_ns() // 1000
