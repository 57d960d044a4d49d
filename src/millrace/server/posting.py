"""Requests that append records to topics."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from millrace.eventlog.topics import Log
from millrace.model.errors import PipelineError
from millrace.server.body import Body
from millrace.server.collector import Collector, Post, received
from millrace.server.door import LINES, rights_of
from millrace.server.given import body_of
from millrace.server.refusals import ForbiddenError
from millrace.views.rights import Scope

_TAKES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]}
            },
            LINES[0]: {"schema": {"type": "string"}},
        },
    }
}
_LAST = 2**63 - 1


def post_routes(log: Log, collector: Collector) -> APIRouter:
    """The requests that append to the topics of a log, and list them."""
    routes = APIRouter()

    @routes.post("/topics/{topic}", openapi_extra=_TAKES)
    async def append(
        topic: str,
        request: Request,
        key: Annotated[str | None, Query(description="The field whose value assigns a record to a partition.")] = None,
        millrace_producer: Annotated[
            str | None, Header(description="The name of the producer of an idempotent append.")
        ] = None,
        millrace_sequence: Annotated[
            int | None, Header(description="The sequence number of this append by the producer.", ge=0, le=_LAST)
        ] = None,
    ) -> Response:
        """Append one JSON object, an array of them, or JSON lines. It answers when the records are on the disk."""
        if not rights_of(request).may_send(topic):
            raise ForbiddenError(f"the token does not allow sending to topic {topic!r}", "use one of scope send")
        if (millrace_producer is None) != (millrace_sequence is None):
            raise PipelineError(
                "a request has only one of the headers Millrace-Producer and Millrace-Sequence", "send both or neither"
            )
        is_lines = request.headers["content-type"].partition(";")[0].strip().lower() in LINES
        with collector.holding() as hold:
            body = Body(await body_of(request, hold=hold), is_lines)
            count = await collector.append(topic, Post(body, key, millrace_producer, millrace_sequence))
        return Response(received(topic, count), media_type="application/json")

    @routes.get("/topics")
    def topics(request: Request) -> list[dict[str, Any]]:
        """The topics, with the lag of each pipeline that reads them."""
        rights = rights_of(request)
        if not rights.reads_all and rights.scope is Scope.READ:
            raise ForbiddenError("the token does not allow this", "use one of scope send or admin")
        return [
            {
                "topic": topic.name,
                "partitions": topic.partitions,
                "starts": log.starts(topic.name),
                "ends": log.ends(topic.name),
                "behind": log.lag(topic.name),
            }
            for topic in log.topics()
            if rights.reads_all or rights.may_send(topic.name)
        ]

    return routes
