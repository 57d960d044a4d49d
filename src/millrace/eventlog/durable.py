"""Files that survive."""

import os
from collections.abc import Callable
from pathlib import Path

PART = ".part"
"""How the name of a file ends that is not whole."""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Make a file that is either not there or whole, and that stays."""
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
    """Remove what writers that were killed left behind."""
    for path in folder.glob(f".*{PART}"):
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make sure that a file, or what a folder lists, is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
