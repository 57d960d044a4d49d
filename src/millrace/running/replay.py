"""Replay: computes the outputs of a pipeline again from the log, into a new generation that replaces the old one.

The old generation is served, and may be written to, until the new one has caught up; then one transaction swaps them.
A replay that was stopped continues from its checkpoint when it is run again.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from millrace.eventlog.topics import Log
from millrace.model.errors import ConflictError, CorruptError, PipelineError
from millrace.model.pipeline import FileSink, Pipeline, TableSink
from millrace.plan.compile import compile
from millrace.running.agreement import disagreement, gaps
from millrace.running.ending import told_to_end
from millrace.running.lease import Lease
from millrace.running.preflight import generations_of, newest_checkpoint, parts_of, serving
from millrace.running.run import follow, typed
from millrace.running.settings import Locations, StreamOptions
from millrace.running.status import is_locked
from millrace.running.views import KeptViews, shapes_of
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.damage import damage_of
from millrace.spark.outputs import check_places, writers_of
from millrace.spark.progress import BatchProgress
from millrace.views.store import GenerationState, Store, open_store

_AT_BATCH_SPEED = "30s"
"""The target duration of a micro-batch over old records: nobody waits for their answers, and large ones are cheaper."""


def replay(
    console: Console, pipeline: Pipeline, home: Locations, how: StreamOptions, resend: bool | None = None
) -> str:
    """Recompute the outputs, catch up with the log, and swap; returns the outcome in a line.

    Views, files and tables are filled beside the ones in use. Topics, functions and custom sinks cannot be: `resend`
    chooses whether they receive all answers again, or only those that come after the replay.
    """
    check_places(pipeline, {}, home.log)
    lease = Lease(pipeline.name, home.master)
    with told_to_end() as told, closing(open_store(home.store)) as store, lease:
        pipeline = _resending(typed(pipeline, home, lease), home, resend)
        return _replay(console, store, pipeline, home, how, lease, told)


def _replay(
    console: Console,
    store: Store,
    pipeline: Pipeline,
    home: Locations,
    how: StreamOptions,
    lease: Lease,
    told: Sequence[int],
) -> str:
    unfinished = _unfinished(store, pipeline, home, how.shards)
    if unfinished is not None:
        with suppress(CorruptError):  # only Spark can tell whether state is damaged: then the replay starts again
            return _fill(console, store, pipeline, home, how, lease, told, unfinished)
    generation = store.begin_generation(pipeline.name, shapes_of(pipeline), newest_checkpoint(home) + 1)
    return _fill(console, store, pipeline, home, how, lease, told, generation)


def _fill(
    console: Console,
    store: Store,
    pipeline: Pipeline,
    home: Locations,
    how: StreamOptions,
    lease: Lease,
    told: Sequence[int],
    generation: int,
) -> str:
    """Fill a generation, then swap."""
    views = KeptViews(store, pipeline, generation)
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
            if told or not follow(pipeline, home, generation, views, once, lease, listen, told, replays=True):
                return f"stopped after {rows:,} rows; run it again to go on: nothing that is read has changed"
    old = home.generation(serving(store, pipeline.name))
    store.swap(pipeline.name, generation)
    _serve_sinks(pipeline, home, generation)
    outputs = ", ".join([*pipeline.views, *(str(output.sink) for output in pipeline.sinks)])
    done = [f"{rows:,} rows computed again; generation {generation} of {outputs} is now what is read"]
    done += [
        f"the log no longer holds offsets 0 to {start - 1} of {topic}/{partition}"
        for topic in topics
        for partition, start in enumerate(log.starts(topic))
        if start
    ]
    if old != home.generation(generation) and is_locked(old):
        done.append(f"the {pipeline.name} that runs goes on with the one before it: stop it, and run it again")
    return "; ".join(done)


def roll_back(pipeline: Pipeline, home: Locations) -> str:
    """Serve the previous generation again; returns the outcome in a line."""
    with closing(open_store(home.store)) as store:
        store.rollback(pipeline.name)
        number = serving(store, pipeline.name)
    _serve_sinks(pipeline, home, number)
    return f"generation {number} of {', '.join(pipeline.views)} is what is read again"


def _serve_sinks(pipeline: Pipeline, home: Locations, generation: int) -> None:
    for writer in writers_of(pipeline, str(home.log.absolute()), generation).values():
        writer.serve()


def _resending(pipeline: Pipeline, home: Locations, resend: bool | None) -> Pipeline:
    """The pipeline that a replay runs: without sinks that cannot be filled beside themselves, unless `resend`."""
    fixed = [output for output in pipeline.sinks if not isinstance(output.sink, FileSink | TableSink)]
    if fixed and resend is None:
        raise PipelineError(
            f"{fixed[0].sink} cannot be rewritten",
            f"send all answers to it again: {home.command('replay')} --resend; or only those that come after the "
            f"replay: {home.command('replay')} --no-resend",
        )
    if not fixed and resend is not None:
        raise PipelineError("all sinks of this pipeline can be rewritten", "leave --resend and --no-resend out")
    if resend or not fixed:
        return pipeline
    sinks = [output for output in pipeline.sinks if output not in fixed]
    if not pipeline.views and not sinks:
        raise PipelineError(f"pipeline {pipeline.name} has no other outputs", f"use {home.command('replay')} --resend")
    return replace(pipeline, sinks=sinks)


def _unfinished(store: Store, pipeline: Pipeline, home: Locations, shards: int | None) -> int | None:
    """The unfinished generation of a stopped replay that this pipeline can continue; None if there is none."""
    for each in generations_of(store, pipeline.name):
        if each.state is not GenerationState.FILLING:
            continue
        checkpoint = Checkpoint(home.generation(each.number))
        if damage_of(checkpoint) is not None or not checkpoint.is_of(compile(pipeline), shards):
            return None
        writers = writers_of(pipeline, str(home.log.absolute()), each.number, staged=True)
        try:
            parts = parts_of(pipeline, home, store, each.number, writers)
        except (CorruptError, ConflictError):  # a sink of that generation is damaged
            return None
        return each.number if disagreement(parts) is None and not gaps(parts) else None
    return None
