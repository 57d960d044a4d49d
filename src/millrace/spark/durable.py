"""Files that survive."""

import os
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Make a file that is either not there or whole, and that stays."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
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
