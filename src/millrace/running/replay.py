"""Replay: computes the views of a pipeline again from the log, into a new generation that then replaces the old one.

The old generation is served, and may be written to, until the new one has caught up; then one transaction swaps them.
A replay that was stopped continues from its checkpoint when it is run again.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from millrace.eventlog.topics import Log
from millrace.model.errors import PipelineError
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import compile
from millrace.running.ending import told_to_end
from millrace.running.lease import Lease
from millrace.running.run import follow, typed
from millrace.running.settings import Locations, StreamOptions
from millrace.running.status import is_locked
from millrace.running.views import KeptViews, serving, shapes_of
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.outputs import check_places
from millrace.spark.progress import BatchProgress
from millrace.views.store import GenerationState, NoViewsError, Store, open_store

_AT_BATCH_SPEED = "30s"
"""The target duration of a micro-batch over old records: nobody waits for their answers, and large ones are cheaper."""


def replay(console: Console, pipeline: Pipeline, home: Locations, how: StreamOptions) -> str:
    """Recompute the views, catch up with the log, and swap; returns the outcome in a line."""
    check_places(pipeline, {}, home.log)
    if not pipeline.views:
        raise PipelineError(f"pipeline {pipeline.name} has no views to compute again")
    lease = Lease(pipeline.name, home.master)
    with told_to_end() as told, closing(open_store(home.store)) as store, lease:
        return _replay(console, store, typed(pipeline, home, lease), home, how, lease, told)


def _replay(
    console: Console,
    store: Store,
    pipeline: Pipeline,
    home: Locations,
    how: StreamOptions,
    lease: Lease,
    told: Sequence[int],
) -> str:
    generation = _unfinished(store, pipeline, home) or store.begin_generation(pipeline.name, shapes_of(pipeline))
    views = KeptViews(store, pipeline, generation)
    checkpoint = home.generation(generation)
    log = Log(home.log)
    topics = [source.name for source in pipeline.sources if source.kind == "log"]
    total = sum(end - start for topic in topics for start, end in zip(log.starts(topic), log.ends(topic), strict=True))
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("records"),
        TimeRemainingColumn(), console=console, disable=not console.is_terminal,
    )  # fmt: skip
    rows = 0
    with bar:
        task = bar.add_task(f"computing {pipeline.name} again", total=total or None)

        def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
            nonlocal rows
            rows += progress.rows
            bar.update(task, completed=rows, total=max(total, rows) or None)

        # First all stored records, in large micro-batches; then the records that were appended meanwhile.
        for latency in (_AT_BATCH_SPEED, how.latency):
            once = replace(how, latency=latency, interval=None, until_caught_up=True)
            if told or not follow(pipeline, home, checkpoint, views, once, lease, listen, told, reports=False):
                return f"stopped after {rows:,} rows; run it again to go on: nothing that is read has changed"
    old = home.generation(serving(store, pipeline.name))
    store.swap(pipeline.name, generation)
    done = f"{rows:,} rows computed again; generation {generation} of {', '.join(pipeline.views)} is now what is read"
    if old != checkpoint and is_locked(old):
        done += f"; the {pipeline.name} that runs goes on with the one before it: stop it, and run it again"
    return done


def roll_back(pipeline: Pipeline, home: Locations) -> str:
    """Serve the previous generation again; returns the outcome in a line."""
    with closing(open_store(home.store)) as store:
        store.rollback(pipeline.name)
        number = serving(store, pipeline.name)
    return f"generation {number} of {', '.join(pipeline.views)} is what is read again"


def _unfinished(store: Store, pipeline: Pipeline, home: Locations) -> int | None:
    """The unfinished generation of a stopped replay with the same fingerprint; None if there is none."""
    try:
        known = store.generations(pipeline.name)
    except NoViewsError:  # no pipeline has run yet
        return None
    for each in known:
        if each.state is GenerationState.FILLING and Checkpoint(home.generation(each.number)).is_of(compile(pipeline)):
            return each.number
    return None
