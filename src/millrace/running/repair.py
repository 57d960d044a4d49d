"""Repair: does about each finding what a person has agreed to. Nothing is deleted: it is moved aside."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from millrace.eventlog.durable import sync
from millrace.eventlog.salvage import salvage
from millrace.eventlog.topics import Log
from millrace.model.errors import NOTHING_LOST, MachineError
from millrace.model.pipeline import Pipeline
from millrace.running.examine import Progress, examine
from millrace.running.findings import (
    Action,
    DropGeneration,
    Finding,
    MoveCheckpoint,
    MoveDatabase,
    SalvageLog,
    SkipBlock,
    SkipFile,
    SkipGap,
)
from millrace.running.lease import Lease
from millrace.running.preflight import checkpoints
from millrace.running.settings import Locations
from millrace.running.status import is_locked
from millrace.running.streaming import typed
from millrace.sources.skipped import read_skipped, write_skipped
from millrace.spark.checkpoint import Checkpoint, in_use
from millrace.spark.sent import Sent
from millrace.views.store import open_store

_SIDE_FILES = ("", "-wal", "-shm")
"""The suffixes of the files of an SQLite database."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """The outcome of a repair."""

    done: tuple[str, ...]
    """What was done, a line each."""
    left: tuple[Finding, ...]
    """What is still wrong, and needs another command."""


def look(pipeline: Pipeline, home: Locations, progress: Progress | None = None) -> list[Finding]:
    """Everything that is wrong with a pipeline that does not run. Changes nothing."""
    for folder in checkpoints(home):
        if is_locked(folder):
            raise in_use(folder)
    return examine(_typed(pipeline, home), home, progress)


def repair(pipeline: Pipeline, home: Locations, at: str, progress: Progress | None = None) -> Repaired:
    """Do what can be done about everything that is wrong; `at` ends the names of what is moved aside."""
    pipeline = _typed(pipeline, home)
    done: list[str] = []
    with _alone(home):
        found = examine(pipeline, home, progress)
        for finding in found:
            if finding.action is not None:
                done.append(_do(finding.action, pipeline, home, at))
        # The blocks were all read. The other parts are looked at again: a store that was moved aside is missing now.
        left = examine(pipeline, home, blocks=False) if done else found
    return Repaired(tuple(done), tuple(left))


def _typed(pipeline: Pipeline, home: Locations) -> Pipeline:
    with Lease(pipeline.name, home.master, conf=home.conf) as lease:
        return typed(pipeline, home, lease)


@contextmanager
def _alone(home: Locations) -> Iterator[None]:
    """Lock out runs and replays of the pipeline."""
    with ExitStack() as held:
        for folder in checkpoints(home):
            held.enter_context(closing(Checkpoint(folder).lock()))
        yield


def _do(action: Action, pipeline: Pipeline, home: Locations, at: str) -> str:
    match action:
        case SalvageLog(file):
            return _salvage(file, home, at)
        case SkipBlock(topic, partition, first, records):
            Log(home.log).skip_damaged(topic, partition, first)
            return f"skipped {records} records of {topic}/{partition} from offset {first} on: they are set aside"
        case SkipGap(checkpoint, lost):
            skipped = read_skipped(checkpoint)
            write_skipped(checkpoint, skipped.adding(lost.uid, lost.topic, lost.partition, lost.first, lost.end))
            return f"skipped offsets {lost.first} to {lost.end - 1} of {lost.topic}/{lost.partition}"
        case SkipFile(checkpoint, path):
            write_skipped(checkpoint, read_skipped(checkpoint).adding_file(path))
            return f"skipped file {path}"
        case MoveDatabase(file):
            _check_nobody_writes(home)
            return _aside(file, f"damaged-{at}", _SIDE_FILES)
        case MoveCheckpoint(folder):
            return _aside(folder, f"damaged-{at}") if folder.exists() else f"{folder} is moved already"
        case DropGeneration(number, checkpoint):
            with closing(open_store(home.store)) as store:
                store.drop_unfinished(pipeline.name)
            dropped = f"dropped generation {number}, which a replay had not filled"
            moved = [path for path in (checkpoint, Sent.beside(checkpoint).file) if path is not None and path.exists()]
            return "; ".join([dropped, *(_aside(path, f"dropped-{at}") for path in moved)])
        case _:
            assert_never(action)


def _salvage(log: Path, home: Locations, at: str) -> str:
    """Write a new log beside the damaged one, then move that aside and the new one to its place."""
    _check_nobody_writes(home)
    beside = log.with_name(f"{log.name}.salvaged")
    _remove_database(beside)
    try:
        saved = salvage(log, beside)
        moved = _aside(log, f"damaged-{at}", _SIDE_FILES)
        beside.rename(log)
        sync(log.parent)
    except OSError as error:
        raise MachineError(f"cannot write {beside}: {error.strerror}", NOTHING_LOST) from error
    finally:
        _remove_database(beside)
    lost = f"{saved.lost:,} are lost" + (f", and {saved.unplaced:,} blocks of unknown topics" if saved.unplaced else "")
    return f"saved {saved.records:,} records of {', '.join(saved.topics)}; {lost}; {moved}"


def _remove_database(path: Path) -> None:
    for end in _SIDE_FILES:
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def _check_nobody_writes(home: Locations) -> None:
    """Refuse if another pipeline runs from a checkpoint in the same folder: it may write to the same store."""
    mine = checkpoints(home)
    for folder in sorted(home.checkpoint.parent.iterdir()):
        if folder.is_dir() and folder not in mine and is_locked(folder):
            raise in_use(folder)


def _aside(path: Path, suffix: str, files: tuple[str, ...] = ("",)) -> str:
    """Rename a file or a folder, and the files that belong to it; returns what was done in a line."""
    to = path.with_name(f"{path.name}.{suffix}")
    if to.exists():
        raise MachineError(f"{to} exists already", "try again in a second")
    try:
        for end in reversed(files):  # the file itself is moved last, so that an interrupted move is found again
            if (source := path.with_name(f"{path.name}{end}")).exists():
                source.rename(to.with_name(f"{to.name}{end}"))
        sync(path.parent)
    except OSError as error:
        raise MachineError(f"cannot move {path} to {to}: {error.strerror}", NOTHING_LOST) from error
    return f"moved {path} to {to}"
