"""Commands about a Spark cluster for development."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import plain_mistakes
from millrace.cluster.cluster import PORT, Cluster, running, start, stop
from millrace.model.errors import NotFoundError

cluster = typer.Typer(no_args_is_help=True, help="Run a Spark cluster for development, on this machine only.")

Folder = Annotated[Path, typer.Option(help="The folder of the cluster: output and scratch files.", metavar="FOLDER")]
FOLDER = Path(".millrace", "cluster")


@cluster.command("start")
def start_(
    workers: Annotated[int, typer.Option(help="The number of workers.", min=1)] = 2,
    cores: Annotated[
        int | None,
        typer.Option(help="The cores that each worker offers. Default: its share of the machine's.", min=1),
    ] = None,
    memory: Annotated[
        str, typer.Option(help="The memory that each worker offers to executors, such as 2g.", metavar="SIZE")
    ] = "1g",
    port: Annotated[
        int, typer.Option(help="The port of the master; 0 takes a free one.", min=0, max=65_535)
    ] = PORT,
    folder: Folder = FOLDER,
) -> None:  # fmt: skip
    """Start a master and workers as processes in the background, and print the URL of the master.

    They listen on this machine only, but to all users of it, and run code for whoever connects: use it on a machine of
    your own.

    Example: [bold]millrace cluster start --workers 2[/bold], then
    [bold]millrace run charts.py --master spark://127.0.0.1:7077[/bold]
    """
    with plain_mistakes():
        started = start(folder, workers, cores, memory, port)
        assert started.master is not None
        each = started.workers[0]
        many, cores_ = _counted(workers, "worker"), _counted(each.cores, "core")
        typer.echo(
            f"a cluster runs: {many} with {cores_} and {each.memory} each; stop it with millrace cluster stop", err=True
        )
        typer.echo(started.master.url)


@cluster.command()
def status(
    folder: Folder = FOLDER, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Print the processes of the cluster in a folder; exit code 3 if none runs, 1 if some have ended."""
    with plain_mistakes():
        found = running(folder)
        if found is None:
            raise NotFoundError(f"no cluster runs in {folder}", "start one: millrace cluster start")
        if as_json:
            about = {**asdict(found), "url": None if found.master is None else found.master.url, "folder": str(folder)}
            typer.echo(json.dumps(about))
        else:
            _show(found)
        if not found.is_whole:
            raise typer.Exit(1)


@cluster.command("stop")
def stop_(folder: Folder = FOLDER) -> None:
    """Stop all processes of the cluster in a folder."""
    with plain_mistakes():
        stopped = stop(folder)
        at = "" if stopped.master is None else f" on {stopped.master.url}"
        typer.echo(f"stopped the cluster{at}")


def _show(found: Cluster) -> None:
    master = found.master
    if master is None:
        typer.echo("master: has ended; stop the rest with millrace cluster stop")
    else:
        typer.echo(f"master: {master.url}, process {master.pid}, page http://127.0.0.1:{master.page}")
    for worker in found.workers:
        does = "has ended" if worker.pid is None else f"process {worker.pid}"
        typer.echo(f"worker {worker.number}: cores {worker.cores}, memory {worker.memory}, {does}")


def _counted(many: int, what: str) -> str:
    return f"{many} {what}{'' if many == 1 else 's'}"
