"""Looks at the log, the store, the checkpoint and the sinks of a pipeline, and finds what is wrong with them."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from millrace.eventlog.salvage import topics_in
from millrace.eventlog.topics import Damage, Log
from millrace.letters.box import box_of
from millrace.model.duration import format_duration
from millrace.model.errors import ConflictError, CorruptError, MillraceError
from millrace.model.pipeline import FileSink, Pipeline, TableSink, TopicSink
from millrace.running.agreement import Parts, disagreement, gaps, is_skippable, is_written_in_part
from millrace.running.findings import (
    DropGeneration,
    Finding,
    MoveCheckpoint,
    MoveDatabase,
    SalvageLog,
    SkipBlock,
    SkipFile,
    SkipGap,
    Way,
)
from millrace.running.preflight import generations_of, served_parts, serving
from millrace.running.settings import Locations
from millrace.running.unread import unreadable_files
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.damage import damage_of, damaged_state
from millrace.views.sqlite import SqliteStore
from millrace.views.store import GenerationState, Store, open_store

Progress = Callable[[int, int], object]
"""Called while blocks are read, with bytes read and bytes in all."""


def examine(
    pipeline: Pipeline, home: Locations, progress: Progress | None = None, *, blocks: bool = True
) -> list[Finding]:
    """Everything that is wrong. Without `blocks` the checksums of the log's blocks are not read.

    The pipeline must not run. Nothing is changed, except that the files and tables of a replay that was interrupted
    between the swap of the views and theirs are swapped, as the next run would do.
    """
    log, found = _log(pipeline, home)
    found += _letters(pipeline, home)
    with closing(open_store(home.store)) as store:
        damage = _store_damage(store)
        if damage is not None:
            found.append(_damaged_store(store, damage, pipeline, home))
            generation, parts = 1, None
        else:
            generation = serving(store, pipeline.name)
            found += _unfinished(store, pipeline, home)
            broken = [*_checkpoint(pipeline, home, generation), *_table_sinks(pipeline, home)]
            found += broken
            parts = None
            if not broken and (log is not None or not _topics(pipeline)):
                parts, wrong = _agreement(pipeline, home, store, generation)
                found += wrong
                found += () if parts is None else _files(pipeline, home, parts)
    if log is not None:
        found = [*(_blocks(log, pipeline, home, parts, progress) if blocks else ()), *found]
    return found


def clock_note(home: Locations) -> str | None:
    """A remark if the clock of the machine does not match the log's own time; the log and streams follow by themselves.

    The log must be readable.
    """
    jump = Log(home.log).clock_jump() if home.log.exists() else None
    if jump is None:
        return None
    way = "ahead of" if jump > 0 else "behind"
    return (
        f"the clock of this machine is {format_duration(abs(jump))} {way} the log's own time; set it right if it is "
        "wrong: the log and the streams follow it, and nothing is lost"
    )


def replay_ways(pipeline: Pipeline, home: Locations) -> tuple[Way, ...]:
    """The ways to compute the outputs of a pipeline again; two if it has sinks that cannot be rewritten."""
    what, command = "compute all again from the log", home.command("replay")
    loses = "records that the log no longer holds are lost"
    fixed = [output.sink for output in pipeline.sinks if not isinstance(output.sink, FileSink | TableSink)]
    if not fixed:
        return (Way(what, loses, command),)
    resend = Way(f"{what}, and send all answers to {fixed[0]} again", f"{loses}; it receives answers twice")
    keep = Way(f"{what}, and send {fixed[0]} only later answers", f"{loses}; it misses answers that it has not got yet")
    ways = [(resend, "--resend")]
    if pipeline.views or len(fixed) < len(tuple(pipeline.sinks)):
        ways.append((keep, "--no-resend"))
    return tuple(Way(way.what, way.loses, f"{command} {option}") for way, option in ways)


def _log(pipeline: Pipeline, home: Locations) -> tuple[Log | None, list[Finding]]:
    """The log, if it can be used; and what is wrong with it apart from its blocks."""
    backup = Way("put a copy of the log in its place", "records appended since the copy are lost")
    topics = _topics(pipeline)
    if not topics:
        return (Log(home.log) if home.log.exists() else None), []
    if not home.log.exists():
        ways = (backup, *(_create(home, topic) for topic in topics))
        return None, [Finding(f"there is no log {home.log}", ways)]
    try:
        log = Log(home.log)
        log.check_metadata()
        known = {topic.name for topic in log.topics()}
    except (CorruptError, ConflictError) as error:
        return None, [_unreadable(home, error, backup)]
    missing = [
        Finding(f"the log has no topic {topic!r}", (backup, _create(home, topic)))
        for topic in topics
        if topic not in known
    ]
    return (None if missing else log), missing


def _topics(pipeline: Pipeline) -> list[str]:
    """The topics that a pipeline reads and writes."""
    read = [source.name for source in pipeline.sources if source.kind == "log"]
    written = [output.sink.topic for output in pipeline.sinks if isinstance(output.sink, TopicSink)]
    return list(dict.fromkeys([*read, *written]))


def _create(home: Locations, topic: str) -> Way:
    return Way(
        f"create topic {topic!r} anew, and then look again",
        "its records are lost",
        f"millrace topics create {topic} --log {home.log}",
    )


def _unreadable(home: Locations, error: MillraceError, backup: Way) -> Finding:
    if not isinstance(error.__cause__, sqlite3.Error):
        return Finding(error.problem, (backup, Way(str(error.advice), "nothing is lost")))
    topics = topics_in(home.log)
    if not topics:
        anew = Way(f"move {home.log} aside, and look again", "all records are lost", home.command("repair"))
        return Finding(f"{error.problem}; no topic in it can be read", (backup, anew))
    save = Way(
        f"save the records of {', '.join(topics)} that can be read in a new log, and move the damaged one aside",
        "records in damaged pages are lost",
        f"{home.command('repair')} --yes",
    )
    return Finding(error.problem, (save, backup), SalvageLog(home.log))


def _blocks(
    log: Log, pipeline: Pipeline, home: Locations, parts: Parts | None, progress: Progress | None
) -> Iterator[Finding]:
    for topic in _topics(pipeline):
        uid = log.uid_of(topic)
        for damage in log.damaged(topic, progress):
            many = damage.end - damage.first
            where = f"offsets {damage.first} to {damage.end - 1} of {topic}/{damage.partition}"
            skip = Way("go on without them", _loss(damage, uid, parts), f"{home.command('repair')} --yes")
            backup = Way("put a copy of the log in its place", "records appended since the copy are lost")
            action = SkipBlock(topic, damage.partition, damage.first, many)
            yield Finding(f"{where} are damaged: {damage.why}", (skip, backup), action)
            if parts is not None and is_written_in_part(parts, uid, damage.partition, damage.first, damage.end):
                yield Finding(
                    f"the micro-batch in progress of checkpoint {parts.folder} has read {where}, and cannot be "
                    "repeated without them",
                    replay_ways(pipeline, home),
                    MoveCheckpoint(parts.folder),
                    replays=True,
                )


def _loss(damage: Damage, uid: str, parts: Parts | None) -> str:
    many = f"{damage.end - damage.first} records are lost"
    known = [read for read in (() if parts is None else parts.topics) if read.uid == uid]
    if known and all(damage.end <= read.offsets[damage.partition] for read in known):
        return f"{many}; the answers include them until the next replay"
    return many


def _files(pipeline: Pipeline, home: Locations, parts: Parts) -> Iterator[Finding]:
    for file in unreadable_files(pipeline, parts):
        mend = Way("mend or restore the file, and run again", "nothing is lost")
        if file.is_written:
            problem = f"the micro-batch in progress has read {file.path}, and cannot be repeated without it"
            away = Way("move the file away if it is there, and compute all again", "its rows are lost")
            yield Finding(f"{file.error.problem}: {problem}", (mend, away, *replay_ways(pipeline, home)), replays=True)
        else:
            skip = Way("go on without it", "its rows are lost", f"{home.command('repair')} --yes")
            yield Finding(file.error.problem, (skip, mend), SkipFile(parts.folder, file.path))


def _store_damage(store: Store) -> MillraceError | None:
    if isinstance(store, SqliteStore):
        return store.damage()
    try:
        generations_of(store, "")
    except CorruptError as error:
        return error
    return None


def _damaged_store(store: Store, damage: MillraceError, pipeline: Pipeline, home: Locations) -> Finding:
    after = "then compute the views of every pipeline in it again"
    if not isinstance(store, SqliteStore):
        ways = (Way(f"restore the database, or create it anew; {after}", "nothing that the log holds is lost"),)
        return Finding(damage.problem, (*ways, *replay_ways(pipeline, home)), replays=True)
    way = Way(f"move it aside, {after}", "nothing that the log holds is lost", f"{home.command('repair')} --yes")
    return Finding(damage.problem, (way, *replay_ways(pipeline, home)), MoveDatabase(store.path), replays=True)


def _unfinished(store: Store, pipeline: Pipeline, home: Locations) -> Iterator[Finding]:
    for each in generations_of(store, pipeline.name):
        if each.state is GenerationState.FILLING:
            drop = Way("drop it", "nothing is lost", f"{home.command('repair')} --yes")
            go_on = [
                Way(f"finish it: {way.what}", "nothing is lost", way.command) for way in replay_ways(pipeline, home)
            ]
            action = DropGeneration(each.number, home.generation(each.number))
            yield Finding(f"a stopped replay has not filled generation {each.number}", (drop, *go_on), action)


def _checkpoint(pipeline: Pipeline, home: Locations, generation: int) -> list[Finding]:
    checkpoint = Checkpoint(home.generation(generation))
    damage = damage_of(checkpoint) or damaged_state(checkpoint)
    return [] if damage is None else [Finding(damage.problem, replay_ways(pipeline, home), replays=True)]


def _table_sinks(pipeline: Pipeline, home: Locations) -> Iterator[Finding]:
    paths = dict.fromkeys(output.sink.path for output in pipeline.sinks if isinstance(output.sink, TableSink))
    for path in map(Path, paths):
        with closing(SqliteStore(path)) as database:
            if database.damage() is None:
                continue
        what = "move it aside with all its tables, then compute those of pipelines again"
        move = Way(what, "tables that no pipeline writes are lost", f"{home.command('repair')} --yes")
        again = replay_ways(pipeline, home)
        yield Finding(f"the database {path} of a table sink is damaged", (move, *again), MoveDatabase(path), True)


def _letters(pipeline: Pipeline, home: Locations) -> Iterator[Finding]:
    file = box_of(home.checkpoint.parent, pipeline.name).file
    with closing(SqliteStore(file)) as database:
        if database.damage() is not None:
            what = "move it aside; a replay lists the dead letters of the records in the log again"
            move = Way(what, "what was done about them is forgotten", f"{home.command('repair')} --yes")
            yield Finding(f"{file} with the dead letters is damaged", (move,), MoveDatabase(file))


def _agreement(
    pipeline: Pipeline, home: Locations, store: Store, generation: int
) -> tuple[Parts | None, Sequence[Finding]]:
    again = replay_ways(pipeline, home)
    try:
        parts = served_parts(pipeline, home, store, generation)
    except (CorruptError, ConflictError) as error:
        named = error.naming(home.arguments)
        mend = () if named.advice is None else (Way(named.advice, "the answers in it are computed again"),)
        return None, [Finding(error.problem, (*mend, *again), replays=True)]
    reason = disagreement(parts)
    if reason is not None:
        return parts, [Finding(reason, again, replays=True)]
    found = []
    for lost in gaps(parts):
        if is_skippable(parts, lost):
            many = f"{lost.end - lost.first} records are lost; the answers keep all that was read before"
            skip = Way("go on without them", many, f"{home.command('repair')} --yes")
            found.append(Finding(str(lost), (skip, *again), SkipGap(parts.folder, lost)))
        else:
            found.append(Finding(str(lost), again, replays=True))
    return parts, found
