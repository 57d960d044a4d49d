"""Restores a backup. Nothing is deleted: whatever is replaced is moved aside first."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from millrace.eventlog.durable import sync
from millrace.eventlog.room import why_no_room
from millrace.model.errors import ConflictError, CorruptError, MachineError, PipelineError
from millrace.running.copied import Meter, Report, copy_file
from millrace.running.manifest import CHECKPOINTS, LOG, VIEWS, Manifest, SavedFile, read_manifest
from millrace.running.project import Project
from millrace.running.savepoint import reason_of
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.trouble import by_number

_STAGE = ".restore"
_PATIENCE = 10
"""How many seconds to wait for a writer of a database that is moved aside."""
_BESIDE = ("-wal", "-shm")
"""The suffixes of the files that belong to an SQLite database."""
_CHECKPOINT_PARTS = ("millrace.json", "spark", "lock")
"""A folder with one of these is a checkpoint, possibly a damaged one."""
_UNCHANGED = "restore another backup; nothing was changed"


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome of a restore."""

    manifest: Manifest
    aside: Path | None
    """The folder that holds what was replaced; None if nothing was."""


def restore(project: Project, backup: Path, report: Report = lambda done, total: None) -> Restored:
    """Put the parts of a backup in the places of those of a project. Refuses while one of its pipelines runs.

    Every file is copied and its checksum verified before anything is replaced. A backup of only the log replaces only
    the log. Any other replaces all checkpoints of the folder, because a checkpoint that the restored store does not
    know would be refused.
    """
    manifest = read_manifest(backup)
    if manifest.has_views and project.views is None:
        raise PipelineError("the backup holds an SQLite store", "name the file to restore it to: --store FILE")
    with project.alone(), ExitStack() as held:
        for folder in _checkpoint_folders(project):
            held.enter_context(Checkpoint(folder).lock())
        places = _places(project, manifest)
        try:
            with _staged(places):
                _copy(manifest, backup, places, report)
                aside = _replace(project, manifest, places)
        except OSError as error:
            full = why_no_room(project.log)
            if full is not None:
                raise by_number(full, project.folder) from error
            raise MachineError(
                f"cannot restore {backup}: {reason_of(error)}", "fix the cause, then restore again"
            ) from error
    return Restored(manifest, aside)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a part of a backup goes: first beside its place, so that a rename puts it there."""

    part: str
    stage: Path
    to: Path


def _places(project: Project, manifest: Manifest) -> list[_Place]:
    def of_file(part: str, to: Path) -> _Place:
        to = to.absolute()
        return _Place(part, to.with_name(f"{_STAGE}-{to.name}"), to)

    places = [of_file(LOG, project.log)]
    if manifest.has_views:
        assert project.views is not None
        places.append(of_file(VIEWS, project.views))
    if not manifest.log_only:
        places.append(_Place(CHECKPOINTS, project.folder / _STAGE, project.folder))
    return places


def _checkpoint_folders(project: Project) -> list[Path]:
    """The checkpoints in the folder of a project, also damaged ones."""
    folders = [path for path in sorted(project.folder.iterdir()) if path.is_dir() and path.name != _STAGE]
    return [path for path in folders if any((path / part).exists() for part in _CHECKPOINT_PARTS)]


@contextmanager
def _staged(places: list[_Place]) -> Iterator[None]:
    """Remove the staged copies before and after, also those of a killed restore."""
    _unstage(places)
    try:
        yield
    finally:
        _unstage(places)


def _unstage(places: list[_Place]) -> None:
    for place in places:
        if place.stage.is_dir():
            shutil.rmtree(place.stage, ignore_errors=True)
        else:
            place.stage.unlink(missing_ok=True)


def _copy(manifest: Manifest, backup: Path, places: list[_Place], report: Report) -> None:
    """Copy the files beside their places. Raises CorruptError for a file that is not the one that was saved."""
    meter = Meter(report, manifest.size)
    stages = {place.part: place.stage for place in places}
    for file in manifest.files:
        part, _, rest = file.path.partition("/")
        if part in stages:
            to = stages[part] / rest if rest else stages[part]
            if _digest(file, backup, to, meter) != file.sha256:
                raise CorruptError(f"{file.path} of backup {backup} is damaged", _UNCHANGED)
    for folder in (folder for stage in stages.values() if stage.is_dir() for folder in (stage, *stage.rglob("*/"))):
        sync(folder)


def _digest(file: SavedFile, backup: Path, to: Path, meter: Meter) -> str:
    try:
        return copy_file(backup / file.path, to, meter)
    except FileNotFoundError:
        raise CorruptError(f"{file.path} of backup {backup} is missing", _UNCHANGED) from None


def _replace(project: Project, manifest: Manifest, places: list[_Place]) -> Path | None:
    """Move the present parts aside, and the staged ones to their places. Returns the folder of the former."""
    aside = _unused(project.folder / f"before-restore-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}")
    with ExitStack() as held:
        for place in places:
            if place.part == CHECKPOINTS:
                names = {path.name for path in place.stage.iterdir()} if place.stage.is_dir() else set()
                present = [path for name in sorted(names) if (path := project.folder / name).exists()]
                letters = project.letters()
                for path in {*present, *_checkpoint_folders(project), *project.beside_checkpoints()} - {*letters}:
                    _move(path, aside / CHECKPOINTS / path.name)
                for path in letters:
                    _move_database(path, aside / CHECKPOINTS / path.name, held)
            else:
                _move_database(place.to, aside / place.part, held)
        for place in places:
            if place.part != CHECKPOINTS:
                _put(place.stage, place.to)
            elif place.stage.is_dir():
                for path in sorted(place.stage.iterdir()):
                    _put(path, place.to / path.name)
    return aside if aside.exists() else None


def _unused(path: Path) -> Path:
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _move(path: Path, to: Path) -> None:
    if path.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, to)


def _move_database(path: Path, to: Path, held: ExitStack) -> None:
    held.enter_context(_write_lock(path.absolute()))
    for suffix in ("", *_BESIDE):
        _move(path.with_name(path.name + suffix), to.with_name(to.name + suffix))


def _put(stage: Path, to: Path) -> None:
    if to.exists():
        raise ConflictError(
            f"another process made {to} during the restore", "stop everything that uses the project, and restore again"
        )
    stage.rename(to)
    sync(to.parent)


@contextmanager
def _write_lock(database: Path) -> Iterator[None]:
    """Hold the write lock of a database, if it is one: a transaction in progress ends before the file is moved."""
    connection = None
    with suppress(sqlite3.DatabaseError):  # a damaged file is moved aside, too
        if database.is_file():
            connection = sqlite3.connect(f"{database.as_uri()}?mode=rw", _PATIENCE, isolation_level=None, uri=True)
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                    connection.close()
                    raise MachineError(
                        f"another process writes to {database}", "stop it, and restore again; nothing was changed"
                    ) from None
    try:
        yield
    finally:
        if connection is not None:
            connection.close()
