"""Atomic, fsynced file writes."""

import os
from collections.abc import Callable
from pathlib import Path

PART = ".part"
"""The suffix of files that are still being written."""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: write a temporary file, fsync it, rename it, and fsync the folder."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        write(beside)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
        sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    for path in folder.glob(f".*{PART}"):
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Fsync a file or a folder."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
