"""Commands that save a project and put it back: backup, restore."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from millrace.cli.options import LOG, STORE, LogPath, StoreUrl, plain_mistakes
from millrace.model.errors import PipelineError
from millrace.running.backup import back_up
from millrace.running.copied import Report
from millrace.running.manifest import Manifest
from millrace.running.project import Project
from millrace.running.restore import restore as restored
from millrace.running.totals import many

Checkpoints = Annotated[Path, typer.Option("--folder", help="The folder of the checkpoints.", metavar="FOLDER")]
HERE = Path(".millrace")


def backup(
    context: typer.Context,
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder for the backup.")],
    log_only: Annotated[
        bool, typer.Option("--log-only", help="Save only the log, from which millrace replay computes all views.")
    ] = False,
    folder: Checkpoints = HERE,
    log: LogPath = LOG,
    store: StoreUrl = STORE,
) -> None:
    """Save the log, the checkpoints and the SQLite store as one consistent set, also while pipelines run.

    Running pipelines pause between two micro-batches, for much less than a second. A PostgreSQL store and the files and
    tables of sinks are not in the backup: docs/operations.md says how to save them.

    Example: [bold]millrace backup /backups/monday[/bold], then [bold]millrace restore /backups/monday[/bold]
    """
    began = time.monotonic()
    with plain_mistakes():
        for option in ("folder", "store"):
            # The environment may name a store for all commands, so only one that is typed is a mistake.
            source = context.get_parameter_source(option)
            if log_only and source is not None and source.name == "COMMANDLINE":
                raise PipelineError(f"--{option} has no effect with --log-only; leave it out")
        project = Project(folder, log, store)
        with _shown("saving") as report:
            manifest = back_up(project, to, log_only, report)
        said = f"saved {_content(manifest)} to {to}: {_amount(manifest)}, {time.monotonic() - began:.1f} s"
        sinks = sorted({f"{sink} of {each.pipeline}" for each in manifest.checkpoints for sink in each.sinks})
        if manifest.postgresql is not None:
            said += f"; save the PostgreSQL store, too, which is at version {manifest.postgresql.version}"
        typer.echo(f"{said}; not saved: {', '.join(sinks)}" if sinks else said)


def restore(
    backup: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a backup.")],
    folder: Checkpoints = HERE,
    log: LogPath = LOG,
    store: StoreUrl = STORE,
) -> None:
    """Put a backup in the place of the log, the checkpoints and the SQLite store; pipelines then go on from there.

    Stop the pipelines, servers and producers of the project first. Every file of the backup is verified before anything
    is replaced. The parts that it replaces are moved to before-restore-TIME in the folder of the checkpoints. A backup
    that was made with --log-only replaces only the log.

    Example: [bold]millrace restore /backups/monday[/bold], then [bold]millrace run charts.py[/bold]
    """
    began = time.monotonic()
    with plain_mistakes():
        with _shown("restoring") as report:
            done = restored(Project(folder, log, store), backup, report)
        content = f"{_content(done.manifest)} of {done.manifest.at}"
        said = f"restored {content}: {_amount(done.manifest)}, {time.monotonic() - began:.1f} s"
        typer.echo(said if done.aside is None else f"{said}; moved aside to {done.aside}")


@contextmanager
def _shown(what: str) -> Iterator[Report]:
    """Show progress as a bar in a terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console,
        disable=not console.is_terminal, transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _content(manifest: Manifest) -> str:
    if manifest.log_only:
        return "the log"
    views = ", the views" if manifest.has_views else ""
    return f"the log{views} and {many(len(manifest.checkpoints), 'checkpoint')}"


def _amount(manifest: Manifest) -> str:
    return f"{many(len(manifest.files), 'file')}, {manifest.size / 1e6:.1f} MB"
