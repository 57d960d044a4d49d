"""The checkpoint of a pipeline in real-time mode: what it computes, where its sources began, and Spark's own state.

It is no checkpoint of micro-batches, whose state has another form: each mode refuses the folder of the other.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.eventlog.durable import write_whole
from millrace.eventlog.sealed import sealed, unsealed
from millrace.model.connectors import Commit
from millrace.model.errors import FILE, NOTHING_LOST, ConflictError, CorruptError, MachineError
from millrace.plan.plan import Plan
from millrace.spark.checkpoint import Checkpoint

_FORMAT = 1
_FILE = "real-time.json"
_ANEW = "start anew, with a checkpoint and a store of its own: --checkpoint FOLDER --store URL"
IN_MICRO_BATCHES = f"compute it again in micro-batches: millrace replay {FILE}"


@dataclass(frozen=True, slots=True)
class Opened:
    """An open checkpoint."""

    id: str
    """Unique to this checkpoint; the names of its topics hold it."""
    shards: int
    """How many parts the state of each view has."""


@dataclass(frozen=True, slots=True)
class RealTimeCheckpoint:
    """A folder with everything that a pipeline needs to resume in real-time mode."""

    folder: Path

    @property
    def file(self) -> Path:
        """Its record of the pipeline."""
        return self.folder / _FILE

    @property
    def noted(self) -> Path:
        """The file with the last commit of a pipeline without views, which has no store."""
        return self.folder / "applied.json"

    def journal(self, source: str) -> Path:
        """The file with the offsets at which a source began."""
        return self.folder / "sources" / f"{source.replace(',', '+')}.json"

    def open(self, plan: Plan, shards: int) -> Opened:
        """Resume from this checkpoint, or create it. Refuses another pipeline, and a checkpoint of micro-batches."""
        if Checkpoint(self.folder).file.exists():
            raise ConflictError(
                f"checkpoint {self.folder} was made by micro-batches, and real-time mode cannot go on from it",
                f"go on with --mode micro-batch; or {_ANEW}",
            )
        now: dict[str, Any] = json.loads(json.dumps({"pipeline": plan.pipeline, "stages": plan.fingerprint()}))
        try:
            known = unsealed(self.file.read_bytes())
        except FileNotFoundError:
            opened = Opened(uuid.uuid4().hex[:8], shards)
            self._write({"format": _FORMAT, "id": opened.id, "shards": shards, **now})
            return opened
        except ValueError:
            raise CorruptError(f"{self.file} of the checkpoint is damaged", _ANEW) from None
        if known["format"] != _FORMAT:
            raise ConflictError(f"checkpoint {self.folder} was made by another release of Millrace", _ANEW)
        if known["pipeline"] != now["pipeline"]:
            raise ConflictError(
                f"checkpoint {self.folder} is of pipeline {known['pipeline']!r}, not of {now['pipeline']!r}",
                "give this pipeline a checkpoint of its own: --checkpoint FOLDER",
            )
        if known["stages"] != now["stages"]:
            changed = _changed(known["stages"], now["stages"])
            raise ConflictError(
                f"{changed} is not as it was when checkpoint {self.folder} was made", f"go back to that; or {_ANEW}"
            )
        return Opened(known["id"], known["shards"])

    def last(self) -> Commit | None:
        """The last commit that was noted beside the checkpoint."""
        try:
            return Commit(**unsealed(self.noted.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise CorruptError(f"{self.noted} of the checkpoint is damaged", _ANEW) from None

    def commit(
        self, commit: Commit, answers: Mapping[str, object], once: bool, generation: int | None, newer: bool
    ) -> None:
        """Note a commit without answers, in place of a store."""
        about = {"pipeline": commit.pipeline, "checkpoint": commit.checkpoint, "batch": commit.batch}
        self._whole(self.noted, {**about, "digest": commit.digest})

    def _write(self, content: Mapping[str, Any]) -> None:
        self._whole(self.file, content)

    def _whole(self, file: Path, content: Mapping[str, Any]) -> None:
        text = json.dumps(sealed(content), indent=1)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(file, lambda path: path.write_text(text, encoding="utf-8"))
        except OSError as error:
            raise MachineError(f"cannot write the checkpoint {self.folder}: {error.strerror}", NOTHING_LOST) from None


def check_not_real_time(folder: Path) -> None:
    """Refuse to run micro-batches from a checkpoint of real-time mode."""
    if RealTimeCheckpoint(folder).file.exists() and (folder / "queries").exists():  # otherwise it has not started
        raise ConflictError(
            f"checkpoint {folder} was made in real-time mode, and micro-batches cannot go on from it",
            f"go on with --mode real-time; or {IN_MICRO_BATCHES}",
        )


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for stage in now:
        if before.get(stage) != now[stage]:
            return stage
    return next(stage for stage in before if stage not in now)
