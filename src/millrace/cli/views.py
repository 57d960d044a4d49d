"""Commands about views: query, views, serve."""

import socket
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli.options import LOG, STORE, CheckpointsFolder, LogPath, StoreUrl, plain_mistakes
from millrace.cli.shown import AsJson, Format, chosen, show
from millrace.eventlog.topics import Log, existing_log
from millrace.model.errors import MachineError
from millrace.model.extra import extra
from millrace.running.run import behind
from millrace.running.status import all_under, described
from millrace.server.gate import Marks
from millrace.views.store import open_store

views = typer.Typer(no_args_is_help=False, help="List the views of the store, or drop those of a pipeline.")


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT statement over views.")],
    format: Format = "table",
    json: AsJson = False,
    seconds: Annotated[float, typer.Option(help="The time limit of the query, in seconds.")] = 10.0,
    store: StoreUrl = STORE,
) -> None:
    """Query the views, read-only, in the SQL dialect of the store.

    Example: [bold]millrace query "SELECT track, plays FROM hourly_plays ORDER BY plays DESC LIMIT 10"[/bold]
    """
    with plain_mistakes():
        format = chosen(format, json)
        with closing(open_store(store)) as opened:
            result = opened.query(sql, seconds)
        show(result.columns, result.rows, format)


@views.callback(invoke_without_command=True)
def list_(context: typer.Context, format: Format = "table", json: AsJson = False, store: StoreUrl = STORE) -> None:
    """List the views with their pipeline, rows, version, generation and columns, or drop those of a pipeline.

    A view with an entry in the column "records since" was added with --from-here, and has missed the records before.
    """
    if context.invoked_subcommand is not None:
        return
    with plain_mistakes(), closing(open_store(store)) as opened:
        format = chosen(format, json)
        rows: list[tuple[Any, ...]] = [
            (
                view.name,
                view.pipeline,
                view.rows,
                view.version,
                view.generation,
                view.records_since,
                ", ".join(f"{column.name} {column.type}" for column in view.columns),
            )
            for view in opened.views()
        ]
        if not rows and format == "table":
            typer.echo("There are no views yet; run a pipeline that has views: millrace run FILE")
            return
        show(("view", "pipeline", "rows", "version", "generation", "records since", "columns"), rows, format)


@views.command("drop")
def drop_(
    pipeline: Annotated[
        str, typer.Argument(metavar="PIPELINE", help="The name of the pipeline, as millrace views lists it.")
    ],
    store: StoreUrl = STORE,
) -> None:
    """Drop all views of a pipeline. Its next run computes them again, from the start of its sources."""
    with plain_mistakes():
        with closing(open_store(store)) as opened:
            opened.drop(pipeline)
        typer.echo(f"dropped the views of {pipeline}")


def serve(
    context: typer.Context,
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8080,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    high: Annotated[
        int, typer.Option(help="A topic refuses records while a consumer group lags by more than this many records.")
    ] = 5_000_000,
    low: Annotated[int, typer.Option(help="It accepts records again when the lag is less than this.")] = 2_500_000,
    site: Annotated[
        Path | None,
        typer.Option(help="A folder with a web page of your own, to serve under /site/.", exists=True, file_okay=False),
    ] = None,
    folder: CheckpointsFolder = Path(".millrace"),
    log: LogPath = LOG,
    store: StoreUrl = STORE,
) -> None:
    """Serve HTTP: clients append records to topics, read views, run SQL queries and watch pipelines.

    A browser shows the pipelines, views and topics at the address that is printed.

    POST /topics/TOPIC takes a JSON object, an array of them, or JSON lines (application/x-ndjson).
    GET /views/VIEW?track=Undertow&plays.gt=5&order=-plays&limit=10 returns rows.
    POST /query takes {"sql": "SELECT ..."}. GET /pipelines returns the status of pipelines, GET /metrics the same for
    Prometheus, GET /healthz whether the server answers. GET /pipelines/NAME/dead lists dead letters.
    All requests are described at /docs.

    Example: [bold]curl -d '{"user": "ann", "track": "Undertow"}' localhost:8080/topics/plays[/bold]
    """
    with plain_mistakes():
        with extra("server", "millrace serve"):
            import uvicorn

            from millrace.server.app import make_app
        opened, topics = open_store(store), _log(context, log)

        def pipelines() -> list[dict[str, Any]]:
            return [described(each, behind(each.pipeline, topics)) for each in all_under(folder)]

        app = make_app(topics, opened, Marks(high, low), folder, pipelines, site=site)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, port), family=family)
        except OSError as error:
            why = str(error.strerror).partition(" (")[0]
            raise MachineError(f"cannot listen on {host}:{port}: {why}", "choose another --port or --host") from None
        with listening:
            typer.echo(f"listening on http://{host}:{port}; stop with Ctrl-C", err=True)
            uvicorn.Server(
                uvicorn.Config(
                    app,
                    log_level="warning",
                    access_log=False,
                    proxy_headers=False,
                    server_header=False,
                    timeout_graceful_shutdown=3,
                )
            ).run([listening])


def _log(context: typer.Context, log: Path) -> Log:
    """The log to serve. One that the user has named must exist; the default one is created."""
    source = context.get_parameter_source("log")
    return Log(log) if source is not None and source.name == "DEFAULT" else existing_log(log)
