"""Finds out why a file cannot grow: SQLite reports a full disk in some places only as an I/O error."""

import errno
import os
import resource
import tempfile
from pathlib import Path

_PROBE = 64 << 10
"""The bytes that are written to find out; SQLite extends its shared-memory file by half as many."""


def why_no_room(path: Path) -> int | None:
    """The error number of the system if a file, or a new file beside it, cannot grow: ENOSPC, EDQUOT or EFBIG.

    None if both can grow, or if the folder cannot be written to at all.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = [_size(path), _size(path.with_name(f"{path.name}-wal"))]
    if limit != resource.RLIM_INFINITY and max(sizes) + _PROBE > limit:
        return errno.EFBIG
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as probe:
            left = _PROBE
            while left:  # the last bytes of a full disk are still written, and the next call fails
                left -= probe.write(bytes(left)) or 0
            os.fsync(probe.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error.errno
    return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
