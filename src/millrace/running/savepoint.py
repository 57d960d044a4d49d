"""Savepoints: a checkpoint copied as it is at one moment, to start another run from.

A copy may be made while the pipeline runs. What Spark has committed is copied before what it needs for that, and no
file of either is ever changed; so the copy holds at least what its last commit needs, and a batch that had not been
committed then is run again.
"""

import json
import shutil
import uuid
from pathlib import Path

from millrace.log.durable import write_whole
from millrace.model.errors import ModelError

_ORDER = (
    "millrace.json", "begun", "spark/commits", "spark/metadata", "spark/offsets", "spark/sources", "sources", "tables",
    "spark/state",
)  # fmt: skip
_ATTEMPTS = 5


def save(checkpoint: Path, to: Path) -> None:
    """Copy a checkpoint. Refuses a place that is taken."""
    if not (checkpoint / "millrace.json").exists():
        raise ModelError(f"there is no checkpoint in {checkpoint}; run the pipeline first, or name it: --checkpoint")
    _copy(checkpoint, to, f"there is a savepoint {to} already; choose another name")


def start_from(savepoint: Path, checkpoint: Path) -> None:
    """Make a new checkpoint of a savepoint, with an id of its own, as its batches are other ones from here on."""
    if not (savepoint / "millrace.json").exists():
        raise ModelError(f"{savepoint} is not a savepoint; make one: millrace savepoint FILE")
    taken = f"the checkpoint {checkpoint} is there already; choose another with --checkpoint, or remove it"
    _copy(savepoint, checkpoint, taken, renamed=True)


def _copy(source: Path, to: Path, taken: str, renamed: bool = False) -> None:
    if to.exists():
        raise ModelError(taken)
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
        except (FileNotFoundError, shutil.Error):  # Spark removed something that is no longer needed
            if attempt == _ATTEMPTS - 1:
                raise
    if renamed:
        about = json.loads((beside / "millrace.json").read_text(encoding="utf-8"))
        about["id"] = uuid.uuid4().hex[:8]
        write_whole(beside / "millrace.json", lambda path: path.write_text(json.dumps(about, indent=1)))
    beside.rename(to)
