"""Errors of SQLite as errors for users, with advice."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.eventlog.room import why_no_room
from millrace.model.errors import ConflictError, CorruptError, MachineError

PATIENCE = 60
"""How many seconds a transaction waits for the transaction of another process."""


class UncertainError(MachineError):
    """A transaction whose fsync failed: a power cut or a restart decides whether it is kept."""


NOT_KEPT = "nothing of this was kept: "
_TROUBLES: dict[int, tuple[type[MachineError | CorruptError | ConflictError], str, str]] = {
    sqlite3.SQLITE_FULL: (MachineError, "the disk is full", "make room, and do it again"),
    sqlite3.SQLITE_READONLY: (
        MachineError,
        "it is read-only",
        "change the permissions of the file and its folder, or choose another path",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        MachineError,
        "it cannot be opened or created",
        "check that its folder exists and is writable",
    ),
    sqlite3.SQLITE_BUSY: (MachineError, f"another process has held the write lock for {PATIENCE} s", "do it again"),
    sqlite3.SQLITE_PROTOCOL: (MachineError, "too many processes are using it", "do it again"),
    sqlite3.SQLITE_IOERR: (MachineError, "the disk reports an input/output error", "fix the cause, and do it again"),
    sqlite3.SQLITE_IOERR_FSYNC: (
        UncertainError,
        "the disk did not confirm the write",
        "check the disk, and whether this was stored, before you do it again",
    ),
    sqlite3.SQLITE_NOTADB: (
        ConflictError,
        "it is not an SQLite database",
        "choose another path; if it was a log, save what can be read: millrace repair FILE --yes",
    ),
    sqlite3.SQLITE_CORRUPT: (
        CorruptError,
        "the file is damaged",
        "put a copy in its place, or save what can be read: millrace repair FILE --yes",
    ),
}
"""Error class, problem and advice for result codes of SQLite: extended ones, and primary ones for all others."""


@contextmanager
def clear(path: Path, writing: bool = False) -> Iterator[None]:
    """Translate errors of SQLite into errors with advice. If a transaction was `writing`, the advice says so."""
    try:
        yield
    except sqlite3.Error as error:
        plain = explained(error, path, writing)
        if plain is None:
            raise
        raise plain from error


def explained(
    error: sqlite3.Error, path: Path, writing: bool = False, what: str = "log"
) -> MachineError | CorruptError | ConflictError | None:
    """The error for users; None if there is no explanation. A transaction that was `writing` has been rolled back."""
    code, said = getattr(error, "sqlite_errorcode", 0), f" ({error})"
    if code & 0xFF == sqlite3.SQLITE_IOERR and why_no_room(path) is not None:
        code, said = sqlite3.SQLITE_FULL, ""  # SQLite's words name another cause
    found = _TROUBLES.get(code) or _TROUBLES.get(code & 0xFF)
    if found is None:
        return None
    kind, problem, advice = found
    rolled_back = NOT_KEPT if writing and kind is MachineError else ""
    if kind in (CorruptError, ConflictError):  # the command at the end of the advice is to be typed as it is
        return kind(f"{what} {path}: {problem}{said}", advice)
    return kind(f"{what} {path}: {problem}", f"{rolled_back}{advice}{said}")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite found the file damaged."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def is_forbidden(error: sqlite3.Error) -> bool:
    """Whether SQLite could not open the file, or not write to it or beside it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
