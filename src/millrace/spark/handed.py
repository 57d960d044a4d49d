"""What was handed over to a checkpoint with another number of shards, as runs read it.

The folder `handover` of the checkpoint has one file for each stage and shard, the offsets at which Spark's part begins,
and the number of its batch 0 (see `handover`).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.eventlog.sealed import unsealed
from millrace.model.watermark import Progress

HANDOVER = "handover"
TIME = "time"
"""The blob with the progress of the sources of a stage, beside those of its state."""
FIRST = "first.json"
DONE, PENDING = "done", "pending"
"""Spark's offsets of the last batch that the savepoint had committed, and of the one that it had only planned."""
_UNFINISHED = ".handing-over"
Blobs = dict[str, bytes]


def unfinished(folder: Path) -> Path:
    """The file that is there while the state of a checkpoint is handed over."""
    return folder / _UNFINISHED


def is_unfinished(folder: Path) -> bool:
    """Whether a handover was interrupted, so that the checkpoint is neither the old nor the new one."""
    return unfinished(folder).exists()


def name_of(stage: str, shard: int) -> str:
    """The name of the file for a shard of a stage."""
    return f"{hashlib.sha256(stage.encode()).hexdigest()[:16]}-{shard}.arrow"


def first_batch(folder: Path) -> int:
    """The number of the micro-batch that is Spark's batch 0 in a checkpoint: 0, unless its state was handed over."""
    try:
        return int(unsealed((folder / HANDOVER / FIRST).read_bytes())["first"])
    except FileNotFoundError:
        return 0


def offsets_before(folder: Path, batch: int) -> Path | None:
    """The file with the offsets of a batch that was planned before the state was handed over; None for a later one."""
    first = first_batch(folder)
    if not first or batch > first:
        return None
    kept = folder / HANDOVER / (PENDING if batch == first else DONE)
    return kept if kept.exists() else None


def start_of(folder: Path, source: int) -> dict[str, Any] | None:
    """The offset at which a Spark source, by its place among all, begins to read; None if nothing was handed over."""
    try:
        lines = (folder / HANDOVER / DONE).read_text(encoding="utf-8").splitlines()[2:]
    except FileNotFoundError:
        return None
    found: dict[str, Any] = json.loads(lines[source])
    return found


def blobs_for(folder: Path, stage: str, shard: int) -> Blobs:
    """The blobs that were handed over to a shard of a stage; none if there are none."""
    try:
        table = pa.ipc.open_file(str(folder / HANDOVER / name_of(stage, shard))).read_all()
    except FileNotFoundError:
        return {}
    return dict(zip(table["name"].to_pylist(), table["data"].to_pylist(), strict=True))


def progress_of(written: bytes | None) -> tuple[Progress, ...]:
    """The progress of the sources of a stage, from its blob."""
    lags = [{**each, "lags": tuple(map(tuple, each["lags"]))} for each in json.loads(written or b"[]")]
    return tuple(Progress(**each) for each in lags)


def progress_blob(progress: Sequence[Progress]) -> bytes:
    """The blob with the progress of the sources of a stage."""
    return json.dumps([asdict(each) for each in progress]).encode()
