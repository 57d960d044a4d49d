"""The batch host: runs a pipeline on Spark over everything that its sources hold.

A batch reads all input, then sets the watermark to the end of time (rule 11). It runs the same edges and shards as a
stream, once, in a grouped map. The answer is the last pane of each key and window.
"""

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace.eventlog.topics import DEFAULT_LOG
from millrace.letters.box import BATCH, LetterBox
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import PlanSettings, compile
from millrace.sources.memory import MemoryScript
from millrace.spark.envelope import reported
from millrace.spark.executors import prepare
from millrace.spark.failure import plain_error
from millrace.spark.gather import Gathered, gather
from millrace.spark.inputs import read_messages
from millrace.spark.job import Job, PackedJob
from millrace.spark.letters import LetterWriter
from millrace.spark.master import Reach, reach_of
from millrace.spark.messages import FROM_SHARD, MESSAGE, Message
from millrace.spark.native_changes import through_spark
from millrace.spark.outputs import check_places, dead_writer_of, of_views, writers_of
from millrace.spark.session import labels_of, streaming
from millrace.spark.settled import settled
from millrace.spark.shards import NoState, Shard
from millrace.spark.snapshots import Lookup
from millrace.spark.writers import Views

OnTasks = Callable[[int, int], None]
"""A callback that periodically receives the number of completed tasks and the number of all tasks."""


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    views: Views | None = None,
    *,
    letters: LetterBox | None = None,
    log: str | Path = DEFAULT_LOG,
    lookups: Mapping[str, Lookup] | None = None,
    scripts: Mapping[str, MemoryScript] | None = None,
    fuse: bool = True,
    shards: int | None = None,
    on_tasks: OnTasks | None = None,
    scratch: Path | None = None,
) -> Gathered:
    """Compute a pipeline once; the answers replace the rows of its views and sinks. Topics append them."""
    pipeline = settled(spark, pipeline)
    writers = writers_of(pipeline, log, None)
    gathered = collect(
        spark, pipeline, log=log, lookups=lookups, scripts=scripts, fuse=fuse, shards=shards, on_tasks=on_tasks,
        scratch=scratch,
    )  # fmt: skip
    if views is not None and pipeline.views:
        views.replace(of_views(pipeline, gathered.answers))
    for name, writer in writers.items():
        writer.replace(gathered.answers[name])
    if letters is not None:
        LetterWriter(letters, gathered.plan, log, f"{BATCH}{uuid.uuid4().hex[:8]}").write(gathered.dead_letters)
    if (to_topic := dead_writer_of(pipeline, None)) is not None:
        to_topic.replace(gathered.dead_letters)
    return gathered


def collect(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    log: str | Path = DEFAULT_LOG,
    lookups: Mapping[str, Lookup] | None = None,
    scripts: Mapping[str, MemoryScript] | None = None,
    fuse: bool = True,
    shards: int | None = None,
    on_tasks: OnTasks | None = None,
    scratch: Path | None = None,
) -> Gathered:
    """Compute a pipeline once and return its answers.

    A folder of its own holds what tasks read beside the sources; on a cluster, it is in `scratch`, if that is given.
    """
    given = scripts or {}
    check_places(pipeline, given, log)
    is_local = reach_of(spark.sparkContext.master or "") is Reach.LOCAL
    prepare(spark, pipeline, [] if scratch is None else [scratch])
    labels = labels_of(shards or spark.sparkContext.defaultParallelism)
    plan = compile(settled(spark, pipeline), PlanSettings(len(labels), fuse))
    with TemporaryDirectory(prefix="millrace-batch-", dir=None if is_local else scratch) as folder:
        job = Job(plan, labels, folder, str(Path(log).absolute()), scripts=given, lookups=lookups or {})
        packed = job.pack()
        session = streaming(spark, job.shards)
        messages = read_messages(session, packed, stream=False)
        for level in range(plan.levels):
            messages = messages.groupBy("shard").applyInArrow(_answering(packed, level), FROM_SHARD)
            messages = through_spark(session, packed, messages, level, last_only=True)
        try:
            with _watched(spark, on_tasks):
                return gather(plan, messages.toArrow())
        except (PySparkException, Py4JError) as error:
            raise plain_error(error) from None


def _answering(packed: PackedJob, level: int) -> Callable[[pa.Table], pa.Table]:
    @reported
    def answer(sent: pa.Table) -> pa.Table:
        labels = packed.job.labels
        received = (Message(**row) for row in sent.select(MESSAGE.names).to_pylist())
        messages = [replace(each, shard=labels.index(each.shard)) for each in received]
        made = Shard(packed.job, level, last_only=True).advance(messages, NoState())
        return pa.Table.from_pylist([asdict(each) | {"shard": labels[each.shard]} for each in made], MESSAGE)

    return answer


class _watched:  # noqa: N801
    """Report the number of completed tasks while the block runs."""

    def __init__(self, spark: SparkSession, tell: OnTasks | None) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._tell, self._over = tell, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        if self._tell is not None:
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._tell is not None:
            self._thread.join()

    def _watch(self) -> None:
        done = total = 0
        while not self._over.wait(0.2):
            for stage in self._tracker.getActiveStageIds():
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    done, total = max(done, info.numCompletedTasks), max(total, info.numTasks)
            if self._tell is not None:
                self._tell(done, total)
