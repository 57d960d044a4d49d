"""The stream host: runs a pipeline in micro-batches on Spark Structured Streaming.

One Spark query runs the whole pipeline. The tasks of its source (`source`) send messages to the shards (`shards`, in
`transformWithState`). The writers receive the answers of the shards when the whole micro-batch is computed.
"""

import threading
import time
from collections.abc import Callable, Mapping
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
from millrace.model.duration import SECOND, Duration, parse_duration, parse_positive
from millrace.model.errors import ConflictError, CorruptError, PipelineError
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import PlanSettings, compile
from millrace.plan.plan import Plan
from millrace.sources.memory import MemoryScript
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.damage import state_damage
from millrace.spark.failure import plain_error
from millrace.spark.gather import gather
from millrace.spark.job import DEFAULT_LATENCY, DEFAULT_LOG, Job
from millrace.spark.messages import FROM_SHARD
from millrace.spark.outputs import check_places, of_views, writers_of
from millrace.spark.progress import BatchProgress
from millrace.spark.session import labels_of, streaming
from millrace.spark.settled import settled
from millrace.spark.shards import processor
from millrace.spark.snapshots import Lookup
from millrace.spark.source import read_messages
from millrace.spark.writers import Delivery, FileWriter, Views, Writer, parse_guarantee

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
        letters: Writer,
        on_batch: OnBatch | None,
    ) -> None:
        """Everything except Spark's query and the lock of the checkpoint, which `start` adds."""
        self._pipeline, self._plan, self._checkpoint, self._delivery = pipeline, plan, checkpoint, delivery
        self._views, self._writers, self._letters = views, writers, letters
        self._on_batch = on_batch
        self._failure: BaseException | None = None
        self._beginning = threading.Lock()
        self._begun: int | None = None
        """The last micro-batch that was started."""
        self.is_stopped = False
        """Whether `stop` was called."""
        self.query: StreamingQuery
        self.lock: IO[bytes]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; return whether the run has ended. Raises the error of a failed run."""
        try:
            # It accepts fractions of a second, although its type does not say so.
            ended = self.query.awaitTermination(timeout)  # type: ignore[arg-type]
        except PySparkException as error:
            failure = self._failure or error
            if isinstance(failure, StoppedError):
                return True
            raise plain_error(failure, self.damage) from None
        finally:
            if not self.query.isActive:
                self.lock.close()
        return ended is not False

    def damage(self) -> CorruptError:
        """The error for state that Spark cannot load."""
        return state_damage(self._checkpoint, bool(self._pipeline.views))

    def stop(self, patience: float = PATIENCE) -> None:
        """Stop the run: the current micro-batch finishes and commits, and no further one is started.

        A micro-batch that does not finish within `patience` seconds is cancelled, and repeated by the next run.
        """
        with self._beginning:
            self.is_stopped = True
        deadline = time.monotonic() + patience
        while not self._is_committed() and self.query.isActive and time.monotonic() < deadline:
            time.sleep(0.02)
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
                self._begun = batch
            self._take(frame, batch)
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
        writes = [partial(writer.write, gathered.answers[name]) for name, writer in self._writers.items()]
        if self._views is not None and self._pipeline.views:
            writes.insert(0, partial(self._views.write, of_views(self._pipeline, gathered.answers)))
        self._delivery.deliver(batch, [*writes, partial(self._letters.write, gathered.dead_letters)])
        if self._on_batch is not None:
            phases = {"run": ran - began, "write": time.monotonic() - ran}
            self._on_batch(gathered.progress(batch, phases), gathered.answers)


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
    on_batch: OnBatch | None = None,
) -> StreamRun:
    """Run a pipeline in micro-batches, from its checkpoint if there is one.

    The answers of views go to `views`, if given, and always to `on_batch`. A micro-batch runs as soon as there is
    something to do, or every `interval`. With `until_caught_up` the run ends when it has processed everything that was
    available at its start. Topics are those of `log`; a micro-batch reads about as many of their records as it can
    process within `latency`, at the speed of the micro-batches before it. Without `reports`, the run reports no offsets
    to the log. `lookups` holds the tables that have neither rows nor a file, by name. With `fuse=False` every edge is
    native, even if it could be fused.
    """
    promised = parse_guarantee(guarantee)
    given = scripts or {}
    check_places(pipeline, given, log)
    pipeline = settled(spark, pipeline)
    period = None if interval is None else parse_duration(interval, "interval")
    if until_caught_up and period is not None:
        raise PipelineError("to run until caught up takes all there is as it comes", "leave the interval out")
    kept = Checkpoint(Path(checkpoint).absolute())
    with ExitStack() as held:
        lock = held.enter_context(kept.lock())
        plan = compile(pipeline, PlanSettings(shards or spark.sparkContext.defaultParallelism, fuse))
        opened = kept.open(plan, labels_of(plan.shards))
        if shards is not None and shards != len(opened.labels):
            raise _other_shards(kept, len(opened.labels), shards, bool(pipeline.views))
        plan = replace(plan, shards=len(opened.labels))
        job = Job(
            plan, opened.labels, str(kept.folder), str(Path(log).absolute()), pipeline.name if reports else None,
            parse_positive(latency, "latency"), given, lookups or {},
        )  # fmt: skip
        writers = writers_of(pipeline, job.log)
        letters = FileWriter(str(kept.dead_letters), "json")
        delivery = Delivery(pipeline.name, opened.id, promised, kept.begun)
        run = StreamRun(pipeline, plan, kept, delivery, views, writers, letters, on_batch)
        packed = job.pack()
        frame = (
            read_messages(streaming(spark, job.shards), packed, stream=True)
            .groupBy("shard")
            .transformWithState(processor(packed, opened.id), FROM_SHARD, outputMode="append", timeMode="none")
        )
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


def _other_shards(checkpoint: Checkpoint, fixed: int, asked: int, has_views: bool) -> ConflictError:
    told = f"checkpoint {checkpoint.folder} has {fixed} shard{'' if fixed == 1 else 's'}, which its first run fixed"
    again = f", or compute the views again with millrace replay FILE --shards {asked}" if has_views else ""
    return ConflictError(told, f"leave --shards out{again}")
