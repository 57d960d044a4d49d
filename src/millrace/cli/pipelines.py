"""Commands about pipelines: run, status, replay, savepoint, explain, check, bench."""

import sys
import time
import traceback
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from millrace.broker.jars import MAVEN
from millrace.cli.options import (
    DEFAULTS,
    LOCAL,
    LOG,
    STORE,
    CheckpointFolder,
    CheckpointsFolder,
    Conf,
    LogPath,
    Master,
    PipelineFile,
    PipelineFiles,
    PipelineName,
    PipelineNames,
    Shared,
    StoreUrl,
    called,
    exit_code,
    parsed_conf,
    plain_mistakes,
)
from millrace.cli.serving import HOST, PORT, Host, Port, served_beside
from millrace.cli.shown import AsJson, Format, chosen, show
from millrace.eventlog.topics import Log
from millrace.model.duration import SECOND, format_duration
from millrace.model.errors import MillraceError, PipelineError, unknown
from millrace.model.pipeline import Pipeline
from millrace.plan.explain import explain as explained
from millrace.running.layers import run_batch_layer
from millrace.running.load import load, load_all
from millrace.running.preflight import serving
from millrace.running.replay import replay as replayed
from millrace.running.replay import roll_back
from millrace.running.run import Ended, behind, run_batch, run_stream, run_streams
from millrace.running.savepoint import save
from millrace.running.settings import Settings
from millrace.running.status import Status, all_under
from millrace.running.watching import watch as watched
from millrace.testing.check import BATCH, STREAM, check_all
from millrace.testing.engines import ENGINES
from millrace.testing.transcript import Document, read_documents
from millrace.views.store import open_store

Latency = Annotated[
    str,
    typer.Option(help="The target duration of a micro-batch over topics; it limits how many records one reads."),
]
Shards = Annotated[
    int | None,
    typer.Option(
        help="The number of shards of the state; the first run fixes it. Default: one for each core of this machine or "
        "of the cluster."
    ),
]


def run(
    files: PipelineFiles,
    pipeline: PipelineNames = None,
    mode: Annotated[
        str,
        typer.Option(
            help="micro-batch runs as a stream without end; real-time does so without micro-batches, from Kafka; "
            "batch runs once over all records of the sources.",
            metavar="MODE",
        ),
    ] = DEFAULTS.mode,
    layer: Annotated[
        str,
        typer.Option(
            help="speed runs the stream; batch brings the archive of layers(...) up to date, computes all windows that "
            "are over again from it, and exits. Both layers can run at the same time.",
            metavar="LAYER",
        ),
    ] = DEFAULTS.layer,
    checkpoint: CheckpointFolder = None,
    log: LogPath = LOG,
    store: StoreUrl = STORE,
    guarantee: Annotated[
        str,
        typer.Option(
            help="The guarantee of views and sinks after a crash: exactly-once, at-least-once or at-most-once.",
            metavar="GUARANTEE",
        ),
    ] = DEFAULTS.guarantee,
    interval: Annotated[
        str | None,
        typer.Option(
            help="The minimum time between the starts of two micro-batches, such as 10s. Default: a micro-batch starts "
            "as soon as there is work.",
            metavar="DURATION",
        ),
    ] = None,
    latency: Latency = str(DEFAULTS.latency),
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Stop when all records in the sources have been processed.")
    ] = False,
    retry: Annotated[
        str | None,
        typer.Option(
            help="For how long to try again, with back-off, after the store, the log or a file system went away. "
            "Default: 10m; 0s with --until-caught-up.",
            metavar="DURATION",
        ),
    ] = None,
    from_savepoint: Annotated[
        Path | None, typer.Option(help="Start a new checkpoint from this savepoint.", metavar="FOLDER")
    ] = None,
    from_here: Annotated[
        bool,
        typer.Option(
            "--from-here",
            help="Let a view or sink that is new to the checkpoint start with the records that come next. Without this "
            "option it is refused if it would miss records; millrace replay fills it from the log.",
        ),
    ] = False,
    shards: Shards = None,
    master: Master = LOCAL,
    conf: Conf = None,
    shared: Shared = None,
    jars: Annotated[
        Path | None,
        typer.Option(
            help="A folder with the jars of Spark's Kafka connector, for real-time mode. Default: they are fetched "
            f"once from Maven Central, or from the Maven repository whose URL is in {MAVEN}.",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each micro-batch.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve HTTP beside the run, as millrace serve does: see there.")
    ] = False,
    host: Host = HOST,
    port: Port = PORT,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Start again when FILE, or a module that it imports from its folder, changes; until Ctrl-C."
        ),
    ] = False,
) -> None:
    """Run the pipeline that a Python file defines, or those of several files in one process and on one Spark.

    A run resumes from its checkpoint, also after a crash, and stops with Ctrl-C. Views are tables of the store: query
    them with millrace query. Records that do not fit the schema become dead letters: see them with millrace dead list.
    The output of Spark is in the file spark.log of the checkpoint.

    Example: [bold]millrace run charts.py --until-caught-up[/bold]
    """
    console = Console(stderr=not json)
    with plain_mistakes():
        settings = Settings(
            mode, layer, checkpoint, log, store, guarantee, interval, latency, until_caught_up, retry, from_savepoint,
            from_here, shards, master, parsed_conf(conf), shared, jars,
        )  # fmt: skip
        if watch:
            arguments = [each for each in sys.argv[1:] if each != "--watch"]
            watched(arguments, files, lambda line: typer.echo(line, err=True))
            return
        found = load_all(files, pipeline or ())
        if len(found) > 1:
            _check_several(settings)
        homes = [
            (each, settings.home(each.name, called(file, each.name if pipeline else None))) for file, each in found
        ]
        folder = homes[0][1].checkpoint.parent
        beside = served_beside(host, port, Path(log), store, folder) if serve else nullcontext()
        if len(homes) > 1:
            with beside:
                ended = run_streams(console, homes, settings.how, json)
            _report(ended)
            return
        loaded, home = homes[0]
        with home.named(), beside:
            if layer == "batch":
                done = run_batch_layer(console, loaded, home)
            elif mode == "batch":
                done = run_batch(console, loaded, home, shards)
            else:
                done = run_stream(console, loaded, home, settings.how, json, from_savepoint, jars)
        Console(stderr=True).out(done, highlight=False)


def _check_several(settings: Settings) -> None:
    """Refuse settings that several pipelines cannot share."""
    once = "--layer batch" if settings.layer == "batch" else None
    if settings.mode != "micro-batch":
        once = f"--mode {settings.mode}"
    if once is not None:
        raise PipelineError(f"{once} runs one pipeline", "run the pipelines in commands of their own")
    for name in ("checkpoint", "from_savepoint"):
        if getattr(settings, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise PipelineError(f"{option} is of one pipeline", f"leave {option} out, or name one pipeline")


def _report(ended: list[Ended]) -> None:
    """Print how each pipeline ended. Exits with the code of the first that failed."""
    errors = [each.error for each in ended if each.error is not None]
    for each in ended:
        if each.error is not None and not isinstance(each.error, MillraceError):
            traceback.print_exception(each.error)
        typer.echo(f"{each.pipeline}: {each.outcome if each.error is None else f'failed: {each.error}'}", err=True)
    if errors:
        raise typer.Exit(exit_code(errors[0]))


def replay(
    file: PipelineFile,
    pipeline: PipelineName = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Serve the generation that the last replay replaced again.")
    ] = False,
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
    conf: Conf = None,
    shared: Shared = None,
) -> None:
    """Compute the views of a changed pipeline again, from all records in the log.

    A replay fills a new generation of the views; the old one is served and updated meanwhile. When the new generation
    has caught up, one transaction replaces the old one with it. A replay that was stopped resumes when you run it
    again. After a replay, restart the pipeline if it is running.

    Example: [bold]millrace replay charts.py[/bold], then [bold]millrace replay charts.py --rollback[/bold] to go back
    """
    with plain_mistakes():
        loaded = load(file, pipeline)
        settings = Settings(
            checkpoint=checkpoint, log=log, store=store, latency=latency, shards=shards, master=master,
            conf=parsed_conf(conf), shared=shared,
        )  # fmt: skip
        home = settings.home(loaded.name, called(file, pipeline))
        with home.named():
            if rollback:
                done = roll_back(loaded, home)
            else:
                done = replayed(Console(stderr=True), loaded, home, settings.how, resend)
        Console(stderr=True).out(done, highlight=False)


def savepoint(
    file: PipelineFile,
    name: Annotated[
        str | None, typer.Argument(help="The name of the savepoint. Default: the time in UTC.", metavar="[NAME]")
    ] = None,
    pipeline: PipelineName = None,
    checkpoint: CheckpointFolder = None,
    store: StoreUrl = STORE,
) -> None:
    """Copy the checkpoint of a pipeline to a savepoint, while the pipeline runs or is stopped.

    Prints the folder of the savepoint. While views and sinks are still as they were then, a run can continue from it:
    [bold]millrace run charts.py --checkpoint other --from-savepoint FOLDER[/bold]
    """
    with plain_mistakes():
        loaded = load(file, pipeline)
        home = Settings(checkpoint=checkpoint, store=store).home(loaded.name, called(file, pipeline))
        suffix = name or datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        to = home.checkpoint.parent / "savepoints" / f"{loaded.name}-{suffix}"
        with home.named():
            save(home.generation(_serving(store, loaded)), to)
        typer.echo(to)


def status(
    folder: CheckpointsFolder = Path(".millrace"),
    log: LogPath = LOG,
    format: Format = "table",
    json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Update the status every second, until Ctrl-C.")] = False,
) -> None:
    """Show the status of pipelines: whether they run, their throughput, lag and watermark.

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
        "skipped",
        "files skipped",
        "unknown fields",
        "missing fields",
        "clock moved",
        "ended",
    )
    with plain_mistakes():
        format = chosen(format, json)
        opened = Log(log) if log.exists() else None  # opening it would create one
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
                    for notice in each.notices:
                        typer.echo(f"{_name(each)}: {notice}")
                jump = None if opened is None else opened.clock_jump()
                if jump is not None:
                    told = f"the clock and the time of the log differ by {format_duration(jump // SECOND * SECOND)}"
                    typer.echo(f"{log}: {told}; retention waits until the clock is certain")
            if not watch:
                return
            try:
                time.sleep(1)
            except KeyboardInterrupt:
                return


def bench(
    rows: Annotated[int, typer.Option(help="The number of events.")] = 4_000_000,
    store: Annotated[
        str | None, typer.Option(help="The store of the views. Default: a temporary SQLite file.", metavar="URL")
    ] = None,
    master: Master = LOCAL,
) -> None:
    """Measure the throughput of this machine with the Yahoo streaming benchmark.

    It reads ad events from a log, keeps those of type view, joins each ad with its campaign, and counts by campaign
    and windows of 10 s into a view. All files are in a temporary folder, which is removed.
    """
    from millrace.running.bench import measure

    with plain_mistakes():
        for line in measure(rows, store, master):
            typer.echo(line)


def explain(
    file: PipelineFile,
    pipeline: PipelineName = None,
    sql: Annotated[bool, typer.Option("--sql", help="Also show the SQL of fused edges.")] = False,
    mode: Annotated[
        str,
        typer.Option(
            help="With real-time, refuse what does not run in that mode, as millrace run does.", metavar="MODE"
        ),
    ] = DEFAULTS.mode,
) -> None:
    """Show the plan of a pipeline: its flow, and whether each edge runs fused in DuckDB or natively in Spark.

    Example: [bold]millrace explain charts.py[/bold]
    """
    with plain_mistakes():
        typer.echo(explained(load(file, pipeline), statements=sql, mode=mode))


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML files of transcripts.")],
    engine: Annotated[
        str,
        typer.Option(
            help="The engine that runs the transcripts: reference is slow and defines the semantics; panes is fast; "
            "spark-batch computes all elements in one batch on Spark and compares the answers with those of the "
            "reference; spark-stream runs each step as a micro-batch of a Spark stream.",
            metavar="ENGINE",
        ),
    ] = "reference",
) -> None:
    """Check an engine against transcripts: steps of windowed aggregations, with every pane they must produce.

    Prints one line per transcript, with the step and the difference if it fails.
    Exits with 1 if a transcript failed, 2 if a file cannot be read or is not a transcript.
    docs/transcripts.md describes the format.

    Example: [bold]millrace check tests/transcripts/*.yaml[/bold]
    """
    known = (*ENGINES, BATCH, STREAM)
    if engine not in known:
        typer.echo(unknown("engine", engine, known), err=True)
        raise typer.Exit(2)
    transcripts: list[tuple[Path, Document]] = []
    unreadable = False
    for path in files:
        try:
            documents = list(read_documents(path))
        except MillraceError as error:
            typer.echo(error.message, err=True)
            unreadable = True
            continue
        if not documents:
            typer.echo(f"{path} contains no transcript", err=True)
            unreadable = True
        transcripts += [(path, document) for document in documents]
    passed = failed = 0
    verdicts = check_all([document for _, document in transcripts], engine)
    for (path, document), verdict in zip(transcripts, verdicts, strict=True):
        if verdict.passed:
            passed += 1
            typer.echo(f"ok      {document.name}")
        else:
            failed += 1
            typer.echo(f"FAILED  {document.name} ({path}:{verdict.line}): {verdict.failure}")
    typer.echo(f"{passed} passed, {failed} failed")
    if unreadable or failed:
        raise typer.Exit(2 if unreadable else 1)


def _serving(store: str, pipeline: Pipeline) -> int:
    with closing(open_store(store)) as opened:
        return serving(opened, pipeline.name)


_NOTHING: dict[str, Any] = {
    "batch": None, "rows_per_second": 0, "seconds": 0, "open_windows": 0, "late": 0, "errors": 0, "parts": {},
}  # fmt: skip
"""The progress of a run before its first micro-batch."""


def _name(status: Status) -> str:
    folder = status.checkpoint.name
    return status.pipeline if folder == status.pipeline else f"{status.pipeline} ({folder})"


def _row(status: Status, log: Log | None) -> tuple[Any, ...]:
    if status.damaged is not None:
        return status.pipeline, f"damaged: {status.damaged}", *[None] * 15
    progress = status.progress or _NOTHING
    lags = [part["lag"] for part in progress["parts"].values() if part["lag"] is not None]
    return (
        _name(status),
        status.state,
        progress["batch"],
        round(progress["rows_per_second"]),
        round(progress["seconds"], 2),
        max((each for each in (behind(status.pipeline, log), *status.lags.values()) if each is not None), default=None),
        format_duration(max(0, max(lags)) // SECOND * SECOND) if lags else None,
        progress["open_windows"],
        progress["late"],
        progress["errors"],
        status.dead,
        status.skipped,
        status.skipped_files or None,
        status.unknown,
        status.missing,
        round(status.clock_moved / SECOND) or None,
        datetime.fromtimestamp(status.at, UTC).isoformat(timespec="seconds"),
    )
