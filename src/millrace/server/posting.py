"""Requests that append records to topics.

`POST /topics/TOPIC` is an ASGI application of its own in front of the others: a route of FastAPI takes more time than
everything else about a small post, the append to the log included. `DESCRIBED` is what OpenAPI says about it.
"""

import json
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from millrace.eventlog.topics import Log
from millrace.model.errors import MillraceError, PipelineError, shown
from millrace.server.body import Body
from millrace.server.collector import Collector, Post
from millrace.server.door import LINES, Refuse, rights_of
from millrace.server.given import received
from millrace.server.refusals import REFUSED, ForbiddenError
from millrace.views.rights import Scope as Allowed

_PREFIX = "/topics/"
_LAST = 2**63 - 1
_TYPE = (b"content-type", b"application/json")


class Posting:
    """Appends records to topics; passes all other requests on."""

    def __init__(self, app: ASGIApp, collector: Collector, refuse: Refuse) -> None:
        self._app, self._collector, self._refuse = app, collector, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Append the records of a request; answers when they are on the disk."""
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(_PREFIX):
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._append(scope, receive)
        except ClientDisconnect:
            return
        except MillraceError as error:
            await self._refuse(error)(scope, receive, send)
            return
        length = (b"content-length", str(len(answer)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [_TYPE, length]})
        await send({"type": "http.response.body", "body": answer})

    async def _append(self, scope: Scope, receive: Receive) -> bytes:
        topic = scope["path"][len(_PREFIX) :]
        if not rights_of(scope).may_send(topic):
            raise ForbiddenError(f"the token does not allow sending to topic {topic!r}", "use one of scope send")
        headers: dict[bytes, bytes] = dict(scope["headers"])
        producer, sequence = _sent_by(headers)
        key = _key(scope["query_string"])
        is_lines = headers[b"content-type"].partition(b";")[0].strip().lower().decode("latin-1") in LINES
        with self._collector.holding() as hold:
            body = Body(await received(scope, receive, hold=hold), is_lines)
            count = await self._collector.append(topic, Post(body, key, producer, sequence))
        return json.dumps({"topic": topic, "received": count}).encode()


def post_routes(log: Log) -> APIRouter:
    """The requests about topics that do not append."""
    routes = APIRouter()

    @routes.get("/topics")
    def topics(request: Request) -> list[dict[str, Any]]:
        """The topics, with the lag of each pipeline that reads them."""
        rights = rights_of(request.scope)
        if not rights.reads_all and rights.scope is Allowed.READ:
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


def _sent_by(headers: dict[bytes, bytes]) -> tuple[str | None, int | None]:
    """The producer and the sequence number of an idempotent append."""
    producer, sequence = headers.get(b"millrace-producer"), headers.get(b"millrace-sequence")
    if (producer is None) != (sequence is None):
        raise PipelineError(
            "a request has only one of the headers Millrace-Producer and Millrace-Sequence", "send both or neither"
        )
    if producer is None or sequence is None:
        return None, None
    if not sequence.isdigit() or len(sequence) > 19 or int(sequence) > _LAST:
        said = shown(sequence.decode("latin-1"))
        raise PipelineError(f"Millrace-Sequence is a whole number from 0 to {_LAST}, not {said}")
    return producer.decode("latin-1"), int(sequence)


def _key(query: bytes) -> str | None:
    """The field whose value assigns a record to a partition."""
    if not query:
        return None
    try:
        return dict(parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")).get("key")
    except ValueError:
        raise PipelineError("the query string is not text in UTF-8") from None


_OBJECTS = {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]}
DESCRIBED: dict[str, Any] = {
    "/topics/{topic}": {
        "post": {
            "summary": "Append",
            "description": "Append JSON objects: one, an array or lines. It answers when they are on the disk.",
            "operationId": "append",
            "parameters": [
                {"name": "topic", "in": "path", "required": True, "schema": {"type": "string"}},
                {
                    "name": "key", "in": "query", "schema": {"type": "string"},
                    "description": "The field whose value assigns a record to a partition.",
                },
                {
                    "name": "Millrace-Producer", "in": "header", "schema": {"type": "string"},
                    "description": "The name of the producer of an idempotent append.",
                },
                {
                    "name": "Millrace-Sequence", "in": "header",
                    "schema": {"type": "integer", "minimum": 0, "maximum": _LAST},
                    "description": "The sequence number of this append by the producer.",
                },
            ],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _OBJECTS}, LINES[0]: {"schema": {"type": "string"}}},
            },
            "responses": {
                "200": {"description": "All records are on the disk.", "content": {"application/json": {"schema": {}}}},
                **REFUSED,
            },
        }
    }
}  # fmt: skip
