"""The status of pipelines, which can be read while they run and afterwards."""

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.spark.progress import BatchProgress

_FILE = "status.json"


def note(checkpoint: Path, pipeline: str, progress: BatchProgress, dead: int, clock_moved: int) -> None:
    """Write the progress of the last micro-batch to the checkpoint.

    `dead` counts all dead letters of the run; `clock_moved` is the last jump of the clock in the run, or 0.
    """
    about = {
        "pipeline": pipeline, "at": time.time(), "dead": dead, "clock_moved": clock_moved,
        "progress": json.loads(progress.to_json()),
    }  # fmt: skip
    beside = checkpoint / f".{_FILE}.part"
    beside.write_text(json.dumps(about), encoding="utf-8")
    os.replace(beside, checkpoint / _FILE)


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a pipeline after its last micro-batch."""

    pipeline: str
    checkpoint: Path
    is_running: bool
    at: float
    """When the last micro-batch ended, in seconds since 1970."""
    dead: int
    """Dead letters since it was started."""
    progress: dict[str, Any]
    clock_moved: int = 0
    """The last jump of the clock since it was started, as `BatchProgress` has it; 0 if there was none."""


def all_under(folder: Path) -> list[Status]:
    """The status of every pipeline with a checkpoint in a folder, by name of the checkpoint."""
    found = []
    for file in sorted(folder.glob(f"*/{_FILE}")):
        about = json.loads(file.read_text(encoding="utf-8"))
        running = is_locked(file.parent)
        moved = about.get("clock_moved", 0)  # older releases did not write it
        found.append(
            Status(about["pipeline"], file.parent, running, about["at"], about["dead"], about["progress"], moved)
        )
    return found


def is_locked(checkpoint: Path) -> bool:
    """Whether a pipeline runs from a checkpoint."""
    try:
        with (checkpoint / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
