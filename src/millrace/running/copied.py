"""Copies of files with checksums and progress."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

_PIECE = 1 << 20

Report = Callable[[int, int], None]
"""Called with the bytes that are done, and the bytes in total."""


class Meter:
    """Counts the bytes of a long copy, and reports them."""

    def __init__(self, report: Report, total: int) -> None:
        self._report, self._total, self._done = report, total, 0

    def add(self, count: int) -> None:
        """Count bytes that are copied."""
        self._done += count
        self._report(self._done, max(self._total, self._done))


def copy_file(source: Path, to: Path, meter: Meter) -> str:
    """Copy and fsync a file; the folder is created. Returns the SHA-256 of the content that was read."""
    to.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as content, to.open("xb") as copy:
        while piece := content.read(_PIECE):
            digest.update(piece)
            copy.write(piece)
            meter.add(len(piece))
        copy.flush()
        os.fsync(copy.fileno())
    return digest.hexdigest()


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
