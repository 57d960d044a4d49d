"""Backups: the log, the checkpoints and the SQLite store of a project as one consistent set, while pipelines run.

All pipelines pause between two micro-batches while the checkpoints are copied (as hard links, where possible) and a
read transaction fixes a snapshot of the store, and then one of the log, so that the log holds all records that the
checkpoints have read. The databases are copied from these snapshots while the pipelines run on.
"""

import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millrace import __version__
from millrace.eventlog.durable import sync
from millrace.eventlog.room import why_no_room
from millrace.eventlog.sealed import unsealed
from millrace.eventlog.topics import Log
from millrace.model.errors import NOTHING_LOST, ConflictError, CorruptError, MachineError, MillraceError, NotFoundError
from millrace.running.copied import Meter, Report, copy_file, digest_of_file
from millrace.running.manifest import (
    CHECKPOINTS,
    LOG,
    MANIFEST,
    VIEWS,
    Manifest,
    SavedCheckpoint,
    SavedCommit,
    SavedFile,
    StoreState,
    write_manifest,
)
from millrace.running.project import Project
from millrace.running.savepoint import copy_checkpoint, reason_of
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.damage import damage_of
from millrace.spark.gate import closed
from millrace.spark.history import VIEWS as ALL_VIEWS
from millrace.spark.trouble import by_number
from millrace.views.store import NoViewsError, open_store

_STAGE = ".backup"
"""The folder beside the checkpoints that holds their copies until they are in the backup."""
_ALSO = ("status.json",)
"""The parts of a checkpoint that a savepoint does not hold."""
_PAGES = 512
"""How many pages of a database are copied between two reports of progress."""
_ATTEMPTS = 5
_ELSEWHERE = "choose another folder"


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A consistent set: read transactions of the databases, and copies of the checkpoints."""

    log: sqlite3.Connection
    views: sqlite3.Connection | None
    postgresql: StoreState | None
    letters: Mapping[str, sqlite3.Connection] = field(default_factory=dict)
    """The dead letters of pipelines, by the names of the files."""


def back_up(project: Project, to: Path, log_only: bool = False, report: Report = lambda done, total: None) -> Manifest:
    """Save a project in a folder that is empty or does not exist. With `log_only`, save nothing but the log."""
    _check_places(project, log_only)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        is_backup = (to / MANIFEST).exists()
        raise ConflictError(f"there is a backup in {to} already" if is_backup else f"{to} is not empty", _ELSEWHERE)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    with nullcontext() if log_only else project.alone(), closing(Log(project.log)) as log:
        stage = project.folder / _STAGE
        is_new = not to.exists()
        try:
            with _cleared(stage), ExitStack() as held:
                snapshot = _snapshot_of(project, stage, log_only, held)
                to.mkdir(parents=True, exist_ok=True)
                saved = tuple(_saved(stage))
                files = tuple(_copied(snapshot, stage, to, report))
            manifest = Manifest(__version__, at, log.id, log_only, files, saved, snapshot.postgresql)
            write_manifest(manifest, to)
            sync(to.parent)
        except (OSError, sqlite3.Error) as error:
            plain = _explained(error, to)
            _remove(to, is_new)  # this may free room on a full disk, so the cause is looked for first
            raise plain from error
        except BaseException:
            _remove(to, is_new)
            raise
    return manifest


def _check_places(project: Project, log_only: bool) -> None:
    """Refuse places where nothing is, so that a mistake in an option does not give a backup that lacks a part."""
    only = "or save only the log: --log-only"
    if not project.log.is_file():
        raise NotFoundError(f"there is no log {project.log}", "name it: --log FILE")
    if log_only:
        return
    if not project.folder.is_dir():
        raise NotFoundError(f"there is no folder {project.folder}", f"name that of the checkpoints: --folder; {only}")
    if project.views is not None and not project.views.is_file():
        for folder in project.checkpoints():
            damage = damage_of(Checkpoint(folder))
            if damage is not None:
                raise damage
            if ALL_VIEWS in _about(folder)["outputs"]:
                raise NotFoundError(
                    f"there is no store {project.views}, but checkpoint {folder} belongs to one",
                    f"name it: --store URL; {only}",
                )


def _snapshot_of(project: Project, stage: Path, log_only: bool, held: ExitStack) -> _Snapshot:
    """Fix a consistent set. The pipelines pause meanwhile."""
    if log_only:
        log = _reader(project.log, held)
        _begin(log)
        return _Snapshot(log, None, None)
    for _ in range(_ATTEMPTS):
        with ExitStack() as attempt:
            shutil.rmtree(stage, ignore_errors=True)
            views = None if project.views is None or not project.views.is_file() else _reader(project.views, attempt)
            log = _reader(project.log, attempt)
            checkpoints = project.checkpoints()
            with closed(checkpoints):
                (stage / CHECKPOINTS).mkdir(parents=True)
                for folder in checkpoints:
                    copy_checkpoint(folder, stage / CHECKPOINTS / folder.name, _ALSO, links=True)
                if views is not None:
                    _begin(views)
                letters = {path.name: _reader(path, attempt) for path in project.letters()}
                for each in letters.values():
                    _begin(each)
                state = _postgresql(project, checkpoints) if project.views is None else None
                # The batch layer writes its boundary before the views.
                for file in project.beside_checkpoints():
                    shutil.copy2(file, stage / CHECKPOINTS / file.name)
                _begin(log)
                # The first run of a pipeline may have made a checkpoint that is not closed, and then its views.
                same = project.checkpoints() == checkpoints and (views is not None) == _has_file(project)
            if same:
                held.push(attempt.pop_all())
                return _Snapshot(log, views, state, letters)
    raise MachineError(
        f"pipelines in {project.folder} were started during every attempt", "back up again when they run"
    )


def _has_file(project: Project) -> bool:
    return project.views is not None and project.views.is_file()


def _reader(path: Path, held: ExitStack) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", 60, isolation_level=None, check_same_thread=False, uri=True
    )
    return held.enter_context(closing(connection))


def _begin(connection: sqlite3.Connection) -> None:
    """Begin a read transaction; SQLite fixes its snapshot with the first read."""
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


def _postgresql(project: Project, checkpoints: list[Path]) -> StoreState | None:
    """The state of a PostgreSQL store; None if it has no views yet."""
    pipelines = sorted({str(_about(folder)["pipeline"]) for folder in checkpoints})
    with closing(open_store(project.store)) as store, suppress(NoViewsError):
        commits = []
        for pipeline in pipelines:
            for generation in store.generations(pipeline):
                found = store.last_commit(pipeline, generation.number)
                if found is not None:
                    commits.append(
                        SavedCommit(pipeline, generation.number, found.checkpoint, found.batch, found.digest)
                    )
        return StoreState(store.id(), store.version(), tuple(commits))
    return None


def _saved(stage: Path) -> Iterator[SavedCheckpoint]:
    for file in sorted(stage.glob(f"{CHECKPOINTS}/*/millrace.json")):
        about, history = _about(file.parent), Checkpoint(file.parent).history()
        sinks = tuple(sorted(set(about["outputs"]) - {ALL_VIEWS}))
        batch = -1 if history is None else history.done
        yield SavedCheckpoint(file.parent.name, about["pipeline"], about["generation"], batch, sinks)


def _about(checkpoint: Path) -> dict[str, Any]:
    return unsealed((checkpoint / "millrace.json").read_bytes())


def _copied(snapshot: _Snapshot, stage: Path, to: Path, report: Report) -> Iterator[SavedFile]:
    """Copy a snapshot to a backup; its files, as they are now on disk."""
    databases = {LOG: snapshot.log} | ({} if snapshot.views is None else {VIEWS: snapshot.views})
    databases |= {f"{CHECKPOINTS}/{name}": letters for name, letters in snapshot.letters.items()}
    files = sorted(path for path in stage.rglob("*") if path.is_file())
    sizes = {path: path.stat().st_size for path in files}
    meter = Meter(report, sum(sizes.values()) + sum(map(_size, databases.values())))
    for name, connection in databases.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        _copy_database(connection, to / name, meter)
        yield SavedFile(name, (to / name).stat().st_size, digest_of_file(to / name))
    for path in files:
        name = path.relative_to(stage).as_posix()
        digest = copy_file(path, to / name, meter)
        yield SavedFile(name, sizes[path], digest)
    for folder in to.rglob("*/"):
        sync(folder)


def _size(database: sqlite3.Connection) -> int:
    return int(_page_size(database) * database.execute("PRAGMA page_count").fetchone()[0])


def _page_size(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA page_size").fetchone()[0])


def _copy_database(source: sqlite3.Connection, to: Path, meter: Meter) -> None:
    """Copy a database page by page, as the open read transaction of `source` sees it."""
    page, left = _page_size(source), _size(source)

    def progress(status: int, remaining: int, total: int) -> None:
        nonlocal left
        meter.add(left - remaining * page)
        left = remaining * page

    with closing(sqlite3.connect(to, isolation_level=None)) as copy:
        # An incomplete copy is worthless, so it needs no journal; the file is fsynced once at the end.
        copy.execute("PRAGMA journal_mode = OFF")
        copy.execute("PRAGMA synchronous = OFF")
        source.backup(copy, pages=_PAGES, progress=progress)
    sync(to)


@contextmanager
def _cleared(stage: Path) -> Iterator[None]:
    """Remove the stage before and after, also one that a killed backup left."""
    shutil.rmtree(stage, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _remove(to: Path, is_new: bool) -> None:
    """Remove an incomplete backup."""
    for path in to.glob("*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if is_new and to.exists():
        to.rmdir()


def _explained(error: OSError | sqlite3.Error, to: Path) -> MillraceError:
    full = why_no_room(to / LOG) if to.exists() else None
    if full is not None:
        return by_number(full, to)
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return CorruptError(f"cannot back up a damaged database: {error}", "see what can be done: millrace repair FILE")
    said = reason_of(error) if isinstance(error, OSError) else str(error)
    return MachineError(f"cannot back up to {to}: {said}", NOTHING_LOST)
