"""The command line."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millrace import __version__, demo
from millrace.model.errors import ModelError, unknown
from millrace.testing.check import BATCH, STREAM, check_all
from millrace.testing.engines import ENGINES
from millrace.testing.transcript import Document, read_documents

app = typer.Typer(
    name="millrace",
    help="Stream processing for Python people, on Spark.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command("check")
def check_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML files of transcripts.")],
    engine: Annotated[
        str,
        typer.Option(
            help="What to run them against: reference, the slow one that says what is meant; panes, the fast one; "
            "spark-batch, which runs all elements at once on Spark and compares the answers with the reference's; "
            "spark-stream, which runs every step as a micro-batch of a Spark stream.",
            metavar="ENGINE",
        ),
    ] = "reference",
) -> None:
    """Run transcripts: windowed aggregations, step by step, with every pane they must produce.

    Prints a line a transcript, with the step and the difference where one fails.
    Exits with 1 if any failed, with 2 if a file cannot be read.
    The format is described in docs/transcripts.md.

    Example: [bold]millrace check tests/transcripts/*.yaml[/bold]
    """
    known = (*ENGINES, BATCH, STREAM)
    if engine not in known:
        typer.echo(unknown("engine", engine, known), err=True)
        raise typer.Exit(2)
    found: list[tuple[Path, Document]] = []
    unreadable = False
    for path in files:
        try:
            documents = list(read_documents(path))
        except ModelError as error:
            typer.echo(error.message, err=True)
            unreadable = True
            continue
        if not documents:
            typer.echo(f"{path}: holds no transcript", err=True)
            unreadable = True
        found += [(path, document) for document in documents]
    passed = failed = 0
    verdicts = check_all([document for _, document in found], engine)
    for (path, document), verdict in zip(found, verdicts, strict=True):
        if verdict.passed:
            passed += 1
            typer.echo(f"ok      {document.name}")
        else:
            failed += 1
            typer.echo(f"FAILED  {document.name} ({path}:{verdict.line}): {verdict.failure}")
    typer.echo(f"{passed} passed, {failed} failed")
    if unreadable or failed:
        raise typer.Exit(2 if unreadable else 1)


@app.command("demo")
def demo_command() -> None:
    """Show Millrace at work: the Dataflow paper's worked example, figure by figure."""
    demo.show(Console())
