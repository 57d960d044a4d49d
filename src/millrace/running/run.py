"""Runs pipelines from the command line: as streams until they are stopped, or as a batch."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.model.duration import parse_duration, parse_positive
from millrace.model.errors import MillraceError
from millrace.model.kafka import KIND as KAFKA
from millrace.model.pipeline import Pipeline
from millrace.running.ending import told_to_end
from millrace.running.lease import Lease
from millrace.running.placement import check_placement
from millrace.running.preflight import check_answers, serving
from millrace.running.retried import RetriedStream
from millrace.running.savepoint import check_savepoint, started_from
from millrace.running.settings import Locations, StreamOptions
from millrace.running.shown import RunDisplay, RunDisplays
from millrace.running.streaming import Listener, typed, typed_stream
from millrace.running.totals import Totals, many
from millrace.running.views import KeptViews, lookups
from millrace.running.waiting import Waiting
from millrace.spark.outputs import check_places
from millrace.spark.writable import check_writable
from millrace.spark.writers import parse_guarantee
from millrace.views.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.running.realtime import RealTimeStream
    from millrace.spark.gather import Gathered

T = TypeVar("T")
_LOOK_EVERY = 0.5
"""The seconds between two looks at streams. A stream that ends is noticed at once, a signal at the next look."""


def run_stream(
    console: Console,
    pipeline: Pipeline,
    home: Locations,
    how: StreamOptions,
    as_json: bool = False,
    savepoint: Path | None = None,
    jars: Path | None = None,
) -> str:
    """Run in micro-batches, or in real time, until the stream ends or a signal stops it; returns the outcome in a line.

    With a savepoint, the run starts a new checkpoint from it; a run that is refused leaves none.
    """
    (ended,) = run_streams(console, [(pipeline, home)], how, as_json, savepoint, jars)
    if ended.error is not None:
        raise ended.error
    return ended.outcome


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one of the streams of `run_streams`."""

    pipeline: str
    outcome: str
    """In a line."""
    error: Exception | None = None
    """The error that ended it, if any."""


def run_streams(
    console: Console,
    runs: Sequence[tuple[Pipeline, Locations]],
    how: StreamOptions,
    as_json: bool = False,
    savepoint: Path | None = None,
    jars: Path | None = None,
) -> list[Ended]:
    """Run pipelines in micro-batches on one Spark, until all have ended or a signal stops them.

    Mistakes that are found before Spark starts are raised. After that, a pipeline that fails does not stop the others.
    A savepoint is that of the only pipeline, as is real-time mode, with a folder of `jars` for Spark.
    """
    for pipeline, home in runs:
        check_stream(pipeline, home, how, savepoint)
    names = ", ".join(pipeline.name for pipeline, _ in runs)
    displays = RunDisplays(console, as_json, several=len(runs) > 1)
    with told_to_end() as told, lease_for(*runs[0], how, names, jars) as lease, displays, ExitStack() as going:
        followed = [
            _Followed(pipeline, home, how, lease, displays.of(pipeline.name, lag_of(pipeline, home)), going)
            for pipeline, home in runs
        ]
        for each in followed:
            if not told:
                each.start(savepoint)
        while not told and (left := [each for each in followed if each.is_going]):
            for each in left:
                each.look(_LOOK_EVERY / len(left))
        with ThreadPoolExecutor(len(followed)) as stopping:  # each may take seconds to finish its micro-batch
            list(stopping.map(_Followed.stop, followed))
    return [each.ended() for each in followed]


def lease_for(pipeline: Pipeline, home: Locations, how: StreamOptions, names: str, jars: Path | None) -> Lease:
    """A hold on the Spark that a stream needs; it is not started yet."""
    if not how.is_real_time:
        return Lease(names, home.master, conf=home.conf)
    from millrace.running.realtime import context_for  # its packages are optional

    context = context_for(pipeline, home, how, jars)
    return Lease(names, context.master, conf=(*context.config.items(), *home.conf))


def stream_of(
    pipeline: Pipeline,
    home: Locations,
    how: StreamOptions,
    lease: Lease,
    on_batch: Listener,
    on_wait: Callable[[Waiting | None], None],
) -> "RetriedStream | RealTimeStream":
    """Start the stream of a pipeline, in micro-batches or in real time."""
    if not how.is_real_time:
        return RetriedStream(pipeline, home, how, lease, on_batch, on_wait)
    from millrace.running.realtime import RealTimeStream  # its packages are optional

    return RealTimeStream(pipeline, home, how, lease, on_batch, on_wait)


class _Followed:
    """One of the streams of `run_streams`."""

    def __init__(
        self,
        pipeline: Pipeline,
        home: Locations,
        how: StreamOptions,
        lease: Lease,
        shown: RunDisplay,
        going: ExitStack,
    ) -> None:
        self._pipeline, self._home, self._how, self._lease = pipeline, home, how, lease
        self._shown, self._going = shown, going
        self._stream: RetriedStream | RealTimeStream | None = None
        self._has_ended = False
        self._error: Exception | None = None

    @property
    def is_going(self) -> bool:
        return self._stream is not None and not self._has_ended and self._error is None

    def start(self, savepoint: Path | None) -> None:
        """Start the stream, and first Spark if it does not run."""
        with self._noting_failure(), from_savepoint(savepoint, self._pipeline, self._home):
            pipeline = typed_stream(self._pipeline, self._home, self._lease, self._how)
            shown = self._shown
            stream = stream_of(pipeline, self._home, self._how, self._lease, shown.batch, shown.waits)
            self._stream = stream
            self._going.push(stream.__exit__)

    def look(self, seconds: float) -> None:
        """Follow the stream for some seconds, or until it ends."""
        assert self._stream is not None
        with self._noting_failure():
            self._has_ended = self._stream.wait(seconds)

    def stop(self) -> None:
        """Stop the stream, if it has not ended."""
        if self.is_going:
            assert self._stream is not None
            self._stream.stop()

    def ended(self) -> Ended:
        """How it ended."""
        outcome = f"{'caught up' if self._has_ended else 'stopped'}: {self._shown.summary()}"
        return Ended(self._pipeline.name, outcome, self._error)

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            with self._home.named():
                yield
        except Exception as error:
            self._error = error
            self._shown.failed(error)


@contextmanager
def from_savepoint(savepoint: Path | None, pipeline: Pipeline, home: Locations) -> Iterator[None]:
    """Create the checkpoint of a run from a savepoint, if given; a block that fails to start the run leaves none."""
    if savepoint is None:
        yield
        return
    with closing(open_store(home.store)) as store:
        generation = serving(store, pipeline.name)
    with started_from(savepoint, home, generation):
        yield


def check_stream(pipeline: Pipeline, home: Locations, how: StreamOptions, savepoint: Path | None) -> None:
    """Refuse mistakes that can be detected before Spark is started, which takes seconds."""
    if how.is_real_time:
        from millrace.running.realtime import check_run  # its packages are optional

        check_run(pipeline, how)
    check_answers(pipeline)
    check_placement(pipeline, home)
    if savepoint is not None:
        check_savepoint(savepoint)
    check_places(pipeline, {}, home.log)
    check_writable(home.checkpoint)
    parse_guarantee(how.guarantee)
    parse_positive(how.latency, "latency")
    parse_duration(how.retry, "retry")
    if how.interval is not None:
        parse_duration(how.interval, "interval")


def lag_of(pipeline: Pipeline, home: Locations) -> Callable[[], int | None]:
    """A function that returns the lag of the pipeline; None if it is not known."""
    log = Log(home.log) if home.log.exists() else None
    topics = [source.name for source in pipeline.sources if source.kind == "log"]
    kafka = [source for source in pipeline.sources if source.kind == KAFKA]
    if not kafka:
        return lambda: behind(pipeline.name, log, topics)
    from millrace.sources.kafka import lags_of  # its packages are optional

    def lag() -> int | None:
        found = [behind(pipeline.name, log, topics), *lags_of(kafka, pipeline.name).values()]
        return max((each for each in found if each is not None), default=None)

    return lag


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
        lookups=lookups(pipeline, home.store), on_tasks=on_tasks, scratch=checkpoint,
    ))  # fmt: skip


def run_batch(console: Console, pipeline: Pipeline, home: Locations, shards: int | None = None) -> str:
    """Run a batch over everything that the sources hold; returns the outcome in a line."""
    check_placement(pipeline, home)
    check_places(pipeline, {}, home.log)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    began = time.monotonic()
    lease = Lease(pipeline.name, home.master, conf=home.conf)
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
