"""Plans the micro-batches of a job: the offset after each, and the tasks that read between two offsets.

An offset holds the position of every source, the clock and the names of snapshots. Spark logs it before a micro-batch,
so a repeated micro-batch reads the same records at the same time.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition

from millrace.model.duration import END_OF_TIME, SECOND
from millrace.model.joining import LEFT, RIGHT
from millrace.model.kafka import KIND as KAFKA
from millrace.model.stream import Source, Stream, own_sources
from millrace.model.trigger import waits
from millrace.plan.compile import source_id
from millrace.plan.plan import Stage
from millrace.sources.bundle import SourceFollower, Split, Times
from millrace.sources.custom import CustomFollower
from millrace.sources.feed import Feed
from millrace.sources.files import Files
from millrace.sources.memory import Scripted
from millrace.sources.skipped import read_skipped
from millrace.spark.checkpoint import FUSED, Checkpoint, journal_of
from millrace.spark.clock import ClockFollower, seconds_elapsed, wall_clock
from millrace.spark.datasource import SentReads
from millrace.spark.handed import start_of
from millrace.spark.job import Job, PackedJob
from millrace.spark.snapshots import FileLookup, Snapshots, tables_of
from millrace.spark.timers import Timers
from millrace.spark.watch import Watch
from millrace.spark.watermarks import Watermarks, keeps_late

_FASTEST, _SLOWEST = SECOND // 5, SECOND
"""The bounds, in microseconds, of the interval at which micro-batches only advance the clock, if no timer is known."""


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
    now: int = 0
    """The clock when the micro-batch was planned: the log time of records whose source knows none."""
    watermarks: dict[int, int] = field(default_factory=dict)
    """For each output that keeps late records, the watermark before the micro-batch, by which they are judged."""


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
    def counts(self) -> bool:
        """Whether its records count as read: those of a source that several Spark sources read count only once."""
        if self.source is None:
            return True
        plan = self.packed.job.plan
        readers = [n for n, stage in enumerate(plan.stages) if plan.sources[self.source].id in stage.inputs]
        return not {*readers} & {*plan.fused} and readers[0] == self.stages[0]

    @property
    def journal(self) -> str:
        """The name that distinguishes the journals of its sources: `FUSED`, or the id of the native stage."""
        return FUSED if self.source is None else self.packed.job.stages[self.stages[0]].id

    @property
    def place(self) -> int:
        """Its place among the Spark sources of the job, as `read_messages` makes them and Spark logs their offsets."""
        job = self.packed.job
        every: list[tuple[int, int | None]] = [(0, None)] if job.plan.fused else []
        every += [(number, source) for number in job.plan.native for source in job.read_by([number])]
        return every.index((0, None) if self.source is None else (self.stages[0], self.source))

    def sent(self) -> SentReads:
        """The fields, for a process that may not need them."""
        return self.packed.data, self.cores, self.stages, self.source


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
        self._tick = _tick(self._job.stages)
        self._target: dict[str, Any] | None = None
        self._told = False
        self._clock = ClockFollower()
        self._timers = Timers(Checkpoint(Path(self._job.folder or "")).timers)
        self._keeping = {stage.id: n for n in reads.stages if keeps_late(stage := self._job.stages[n])}
        """The numbers of the stages that keep late records, by id."""
        self._watermarks = Watermarks(Checkpoint(Path(self._job.folder or "")))
        self._watch = Watch([source.stamp for source in self._sources.values()])
        joined = tables_of(self._job.stages[number].stream for number in reads.stages)
        lookups = {name: self._job.lookups.get(name) or FileLookup(table) for name, table in joined.items()}
        self._tables = Snapshots(Path(self._job.folder or "") / "tables", lookups)

    def start(self) -> dict[str, Any]:
        """The offset before the first record that is read; after a handover of state, where that was."""
        handed = None if self._job.folder is None else start_of(Path(self._job.folder), self._reads.place)
        if handed is not None:
            return handed
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
        self._watch.look()
        begun = {key: self._position(key, start) for key in self._sources}
        until = self._target or {}
        at = {key: source.latest(begun[key], until.get(key)) for key, source in self._sources.items()}
        marks = self._marks(start) if at != begun else {}
        if marks is None:  # what is too late cannot be told before a micro-batch without input
            at = begun
        before = start["now"] or 0
        now = self._clock.now(before, wall_clock(), seconds_elapsed())
        # A run until caught up advances the clock once, which fires the triggers that came due since the last run.
        is_due = self._is_due(before, now) and not (self._target is not None and self._told)
        if at == begun and start["now"] is not None and not is_due and marks is not None:
            return start
        self._told = True
        self._watch.reset()
        read = {key: source.identity(at[key]) for key, source in self._sources.items()}
        return {
            "now": now,
            "at": {**start["at"], **at},
            "read": {key: identity for key, identity in read.items() if identity is not None},
            "tables": self._tables.now(),
            "watermarks": marks or {},
        }

    def _marks(self, start: dict[str, Any]) -> dict[str, int] | None:
        """The watermarks by which the next records are judged: none before the first micro-batch, None if unknown."""
        if not self._keeping or start["now"] is None:
            return {}
        return self._watermarks.read(self._keeping)

    def _is_due(self, before: int, now: int) -> bool:
        """Whether the clock alone asks for a micro-batch."""
        if self._tick is None:
            return False
        due = self._timers.due(before)
        return now < before or now >= (before + self._tick if due is None else due)

    def wait_for_input(self, start: dict[str, Any]) -> None:
        """Wait after a look that found nothing to do: longer and longer, until there may be input or a timer is due."""
        if self._target is None:
            due = None if self._tick is None else self._timers.due(start["now"] or 0)
            until_due = None if due is None else (due - wall_clock()) / SECOND
            self._watch.wait(until_due)

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
        marks = {self._keeping[stage]: at for stage, at in end.get("watermarks", {}).items() if stage in self._keeping}
        tables = tuple(sorted(self._tables.paths(end.get("tables", {})).items()))
        tasks = [
            Task(number, share, self._read_by(share, times), tables, end["now"] or 0, marks)
            for number, share in enumerate(shares)
        ]
        tasks[0].times = times  # every output receives the clock, even without input
        return tasks

    def _position(self, key: str, offset: dict[str, Any]) -> Any:
        """The position of a source at an offset; a source that was added later begins at its start."""
        return offset["at"][key] if key in offset["at"] else self._sources[key].start()

    def _read_by(self, share: list[tuple[int, Split]], times: dict[int, Times]) -> dict[int, Times]:
        read = {self._inputs[number].id for number, _ in share}
        return {n: at for n, at in times.items() if read & set(self._job.stages[n].inputs)}

    def _times(self, stage: Stage, start: dict[str, Any], end: dict[str, Any]) -> Times:
        """The clock of a stage, and its watermark: those of its scripts, if it has any."""
        for key in stage.inputs:
            reader = self._sources.get(key)
            if isinstance(reader, Scripted):
                scripted = reader.script.times(self._position(key, start), self._position(key, end))
                if scripted is not None and reader.script.derived:
                    return scripted
                if scripted is not None:
                    marks = {side: self._set_by_scripts(stream, end) for side, stream in stage.own_streams}
                    both = marks.get(LEFT, END_OF_TIME), marks.get(RIGHT, END_OF_TIME)
                    return replace(scripted, watermark=min(marks.values()), sides=None if stage.join is None else both)
        return Times(end["now"] if start["now"] is None else start["now"], end["now"])

    def _set_by_scripts(self, stream: Stream, end: dict[str, Any]) -> int:
        """The least of the watermarks that the scripts of a stream have set."""
        marks = []
        for source in own_sources(stream):
            reader = self._sources[source_id(source)]
            assert isinstance(reader, Scripted), "all sources of a scripted stage are scripted"
            marks.append(reader.script.watermark(self._position(source_id(source), end)))
        return min(marks)

    def tasks_of_all(self) -> list[Task]:
        """The tasks of a batch: they read everything available, with the watermark at the end of time."""
        tasks = self.tasks(self.start(), self.end())
        for task in tasks:
            task.times = dict.fromkeys(task.times, Times(0, 0, END_OF_TIME))
        return tasks


def _tick(stages: Iterable[Stage]) -> int | None:
    """How long the clock may stand still without input; None if no trigger or watermark depends on it."""
    given = list(stages)
    spans = [wait for stage in given if stage.query is not None for wait in waits(stage.query.when)]
    idle = [estimator.idle for stage in given for estimator in stage.estimators()]
    spans += [wait for wait in idle if wait is not None]
    return min(max(min(spans) // 4, _FASTEST), _SLOWEST) if spans else None


def _open(source: Source, job: Job, journal: str) -> SourceFollower:
    if source.kind == "memory":
        return Scripted(job.scripts[source.name], source)
    folder = Path(job.folder or "")
    skipped = None if job.folder is None else read_skipped(folder)
    if source.kind == "files":
        return Files(
            source, journal_of(folder, journal, source.name, "jsonl"), () if skipped is None else skipped.files
        )
    if source.reader is not None:
        return CustomFollower(source, source.reader)
    if source.kind == KAFKA:
        from millrace.sources.kafka import KafkaFeed  # its packages are optional

        kept = journal_of(folder, journal, source.name, KAFKA)
        return KafkaFeed(source, kept, job.latency / SECOND, time.monotonic, job.group)
    member = "" if journal == FUSED else journal
    kept = journal_of(folder, journal, source.name, "json")
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
