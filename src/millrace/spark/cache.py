"""Folders in the user's cache, which one process makes and all later ones use."""

import atexit
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from tempfile import TemporaryDirectory


def caches(environment: Mapping[str, str] = os.environ) -> Path:
    """The cache folder of Millrace: `$XDG_CACHE_HOME/millrace`, or `~/.cache/millrace`."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache", "millrace")


def cached_folder(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name in the cache; `make` fills it if there is none.

    Where the cache cannot be used, the folder is a temporary one of this process.
    """
    folder = caches() / name
    with suppress(OSError, RuntimeError):  # of a home folder that cannot be found
        if not folder.is_dir():
            caches().mkdir(mode=0o700, parents=True, exist_ok=True)
            with TemporaryDirectory(prefix="making-", dir=caches()) as parent:
                made = Path(parent, name)
                made.mkdir()
                make(made)
                with suppress(OSError):  # another process was faster
                    made.rename(folder)
        if _is_ours(caches()) and _is_ours(folder):
            return folder
    return _temporary(name, make)


def _is_ours(folder: Path) -> bool:
    """Whether only this user can change a folder: programs in it are run."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (S_IWGRP | S_IWOTH)


@cache
def _temporary(name: str, make: Callable[[Path], None]) -> Path:
    folder = TemporaryDirectory(prefix=f"millrace-{name}-")
    atexit.register(folder.cleanup)
    make(Path(folder.name))
    return Path(folder.name)
