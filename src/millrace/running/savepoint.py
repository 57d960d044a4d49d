"""Savepoints: a checkpoint copied as it is at one moment, to start another run from.

A copy may be made while the pipeline runs. What Spark has committed is copied before what it needs for that, and no
file of either is ever changed; so the copy holds at least what its last commit needs, and a batch that had not been
committed then is run again.
"""

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from millrace.eventlog.durable import write_whole
from millrace.model.errors import PipelineError

_ORDER = (
    "millrace.json", "begun", "spark/commits", "spark/metadata", "spark/offsets", "spark/sources", "sources", "tables",
    "spark/state",
)  # fmt: skip
_ATTEMPTS = 5
_GENERATION = "generation"
"""Of the views that a savepoint goes with."""


def save(checkpoint: Path, to: Path, generation: int = 1) -> None:
    """Copy the checkpoint that fills a generation of the views. Refuses a place that is taken."""
    if not (checkpoint / "millrace.json").exists():
        raise PipelineError(f"there is no checkpoint in {checkpoint}; run the pipeline first, or name it: --checkpoint")
    to.parent.mkdir(parents=True, exist_ok=True)
    _copy(checkpoint, to, f"there is a savepoint {to} already; choose another name", {_GENERATION: generation})


def start_from(savepoint: Path, checkpoint: Path, generation: int = 1) -> None:
    """Make a new checkpoint of a savepoint, with an id of its own, as its batches are other ones from here on.

    Refuses one that filled another generation of the views than the one that is served.
    """
    if not (savepoint / "millrace.json").exists():
        raise PipelineError(f"{savepoint} is not a savepoint; make one: millrace savepoint FILE")
    filled = json.loads((savepoint / "millrace.json").read_text(encoding="utf-8")).get(_GENERATION, generation)
    if filled != generation:
        raise PipelineError(
            f"savepoint {savepoint} goes with generation {filled} of the views, but {generation} is what is read; go "
            "back to it with millrace replay FILE --rollback, or name another store"
        )
    taken = f"the checkpoint {checkpoint} is there already; choose another with --checkpoint, or remove it"
    _copy(savepoint, checkpoint, taken, {"id": uuid.uuid4().hex[:8]})


def _copy(source: Path, to: Path, taken: str, about: Mapping[str, object]) -> None:
    if to.exists():
        raise PipelineError(taken)
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
    known = json.loads((beside / "millrace.json").read_text(encoding="utf-8"))
    text = json.dumps({**known, **about}, indent=1)
    write_whole(beside / "millrace.json", lambda path: path.write_text(text, encoding="utf-8"))
    beside.rename(to)
