"""The HTTP server of Millrace: appends records to topics, serves views, queries and the status of pipelines."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from millrace.eventlog.topics import Log
from millrace.model.errors import Kind, MillraceError
from millrace.server.asks import Limits
from millrace.server.collector import Collector
from millrace.server.dead import dead_routes
from millrace.server.door import Door, Names, check_reads_all
from millrace.server.gate import Marks
from millrace.server.live_queries import LiveQueries, read_key, watermarks
from millrace.server.live_routes import live_routes
from millrace.server.metrics import metrics_text
from millrace.server.pipelines import pipeline_routes
from millrace.server.posting import DESCRIBED, Posting, post_routes
from millrace.server.records import record_routes
from millrace.server.refusals import REFUSED, status_of
from millrace.server.static import page_routes, site_routes
from millrace.server.tokens import FILE, Tokens
from millrace.server.viewing import view_routes
from millrace.server.workers import Workers
from millrace.views.store import NoViewsError, Store, file_of

_RETRY_SECONDS = 1
_CLIENT_LEFT = 499
"""The status of a request whose client left before its body was whole; nobody receives it."""


def make_app(
    log: Log,
    store: Store,
    marks: Marks | None = None,
    folder: Path | None = None,
    pipelines: Callable[[], Sequence[dict[str, Any]]] = tuple,
    names: Names | None = None,
    limits: Limits | None = None,
    workers: int = 4,
    reader: str | None = None,
    site: Path | None = None,
    cells: tuple[int, int] = (1, 1),
) -> FastAPI:
    """The application over a log, a store and a folder of checkpoints, by default that of the log.

    `pipelines` returns the status of each pipeline, one per checkpoint. `reader` is the URL by which queries open the
    store, if it is another one, as with a login that may only read. Tokens are in a file beside the log.
    `site` is a folder of files to serve under /site. `cells` are the processes that match live queries.
    """
    folder = folder or log.path.parent
    collector = Collector(log, marks or Marks(), time.monotonic)
    asked = Workers(reader or store.url, workers, limits)
    names = names or Names()
    live = LiveQueries(store, read_key(log.path.parent), time.monotonic, watermarks(pipelines), cells=cells)
    refuse = _refuser(log, store, folder)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        live.start()
        try:
            yield
        finally:
            await live.close()
            await asked.close()
            collector.close()

    app = FastAPI(title="Millrace", docs_url=None, redoc_url=None, lifespan=lifespan, responses=REFUSED)

    @app.exception_handler(MillraceError)
    async def failed(request: Request, error: MillraceError) -> Response:
        return refuse(error)

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=_CLIENT_LEFT)

    app.include_router(post_routes(log))
    app.include_router(view_routes(store, asked))

    @app.get("/healthz")
    async def healthy() -> dict[str, str]:
        """Whether the server answers. Needs no token."""
        return {"status": "ok"}

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        """Whether the log and the store can be read; otherwise the error."""
        log.topics()
        with suppress(NoViewsError):  # no pipeline with views has run yet
            store.version()
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics(request: Request) -> Response:
        """Metrics for Prometheus."""
        check_reads_all(request)
        text, kind = metrics_text(pipelines(), log, live.figures, request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})

    app.include_router(live_routes(live))
    app.include_router(page_routes())
    if site is not None:
        app.include_router(site_routes(site))
    app.include_router(record_routes(log))
    app.include_router(pipeline_routes(folder, pipelines))
    app.include_router(dead_routes(folder, log))
    app.add_middleware(Posting, collector=collector, refuse=refuse)
    app.add_middleware(
        Door,
        tokens=Tokens(log.path.parent / FILE, time.monotonic),
        names=names,
        clock=time.monotonic,
        refuse=refuse,
    )
    if names.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(names.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "If-None-Match", "Millrace-Producer", "Millrace-Sequence"],
            expose_headers=["ETag", "Retry-After"],
        )
    described = app.openapi
    app.openapi = lambda: _with(described(), DESCRIBED)  # type: ignore[method-assign]
    return app


def _with(openapi: dict[str, Any], paths: dict[str, Any]) -> dict[str, Any]:
    """A description with more paths."""
    return {**openapi, "paths": {**paths, **openapi["paths"]}}


def _refuser(log: Log, store: Store, folder: Path) -> Callable[[MillraceError], JSONResponse]:
    """The response for an error: JSON without places of the server.

    The line of an error is one of the server's code, and its files are none of the client's business: of their paths
    only the last part is told.
    """
    file = file_of(store.url)
    places = {str(path.absolute().parent) + "/" for path in (log.path, file or log.path, folder)}

    def refuse(error: MillraceError) -> JSONResponse:
        texts = {"error": error.message, "problem": error.problem, "advice": error.advice}
        for place in sorted(places, key=len, reverse=True):
            texts = {name: text and text.replace(place, "") for name, text in texts.items()}
        status = status_of(error)
        headers = {"Retry-After": str(_RETRY_SECONDS)} if error.kind is Kind.MACHINE else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({**texts, "kind": error.kind}, status, headers)

    return refuse
