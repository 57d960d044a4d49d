"""The command serve, and the server beside a run."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import LOG, STORE, CheckpointsFolder, LogPath, StoreUrl, plain_mistakes
from millrace.eventlog.topics import Log, existing_log
from millrace.model.errors import PipelineError, shown
from millrace.model.extra import extra
from millrace.running.run import behind
from millrace.running.status import all_under, described
from millrace.server.gate import Marks
from millrace.views.store import open_store

if TYPE_CHECKING:
    from fastapi import FastAPI

    from millrace.server.door import Names

HOST, PORT = "127.0.0.1", 8080
_MOST_CELLS = 64
Host = Annotated[
    str, typer.Option(help="The address to listen on. One that others reach needs tokens: see millrace tokens.")
]
Port = Annotated[int, typer.Option(help="The port to listen on.")]


def serve(
    context: typer.Context,
    port: Port = PORT,
    host: Host = HOST,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name of this server, beside localhost and addresses. Requests that name another are refused.",
            metavar="NAME",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="A web page that may use the server, such as https://charts.example.", metavar="ORIGIN"),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The certificate for TLS, as a PEM file.", metavar="FILE")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate.", metavar="FILE")] = None,
    high: Annotated[
        int, typer.Option(help="A topic refuses records while a consumer group lags by more than this many records.")
    ] = 5_000_000,
    low: Annotated[int, typer.Option(help="It accepts records again when the lag is less than this.")] = 2_500_000,
    queries: Annotated[int, typer.Option(help="The number of processes for queries.", min=1, max=64)] = 4,
    query_memory: Annotated[
        int, typer.Option(help="The maximum memory of each, in MB.", metavar="MB", min=64, max=1 << 20)
    ] = 1024,
    query_seconds: Annotated[
        float, typer.Option(help="The maximum time limit that a query may ask for.", metavar="SECONDS", min=0.1)
    ] = 60.0,
    answer_bytes: Annotated[
        int, typer.Option(help="The maximum size of an answer in bytes.", metavar="BYTES", min=1_000)
    ] = 64 << 20,
    grid: Annotated[
        str,
        typer.Option(
            help="The processes that match live queries with changed rows: partitions of the queries x partitions of "
            "the rows. 1x1 is the server's own process.",
            metavar="QUERIESxROWS",
        ),
    ] = "1x1",
    read_store: Annotated[
        str | None,
        typer.Option(
            help="The URL by which queries open the store, with a login that may only read. Default: that of --store.",
            metavar="URL",
            envvar="MILLRACE_READ_STORE",
        ),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            help="A folder with a web page of your own, to serve under /site/.",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
        ),
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
    GET /live?sql=SELECT... streams a live query, and so does the WebSocket /live.
    GET /openapi.json describes all requests. Bodies need the header Content-Type: application/json.

    Example: [bold]curl --json '{"user": "ann", "track": "Undertow"}' localhost:8080/topics/plays[/bold]
    """
    with plain_mistakes():
        with extra("server", "millrace serve"):
            from millrace.server import listening
            from millrace.server.asks import Limits
            from millrace.server.door import Names
        opened = _log(context, log)
        address = listening.Address(host, port, tls_cert, tls_key)
        listening.check_address(address, opened.path.parent)
        names = Names(frozenset(map(str.lower, allow_host or ())), frozenset(map(str.lower, allow_origin or ())))
        limits = Limits(query_seconds, answer_bytes, query_memory << 20)
        app = _app(opened, store, folder, Marks(high, low), names, limits, queries, read_store, site, _cells(grid))
        with listening.listening(address) as on:
            _announce(address)
            listening.serve(app, address, on)


@contextmanager
def served_beside(host: str, port: int, log: Path, store: str, folder: Path) -> Iterator[None]:
    """Serve in a thread while the block runs."""
    with extra("server", "millrace run --serve"):
        from millrace.server import listening
    opened = Log(log)
    address = listening.Address(host, port)
    listening.check_address(address, opened.path.parent)
    with listening.listening(address) as on:
        _announce(address)
        with listening.serving(_app(opened, store, folder, Marks()), address, on):
            yield


def _app(
    log: Log,
    store: str,
    folder: Path,
    marks: Marks,
    names: "Names | None" = None,
    limits: Any = None,
    queries: int = 4,
    reader: str | None = None,
    site: Path | None = None,
    cells: tuple[int, int] = (1, 1),
) -> "FastAPI":
    from millrace.server.app import make_app

    def pipelines() -> list[dict[str, Any]]:
        return [described(each, behind(each.pipeline, log)) for each in all_under(folder)]

    return make_app(log, open_store(store), marks, folder, pipelines, names, limits, queries, reader, site, cells)


def _cells(grid: str) -> tuple[int, int]:
    """The lines and columns of a grid such as 2x3."""
    found = re.fullmatch(r"([1-9]\d?)x([1-9]\d?)", grid)
    if found is None or int(found[1]) * int(found[2]) > _MOST_CELLS:
        problem = f"--grid is QUERIESxROWS, such as 2x1, with at most {_MOST_CELLS} processes, not {shown(grid)}"
        raise PipelineError(problem)
    return int(found[1]), int(found[2])


def _announce(address: Any) -> None:
    if address.sends_in_clear:
        typer.echo("tokens pass the network in clear: use --tls-cert and --tls-key, or a proxy with TLS", err=True)
    typer.echo(f"listening on {address.url}; stop with Ctrl-C", err=True)


def _log(context: typer.Context, log: Path) -> Log:
    """The log to serve. One that the user has named must exist; the default one is created."""
    source = context.get_parameter_source("log")
    return Log(log) if source is not None and source.name == "DEFAULT" else existing_log(log)
