"""Savepoints: consistent copies of a checkpoint, to start other runs from.

A copy may be made while the pipeline runs. Spark's commits are copied before the files that they depend on, and these
files are never modified; so the copy has everything that its last commit needs, and a micro-batch that was not yet
committed is run again.
"""

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from millrace.eventlog.durable import write_whole
from millrace.model.errors import ConflictError, NotFoundError

_ORDER = (
    "millrace.json", "begun", "spark/commits", "spark/metadata", "spark/offsets", "spark/sources", "sources", "tables",
    "spark/state",
)  # fmt: skip
_ATTEMPTS = 5
_GENERATION = "generation"
"""The key of the generation of the views that a savepoint belongs to."""


def save(checkpoint: Path, to: Path, generation: int = 1) -> None:
    """Copy the checkpoint that fills a generation of the views. Refuses a path that exists."""
    if not (checkpoint / "millrace.json").exists():
        raise NotFoundError(
            f"there is no checkpoint in {checkpoint}", "run the pipeline first, or name it: --checkpoint"
        )
    to.parent.mkdir(parents=True, exist_ok=True)
    taken = ConflictError(f"there is a savepoint {to} already", "choose another name")
    _copy(checkpoint, to, taken, {_GENERATION: generation})


def start_from(savepoint: Path, checkpoint: Path, generation: int = 1) -> None:
    """Create a checkpoint from a savepoint. It gets a new id, as its micro-batches differ from here on.

    Refuses a savepoint of another generation of the views than the served one.
    """
    if not (savepoint / "millrace.json").exists():
        raise NotFoundError(f"{savepoint} is not a savepoint", "make one: millrace savepoint FILE")
    filled = json.loads((savepoint / "millrace.json").read_text(encoding="utf-8")).get(_GENERATION, generation)
    if filled != generation:
        raise ConflictError(
            f"savepoint {savepoint} goes with generation {filled} of the views, but {generation} is what is read",
            "go back to it with millrace replay FILE --rollback, or name another store",
        )
    taken = ConflictError(
        f"the checkpoint {checkpoint} is there already", "choose another with --checkpoint, or remove it"
    )
    _copy(savepoint, checkpoint, taken, {"id": uuid.uuid4().hex[:8]})


def _copy(source: Path, to: Path, taken: ConflictError, about: Mapping[str, object]) -> None:
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
    known = json.loads((beside / "millrace.json").read_text(encoding="utf-8"))
    text = json.dumps({**known, **about}, indent=1)
    write_whole(beside / "millrace.json", lambda path: path.write_text(text, encoding="utf-8"))
    beside.rename(to)
