"""Requests that read views: their list, rows, changes and SQL queries."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import HTTPConnection

from millrace.model.errors import PipelineError
from millrace.server.answers import Answer
from millrace.server.asked import asked_of
from millrace.server.asks import Ask, AskChanges, AskHistory, AskQuery, AskRows
from millrace.server.door import JSON, rights_of
from millrace.server.given import given, taking
from millrace.server.refusals import ForbiddenError
from millrace.server.tables import wants_arrow
from millrace.server.workers import Workers
from millrace.views.rights import Rights, Scope
from millrace.views.store import NoViewsError, Store
from millrace.views.tabular import ARROW

_INT64 = 2**63
_MOST_CHANGES = 1_000
"""The maximum number of changes in a history."""
_TO_TAKE = 30
"""How many seconds a client has to take an answer, beyond those that a query may take."""
Value = str | Annotated[int, Field(ge=-_INT64, lt=_INT64)] | Annotated[float, Field(allow_inf_nan=False)] | bool | None
"""The value of a parameter."""


class SqlQuery(BaseModel):
    """A query."""

    model_config = ConfigDict(extra="forbid")

    sql: str
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    """The time limit."""
    limit: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """The maximum number of rows."""
    params: Annotated[list[Value], Field(max_length=1_000)] = []
    """The values of $1, $2 and so on."""


def view_routes(store: Store, workers: Workers) -> APIRouter:
    """The requests that read the views of a store."""
    routes = APIRouter()

    def answer(request: Request, what: AskQuery | AskRows | AskChanges | AskHistory) -> Answer:
        is_arrow = wants_arrow(request)
        ask = Ask(what, reader(request), is_arrow, request.headers.get("if-none-match"))
        return Answer(workers.answer(ask), ARROW if is_arrow else JSON, workers.limits.seconds + _TO_TAKE)

    @routes.get("/views")
    def views(request: Request) -> list[dict[str, Any]]:
        """The views that the caller may read. Of one with a row filter, the number of rows is not told."""
        rights = reader(request)
        try:
            known = store.views()
        except NoViewsError:  # no pipeline with views has run yet
            known = []
        return [
            {
                "view": view.name,
                "pipeline": view.pipeline,
                "rows": view.rows if rights.row_filter(view.name) is None else None,
                "version": view.version,
                "generation": view.generation,
                "columns": {column.name: column.type for column in view.columns},
                "key": view.key,
                "records_since": view.records_since,
            }
            for view in known
            if rights.may_read(view.name)
        ]

    @routes.get("/views/{view}")
    async def rows(view: str, request: Request) -> Response:
        """Rows of a view: ?track=Undertow&plays.gt=5&order=-plays&limit=10. With If-None-Match, 304 if none changed."""
        asked = asked_of(request.query_params.multi_items())
        limit = None if wants_arrow(request) and "limit" not in request.query_params else asked.limit
        return answer(request, AskRows(view, asked.where, asked.order, limit, asked.offset))

    @routes.get("/views/{view}/changes")
    async def changes(
        view: str,
        request: Request,
        since: Annotated[
            int, Query(description="The version of the view after which changes are returned.", ge=0, lt=_INT64)
        ],
    ) -> Response:
        """Changes of a view after a version."""
        return answer(request, AskChanges(view, since))

    @routes.get("/views/{view}/history")
    async def history(view: str, request: Request) -> Response:
        """The last changes of some rows of a view: each with its version, its diff and the time of its commit.

        Columns select rows, as in GET /views/{view}; `limit` is the maximum number of changes.
        """
        asked = asked_of(request.query_params.multi_items())
        if asked.order or asked.offset:
            raise PipelineError("a history has the order of its commits", "leave order and offset out")
        return answer(request, AskHistory(view, asked.where, min(asked.limit, _MOST_CHANGES)))

    @routes.post("/query", openapi_extra=taking(SqlQuery))
    async def query(request: Request) -> Response:
        """The answer to one SQL query over views. With If-None-Match, 304 if none of its views changed."""
        asked = await given(SqlQuery, request, 'send {"sql": "SELECT ..."}')
        most = workers.limits.seconds
        if asked.seconds > most:
            raise PipelineError(f"a query may take at most {most:g} s, not {asked.seconds:g}", "ask for less time")
        return answer(request, AskQuery(asked.sql, asked.seconds, asked.limit, tuple(asked.params)))

    return routes


def reader(request: HTTPConnection) -> Rights:
    """The rights of a caller who may read views."""
    rights = rights_of(request.scope)
    if rights.scope is Scope.SEND:
        raise ForbiddenError("the token does not allow reading views", "use one of scope read")
    return rights
