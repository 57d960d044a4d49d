"""The manifest of a backup: what it holds, with the checksum of every file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from millrace.eventlog.durable import write_whole
from millrace.eventlog.sealed import sealed, unsealed
from millrace.model.errors import ConflictError, CorruptError, NotFoundError

MANIFEST = "manifest.json"
LOG = "log.db"
"""The log in a backup."""
VIEWS = "views.db"
"""The SQLite store in a backup."""
CHECKPOINTS = "checkpoints"
"""The folder of the checkpoints in a backup, and of the boundaries of batch layers."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a backup."""

    path: str
    """Relative to the folder of the backup, with slashes."""
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint in a backup."""

    name: str
    """The name of its folder."""
    pipeline: str
    generation: int
    batch: int
    """The last micro-batch that is complete in it; -1 if there is none."""
    sinks: tuple[str, ...]
    """The sinks of the pipeline. The backup does not hold them, except topics of the log."""


@dataclass(frozen=True, slots=True)
class SavedCommit:
    """The last commit to a generation of a pipeline's views in a PostgreSQL store."""

    pipeline: str
    generation: int
    checkpoint: str
    batch: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state of a PostgreSQL store at the time of a backup, which does not hold the store's rows."""

    id: str
    version: int
    commits: tuple[SavedCommit, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a backup."""

    version: str
    """The version of Millrace that made it."""
    at: str
    """The time of the backup, as ISO text."""
    log_id: str
    log_only: bool
    files: tuple[SavedFile, ...]
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    postgresql: StoreState | None = None
    """None if the store is not in PostgreSQL, or has no views yet."""

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def has_views(self) -> bool:
        """Whether the backup holds an SQLite store."""
        return any(file.path == VIEWS for file in self.files)


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest to the folder of a backup, which completes it."""
    text = json.dumps(sealed({"format": _FORMAT, **asdict(manifest)}), indent=1)
    write_whole(folder / MANIFEST, lambda path: path.write_text(text, encoding="utf-8"))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a backup. Refuses a folder that is not a complete backup."""
    file = folder / MANIFEST
    try:
        known = unsealed(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"{folder} is not a backup, or one that was not completed: it has no {MANIFEST}",
            "name the folder of a backup; to make one: millrace backup FOLDER",
        ) from None
    except ValueError:
        raise _damaged(folder) from None
    format = known.pop("format", None)
    if isinstance(format, int) and format != _FORMAT:
        raise ConflictError(
            f"backup {folder} has format {format}, and this Millrace reads format {_FORMAT}",
            f"restore it with Millrace {known.get('version')}",
        )
    try:
        manifest = _built(known)
    except (TypeError, KeyError, ValueError):
        raise _damaged(folder) from None
    return manifest


def _built(known: Mapping[str, Any]) -> Manifest:
    files = tuple(SavedFile(**file) for file in known["files"])
    if not all(_is_inside(PurePosixPath(file.path)) for file in files) or LOG not in {file.path for file in files}:
        raise ValueError("it names files that no backup has")
    state = known["postgresql"]
    if state is not None:
        state = StoreState(**{**state, "commits": tuple(SavedCommit(**commit) for commit in state["commits"])})
    checkpoints = tuple(SavedCheckpoint(**{**each, "sinks": tuple(each["sinks"])}) for each in known["checkpoints"])
    return Manifest(**{**known, "files": files, "checkpoints": checkpoints, "postgresql": state})


def _is_inside(path: PurePosixPath) -> bool:
    """Whether a path is one of those that backups have, so that a restore writes nowhere else."""
    if str(path) in (LOG, VIEWS):
        return True
    return path.parts[0] == CHECKPOINTS and len(path.parts) > 1 and ".." not in path.parts


def _damaged(folder: Path) -> CorruptError:
    return CorruptError(f"{MANIFEST} of backup {folder} is damaged", "restore another backup; nothing was changed")
