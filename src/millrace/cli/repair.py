"""The command repair."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from millrace.cli.options import (
    EXIT_CODES,
    LOG,
    STORE,
    CheckpointFolder,
    LogPath,
    PipelineFile,
    PipelineName,
    StoreUrl,
    called,
    plain_mistakes,
)
from millrace.model.errors import Kind
from millrace.running.examine import clock_note, replay_ways
from millrace.running.findings import Finding
from millrace.running.load import load
from millrace.running.repair import look
from millrace.running.repair import repair as repaired
from millrace.running.settings import Settings


def repair(
    file: PipelineFile,
    pipeline: PipelineName = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it: skip what cannot be read, and move aside what is damaged.")
    ] = False,
    checkpoint: CheckpointFolder = None,
    log: LogPath = LOG,
    store: StoreUrl = STORE,
) -> None:
    """Find what is wrong with the log, the views, the checkpoint and the sinks of a pipeline, and mend it.

    Without --yes it only looks: it prints what is wrong, the ways on, what each one loses, and the command for it. It
    exits with 6 if something is wrong. With --yes it skips damaged blocks, records that retention removed unread and
    files that cannot be read, saves what can be read of a log that SQLite cannot read, moves a damaged SQLite store
    aside, and drops the generation of a stopped replay. Nothing is deleted. If the answers must be computed again, the
    last line is the command for it. Stop the pipeline first.

    Example: [bold]millrace repair charts.py[/bold], then [bold]millrace repair charts.py --yes[/bold]
    """
    with plain_mistakes():
        loaded = load(file, pipeline)
        settings = Settings(checkpoint=checkpoint, log=log, store=store)
        home = settings.home(loaded.name, called(file, pipeline))
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("reading the log"), BarColumn(), DownloadColumn(), console=console,
            disable=not console.is_terminal, transient=True,
        )  # fmt: skip
        with bar:
            task = bar.add_task("log", total=None)

            def on_block(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total or None)

            with home.named():
                if yes:
                    outcome = repaired(loaded, home, datetime.now(UTC).strftime("%Y%m%dT%H%M%S"), on_block)
                    done, left = outcome.done, outcome.left
                else:
                    done, left = (), tuple(look(loaded, home, on_block))
        for line in done:
            typer.echo(line)
        _show(left)
        note = None if left else clock_note(home)
        if note is not None:
            typer.echo(f"note: {note}")
        if not left:
            typer.echo("nothing is wrong any more" if done else "nothing is wrong")
            return
        if yes and any(finding.replays for finding in left):
            typer.echo(" or ".join(str(way.command) for way in replay_ways(loaded, home)))
        raise typer.Exit(EXIT_CODES[Kind.CONFLICT])


def _show(findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        for line in finding.lines():
            typer.echo(line)
