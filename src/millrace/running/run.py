"""Running a pipeline: as a stream until it is told to stop, or once over all there is."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.eventlog.topics import Log
from millrace.model.pipeline import Pipeline
from millrace.running.ending import told_to_end
from millrace.running.shown import Shown, many
from millrace.running.status import note
from millrace.running.views import KeptViews, lookups, serving
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.outputs import check_places
from millrace.spark.progress import BatchProgress
from millrace.spark.writers import parse_guarantee
from millrace.views.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Home:
    """Where a pipeline reads, remembers and answers."""

    log: Path
    store: str
    checkpoint: Path
    """Of its first generation; those that replays made are beside it."""
    master: str = "local[*,4]"

    @property
    def boundary(self) -> Path:
        """The file that says up to when windows are the batch layer's."""
        return self.checkpoint.with_name(f"{self.checkpoint.name}.boundary")

    def generation(self, number: int) -> Path:
        """The checkpoint of a generation of its views."""
        return self.checkpoint if number == 1 else self.checkpoint.with_name(f"{self.checkpoint.name}@{number}")


@dataclass(frozen=True, slots=True)
class How:
    """How a stream runs; the options of `millrace.spark.stream.start`."""

    guarantee: str = "exactly-once"
    interval: str | None = None
    until_caught_up: bool = False
    shards: int | None = None
    latency: str = "1s"


def run_stream(console: Console, pipeline: Pipeline, home: Home, how: How, as_json: bool = False) -> str:
    """Run in micro-batches, until it ends or is told to; what was done, in a line."""
    check_places(pipeline, {}, home.log)  # a mistake is better known before Spark is started than after
    parse_guarantee(how.guarantee)
    log = Log(home.log) if home.log.exists() else None
    topics = [source.name for source in pipeline.sources if source.kind == "log"]
    shown = Shown(console, pipeline.name, as_json, lambda: behind(pipeline.name, log, topics))
    with told_to_end() as told, closing(open_store(home.store)) as store, shown:
        pipeline = typed(pipeline, home)
        generation = serving(store, pipeline.name)
        views = KeptViews(store, pipeline, generation, home.boundary)
        ended = follow(pipeline, home, home.generation(generation), views, how, shown.batch, told)
    return f"{'caught up' if ended else 'stopped'}: {shown.summary()}"


def typed(pipeline: Pipeline, home: Home) -> Pipeline:
    """The pipeline with a type for each column of its outputs; Spark is started now if only Spark knows one."""
    from millrace.spark import session
    from millrace.spark.settled import is_settled, settled

    if is_settled(pipeline):
        return pipeline
    spark = session.start(f"millrace {pipeline.name}", home.master, home.checkpoint / "spark.log")
    return settled(spark, pipeline)


def follow(
    pipeline: Pipeline,
    home: Home,
    checkpoint: Path,
    views: KeptViews,
    how: How,
    on_batch: Callable[[BatchProgress, Mapping[str, pa.Table]], None],
    told: Sequence[int] = (),
    reports: bool = True,
) -> bool:
    """Run a stream until it ends, which is True, or until it is told to end. What it has begun is then committed."""
    from millrace.spark import session, stream

    dead = 0

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        nonlocal dead
        dead += progress.dead_letters
        note(checkpoint, pipeline.name, progress, dead)
        on_batch(progress, answers)

    Checkpoint(checkpoint).lock().close()  # one that is in use is better known before Spark is started than after
    spark = session.start(f"millrace {pipeline.name}", home.master, checkpoint / "spark.log")
    try:
        if told:
            return False
        run = stream.start(
            spark, pipeline, checkpoint, views=views, guarantee=how.guarantee, interval=how.interval,
            until_caught_up=how.until_caught_up, shards=how.shards, log=home.log, latency=how.latency,
            reports=reports, lookups=lookups(pipeline, home.store), on_batch=listen,
        )  # fmt: skip
        try:
            while not told:
                if run.wait(0.2):
                    return True
        finally:
            run.stop()
    finally:
        session.stop(spark)
    return False


def behind(pipeline: str, log: Log | None, topics: Iterable[str] | None = None) -> int | None:
    """How many records of these topics, or of any, a pipeline has yet to read; None if it reads none."""
    if log is None:
        return None
    lags = [log.lag(topic) for topic in ([each.name for each in log.topics()] if topics is None else topics)]
    mine = [lag for each in lags for group, lag in each.items() if group == pipeline]
    return max(mine, default=None)


def unless_told(told: Sequence[int], spark: "SparkSession", work: Callable[[], T]) -> T | None:
    """Do some work on Spark; None if it was cut off, because somebody said to end."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if told:
        return None
    with ThreadPoolExecutor(1) as other:  # as this thread has to hear of signals
        doing = other.submit(work)
        while not wait([doing], 0.2).done:
            if told:
                spark.sparkContext.cancelAllJobs()
    try:
        return doing.result()
    except (Py4JError, PySparkException):
        if told:
            return None
        raise


def run_batch(console: Console, pipeline: Pipeline, home: Home, shards: int | None = None) -> str:
    """Run once over all there is; what was done, in a line."""
    from millrace.spark import batch, session

    check_places(pipeline, {}, home.log)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    began = time.monotonic()
    with told_to_end() as told, closing(open_store(home.store)) as store, bar:
        pipeline = typed(pipeline, home)
        generation = serving(store, pipeline.name)
        checkpoint = home.generation(generation)
        views = KeptViews(store, pipeline, generation)
        task = bar.add_task("starting Spark", total=None)
        spark = session.start(f"millrace {pipeline.name}", home.master, checkpoint / "spark.log")
        bar.update(task, description=f"reading for {pipeline.name}")
        try:
            found = unless_told(told, spark, lambda: batch.run(
                spark, pipeline, views, dead_letters=checkpoint / "dead_letters", log=home.log, shards=shards,
                lookups=lookups(pipeline, home.store),
                on_tasks=lambda done, total: bar.update(task, completed=done, total=total or None),
            ))  # fmt: skip
        finally:
            session.stop(spark)
        if found is None:
            return "stopped: nothing that is read has changed"
        bar.update(task, description="done")
    progress = found.progress(0, {})
    spent = time.monotonic() - began
    answers = sum(map(len, found.answers.values()))
    errors = sum(part.errors for part in progress.parts.values())
    said = [many(progress.rows, "row"), many(answers, "answer")]
    said += [many(errors, "error")] if errors else []
    said += [many(progress.dead_letters, "dead letter")] if progress.dead_letters else []
    return f"done: {', '.join(said)}, {spent:.1f} s"
