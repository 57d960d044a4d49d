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
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        beside.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    for path in folder.glob(f".*{PART}"):
        path.unlink(missing_ok=True)
