"""Tokens: who may do what. They are in a file beside the log, hashed.

A token is 32 random bytes, so that nobody finds it from its SHA-256: a salt or a slow hash would add nothing.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millrace.model.errors import CorruptError, MachineError, not_found
from millrace.views.rights import Rights, Scope

FILE = "tokens.json"
"""The name of the file, in the folder of the log."""
_PREFIX = "mr_"
_FORMAT = 1
_LOOK_EVERY = 0.25
"""How many seconds pass between two looks at the file, so that a change acts within a second."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its secret."""

    id: str
    digest: str
    rights: Rights
    per_second: int = 1_000
    """The maximum number of requests a second."""
    max_bytes: int = 64 << 20
    """The maximum size of a request body."""
    created: str = ""


def create(path: Path, rights: Rights, per_second: int, max_bytes: int, now: datetime) -> tuple[Token, str]:
    """Add a token to the file; returns it with its secret, which is not kept."""
    secret = _PREFIX + secrets.token_urlsafe(32)
    made = Token(
        secrets.token_hex(4),
        _digest(secret),
        rights,
        per_second,
        max_bytes,
        now.astimezone(UTC).isoformat("T", "seconds"),
    )
    with _changing(path) as tokens:
        tokens.append(made)
    return made, secret


def revoke(path: Path, id: str) -> None:
    """Remove a token. The file stays, even if it was the last: a server that had tokens never serves without."""
    with _changing(path) as tokens:
        left = [each for each in tokens if each.id != id]
        if len(left) == len(tokens):
            raise not_found("token", id, (each.id for each in tokens), "millrace tokens list shows them")
        tokens[:] = left


def load(path: Path) -> tuple[Token, ...] | None:
    """The tokens of a file; None if there is no file. Raises CorruptError if it is damaged."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT:
            raise ValueError("of another release")
        return tuple(map(_token, content["tokens"]))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MachineError(f"the tokens cannot be read: {error.strerror}", "let the server read its tokens") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"the file of tokens is damaged: {error}", "create it anew: millrace tokens create"
        ) from None


class Tokens:
    """The tokens of a server, as the file has them now."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """`clock` counts seconds."""
        self._path, self._clock = path, clock
        self._looked = -_LOOK_EVERY
        self._file: tuple[int, ...] | None = None
        self._known: dict[str, Token] | None = None

    @property
    def are_required(self) -> bool:
        """Whether a request needs a token: as soon as there has been one."""
        return self._now() is not None

    def find(self, secret: str) -> Token | None:
        """The token with a secret; None if there is none, or no longer."""
        return (self._now() or {}).get(_digest(secret))

    def _now(self) -> dict[str, Token] | None:
        now = self._clock()
        if now - self._looked >= _LOOK_EVERY:
            file = _file_id(self._path)
            if file != self._file or file is None:
                found = load(self._path)
                self._known = None if found is None else {each.digest: each for each in found}
                self._file = file
            self._looked = now
        return self._known


@contextmanager
def _changing(path: Path) -> Iterator[list[Token]]:
    """The tokens of a file, which is replaced by the list as it is at the end of the block."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = list(load(path) or ())
            yield tokens
            _write(path, tokens)
    except OSError as error:
        raise MachineError(f"cannot write the tokens: {error.strerror}", "fix the cause, and try again") from None


def _write(path: Path, tokens: Sequence[Token]) -> None:
    new = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    content = json.dumps({"format": _FORMAT, "tokens": list(map(_plain, tokens))}, indent=1)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _plain(token: Token) -> dict[str, Any]:
    rights = token.rights
    return {
        "id": token.id,
        "sha256": token.digest,
        "scope": rights.scope,
        "views": None if rights.views is None else sorted(rights.views),
        "topics": None if rights.topics is None else sorted(rights.topics),
        "row_filters": dict(rights.row_filters),
        "per_second": token.per_second,
        "max_bytes": token.max_bytes,
        "created": token.created,
    }


def _token(plain: dict[str, Any]) -> Token:
    views, topics = plain["views"], plain["topics"]
    rights = Rights(
        Scope(plain["scope"]),
        None if views is None else frozenset(views),
        None if topics is None else frozenset(topics),
        tuple(sorted(plain["row_filters"].items())),
    )
    made = Token(plain["id"], plain["sha256"], rights, created=plain["created"])
    return replace(made, per_second=int(plain["per_second"]), max_bytes=int(plain["max_bytes"]))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _file_id(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
