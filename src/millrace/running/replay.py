"""Replay: computes the outputs of a pipeline again from the log, into a new generation that replaces the old one.

The old generation is served, and may be written to, until the new one has caught up; then one transaction swaps them.
A replay that was stopped continues from its checkpoint when it is run again.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from millrace.eventlog.durable import write_whole
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.model.errors import ConflictError, CorruptError, PipelineError
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import compile, sink_id
from millrace.running.agreement import disagreement, gaps
from millrace.running.ending import told_to_end
from millrace.running.lease import Lease
from millrace.running.placement import check_placement
from millrace.running.preflight import (
    check_answers,
    checkpoints,
    generations_of,
    newest_checkpoint,
    parts_of,
    resend_or_not,
    serving,
    unswappable,
)
from millrace.running.settings import Locations, StreamOptions
from millrace.running.status import is_locked
from millrace.running.streaming import follow, typed
from millrace.running.views import KeptViews, shapes_of
from millrace.spark.checkpoint import Checkpoint, in_use
from millrace.spark.damage import damage_of
from millrace.spark.gate import closed
from millrace.spark.letters import LetterWriter
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
    check_answers(pipeline)
    check_placement(pipeline, home)
    check_places(pipeline, {}, home.log)
    lease = Lease(pipeline.name, home.master, conf=home.conf)
    with told_to_end() as told, closing(open_store(home.store)) as store, lease:
        _check_resend(pipeline, home, resend)
        return _replay(console, store, typed(pipeline, home, lease), home, how, lease, told, bool(resend))


def _replay(
    console: Console,
    store: Store,
    pipeline: Pipeline,
    home: Locations,
    how: StreamOptions,
    lease: Lease,
    told: Sequence[int],
    resend: bool,
) -> str:
    unfinished = _unfinished(store, pipeline, home, how.shards, resend)
    if unfinished is not None:
        with suppress(CorruptError):  # only Spark can tell whether state is damaged: then the replay starts again
            return _fill(console, store, pipeline, home, how, lease, told, unfinished, resend)
    writers = writers_of(pipeline, home.log, home.checkpoint)
    least = max([newest_checkpoint(home), *(writer.newest() for writer in writers.values())]) + 1
    generation = store.begin_generation(pipeline.name, shapes_of(pipeline), least)
    mode = _mode(home, generation)
    mode.parent.mkdir(parents=True, exist_ok=True)
    write_whole(mode, lambda path: path.write_text(json.dumps(resend)))
    return _fill(console, store, pipeline, home, how, lease, told, generation, resend)


def _fill(
    console: Console,
    store: Store,
    pipeline: Pipeline,
    home: Locations,
    how: StreamOptions,
    lease: Lease,
    told: Sequence[int],
    generation: int,
    resend: bool,
) -> str:
    """Fill a generation, then swap."""
    silent = () if resend else [sink_id(output.sink) for output in unswappable(pipeline)]
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
            if told or not follow(pipeline, home, generation, views, once, lease, listen, told, True, silent):
                return f"stopped after {rows:,} rows; run it again to go on: the served views have not changed"
    old = home.generation(serving(store, pipeline.name))
    with closed([each for each in (old, home.generation(generation)) if each.is_dir()]):
        store.swap(pipeline.name, generation)
        _serve_sinks(pipeline, home, generation)
        _serve_letters(pipeline, home, generation)
    outputs = ", ".join([*pipeline.views, *(str(output.sink) for output in pipeline.sinks)])
    done = [f"{rows:,} rows computed again; generation {generation} of {outputs} is now served"]
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
    if fixed := unswappable(pipeline):
        raise PipelineError(f"{fixed[0].sink} cannot be rolled back", resend_or_not(home))
    with closing(open_store(home.store)) as store, closed(list(checkpoints(home))):
        store.rollback(pipeline.name)
        number = serving(store, pipeline.name)
        _serve_sinks(pipeline, home, number)
        _serve_letters(pipeline, home, number)
    return f"generation {number} of {', '.join(pipeline.views)} is served again"


def _serve_sinks(pipeline: Pipeline, home: Locations, generation: int) -> None:
    for writer in writers_of(pipeline, home.log, home.generation(generation), generation).values():
        writer.serve()


def _serve_letters(pipeline: Pipeline, home: Locations, generation: int) -> None:
    """Show the dead letters of a generation; if a crash or a damaged file prevents that, its next run does it."""
    checkpoint = Checkpoint(home.generation(generation))
    with suppress(CorruptError):
        history = checkpoint.history()
        if history is not None:
            box = box_of(home.checkpoint.parent, pipeline.name)
            LetterWriter(box, compile(pipeline), home.log, history.id, checkpoint.folder).serve()


def _check_resend(pipeline: Pipeline, home: Locations, resend: bool | None) -> None:
    fixed = unswappable(pipeline)
    if fixed and resend is None:
        raise PipelineError(f"{fixed[0].sink} cannot be rewritten", resend_or_not(home))
    if not fixed and resend is not None:
        raise PipelineError("all sinks of this pipeline can be rewritten", "leave --resend and --no-resend out")


def _mode(home: Locations, generation: int) -> Path:
    """The file that records whether a replay resends, so that another one does not continue it."""
    return home.generation(generation) / "resend"


def _unfinished(store: Store, pipeline: Pipeline, home: Locations, shards: int | None, resend: bool) -> int | None:
    """The unfinished generation of a stopped replay that this pipeline can continue; None if there is none."""
    for each in generations_of(store, pipeline.name):
        if each.state is not GenerationState.FILLING:
            continue
        checkpoint, mode = Checkpoint(home.generation(each.number)), _mode(home, each.number)
        if is_locked(checkpoint.folder):
            raise in_use(checkpoint.folder)
        if not mode.exists() or mode.read_text() != json.dumps(resend):
            return None
        if damage_of(checkpoint) is not None or not checkpoint.is_of(compile(pipeline), shards):
            return None
        writers = writers_of(pipeline, home.log, checkpoint.folder, each.number, staged=True)
        try:
            parts = parts_of(pipeline, home, store, each.number, writers)
        except (CorruptError, ConflictError):  # a sink of that generation is damaged
            return None
        return each.number if disagreement(parts) is None and not gaps(parts) else None
    return None
