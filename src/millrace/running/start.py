"""Starts a pipeline from Python: does everything up to the first micro-batch in the calling thread."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.model.errors import PipelineError
from millrace.model.pipeline import Pipeline
from millrace.running.handle import Run
from millrace.running.layers import check_layers, compute_batch_layer
from millrace.running.lease import Lease, check_unclaimed, master_of
from millrace.running.placement import check_placement
from millrace.running.retried import RetriedStream
from millrace.running.run import (
    batch_summary,
    check_stream,
    from_savepoint,
    lag_of,
    lease_for,
    prepare_batch,
    stream_of,
)
from millrace.running.settings import Locations, Settings
from millrace.running.streaming import typed, typed_stream
from millrace.spark.outputs import check_places
from millrace.views.store import file_of, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.running.realtime import RealTimeStream
    from millrace.spark.gather import Gathered

_LOOK_EVERY = 0.5


def start(pipeline: Pipeline, settings: Settings, spark: "SparkSession | None" = None) -> Run:
    """Start a pipeline; mistakes are raised here, before anything runs.

    Spark is started in this thread, never in another: a process that forks beside Spark's start-up may crash.
    """
    named = settings.home(pipeline.name)
    # The program may change its working folder while the run goes on.
    store = file_of(named.store)
    home = replace(
        named, log=named.log.absolute(), checkpoint=named.checkpoint.absolute(),
        store=named.store if store is None else str(store.absolute()),
    )  # fmt: skip
    if spark is not None:
        home = replace(home, master=master_of(spark) or home.master)
    with home.named():
        return _start(pipeline, home, settings, spark)


def _start(pipeline: Pipeline, home: Locations, settings: Settings, spark: "SparkSession | None") -> Run:
    savepoint = None if settings.from_savepoint is None else Path(settings.from_savepoint)
    if settings.layer == "batch":
        check_layers(pipeline)
        check_placement(pipeline, home)
    elif settings.mode == "batch":
        check_placement(pipeline, home)
        check_places(pipeline, {}, home.log)
    else:
        check_stream(pipeline, home, settings.how, savepoint)
    if settings.how.is_real_time and spark is not None:
        raise PipelineError("real-time mode needs a Spark that it starts itself", "leave spark= out")
    if spark is None:
        check_unclaimed()
    with ExitStack() as held:
        if settings.how.is_real_time:
            jars = None if settings.jars is None else Path(settings.jars)
            lease = held.enter_context(lease_for(pipeline, home, settings.how, pipeline.name, jars))
        else:
            lease = held.enter_context(Lease(pipeline.name, home.master, spark, home.conf))
        with from_savepoint(savepoint, pipeline, home):
            if settings.layer == "batch":
                run = _layer(typed(pipeline, home, lease), home, lease, held)
            elif settings.mode == "batch":
                run = _batch(typed(pipeline, home, lease), home, settings, lease, held)
            else:
                pipeline = typed_stream(pipeline, home, lease, settings.how)
                run = _stream(pipeline, home, settings, lease, held)
    return run


class _Streaming:
    """The work of a stream."""

    def __init__(self, stream: "RetriedStream | RealTimeStream", run: Run, home: Locations, ends: bool) -> None:
        """`ends` is True if the stream ends by itself."""
        self._stream, self._run, self._home, self._ends = stream, run, home, ends
        self._began = time.monotonic()

    def finish(self) -> str:
        with self._home.named():
            while not self._stream.wait(_LOOK_EVERY):
                if not self._ends and not threading.main_thread().is_alive():  # the interpreter is exiting
                    self._stream.stop()
                    break
        how = "stopped" if self._stream.is_stopped else "caught up" if self._ends else "ended"
        return f"{how}: {self._run.totals.summary(time.monotonic() - self._began)}"

    def stop(self, patience: float) -> None:
        self._stream.stop(patience)


class _Once:
    """Work that runs once and can be cancelled."""

    def __init__(self, home: Locations, work: Callable[[Sequence[int]], str]) -> None:
        self._home, self._work = home, work
        self._told: list[int] = []

    def finish(self) -> str:
        with self._home.named():
            return self._work(self._told)

    def stop(self, patience: float) -> None:
        self._told.append(1)


def _stream(pipeline: Pipeline, home: Locations, settings: Settings, lease: Lease, held: ExitStack) -> Run:
    run = Run(pipeline.name, lag_of(pipeline, home))
    stream = stream_of(pipeline, home, settings.how, lease, run.on_batch, run.on_wait)
    held.enter_context(stream)
    run.begin(_Streaming(stream, run, home, settings.until_caught_up), held.pop_all())
    return run


def _batch(pipeline: Pipeline, home: Locations, settings: Settings, lease: Lease, held: ExitStack) -> Run:
    run, began = Run(pipeline.name), time.monotonic()
    store = held.enter_context(closing(open_store(home.store)))
    compute = prepare_batch(pipeline, home, store, lease, settings.shards, run.on_tasks)

    def work(told: Sequence[int]) -> str:
        found: Gathered | None = compute(told)
        if found is not None:
            run.on_batch(found.progress(0, {}), found.answers)
        return batch_summary(found, time.monotonic() - began)

    run.begin(_Once(home, work), held.pop_all())
    return run


def _layer(pipeline: Pipeline, home: Locations, lease: Lease, held: ExitStack) -> Run:
    run = Run(pipeline.name)
    lease.session(home.checkpoint / "batch.log")
    run.begin(_Once(home, lambda told: compute_batch_layer(pipeline, home, lease, told)), held.pop_all())
    return run
