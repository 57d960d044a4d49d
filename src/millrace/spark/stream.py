"""The stream host: a pipeline in micro-batches, on Spark Structured Streaming.

One Spark query runs the whole pipeline. Its source is `source`, whose tasks send messages to shards; the shards are
`shards`, in `transformWithState`; what they say goes to the writers, once the whole micro-batch has said it.
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
from millrace.model.errors import PipelineError
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import PlanSettings, compile
from millrace.plan.plan import Plan
from millrace.sources.memory import MemoryScript
from millrace.spark.checkpoint import Checkpoint
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
"""What is called after each micro-batch, with how it went and what it answered."""


PATIENCE = 30.0
"""How many seconds the micro-batch under way is given to be done when a run is stopped."""


class StoppedError(Exception):
    """What a micro-batch is refused with that comes up after the run was told to stop."""


class StreamRun:
    """A pipeline that runs."""

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
        """Everything but Spark's query and the lock of the checkpoint, which `start` adds."""
        self._pipeline, self._plan, self._checkpoint, self._delivery = pipeline, plan, checkpoint, delivery
        self._views, self._writers, self._letters = views, writers, letters
        self._on_batch = on_batch
        self._failure: BaseException | None = None
        self._beginning = threading.Lock()
        self._begun: int | None = None
        """The last micro-batch that was begun."""
        self.is_stopped = False
        """Whether it was told to stop."""
        self.query: StreamingQuery
        self.lock: IO[bytes]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most so many seconds; whether it has come. Raises what went wrong, if something did."""
        try:
            # It takes parts of a second, though it does not say so.
            ended = self.query.awaitTermination(timeout)  # type: ignore[arg-type]
        except PySparkException as error:
            failure = self._failure or error
            if isinstance(failure, StoppedError):
                return True
            raise plain_error(failure) from None
        finally:
            if not self.query.isActive:
                self.lock.close()
        return ended is not False

    def stop(self, patience: float = PATIENCE) -> None:
        """End it: no further micro-batch is begun, and the one under way is done and committed first.

        One that is not done within so many seconds is cut off, and run again the next time.
        """
        with self._beginning:
            self.is_stopped = True
        deadline = time.monotonic() + patience
        while not self._is_committed() and self.query.isActive and time.monotonic() < deadline:
            time.sleep(0.02)
        with suppress(PySparkException, Py4JError):  # it does not end in time: a sink that does not return holds it up
            self.query.stop()
        if not self.query.isActive:
            self.lock.close()

    def _is_committed(self) -> bool:
        """Whether all that was begun is done, as far as Spark knows."""
        return self._begun is None or self._checkpoint.commits(self._begun).exists()

    def take_batch(self, frame: DataFrame, batch: int) -> None:
        """What Spark calls with what the shards of a micro-batch say."""
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
        # Also a batch whose answers are there already has to run, as the state is its work too.
        gathered = gather(self._plan, frame.toArrow())
        ran = time.monotonic()
        # What was read must be known for as long as what was answered.
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
    """Run a pipeline in micro-batches, going on from its checkpoint if it has one.

    What the views answer goes to `views`, if that is given, and in any case to `on_batch`. A micro-batch is run as
    soon as there is something to do, or every `interval`. With `until_caught_up` it ends by itself when all that is
    there has been taken in. Topics are those of `log`; a micro-batch takes as many of their records as it can take in
    within `latency`, about, at the speed of those before it. Unless it `reports`, the log does not know that it reads.
    `lookups` holds the tables that are neither given nor in files, by name. With `fuse=False` the edge is Spark's own
    plan even where it could be fused.
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
        plan = replace(plan, shards=len(opened.labels))  # fixed by the first run
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
        run.query = writer.foreachBatch(run.take_batch).queryName(pipeline.name).start()
        run.lock = lock
        held.pop_all()  # from here on the run holds the lock
    return run
