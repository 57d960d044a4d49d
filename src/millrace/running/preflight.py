"""Checks, before Spark starts, that the parts of a pipeline belong together, and chooses the generation to continue."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from millrace.eventlog.topics import Log
from millrace.model.connectors import Commit
from millrace.model.errors import AGAIN, ConflictError, CorruptError, refuse
from millrace.model.pipeline import FileSink, Output, Pipeline, TableSink
from millrace.model.query import queries_of
from millrace.plan.compile import compile
from millrace.running.agreement import Parts, TopicNow, disagreement, gaps, is_skippable, is_unused
from millrace.running.realtime_checkpoint import check_not_real_time
from millrace.running.settings import Locations
from millrace.running.status import is_locked
from millrace.spark.checkpoint import Checkpoint, in_use
from millrace.spark.damage import damage_of
from millrace.spark.history import VIEWS, TopicRead
from millrace.spark.outputs import writers_of
from millrace.spark.sent import SENT
from millrace.spark.writers import Writer
from millrace.views.store import Generation, GenerationState, NoViewsError, Store


def generations_of(store: Store, pipeline: str) -> list[Generation]:
    """The generations that a store knows of a pipeline's outputs; none if the store does not exist yet."""
    try:
        return store.generations(pipeline)
    except NoViewsError:
        return []


def serving(store: Store, pipeline: str) -> int:
    """The served generation of a pipeline's outputs; if there is none, the number that the next one will get."""
    known = generations_of(store, pipeline)
    new = max((each.number for each in known), default=0) + 1
    return next((each.number for each in known if each.state is GenerationState.SERVING), new)


def newest_checkpoint(home: Locations) -> int:
    """The newest generation that has, or had, a checkpoint; 0 if there is none."""
    return max([*checkpoints(home).values(), *_generations(home, SENT).values()], default=0)


def checkpoints(home: Locations) -> dict[Path, int]:
    """The folders of all checkpoints of a pipeline, with the generation of each."""
    return {path: generation for path, generation in _generations(home).items() if path.is_dir()}


def _generations(home: Locations, suffix: str = "") -> dict[Path, int]:
    """The paths that are named as a checkpoint of the pipeline, with a suffix; and the generation of each."""
    pattern = re.compile(rf"{re.escape(home.checkpoint.name)}(?:@(\d+))?{re.escape(suffix)}")
    folder = home.checkpoint.parent
    paths = folder.iterdir() if folder.is_dir() else ()
    return {path: int(found[1] or 1) for path in paths if (found := pattern.fullmatch(path.name))}


def check_agreement(pipeline: Pipeline, home: Locations, store: Store, from_here: bool = False) -> int:
    """The generation to continue. Raises ConflictError if the parts of the pipeline do not belong together.

    `served_parts` first completes a swap of files and tables that was interrupted. A checkpoint that a failed run of a
    pipeline has left, without any answer, is no obstacle to another pipeline: it is removed. An output that would miss
    records is refused, unless it may start `from_here`.
    """
    generation = serving(store, pipeline.name)
    checkpoint = Checkpoint(home.generation(generation))
    if is_locked(checkpoint.folder):
        raise in_use(checkpoint.folder)
    check_not_real_time(checkpoint.folder)
    damage = damage_of(checkpoint)
    if damage is not None:
        raise damage
    parts = served_parts(pipeline, home, store, generation)
    plan = compile(pipeline)
    if is_unused(parts) and not checkpoint.is_of(plan):
        checkpoint.discard()
        return generation
    checkpoint.check(plan, from_here)
    if parts.history is None and generation > 1 and (fixed := unswappable(pipeline)):
        raise ConflictError(f"{fixed[0].sink} has the answers of an earlier generation", resend_or_not(home))
    reason = disagreement(parts)
    if reason is not None:
        raise ConflictError(reason, AGAIN)
    for lost in gaps(parts):
        left = f"compute all again from the records that are left: {home.command('replay')}"
        without = f"go on without them: {home.command('repair')} --yes; or " if is_skippable(parts, lost) else ""
        raise ConflictError(str(lost), f"{without}{left}")
    return generation


def check_untyped(pipeline: Pipeline, home: Locations, store: Store, from_here: bool) -> None:
    """Raise what `check_agreement` raises for a pipeline that is not typed yet, as far as types do not matter."""
    checkpoint = Checkpoint(home.generation(serving(store, pipeline.name)))
    if is_locked(checkpoint.folder):
        raise in_use(checkpoint.folder)
    damage = damage_of(checkpoint)
    if damage is not None:
        raise damage
    history = checkpoint.history()
    if history is not None and history.committed >= 0:  # answers were delivered from it
        checkpoint.check(compile(pipeline), from_here, is_typed=False)


def check_answers(pipeline: Pipeline) -> None:
    """Refuse a query that would never answer in a stream."""
    outputs = [(f"view {name}", of) for name, of in pipeline.views.items()]
    outputs += [(str(output.sink), output.of) for output in pipeline.sinks]
    for name, query in ((name, query) for name, of in outputs for query in queries_of(of)):
        if query.needs_an_end:
            raise refuse(
                f"{name}: window(all_time()) with the trigger {query.when} answers at the end of the input, which a "
                "stream does not have",
                query.place,
                "add .trigger(on.each()).retracting() before .aggregate(...), or run it as a batch: --mode batch",
            )


def unswappable(pipeline: Pipeline) -> list[Output]:
    """The sinks that cannot be filled beside themselves and swapped: topics, functions and custom sinks."""
    return [output for output in pipeline.sinks if not isinstance(output.sink, FileSink | TableSink)]


def resend_or_not(home: Locations) -> str:
    """The advice for a sink that cannot be swapped."""
    again = home.command("replay")
    return (
        f"send all answers to it again: {again} --resend; or only those that come after the replay: {again} --no-resend"
    )


def served_parts(pipeline: Pipeline, home: Locations, store: Store, generation: int) -> Parts:
    """What the parts of the served generation say of themselves.

    If a replay was interrupted between the swap of the views and that of files and tables, they are swapped first. That
    is so if the parts belong together with the commits of the files and tables that wait.
    """
    folder = home.generation(generation)
    writers = writers_of(pipeline, home.log, folder, generation)
    beside = writers_of(pipeline, home.log, folder, generation, staged=True)
    waiting = {}
    for name, writer in beside.items():
        with suppress(ConflictError, CorruptError):
            if writer.last() not in (None, writers[name].last()):
                waiting[name] = writer
    if waiting and disagreement(parts_of(pipeline, home, store, generation, {**writers, **waiting})) is None:
        for writer in writers.values():
            writer.serve()
    return parts_of(pipeline, home, store, generation, writers)


def parts_of(
    pipeline: Pipeline, home: Locations, store: Store, generation: int, writers: Mapping[str, Writer]
) -> Parts:
    """What the parts of a pipeline say of themselves; `writers` are those of a generation of the sinks."""
    folder = home.generation(generation)
    history = Checkpoint(folder).history()
    commits = {output: writer.last() for output, writer in writers.items()}
    if pipeline.views:
        commits = {VIEWS: _last_commit(store, pipeline.name, generation), **commits}
    known = max((each.number for each in generations_of(store, pipeline.name)), default=0)
    read = () if history is None else history.read
    topics = {each: found for each in read if (found := _topic(home.log, each)) is not None}
    lost = tuple(what for writer in writers.values() if (what := writer.lost()) is not None)
    return Parts(folder, history, commits, known, newest_checkpoint(home), topics, lost)


def _last_commit(store: Store, pipeline: str, generation: int) -> Commit | None:
    try:
        return store.last_commit(pipeline, generation)
    except NoViewsError:
        return None


def _topic(path: Path, read: TopicRead) -> TopicNow | None:
    """A topic as it is now; None if the log does not have it, which other checks report."""
    if not path.exists():
        return None
    log = Log(path)
    if read.topic not in {topic.name for topic in log.topics()}:
        return None
    ends = log.ends(read.topic)
    marks = log.marks(read.topic, read.offsets) if len(ends) == len(read.offsets) else []
    return TopicNow(log.uid_of(read.topic), tuple(log.starts(read.topic)), tuple(ends), tuple(marks))
