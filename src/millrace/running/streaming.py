"""The stream of a pipeline on Spark: started, and followed until it ends."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.model.pipeline import Pipeline
from millrace.running.lease import Lease
from millrace.running.preflight import check_untyped
from millrace.running.settings import Locations, StreamOptions
from millrace.running.status import Report
from millrace.running.views import KeptViews, lookups
from millrace.spark.progress import BatchProgress
from millrace.views.store import open_store

if TYPE_CHECKING:
    from millrace.spark.stream import StreamRun

Listener = Callable[[BatchProgress, Mapping[str, pa.Table]], None]
"""Called after each micro-batch with its progress and its answers."""


def typed(pipeline: Pipeline, home: Locations, lease: Lease) -> Pipeline:
    """The pipeline with a type for each output column; starts Spark if only Spark can derive one."""
    from millrace.spark.settled import is_settled, settled

    return pipeline if is_settled(pipeline) else settled(lease.session(home.checkpoint / "spark.log"), pipeline)


def typed_stream(pipeline: Pipeline, home: Locations, lease: Lease, how: StreamOptions) -> Pipeline:
    """The same for a stream, which is refused before Spark starts if it cannot go on whatever the types are."""
    from millrace.spark.settled import is_settled

    if not how.is_real_time and not is_settled(pipeline):
        with closing(open_store(home.store)) as store:
            check_untyped(pipeline, home, store, how.from_here)
    return typed(pipeline, home, lease)


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
    report: Report | None = None,
) -> "StreamRun":
    """Start the stream of a generation, and first Spark if it does not run. The caller stops the stream.

    A stream that `replays` writes to sinks beside the ones in use, and reports no offsets. `silent` sinks receive no
    answers. `report` goes on from an earlier start of the same run.
    """
    from millrace.spark import stream

    checkpoint, told = home.generation(generation), report or Report(pipeline)

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        told.batch(checkpoint, progress)
        on_batch(progress, answers)

    return stream.start(
        lease.session(checkpoint / "spark.log"), pipeline, checkpoint, views=views, guarantee=how.guarantee,
        interval=how.interval, until_caught_up=how.until_caught_up, shards=how.shards, log=home.log,
        latency=how.latency, reports=not replays, lookups=lookups(pipeline, home.store), on_batch=listen,
        generation=generation, staged=replays, silent=silent, from_here=how.from_here, rescales=how.rescales,
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
    """Start a stream, and run it until it ends (True), or until a signal stops it after the micro-batch (False)."""
    run = start_stream(pipeline, home, generation, views, how, lease, on_batch, replays, silent)
    try:
        while not told:
            if run.wait(0.2):
                return True
    finally:
        run.stop()
    return False
