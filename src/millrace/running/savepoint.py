"""Savepoints: consistent copies of a checkpoint, to start other runs from.

A copy may be made while the pipeline runs. Spark's commits are copied before the files that they depend on, and these
files are never modified; so the copy has everything that its last commit needs, and a micro-batch that was not yet
committed is run again.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from millrace.eventlog.room import why_no_room
from millrace.eventlog.sealed import unsealed
from millrace.model.connectors import Commit
from millrace.model.errors import AGAIN, NOTHING_LOST, ConflictError, CorruptError, MachineError, NotFoundError
from millrace.running.settings import Locations
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.damage import damage_of
from millrace.spark.history import VIEWS, check_format
from millrace.spark.sent import Sent
from millrace.spark.trouble import by_number

_ORDER = (
    "millrace.json", "handover", "begun", "skipped.json", "spark/commits", "spark/metadata", "spark/offsets",
    "spark/sources", "sources", "tables", "spark/state",
)  # fmt: skip
_IMMUTABLE = ("spark/state", "tables", "handover")
"""The folders whose files are never modified after they have their names."""
_ATTEMPTS = 5


def save(checkpoint: Path, to: Path) -> None:
    """Copy a checkpoint. Refuses a path that exists."""
    if not (checkpoint / "millrace.json").exists():
        raise NotFoundError(
            f"there is no checkpoint in {checkpoint}", "run the pipeline first, or name it: --checkpoint"
        )
    to.parent.mkdir(parents=True, exist_ok=True)
    taken = ConflictError(f"there is a savepoint {to} already", "choose another name")
    _copy(checkpoint, to, taken)


def start_from(savepoint: Path, home: Locations, generation: int = 1) -> None:
    """Create a checkpoint from a savepoint. Refuses a savepoint of another generation than the served one.

    In another place than that of the checkpoint, nothing tells what functions and custom sinks have received since
    then: they are taken to be as they were at the savepoint, as the user says by starting from it.
    """
    checkpoint = home.generation(generation)
    check_savepoint(savepoint)
    _check(savepoint)
    known = unsealed((savepoint / "millrace.json").read_bytes())
    check_format(known, savepoint)
    filled = known["generation"]
    if filled != generation:
        raise ConflictError(
            f"savepoint {savepoint} belongs to generation {filled} of the views, but generation {generation} is served",
            AGAIN,
        )
    taken = ConflictError(
        f"the checkpoint {checkpoint} exists already", "choose another with --checkpoint, or remove it"
    )
    _copy(savepoint, checkpoint, taken)
    _begin_sent(checkpoint)


def check_savepoint(savepoint: Path) -> None:
    """Refuse a folder that is not a savepoint."""
    if not (savepoint / "millrace.json").exists():
        raise NotFoundError(f"{savepoint} is not a savepoint", "make one: millrace savepoint FILE")


def _begin_sent(checkpoint: Path) -> None:
    history, sent = Checkpoint(checkpoint).history(), Sent.beside(checkpoint)
    if history is None or history.done < 0 or sent.exists():
        return
    about = unsealed((checkpoint / "millrace.json").read_bytes())
    commit = Commit(about["pipeline"], history.id, history.done, history.digests[history.done])
    for output, first in history.outputs.items():
        if output != VIEWS and first <= history.done:
            sent.note(output, commit)


@contextmanager
def started_from(savepoint: Path | None, home: Locations, generation: int) -> Iterator[None]:
    """Create a checkpoint from a savepoint, if given, and remove it again if the block, which starts a run, fails."""
    if savepoint is None:
        yield
        return
    checkpoint = home.generation(generation)
    had_sent = Sent.beside(checkpoint).exists()
    start_from(savepoint, home, generation)
    try:
        yield
    except BaseException:
        shutil.rmtree(checkpoint, ignore_errors=True)
        if not had_sent:
            Sent.beside(checkpoint).remove()
        raise


def copy_checkpoint(source: Path, to: Path, more: Sequence[str] = (), links: bool = False) -> None:
    """Copy a checkpoint that may be in use to a path that does not exist. Raises CorruptError if it is damaged.

    `more` names further files and folders of it to copy. With `links`, immutable files are hard links where possible.
    """
    for attempt in range(_ATTEMPTS):
        shutil.rmtree(to, ignore_errors=True)
        try:
            _copy_files(source, to, (*more, *_ORDER), links)
            _check(to)
            break
        except (FileNotFoundError, shutil.Error, CorruptError):  # Spark removed a file that it no longer needs
            if attempt == _ATTEMPTS - 1:
                _check(source)
                raise


def _copy(source: Path, to: Path, taken: ConflictError) -> None:
    if to.exists():
        raise taken
    beside = to.with_name(f".{to.name}.part")
    try:
        copy_checkpoint(source, beside)
        beside.rename(to)
    except OSError as error:  # shutil.Error is one, too, without a number
        full = why_no_room(beside)
        if full is not None:
            raise by_number(full, to) from error
        raise MachineError(f"cannot copy {source} to {to}: {reason_of(error)}", NOTHING_LOST) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _copy_files(source: Path, to: Path, names: Sequence[str], links: bool) -> None:
    for name in names:
        copy = _linked if links and name in _IMMUTABLE else shutil.copy2
        if (source / name).is_dir():
            shutil.copytree(source / name, to / name, copy_function=copy)
        elif (source / name).exists():
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, to / name)


def _linked(source: str, to: str) -> None:
    """Create a hard link to a file, or a copy of it where the file system has no hard links."""
    try:
        os.link(source, to)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, to)


def _check(folder: Path) -> None:
    """Refuse a damaged checkpoint or savepoint."""
    damage = damage_of(Checkpoint(folder))
    if damage is not None:
        raise damage


def reason_of(error: OSError) -> str:
    """The system's reason; shutil.Error holds a list of source, target and reason for each file."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        return str(error.args[0][0][-1]).partition("\n")[0]
    return error.strerror or str(error)
