"""The command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millrace import __version__, demo, running
from millrace.edge.explain import explain
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


PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="A Python file that holds a Pipeline.")]
PipelineName = Annotated[str | None, typer.Option("--pipeline", metavar="NAME", help="Which, if it holds several.")]


@app.command("run")
def run_command(
    file: PipelineFile,
    pipeline: PipelineName = None,
    mode: Annotated[
        str, typer.Option(help="micro-batch, which goes on for ever; or batch, once over all there is.", metavar="MODE")
    ] = "micro-batch",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="The folder that remembers how far it has come; .millrace/NAME if none is given.", metavar="FOLDER"
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="The SQLite database of the views; views.db in the checkpoint if none.", metavar="FILE"),
    ] = None,
    guarantee: Annotated[
        str, typer.Option(help="exactly-once, at-least-once or at-most-once.", metavar="GUARANTEE")
    ] = "exactly-once",
    interval: Annotated[
        str | None,
        typer.Option(help="Start a micro-batch only so often, such as 10s; else as soon as there is work."),
    ] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Stop when all that is there has been taken in.")
    ] = False,
    shards: Annotated[
        int | None, typer.Option(help="In how many parts state is kept; fixed by the first run. One a core if none.")
    ] = None,
    master: Annotated[str, typer.Option(help="The Spark to run on.", metavar="URL")] = "local[*,4]",
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each micro-batch.")] = False,
) -> None:
    """Run the pipeline in a Python file.

    It goes on from its checkpoint, and stops with Ctrl-C; nothing is lost if it dies. Views are kept in the store,
    a table each, as changes with a diff of +1 or -1. Records that do not fit go to dead_letters in the checkpoint;
    what Spark prints, to spark.log there.

    Example: [bold]millrace run charts.py --until-caught-up[/bold]
    """
    console = Console(stderr=not json)
    with _plain_mistakes():
        if mode not in ("micro-batch", "batch"):
            raise ModelError(unknown("mode", mode, ("micro-batch", "batch")))
        loaded = running.load(file, pipeline)
        folder = checkpoint or Path(".millrace", loaded.name)
        if mode == "batch":
            done = running.run_batch(console, loaded, folder, store=store, shards=shards, master=master)
        else:
            done = running.run_stream(
                console, loaded, folder, json, store=store, guarantee=guarantee, interval=interval,
                until_caught_up=until_caught_up, shards=shards, master=master,
            )  # fmt: skip
        Console(stderr=True).out(done, highlight=False)


@app.command("explain")
def explain_command(file: PipelineFile, pipeline: PipelineName = None) -> None:
    """Show the flow of the pipeline in a Python file, and how its edge runs: fused in DuckDB, or natively in Spark.

    Example: [bold]millrace explain charts.py[/bold]
    """
    with _plain_mistakes():
        typer.echo(explain(running.load(file, pipeline)))


@contextmanager
def _plain_mistakes() -> Iterator[None]:
    """Say what is wrong, without a stack, and end with 2."""
    try:
        yield
    except ModelError as error:
        # A mistake in an option has no line of the user's; what called us then is the parser of the command line.
        ours = error.place is None or Path(error.place.file).is_relative_to(Path(typer.__file__).parents[1])
        typer.echo(error.message if ours else str(error), err=True)
        raise typer.Exit(2) from None


@app.command("demo")
def demo_command() -> None:
    """Show Millrace at work: the Dataflow paper's worked example, figure by figure."""
    demo.show(Console())
