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


def note(checkpoint: Path, pipeline: str, progress: BatchProgress, dead: int) -> None:
    """Write the progress of the last micro-batch to the checkpoint; `dead` counts all dead letters of the run."""
    about = {"pipeline": pipeline, "at": time.time(), "dead": dead, "progress": json.loads(progress.to_json())}
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


def all_under(folder: Path) -> list[Status]:
    """The status of every pipeline with a checkpoint in a folder, by name of the checkpoint."""
    found = []
    for file in sorted(folder.glob(f"*/{_FILE}")):
        about = json.loads(file.read_text(encoding="utf-8"))
        running = is_locked(file.parent)
        found.append(Status(about["pipeline"], file.parent, running, about["at"], about["dead"], about["progress"]))
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
