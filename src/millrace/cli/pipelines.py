"""Commands about pipelines: run, status, replay, savepoint, explain, check, bench."""

import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from millrace.cli.options import (
    DEFAULTS,
    EXIT_CODES,
    LOCAL,
    LOG,
    STORE,
    CheckpointFolder,
    LogPath,
    Master,
    PipelineFile,
    PipelineName,
    StoreUrl,
    plain_mistakes,
)
from millrace.cli.shown import show
from millrace.eventlog.topics import Log
from millrace.model.duration import SECOND, format_duration
from millrace.model.errors import Kind, MillraceError, unknown
from millrace.model.pipeline import Pipeline
from millrace.plan.explain import explain as explained
from millrace.running.layers import run_batch_layer
from millrace.running.load import load
from millrace.running.preflight import serving
from millrace.running.replay import replay as replayed
from millrace.running.replay import roll_back
from millrace.running.run import behind, run_batch, run_stream
from millrace.running.savepoint import save, start_from
from millrace.running.settings import Settings
from millrace.running.status import Status, all_under
from millrace.spark.progress import clock_notice
from millrace.testing.check import BATCH, STREAM, check_all
from millrace.testing.engines import ENGINES
from millrace.testing.transcript import Document, read_documents
from millrace.views.store import open_store

Latency = Annotated[
    str, typer.Option(help="How long a micro-batch over topics should last; it takes as many records as fit.")
]
Shards = Annotated[
    int | None, typer.Option(help="In how many parts state is kept; fixed by the first run. One a core if none.")
]


def run(
    file: PipelineFile,
    pipeline: PipelineName = None,
    mode: Annotated[
        str, typer.Option(help="micro-batch, which goes on for ever; or batch, once over all there is.", metavar="MODE")
    ] = DEFAULTS.mode,
    layer: Annotated[
        str,
        typer.Option(
            help="speed, the stream; or batch, which brings the archive of layers(...) up to date and puts right all "
            "windows that are over, then stops. Both may run at once.",
            metavar="LAYER",
        ),
    ] = DEFAULTS.layer,
    checkpoint: CheckpointFolder = None,
    log: LogPath = LOG,
    store: StoreUrl = STORE,
    guarantee: Annotated[
        str, typer.Option(help="exactly-once, at-least-once or at-most-once.", metavar="GUARANTEE")
    ] = DEFAULTS.guarantee,
    interval: Annotated[
        str | None,
        typer.Option(help="Start a micro-batch only so often, such as 10s; else as soon as there is work."),
    ] = None,
    latency: Latency = str(DEFAULTS.latency),
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Stop when all that is there has been taken in.")
    ] = False,
    from_savepoint: Annotated[
        Path | None, typer.Option(help="Start a new checkpoint from this savepoint.", metavar="FOLDER")
    ] = None,
    shards: Shards = None,
    master: Master = LOCAL,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each micro-batch.")] = False,
) -> None:
    """Run the pipeline in a Python file.

    It goes on from its checkpoint, and stops with Ctrl-C; nothing is lost if it dies. Its views are tables of the
    store: ask them with millrace query. Records that do not fit go to dead_letters in the checkpoint; what Spark
    prints, to spark.log there.

    Example: [bold]millrace run charts.py --until-caught-up[/bold]
    """
    console = Console(stderr=not json)
    with plain_mistakes():
        settings = Settings(
            mode, layer, checkpoint, log, store, guarantee, interval, latency, until_caught_up, from_savepoint, shards,
            master,
        )  # fmt: skip
        loaded = load(file, pipeline)
        home = settings.home(loaded.name, _called(file, pipeline))
        if from_savepoint is not None:
            start_from(from_savepoint, home, _serving(store, loaded))
        if layer == "batch":
            done = run_batch_layer(console, loaded, home)
        elif mode == "batch":
            done = run_batch(console, loaded, home, shards)
        else:
            done = run_stream(console, loaded, home, settings.how, json)
        Console(stderr=True).out(done, highlight=False)


def replay(
    file: PipelineFile,
    pipeline: PipelineName = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="Go back to what was read before the last one.")] = False,
    checkpoint: CheckpointFolder = None,
    log: LogPath = LOG,
    store: StoreUrl = STORE,
    latency: Latency = str(DEFAULTS.latency),
    shards: Shards = None,
    resend: Annotated[
        bool | None,
        typer.Option(
            "--resend/--no-resend",
            help="Whether topics, functions and custom sinks, which cannot be rewritten, receive all answers again.",
        ),
    ] = None,
    master: Master = LOCAL,
) -> None:
    """Compute the views of a changed pipeline again, from all that the log keeps.

    The new rows are made beside the old ones, which are read and written as before; when they have caught up, one
    transaction swaps them. Stopped, it goes on where it was when it is run again. A pipeline that runs meanwhile is
    to be started again after it.

    Example: [bold]millrace replay charts.py[/bold], then [bold]millrace replay charts.py --rollback[/bold] to go back
    """
    with plain_mistakes():
        loaded = load(file, pipeline)
        settings = Settings(checkpoint=checkpoint, log=log, store=store, latency=latency, shards=shards, master=master)
        home = settings.home(loaded.name, _called(file, pipeline))
        if rollback:
            done = roll_back(loaded, home)
        else:
            done = replayed(Console(stderr=True), loaded, home, settings.how, resend)
        Console(stderr=True).out(done, highlight=False)


def savepoint(
    file: PipelineFile,
    name: Annotated[
        str | None, typer.Argument(help="What to call it; by the time if it has no name.", metavar="[NAME]")
    ] = None,
    pipeline: PipelineName = None,
    checkpoint: CheckpointFolder = None,
    store: StoreUrl = STORE,
) -> None:
    """Copy all that a pipeline needs to go on, as it is now, whether it runs or not.

    Prints the folder of the copy. Start from it: [bold]millrace run charts.py --checkpoint other --from-savepoint
    FOLDER[/bold]
    """
    with plain_mistakes():
        loaded = load(file, pipeline)
        home = Settings(checkpoint=checkpoint, store=store).home(loaded.name, _called(file, pipeline))
        called = name or datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        to = home.checkpoint.parent / "savepoints" / f"{loaded.name}-{called}"
        served = _serving(store, loaded)
        save(home.generation(served), to)
        typer.echo(to)


def status(
    folder: Annotated[Path, typer.Option(help="Where the checkpoints are.", metavar="FOLDER")] = Path(".millrace"),
    log: LogPath = LOG,
    format: Annotated[str, typer.Option(help="table, json or csv.", metavar="FORMAT")] = "table",
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")] = False,
) -> None:
    """Show how pipelines are: whether they run, how fast, how far behind, where their watermark is.

    Example: [bold]millrace status --watch[/bold]
    """
    columns = (
        "pipeline",
        "is",
        "batch",
        "rows/s",
        "seconds",
        "behind",
        "watermark lag",
        "windows",
        "too late",
        "errors",
        "dead",
        "clock moved",
        "ended",
    )
    with plain_mistakes():
        opened = Log(log) if log.exists() else None  # to look is not to make one
        while True:
            found = all_under(folder)
            rows = [_row(each, opened) for each in found]
            if watch:
                Console().clear()
            if not rows and format == "table":
                typer.echo(f"No pipeline has run with a checkpoint in {folder}; start one: millrace run FILE")
            else:
                show(columns, rows, format)
            if format == "table":
                for each in found:
                    notice = clock_notice(each.clock_moved)
                    if notice is not None:
                        typer.echo(f"{each.pipeline}: {notice}")
            if not watch:
                return
            try:
                time.sleep(1)
            except KeyboardInterrupt:
                return


def bench(
    rows: Annotated[int, typer.Option(help="How many events.")] = 4_000_000,
    store: Annotated[
        str | None, typer.Option(help="Where views are kept; an SQLite database of its own if none.", metavar="URL")
    ] = None,
    master: Master = LOCAL,
) -> None:
    """Measure this machine: ad events into a log, counted by campaign on Spark, into a view.

    It is the Yahoo streaming benchmark: filter the views, join each ad to its campaign, count by campaign and 10 s.
    Everything is made in a temporary folder and removed.
    """
    from millrace.running.bench import measure

    with plain_mistakes():
        for line in measure(rows, store, master):
            typer.echo(line)


def explain(
    file: PipelineFile,
    pipeline: PipelineName = None,
    sql: Annotated[bool, typer.Option("--sql", help="Show also the SQL that fused edges run.")] = False,
) -> None:
    """Show the plan of the pipeline in a Python file: its flow, and whether edges run in DuckDB or natively in Spark.

    Example: [bold]millrace explain charts.py[/bold]
    """
    with plain_mistakes():
        typer.echo(explained(load(file, pipeline), statements=sql))


def check(
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
    unreadable: int | None = None
    for path in files:
        try:
            documents = list(read_documents(path))
        except MillraceError as error:
            typer.echo(error.message, err=True)
            unreadable = unreadable or EXIT_CODES[error.kind]
            continue
        if not documents:
            typer.echo(f"{path}: holds no transcript", err=True)
            unreadable = unreadable or EXIT_CODES[Kind.MISTAKE]
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
        raise typer.Exit(unreadable or 1)


def _called(file: Path, pipeline: str | None) -> list[str]:
    """The arguments that name a pipeline in a command."""
    return [str(file)] if pipeline is None else [str(file), "--pipeline", pipeline]


def _serving(store: str, pipeline: Pipeline) -> int:
    with closing(open_store(store)) as opened:
        return serving(opened, pipeline.name)


def _row(status: Status, log: Log | None) -> tuple[Any, ...]:
    folder = status.checkpoint.name
    if status.damaged is not None:
        return status.pipeline, f"damaged: {status.damaged}", *[None] * 10
    progress = status.progress
    lags = [part["lag"] for part in progress["parts"].values() if part["lag"] is not None]
    return (
        status.pipeline if folder == status.pipeline else f"{status.pipeline} ({folder})",
        "running" if status.is_running else "stopped",
        progress["batch"],
        round(progress["rows_per_second"]),
        round(progress["seconds"], 2),
        behind(status.pipeline, log),
        format_duration(max(0, max(lags)) // SECOND * SECOND) if lags else None,
        sum(part["groups"] for part in progress["parts"].values()),
        sum(part["dropped"] for part in progress["parts"].values()),
        sum(part.get("errors", 0) for part in progress["parts"].values()),
        status.dead,
        round(status.clock_moved / SECOND) or None,
        datetime.fromtimestamp(status.at, UTC).isoformat(timespec="seconds"),
    )
