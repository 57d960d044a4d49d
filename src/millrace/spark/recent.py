"""The recent micro-batches of a pipeline and its flow, in files of its checkpoint: what a page draws."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from millrace.spark.progress import BatchProgress

KEPT = 600
"""The number of micro-batches that are kept at least."""
_PROGRESS, _FLOW = "progress.jsonl", "flow.json"


class Recent:
    """Adds micro-batches to the file of a checkpoint; the oldest ones are removed."""

    def __init__(self, checkpoint: Path) -> None:
        """Go on from the micro-batches of earlier runs."""
        self._file = checkpoint / _PROGRESS
        lines = _lines(self._file)
        if lines and not lines[-1].endswith(b"\n"):  # cut by a crash
            _write(self._file, b"".join(lines[:-1]))
        self._lines = len(lines)

    def add(self, progress: BatchProgress, at: float, began: float | None = None) -> None:
        """Add a micro-batch that ended `at` that time, of a run that `began` at another, in seconds since 1970.

        Raises OSError if that fails.
        """
        about = json.loads(progress.to_json())
        del about["fields"]
        line = json.dumps({"at": round(at, 3), "began": began, **about}, separators=(",", ":")) + "\n"
        self._lines += 1
        if self._lines <= 2 * KEPT:
            with self._file.open("ab") as file:
                file.write(line.encode())
            return
        lines = [*_lines(self._file)[1 - KEPT :], line.encode()]
        _write(self._file, b"".join(lines))
        self._lines = len(lines)


def recent(checkpoint: Path, since: int = -1) -> list[dict[str, Any]]:
    """The recent micro-batches of a checkpoint after one, by number; none if there is no file."""
    found = []
    for line in _lines(checkpoint / _PROGRESS):
        with suppress(ValueError):  # a crash may have cut the last line
            about = json.loads(line)
            if about["batch"] > since:
                found.append(about)
    return found


def write_flow(checkpoint: Path, flow: dict[str, Any]) -> None:
    """Write the flow of a pipeline to its checkpoint."""
    _write(checkpoint / _FLOW, json.dumps(flow).encode())


def flow(checkpoint: Path) -> dict[str, Any] | None:
    """The flow of the pipeline of a checkpoint; None if no run has written it, or a crash has damaged it."""
    try:
        read: dict[str, Any] = json.loads((checkpoint / _FLOW).read_bytes())
    except (OSError, ValueError):
        return None
    return read


def _lines(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _write(file: Path, content: bytes) -> None:
    beside = file.with_name(f".{file.name}.part")
    beside.write_bytes(content)
    os.replace(beside, file)
