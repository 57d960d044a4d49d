"""Machine errors, identified by error numbers and classes: disk, memory, open files, network, locks."""

import errno
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from millrace.eventlog.room import why_no_room
from millrace.model.errors import NOTHING_LOST, CorruptError, MachineError

_DISK = "nothing was lost: make room, and run again"
_RIGHTS = "nothing was lost: change who may read and write it, and run again"
_MEMORY = "nothing was lost: give it more memory, or use fewer cores with --master 'local[1]', and run again"
_FILES = "nothing was lost: raise the limit with ulimit -n, and run again"
_NETWORK = "nothing was lost: check that the server runs and can be reached, and run again"
_AGAIN = "nothing was lost: run it again"

_BY_NUMBER = {
    errno.ENOSPC: ("the disk is full", _DISK),
    errno.EDQUOT: ("the disk quota is used up", _DISK),
    errno.EFBIG: ("a file may not grow any further", "nothing was lost: raise the limit of its size, and run again"),
    errno.EIO: ("the disk cannot be read or written", NOTHING_LOST),
    errno.EROFS: ("the disk is read-only", NOTHING_LOST),
    errno.EACCES: ("access is denied", _RIGHTS),
    errno.EPERM: ("access is denied", _RIGHTS),
    errno.EMFILE: ("too many files are open", _FILES),
    errno.ENFILE: ("too many files are open", _FILES),
    errno.ENOMEM: ("there is not enough memory", _MEMORY),
    errno.EAGAIN: ("a resource is busy", _AGAIN),
    errno.EBUSY: ("a resource is busy", _AGAIN),
    errno.ECONNREFUSED: ("a server refuses the connection", _NETWORK),
    errno.ECONNRESET: ("a server closed the connection", _NETWORK),
    errno.ETIMEDOUT: ("a server does not answer", _NETWORK),
    errno.EHOSTUNREACH: ("a server cannot be reached", _NETWORK),
    errno.ENETUNREACH: ("a server cannot be reached", _NETWORK),
}
_BY_SQLITE_CODE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
}


def machine_trouble(error: BaseException | None) -> MachineError | None:
    """The MachineError for an error or one of its causes; None if none of them is a machine error."""
    while error is not None:
        number = _number(error)
        if number is not None:
            return by_number(number, getattr(error, "filename", None))
        error = error.__cause__
    return None


def by_number(number: int, file: object = None) -> MachineError:
    """The MachineError for a system error number, with the file if it is known."""
    problem, advice = _BY_NUMBER.get(number, (os.strerror(number), NOTHING_LOST))
    return MachineError(problem if file is None else f"{problem}: {file}", advice)


def _number(error: BaseException) -> int | None:
    """The system error number that corresponds to an error."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _BY_NUMBER else None
    if isinstance(error, sqlite3.Error):
        return _BY_SQLITE_CODE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return errno.ENOMEM
    if isinstance(error, duckdb.IOException):
        return errno.EIO
    postgresql = sys.modules.get("psycopg")  # its errors can only occur if it was imported
    if postgresql is not None and isinstance(error, postgresql.OperationalError):
        full = isinstance(error, postgresql.errors.DiskFull)
        return errno.ENOSPC if full else errno.ECONNREFUSED
    return None


@contextmanager
def clear(what: str, path: Path) -> Iterator[None]:
    """Raise system and SQLite errors as errors with advice."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise CorruptError(
                f"{path} is damaged, or no database of SQLite",
                "move it aside: millrace repair FILE --yes; then compute it again: millrace replay FILE",
            ) from error
        if not isinstance(error, sqlite3.OperationalError):
            raise
        raise _machine_error(what, path, error) from error
    except OSError as error:
        raise _machine_error(what, path, error) from error


def _machine_error(what: str, path: Path, error: OSError | sqlite3.Error) -> MachineError:
    full = why_no_room(path)
    if full is not None:
        return by_number(full, path)
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return MachineError(f"{what}: {said}", NOTHING_LOST)
