"""Savepoints: consistent copies of a checkpoint, to start other runs from.

A copy may be made while the pipeline runs. Spark's commits are copied before the files that they depend on, and these
files are never modified; so the copy has everything that its last commit needs, and a micro-batch that was not yet
committed is run again.
"""

import json
import shutil
from pathlib import Path

from millrace.model.errors import ConflictError, NotFoundError
from millrace.running.settings import Locations

_ORDER = (
    "millrace.json", "begun", "spark/commits", "spark/metadata", "spark/offsets", "spark/sources", "sources", "tables",
    "spark/state",
)  # fmt: skip
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
    """Create a checkpoint from a savepoint. Refuses a savepoint of another generation than the served one."""
    checkpoint = home.generation(generation)
    if not (savepoint / "millrace.json").exists():
        raise NotFoundError(f"{savepoint} is not a savepoint", "make one: millrace savepoint FILE")
    filled = json.loads((savepoint / "millrace.json").read_text(encoding="utf-8"))["generation"]
    if filled != generation:
        raise ConflictError(
            f"savepoint {savepoint} goes with generation {filled} of the views, but {generation} is what is read",
            f"compute it again from the log: {home.command('replay')}",
        )
    taken = ConflictError(
        f"the checkpoint {checkpoint} is there already", "choose another with --checkpoint, or remove it"
    )
    _copy(savepoint, checkpoint, taken)


def _copy(source: Path, to: Path, taken: ConflictError) -> None:
    if to.exists():
        raise taken
    beside = to.with_name(f".{to.name}.part")
    for attempt in range(_ATTEMPTS):
        shutil.rmtree(beside, ignore_errors=True)
        try:
            for name in _ORDER:
                if (source / name).is_dir():
                    shutil.copytree(source / name, beside / name)
                elif (source / name).exists():
                    beside.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source / name, beside / name)
            break
        except (FileNotFoundError, shutil.Error):  # Spark removed a file that it no longer needs
            if attempt == _ATTEMPTS - 1:
                raise
    beside.rename(to)
