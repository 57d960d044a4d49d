"""Runs a pipeline as a stream until it is stopped, or as a batch."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.model.duration import parse_duration, parse_positive
from millrace.model.errors import MillraceError
from millrace.model.pipeline import Pipeline
from millrace.running.ending import told_to_end
from millrace.running.health import Health
from millrace.running.lease import Lease
from millrace.running.preflight import check_agreement, check_answers, serving
from millrace.running.savepoint import check_savepoint, started_from
from millrace.running.settings import Locations, StreamOptions
from millrace.running.shown import RunDisplay
from millrace.running.status import note
from millrace.running.totals import Totals, many
from millrace.running.views import KeptViews, lookups
from millrace.spark.outputs import check_places
from millrace.spark.progress import BatchProgress
from millrace.spark.writers import parse_guarantee
from millrace.views.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.spark.gather import Gathered
    from millrace.spark.stream import StreamRun

T = TypeVar("T")
Listener = Callable[[BatchProgress, Mapping[str, pa.Table]], None]
"""Called after each micro-batch with its progress and its answers."""


def run_stream(
    console: Console,
    pipeline: Pipeline,
    home: Locations,
    how: StreamOptions,
    as_json: bool = False,
    savepoint: Path | None = None,
) -> str:
    """Run in micro-batches until the stream ends or a signal stops it; returns the outcome in a line.

    With a savepoint, the run starts a new checkpoint from it; a run that is refused leaves none.
    """
    check_stream(pipeline, home, how, savepoint)
    shown = RunDisplay(console, pipeline.name, as_json, lag_of(pipeline, home))
    lease = Lease(pipeline.name, home.master)
    with told_to_end() as told, closing(open_store(home.store)) as store, lease, shown, ExitStack() as held:
        with started_from(savepoint, home, serving(store, pipeline.name)):
            pipeline = typed(pipeline, home, lease)
            generation = check_agreement(pipeline, home, store)
            if pipeline.views:
                held.enter_context(store.claim(pipeline.name, generation))
            views = KeptViews(store, pipeline, generation, home.boundary)
            run = start_stream(pipeline, home, generation, views, how, lease, shown.batch)
        ended = until_told(run, told)
    return f"{'caught up' if ended else 'stopped'}: {shown.summary()}"


def check_stream(pipeline: Pipeline, home: Locations, how: StreamOptions, savepoint: Path | None) -> None:
    """Refuse mistakes that can be detected before Spark is started, which takes seconds."""
    check_answers(pipeline)
    if savepoint is not None:
        check_savepoint(savepoint)
    check_places(pipeline, {}, home.log)
    parse_guarantee(how.guarantee)
    parse_positive(how.latency, "latency")
    if how.interval is not None:
        parse_duration(how.interval, "interval")


def lag_of(pipeline: Pipeline, home: Locations) -> Callable[[], int | None]:
    """A function that returns the lag of the pipeline; None if it is not known."""
    log = Log(home.log) if home.log.exists() else None
    topics = [source.name for source in pipeline.sources if source.kind == "log"]
    return lambda: behind(pipeline.name, log, topics)


def typed(pipeline: Pipeline, home: Locations, lease: Lease) -> Pipeline:
    """The pipeline with a type for each output column; starts Spark if only Spark can derive one."""
    from millrace.spark.settled import is_settled, settled

    return pipeline if is_settled(pipeline) else settled(lease.session(home.checkpoint / "spark.log"), pipeline)


def start_stream(
    pipeline: Pipeline,
    home: Locations,
    generation: int,
    views: KeptViews,
    how: StreamOptions,
    lease: Lease,
    on_batch: Listener,
    replays: bool = False,
    silent: Collection[str] = (),
) -> "StreamRun":
    """Start the stream of a generation, and first Spark if it does not run. The caller stops the stream.

    A stream that `replays` writes to sinks beside the ones in use, and reports no offsets. `silent` sinks receive no
    answers.
    """
    from millrace.spark import stream

    dead = clock_moved = 0
    health = Health()
    checkpoint = home.generation(generation)

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        nonlocal dead, clock_moved, health
        dead += progress.dead_letters
        clock_moved = progress.clock_moved or clock_moved
        health = health.after(progress, time.monotonic())
        note(checkpoint, pipeline.name, progress, dead, clock_moved, health)
        on_batch(progress, answers)

    return stream.start(
        lease.session(checkpoint / "spark.log"), pipeline, checkpoint, views=views, guarantee=how.guarantee,
        interval=how.interval, until_caught_up=how.until_caught_up, shards=how.shards, log=home.log,
        latency=how.latency, reports=not replays, lookups=lookups(pipeline, home.store), on_batch=listen,
        generation=generation, staged=replays, silent=silent,
    )  # fmt: skip


def follow(
    pipeline: Pipeline,
    home: Locations,
    generation: int,
    views: KeptViews,
    how: StreamOptions,
    lease: Lease,
    on_batch: Listener,
    told: Sequence[int] = (),
    replays: bool = False,
    silent: Collection[str] = (),
) -> bool:
    """Start a stream; then as `until_told`."""
    return until_told(start_stream(pipeline, home, generation, views, how, lease, on_batch, replays, silent), told)


def until_told(run: "StreamRun", told: Sequence[int]) -> bool:
    """Wait until a stream ends (True), or until a signal stops it after the current micro-batch (False)."""
    try:
        while not told:
            if run.wait(0.2):
                return True
    finally:
        run.stop()
    return False


def behind(pipeline: str, log: Log | None, topics: Iterable[str] | None = None) -> int | None:
    """The lag of a pipeline in these topics, by default in all: the largest one; None if it has reported no offsets."""
    if log is None:
        return None
    lags = [log.lag(topic) for topic in ([each.name for each in log.topics()] if topics is None else topics)]
    mine = [lag for each in lags for group, lag in each.items() if group == pipeline]
    return max(mine, default=None)


def unless_told(told: Sequence[int], spark: "SparkSession", work: Callable[[], T]) -> T | None:
    """Run `work` on Spark; None if a signal cancelled it.

    Only the jobs of this work are cancelled: other pipelines may run on the same session.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if told:
        return None
    group = f"millrace {uuid4().hex}"

    def grouped() -> T:
        spark.sparkContext.setJobGroup(group, "millrace")
        return work()

    with ThreadPoolExecutor(1) as other:  # this thread must stay free to receive signals
        doing = other.submit(grouped)
        while not wait([doing], 0.2).done:
            if told:
                spark.sparkContext.cancelJobGroup(group)
    try:
        return doing.result()
    except (MillraceError, Py4JError, PySparkException):  # cancelled jobs raise these, too
        if told:
            return None
        raise


def prepare_batch(
    pipeline: Pipeline,
    home: Locations,
    store: Store,
    lease: Lease,
    shards: int | None,
    on_tasks: Callable[[int, int], None],
) -> Callable[[Sequence[int]], "Gathered | None"]:
    """Check the views and start Spark in this thread; returns a function that computes the batch in any thread.

    If a signal cancels it, that function returns None and changes nothing.
    """
    from millrace.spark import batch

    generation = serving(store, pipeline.name)
    checkpoint = home.generation(generation)
    views = KeptViews(store, pipeline, generation)
    spark = lease.session(checkpoint / "spark.log")
    return lambda told: unless_told(told, spark, lambda: batch.run(
        spark, pipeline, views, letters=box_of(home.checkpoint.parent, pipeline.name), log=home.log, shards=shards,
        lookups=lookups(pipeline, home.store), on_tasks=on_tasks,
    ))  # fmt: skip


def run_batch(console: Console, pipeline: Pipeline, home: Locations, shards: int | None = None) -> str:
    """Run a batch over everything that the sources hold; returns the outcome in a line."""
    check_places(pipeline, {}, home.log)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    began = time.monotonic()
    lease = Lease(pipeline.name, home.master)
    with told_to_end() as told, closing(open_store(home.store)) as store, lease, bar:
        task = bar.add_task(f"{pipeline.name}: starting Spark", total=None)

        def on_tasks(done: int, total: int) -> None:
            bar.update(task, description=f"reading for {pipeline.name}", completed=done, total=total or None)

        found = prepare_batch(typed(pipeline, home, lease), home, store, lease, shards, on_tasks)(told)
        bar.update(task, description="done")
    return batch_summary(found, time.monotonic() - began)


def batch_summary(found: "Gathered | None", seconds: float) -> str:
    """The outcome of a batch in a line."""
    if found is None:
        return "stopped: the served views have not changed"
    progress = found.progress(0, {})
    total = Totals().after(progress)
    said = [many(total.rows, "row"), many(total.answers, "answer")]
    said += [many(total.errors, "error")] if total.errors else []
    said += [many(progress.dead_letters, "dead letter")] if progress.dead_letters else []
    return f"done: {', '.join(said)}, {seconds:.1f} s"
