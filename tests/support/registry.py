"""A small schema registry: the requests of Confluent's REST interface that clients make, over HTTP on this machine."""

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient


class SchemaRegistry:
    """A registry that runs. Ids are counted from 1, versions of a subject as well."""

    def __init__(self, user: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        """The requests, in their order."""
        self.refuses: tuple[int, dict[str, Any]] | None = None
        """What it answers to everything, if it is in trouble."""
        self.user, self._tls, self._port = user, tls, 0
        self.start()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start, at the address that it had before."""
        registry = self

        class Handler(_Handler):
            of = registry

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def client(self) -> SchemaRegistryClient:
        """Confluent's own client."""
        return SchemaRegistryClient({"url": self.url})

    def register(self, subject: str, schema: object, type: str = "AVRO") -> int:
        """Register a schema by Confluent's client."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return int(self.client().register_schema(subject, Schema(text, type)))

    def answer(self, method: str, path: str, content: dict[str, Any]) -> tuple[int, Any]:
        """The status and the answer to a request."""
        if self.refuses is not None:
            return self.refuses
        match method, [unquote(part) for part in path.partition("?")[0].split("/")[1:]]:
            case "GET", ["schemas", "ids", id]:
                found = int(id) <= len(self.schemas)
                return (200, self.schemas[int(id) - 1]) if found else (404, _error(40403, "Schema not found"))
            case "POST", ["subjects", subject, "versions"]:
                content = {name: each for name, each in content.items() if each}
                if content not in self.schemas:
                    self.schemas.append(content)
                number = self.schemas.index(content) + 1
                versions = self.subjects.setdefault(subject, [])
                if number not in versions:
                    versions.append(number)
                return 200, {"id": number}
            case "POST", ["subjects", subject]:
                content = {name: each for name, each in content.items() if each}
                ids = [id for id in self.subjects.get(subject, ()) if self.schemas[id - 1] == content]
                return (200, self._version(subject, ids[0])) if ids else (404, _error(40403, "Schema not found"))
            case "GET", ["subjects", subject, "versions"] if subject in self.subjects:
                return 200, [*range(1, len(self.subjects[subject]) + 1)]
            case "GET", ["subjects", subject, "versions", version] if subject in self.subjects:
                ids = self.subjects[subject]
                number = len(ids) if version == "latest" else int(version)
                if number > len(ids):
                    return 404, _error(40402, "Version not found")
                return 200, self._version(subject, ids[number - 1])
            case "GET", ["subjects", _, *_]:
                return 404, _error(40401, "Subject not found")
        return 404, _error(404, "HTTP 404 Not Found")

    def _version(self, subject: str, id: int) -> dict[str, Any]:
        return {"subject": subject, "id": id, "version": self.subjects[subject].index(id) + 1, **self.schemas[id - 1]}


class _Handler(BaseHTTPRequestHandler):
    of: SchemaRegistry
    protocol_version = "HTTP/1.0"

    def _respond(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        self.of.asked.append(f"{self.command} {self.path}")
        user = None if self.of.user is None else f"Basic {b64encode(self.of.user.encode()).decode()}"
        if user is not None and self.headers.get("Authorization") != user:
            status, found = 401, _error(401, "Unauthorized")
        else:
            status, found = self.of.answer(self.command, self.path, content)
        body = json.dumps(found).encode()
        self.send_response(status)
        if status == 301:
            self.send_header("Location", found["to"])
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _respond  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


@contextmanager
def running(user: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[SchemaRegistry]:
    """A registry that runs until the end."""
    started = SchemaRegistry(user, tls)
    try:
        yield started
    finally:
        started.stop()
