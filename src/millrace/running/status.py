"""The status of pipelines, which can be read while they run and afterwards."""

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.eventlog.sealed import sealed, unsealed
from millrace.running.health import Health
from millrace.sources.skipped import read_skipped
from millrace.spark.progress import BatchProgress

_FILE = "status.json"


def note(
    checkpoint: Path, pipeline: str, progress: BatchProgress, dead: int, clock_moved: int, health: Health | None = None
) -> None:
    """Write the progress of the last micro-batch to the checkpoint.

    `dead` counts all dead letters of the run; `clock_moved` is the last jump of the clock in the run, or 0.
    """
    known = health or Health()
    about = {
        "pipeline": pipeline, "at": time.time(), "dead": dead, "clock_moved": clock_moved,
        "progress": json.loads(progress.to_json()), "warnings": list(known.warnings().values()),
        "unknown": known.unknown, "missing": known.missing,
    }  # fmt: skip
    beside = checkpoint / f".{_FILE}.part"
    beside.write_text(json.dumps(sealed(about)), encoding="utf-8")
    os.replace(beside, checkpoint / _FILE)


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a pipeline after its last micro-batch."""

    pipeline: str
    """The name of the pipeline; that of the checkpoint if the report is damaged."""
    checkpoint: Path
    is_running: bool
    at: float
    """When the last micro-batch ended, in seconds since 1970."""
    dead: int
    """Dead letters since it was started."""
    progress: dict[str, Any]
    clock_moved: int = 0
    """The last jump of the clock since it was started, as `BatchProgress` has it; 0 if there was none."""
    skipped: int = 0
    """Records that it goes on without: retention removed them unread, and `millrace repair` skipped them."""
    skipped_files: int = 0
    """Files that it goes on without: they could not be read, and `millrace repair` skipped them."""
    warnings: tuple[str, ...] = ()
    """What is probably wrong with its records."""
    unknown: int = 0
    """The number of fields of its records that are no columns, in those that were looked at."""
    missing: int = 0
    """The number of columns that are in none of them."""
    damaged: Path | None = None
    """The file with the report, if it is damaged; then nothing else is known."""


def all_under(folder: Path) -> list[Status]:
    """The status of every pipeline with a checkpoint in a folder, by name of the checkpoint."""
    found = []
    for file in sorted(folder.glob(f"*/{_FILE}")):
        running = is_locked(file.parent)
        try:
            about = unsealed(file.read_bytes())
            progress, skipped = _checked(about["progress"]), read_skipped(file.parent)
            found.append(
                Status(
                    str(about["pipeline"]), file.parent, running, float(about["at"]), about["dead"], progress,
                    about["clock_moved"], skipped.records, len(skipped.files), tuple(about.get("warnings", ())),
                    about.get("unknown", 0), about.get("missing", 0),
                )
            )  # fmt: skip
        except FileNotFoundError:  # the checkpoint was removed meanwhile
            continue
        except (ValueError, KeyError, TypeError, AttributeError, IsADirectoryError):
            found.append(Status(file.parent.name, file.parent, running, 0.0, 0, {}, damaged=file))
    return found


def _checked(progress: dict[str, Any]) -> dict[str, Any]:
    """The progress of a micro-batch. Raises KeyError or TypeError if it lacks something that the status shows."""
    parts = progress["parts"].values()
    shown = [progress[name] for name in ("batch", "rows_per_second", "seconds", "late", "open_windows", "errors")]
    shown += [part["lag"] or 0 for part in parts]
    if not all(isinstance(number, int | float) for number in shown):
        raise TypeError("a figure is no number")
    return progress


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
