"""The stream host: runs a pipeline in micro-batches on Spark Structured Streaming.

One Spark query runs the whole pipeline. The tasks of its source (`source`) send messages to the shards (`shards`, in
`transformWithState`). The writers receive the answers of the shards when the whole micro-batch is computed.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.eventlog.durable import sync
from millrace.eventlog.room import why_no_room
from millrace.eventlog.topics import DEFAULT_LOG
from millrace.letters.box import box_of
from millrace.model.connectors import Commit
from millrace.model.duration import SECOND, Duration, parse_duration, parse_positive
from millrace.model.errors import AGAIN, FILE, ConflictError, CorruptError, MillraceError, PipelineError
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import PlanSettings, compile
from millrace.plan.plan import Plan
from millrace.sources.memory import MemoryScript
from millrace.spark.checkpoint import Checkpoint, Opened
from millrace.spark.clock import JumpDetector, seconds_elapsed
from millrace.spark.damage import state_damage
from millrace.spark.executors import prepare
from millrace.spark.failure import plain_error
from millrace.spark.gate import passing
from millrace.spark.gather import Gathered, gather
from millrace.spark.handover import hand_over
from millrace.spark.history import digest_of
from millrace.spark.inputs import read_messages
from millrace.spark.job import DEFAULT_LATENCY, Job
from millrace.spark.letters import LetterWriter
from millrace.spark.messages import FROM_SHARD
from millrace.spark.native_changes import through_spark
from millrace.spark.outputs import check_places, dead_writer_of, of_views, writers_of
from millrace.spark.progress import BatchProgress
from millrace.spark.session import labels_of, separate, streaming
from millrace.spark.settled import settled
from millrace.spark.shards import processor
from millrace.spark.snapshots import Lookup
from millrace.spark.timers import Timers
from millrace.spark.trouble import by_number
from millrace.spark.watermarks import Watermarks, keeps_late
from millrace.spark.writers import Answers, Delivery, Views, Write, Writer, parse_guarantee

OnBatch = Callable[[BatchProgress, Mapping[str, pa.Table]], None]
"""A callback that receives the progress and the answers of each micro-batch."""


PATIENCE = 30.0
"""The seconds that the current micro-batch has to finish when a run is stopped."""


class StoppedError(Exception):
    """Refuses a micro-batch that Spark starts after the run was stopped."""


class StreamRun:
    """A running pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        plan: Plan,
        checkpoint: Checkpoint,
        delivery: Delivery,
        views: Views | None,
        writers: Mapping[str, Writer],
        letters: LetterWriter,
        on_batch: OnBatch | None,
        silent: Collection[str],
        staged: bool,
        to_topic: Writer | None = None,
    ) -> None:
        """Everything except Spark's query and the lock of the checkpoint, which `start` adds."""
        self._pipeline, self._plan, self._checkpoint, self._delivery = pipeline, plan, checkpoint, delivery
        self._views, self._writers, self._letters = views, writers, letters
        self._on_batch, self._silent, self._staged = on_batch, silent, staged
        self._to_topic = to_topic
        """Writes the dead letters to a topic of Kafka; None if there is none."""
        self._first = checkpoint.first
        """The number of Spark's batch 0."""
        self._dead = 0
        """The number of dead letters of the last micro-batch."""
        self._written: set[str] = set()
        """The sinks that this run has written to."""
        self._failure: BaseException | None = None
        self._beginning = threading.Lock()
        self._begun: int | None = None
        """The last micro-batch that was started."""
        self._jumps = JumpDetector()
        self.is_stopped = False
        """Whether `stop` was called."""
        self._is_cut_off = False
        """Whether `stop` has waited long enough for the current micro-batch."""
        self.query: StreamingQuery
        self.lock: IO[bytes]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; return whether the run has ended. Raises the error of a failed run."""
        has_ended = True
        try:
            # It accepts fractions of a second, although its type does not say so.
            has_ended = self.query.awaitTermination(timeout) is not False  # type: ignore[arg-type]
        except PySparkException as error:
            failure = self._failure or error
            if isinstance(failure, StoppedError):
                return True
            raise self._explained(plain_error(failure, self.damage)) from None
        finally:
            if has_ended and not self.query.isActive:  # a call to Java: not at every look at a stream that waits
                self.lock.close()
        return has_ended

    def _explained(self, error: BaseException) -> BaseException:
        """An error; if it has no explanation, perhaps the disk: Spark's state server may die of it before a worker."""
        full = why_no_room(self._checkpoint.folder / "room") if type(error) is MillraceError else None
        return error if full is None else by_number(full, self._checkpoint.folder)

    def damage(self) -> CorruptError:
        """The error for state that Spark cannot load."""
        return state_damage(self._checkpoint)

    def stop(self, patience: float = PATIENCE) -> None:
        """Stop the run: the current micro-batch finishes and commits, and no further one is started.

        A micro-batch that does not finish within `patience` seconds is cancelled, and repeated by the next run.
        """
        with self._beginning:
            self.is_stopped = True
        deadline = time.monotonic() + patience
        while not self._is_committed() and self.query.isActive and time.monotonic() < deadline:
            time.sleep(0.02)
        self._is_cut_off = not self._is_committed()
        with suppress(PySparkException, Py4JError):  # a sink that does not return keeps the query from stopping in time
            self.query.stop()
        if not self.query.isActive:
            self.lock.close()

    def _is_committed(self) -> bool:
        """Whether Spark has committed the last micro-batch that was started."""
        return self._begun is None or self._checkpoint.commits(self._begun).exists()

    def take_batch(self, frame: DataFrame, batch: int) -> None:
        """Deliver the messages that the shards of a micro-batch sent; Spark calls this."""
        try:
            with self._beginning:
                if self.is_stopped:
                    raise StoppedError
                batch += self._first
                self._begun = batch
            self._checkpoint.check_there()
            with passing(self._checkpoint.folder):
                self._take(frame, batch)
            if self._is_cut_off:  # Spark's interrupt may be lost while it waits for this call
                raise StoppedError
        except BaseException as error:
            self._failure = error
            raise

    def _take(self, frame: DataFrame, batch: int) -> None:
        began = time.monotonic()
        # A batch whose answers are stored already must run too, because it also updates the state.
        gathered = gather(self._plan, frame.toArrow())
        ran = time.monotonic()
        # The logged offsets must be as durable as the answers.
        for logged in (self._checkpoint.offsets(batch), self._checkpoint.offsets(batch).parent):
            sync(logged)
        digest = digest_of(self._checkpoint.offsets(batch))
        writes = [*self._writes(), *self._write_letters(gathered)]
        self._delivery.deliver(batch, digest, gathered.answers, writes)
        if (timers := gathered.timers()) is not None:
            Timers(self._checkpoint.timers).write(*timers)
        if any(map(keeps_late, self._plan.stages)):
            Watermarks(self._checkpoint).write(batch, gathered.watermarks())
        if self._on_batch is not None:
            phases = {"run": ran - began, "write": time.monotonic() - ran}
            committed = time.time_ns() // 1000
            progress = gathered.progress(batch, phases, self._clock_moved(gathered), self._dead, committed)
            self._on_batch(progress, gathered.answers)

    def _clock_moved(self, gathered: Gathered) -> int:
        if not gathered.statuses:
            return 0
        now, back = max(each.now for each in gathered.statuses), max(each.back for each in gathered.statuses)
        return self._jumps.moved(now, back, seconds_elapsed())

    def _writes(self) -> Iterator[Write]:
        """One write for all views, and one for each sink."""
        views = self._views
        if views is not None and self._pipeline.views:
            yield lambda answers, commit, once: views.write(of_views(self._pipeline, answers), commit, once)
        for name, writer in self._writers.items():
            yield partial(self._write_to, writer, name)

    def _write_to(self, writer: Writer, output: str, answers: Answers, commit: Commit, once: bool) -> None:
        if output in self._written and writer.last() is None:
            raise ConflictError(f"{output} was lost while the pipeline ran", AGAIN)
        writer.write(answers[output].slice(0, 0) if output in self._silent else answers[output], commit, once)
        self._written.add(output)

    def _write_letters(self, gathered: Gathered) -> Iterator[Write]:
        """Dead letters are written once, whatever the guarantee skips or repeats: to the box, and to their topic.

        A replay meets records that were sent to the topic before, so it sends none.
        """

        def write(answers: Answers, commit: Commit, once: bool) -> None:
            self._dead = self._letters.write(gathered.dead_letters, commit.batch, self._staged)

        def send(answers: Answers, commit: Commit, once: bool) -> None:
            assert self._to_topic is not None
            self._to_topic.write(gathered.dead_letters, commit, once=True)

        yield write
        if self._to_topic is not None and not self._staged:
            yield send


def start(
    spark: SparkSession,
    pipeline: Pipeline,
    checkpoint: str | Path,
    *,
    views: Views | None = None,
    guarantee: str = "exactly-once",
    interval: Duration | None = None,
    until_caught_up: bool = False,
    shards: int | None = None,
    log: str | Path = DEFAULT_LOG,
    latency: Duration = DEFAULT_LATENCY,
    reports: bool = True,
    lookups: Mapping[str, Lookup] | None = None,
    scripts: Mapping[str, MemoryScript] | None = None,
    fuse: bool = True,
    generation: int = 1,
    staged: bool = False,
    silent: Collection[str] = (),
    from_here: bool = False,
    rescales: bool = False,
    on_batch: OnBatch | None = None,
) -> StreamRun:
    """Run a pipeline in micro-batches, from its checkpoint if there is one.

    The answers of views go to `views`, if given, and always to `on_batch`. A micro-batch runs as soon as there is
    something to do, or every `interval`. With `until_caught_up` the run ends when it has processed everything that was
    available at its start. Topics are those of `log`; a micro-batch reads about as many of their records as it can
    process within `latency`, at the speed of the micro-batches before it. Without `reports`, the run reports no offsets
    to the log. `lookups` holds the tables that have neither rows nor a file, by name. With `fuse=False` every edge is
    native, even if it could be fused. The run fills a generation of the sinks: the one in use or, if `staged`, one
    beside it; `silent` sinks receive no answers, but their state advances. An output that is new to the checkpoint is
    refused if it would miss records, unless it may start `from_here`. A checkpoint with another number of shards is
    refused, unless the run `rescales` it, which must be the first run of a copy.
    """
    promised = parse_guarantee(guarantee)
    given = scripts or {}
    check_places(pipeline, given, log)
    prepare(spark, pipeline, [Path(checkpoint)])
    pipeline = settled(spark, pipeline)
    period = None if interval is None else parse_duration(interval, "interval")
    if until_caught_up and period is not None:
        raise PipelineError("a run until caught up reads all records as fast as it can", "leave the interval out")
    kept = Checkpoint(Path(checkpoint).absolute())
    with ExitStack() as held:
        lock = held.enter_context(kept.lock())
        plan = compile(pipeline, PlanSettings(shards or spark.sparkContext.defaultParallelism, fuse))
        opened = kept.open(plan, labels_of(plan.shards), generation, from_here)
        if shards is not None and shards != len(opened.labels):
            if not rescales:
                raise _other_shards(kept, len(opened.labels), shards)
            opened = _rescaled(spark, kept, plan, opened, shards)
        plan = replace(plan, shards=len(opened.labels))
        job = Job(
            plan, opened.labels, str(kept.folder), str(Path(log).absolute()), pipeline.name if reports else None,
            parse_positive(latency, "latency"), given, lookups or {},
        )  # fmt: skip
        writers = writers_of(pipeline, log, kept.folder, generation, staged)
        letters = LetterWriter(box_of(kept.folder.parent, pipeline.name), plan, log, opened.id, kept.folder)
        delivery = Delivery(pipeline.name, opened.id, promised, kept.begun)
        to_topic = dead_writer_of(pipeline, kept.folder, generation)
        run = StreamRun(pipeline, plan, kept, delivery, views, writers, letters, on_batch, silent, staged, to_topic)
        packed = job.pack()
        session = streaming(spark, job.shards)
        frame = read_messages(session, packed, stream=True)
        for level in range(plan.levels):
            frame = frame.groupBy("shard").transformWithState(
                processor(packed, opened.id, level), FROM_SHARD, outputMode="append", timeMode="none"
            )
            frame = through_spark(session, packed, frame, level)
        writer = frame.writeStream.option("checkpointLocation", str(kept.spark)).outputMode("append")
        if until_caught_up:
            writer = writer.trigger(availableNow=True)
        elif period is not None:
            writer = writer.trigger(processingTime=f"{period / SECOND} seconds")
        try:
            run.query = writer.foreachBatch(run.take_batch).queryName(pipeline.name).start()
        except (PySparkException, Py4JError) as error:
            raise plain_error(error, run.damage) from None
        run.lock = lock
        held.pop_all()  # from here on the run holds the lock
    return run


def _rescaled(spark: SparkSession, kept: Checkpoint, plan: Plan, opened: Opened, shards: int) -> Opened:
    """Hand the state of a checkpoint over to another number of shards."""
    history = kept.history()
    if history is None or history.done < 0:
        raise ConflictError(
            f"checkpoint {kept.folder} has no micro-batch yet whose state could be divided",
            "start without a savepoint, or leave --shards out",
        )
    try:
        hand_over(separate(spark), kept.folder, plan, opened.labels, shards, history.done)
    except (PySparkException, Py4JError) as error:
        raise plain_error(error, lambda: state_damage(kept)) from None
    labels = labels_of(shards)
    kept.relabel(labels)
    return Opened(labels, opened.id)


def _other_shards(checkpoint: Checkpoint, fixed: int, asked: int) -> ConflictError:
    return ConflictError(
        f"checkpoint {checkpoint.folder} has {fixed} shard{'' if fixed == 1 else 's'}, which its first run fixed",
        f"leave --shards out; or go on from a savepoint: millrace savepoint {FILE}, then millrace run {FILE} "
        f"--checkpoint OTHER --from-savepoint FOLDER --shards {asked}; or {AGAIN} --shards {asked}",
    )
