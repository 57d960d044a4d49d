"""The HTTP server of Millrace: appends records to topics, serves views, queries and the status of pipelines."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from millrace.eventlog.topics import Log
from millrace.model.errors import Kind, MillraceError, PipelineError
from millrace.server.asked import asked_of
from millrace.server.body import records_of
from millrace.server.collector import BusyError, Collector
from millrace.server.dead import dead_routes
from millrace.server.gate import Marks
from millrace.server.metrics import metrics_text
from millrace.server.pipelines import pipeline_routes
from millrace.server.records import record_routes
from millrace.server.static import page_routes
from millrace.server.tables import arrow_answer, json_answer, table_answer, wants_arrow
from millrace.sources.collect import keys_of
from millrace.views.store import ForgottenError, NoViewsError, Store
from millrace.views.tabular import table_of

MOST_CHANGES = 1_000
"""The maximum number of changes in a history."""
MOST = 64 << 20
"""The maximum size of a request body in bytes."""
_RETRY_SECONDS = 1
_CLIENT_LEFT = 499
"""The status of a request whose client left before its body was whole; nobody receives it."""


STATUSES = {
    Kind.UNKNOWN: 500,
    Kind.MISTAKE: 400,
    Kind.NOT_FOUND: 404,
    Kind.MACHINE: 503,
    Kind.CORRUPT: 500,
    Kind.CONFLICT: 409,
}


class TooMuchError(PipelineError):
    """A request body is too large."""


class SqlQuery(BaseModel):
    """A query."""

    sql: str
    seconds: float = 10.0
    """The time limit."""
    limit: int | None = None
    """The maximum number of rows."""
    params: list[str | int | float | bool | None] = []
    """The values of $1, $2 and so on."""


_TAKES_QUERY = {
    "requestBody": {"content": {"application/json": {"schema": SqlQuery.model_json_schema()}}, "required": True}
}


def make_app(
    log: Log,
    store: Store,
    marks: Marks | None = None,
    folder: Path | None = None,
    pipelines: Callable[[], Sequence[dict[str, Any]]] = tuple,
) -> FastAPI:
    """The application over a log, a store and a folder of checkpoints, by default that of the log.

    `pipelines` returns the status of each pipeline, one per checkpoint.
    """
    app = FastAPI(title="Millrace", docs_url="/docs", redoc_url=None)
    collector = Collector(log, marks or Marks(), time.monotonic)

    @app.exception_handler(MillraceError)
    async def failed(request: Request, error: MillraceError) -> Response:
        return _error(STATUSES[error.kind], error)

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=_CLIENT_LEFT)

    @app.exception_handler(ForgottenError)
    async def forgotten(request: Request, error: ForgottenError) -> Response:
        return _error(410, error)

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> Response:
        return _error(429, error)

    @app.exception_handler(TooMuchError)
    async def too_much(request: Request, error: TooMuchError) -> Response:
        return _error(413, error)

    @app.post("/topics/{topic}")
    async def append(
        topic: str,
        request: Request,
        key: str | None = Query(None, description="The field whose value assigns a record to a partition."),
        millrace_producer: str | None = Header(None, description="The name of the producer of an idempotent append."),
        millrace_sequence: int | None = Header(None, description="The sequence number of this append by the producer."),
    ) -> dict[str, Any]:
        if (millrace_producer is None) != (millrace_sequence is None):
            raise PipelineError(
                "a request has only one of the headers Millrace-Producer and Millrace-Sequence", "send both or neither"
            )
        kind = request.headers.get("content-type", "application/json")
        values = await asyncio.to_thread(records_of, await _body(request), kind)
        keys = None if key is None else await asyncio.to_thread(keys_of, values, key)
        await collector.append(topic, values, keys, millrace_producer, millrace_sequence)
        return {"topic": topic, "received": len(values)}

    @app.get("/topics")
    def topics() -> list[dict[str, Any]]:
        return [
            {
                "topic": topic.name,
                "partitions": topic.partitions,
                "starts": log.starts(topic.name),
                "ends": log.ends(topic.name),
                "behind": log.lag(topic.name),
            }
            for topic in log.topics()
        ]

    @app.get("/views")
    def views() -> list[dict[str, Any]]:
        return [
            {
                "view": view.name,
                "pipeline": view.pipeline,
                "rows": view.rows,
                "version": view.version,
                "generation": view.generation,
                "columns": {column.name: column.type for column in view.columns},
                "key": view.key,
                "records_since": view.records_since,
            }
            for view in store.views()
        ]

    @app.get("/views/{view}")
    def rows(view: str, request: Request) -> Response:
        asked = asked_of(request.query_params.multi_items())
        if wants_arrow(request):
            limit = None if "limit" not in request.query_params else asked.limit
            found = store.rows(view, asked.where, asked.order, limit, asked.offset)
            return arrow_answer(found.rows, found.version)
        found = store.rows(view, asked.where, asked.order, asked.limit, asked.offset)
        return json_answer({"view": view, "version": found.version, "rows": found.rows.to_pylist()})

    @app.get("/views/{view}/changes")
    def changes(
        view: str,
        request: Request,
        since: int = Query(description="The version of the view after which changes are returned."),
    ) -> Response:
        found = store.changes(view, since)
        if wants_arrow(request):
            return arrow_answer(found)
        return json_answer({"view": view, "since": since, "changes": found.to_pylist()})

    @app.get("/views/{view}/history")
    def history(view: str, request: Request) -> Response:
        """The recent changes of some rows of a view, each with its version, its diff and the time of its commit.

        Columns select rows, as in GET /views/{view}; `limit` is the maximum number of changes, the last ones.
        """
        asked = asked_of(request.query_params.multi_items())
        if asked.order or asked.offset:
            raise PipelineError("a history has the order of its commits", "leave order and offset out")
        found = store.history(view, asked.where, min(asked.limit, MOST_CHANGES))
        return table_answer(request, found, {"view": view}, "changes")

    @app.post("/query", openapi_extra=_TAKES_QUERY)
    async def query(request: Request) -> Response:
        asked = _query_of(await _body(request))  # the content type is ignored, as curl -d sends that of a form
        found = await asyncio.to_thread(store.query, asked.sql, asked.seconds, asked.limit, asked.params)
        if wants_arrow(request):
            return await asyncio.to_thread(lambda: arrow_answer(table_of(found)))
        return await asyncio.to_thread(json_answer, {"columns": found.columns, "rows": found.rows, "more": found.more})

    @app.get("/healthz")
    def healthy() -> dict[str, str]:
        """Whether the server answers."""
        return {"status": "ok"}

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        """Whether the log and the store can be read; otherwise the error."""
        log.topics()
        with suppress(NoViewsError):  # no pipeline with views has run yet
            store.version()
        return {"status": "ok"}

    @app.get("/metrics")
    def metrics(request: Request) -> Response:
        """Metrics for Prometheus."""
        text, kind = metrics_text(pipelines(), log, request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})

    app.include_router(page_routes())
    app.include_router(record_routes(log))
    app.include_router(pipeline_routes(folder or log.path.parent, pipelines))
    app.include_router(dead_routes(folder or log.path.parent, log, _body))
    return app


def _query_of(body: bytes) -> SqlQuery:
    try:
        return SqlQuery.model_validate_json(body)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = f"{wrong['loc'][0]}: " if wrong["loc"] else ""
        problem = f"the body of POST /query is not valid: {where}{wrong['msg']}"
        raise PipelineError(problem, 'send {"sql": "SELECT ..."}') from None


async def _body(request: Request) -> bytes:
    """The whole body. Refuses one over the limit, also without a Content-Length header."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST:
            raise TooMuchError(f"the body is larger than the maximum of {MOST:,} bytes", "send several requests")
    return bytes(body)


def _error(status: int, error: MillraceError) -> JSONResponse:
    """An error as JSON. Leaves out the place: it is a line of the server's code, or of a file that the client lacks."""
    content = {"error": error.message, "problem": error.problem, "advice": error.advice, "kind": error.kind}
    headers = {"Retry-After": str(_RETRY_SECONDS)} if error.kind is Kind.MACHINE else None
    return JSONResponse(content, status, headers)
