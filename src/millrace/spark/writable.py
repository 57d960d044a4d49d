"""Places that a run will write to, tried before Spark is started."""

import tempfile
from pathlib import Path

from millrace.spark.trouble import clear


def check_writable(folder: Path) -> None:
    """Raise MachineError if no file can be made in a folder, or in the parent in which it will be made.

    A file is made and is gone again at once: rights alone do not tell of a disk that is read-only.
    """
    _try(folder, folder)


def check_writable_file(file: Path) -> None:
    """The same for a file, and for the files that its writer makes beside it."""
    _try(file.parent, file)
    if file.exists():
        with clear(f"cannot write to {file}", file), file.open("r+b"):
            pass


def _try(folder: Path, named: Path) -> None:
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    with clear(f"cannot write to {named}", place), tempfile.TemporaryFile(dir=place):
        pass
