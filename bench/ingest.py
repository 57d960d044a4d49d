"""Small posts over HTTP: requests a second on one core with 200 clients, beside a bare handler of FastAPI.

The bare handler reads the body and answers; it decodes nothing and keeps nothing. The servers run in turn, each alone
on the first core, and the clients on the others. A request of Millrace is answered when its record is on the disk.
"""

import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from bench.figures import Figure, figure
from millrace.eventlog.topics import Log

CLIENTS = 200
WARM, SECONDS = 2.0, 8.0
_BODY = b'{"user": "ann", "track": "Undertow", "ms": 215000, "at": "2026-01-01T12:00:00Z"}'
_BARE = """
import sys, uvicorn
from fastapi import FastAPI, Request
app = FastAPI()
@app.post("/topics/{topic}")
async def append(topic: str, request: Request) -> dict[str, object]:
    return {"topic": topic, "received": len(await request.body())}
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What a server did."""

    per_second: float
    per_cpu_second: float
    """Requests in a second of the server's processor time."""
    p50: float
    p99: float


class _Client(asyncio.Protocol):
    """A connection that posts, waits for the answer, and posts again."""

    def __init__(self, request: bytes, times: list[float]) -> None:
        self._request, self._times = request, times
        self._sent = 0.0
        self._head = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is no subclass
        self._post()

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, separator, body = self._head.partition(b"\r\n\r\n")
        if not separator:
            return
        assert head.startswith(b"HTTP/1.1 200"), self._head
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if len(body) >= length:
            self._times.append(time.perf_counter() - self._sent)
            self._head = b""
            self._post()

    def _post(self) -> None:
        assert self._transport is not None
        self._sent = time.perf_counter()
        self._transport.write(self._request)


def run() -> list[Figure]:
    """The figures."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        log = Path(folder, "log.db")
        with Log(log) as made:
            made.create("plays")
        serve = ["-m", "millrace", "serve", "--log", str(log), "--store", str(Path(folder, "views.db")), "--port"]
        bare = measured(["-c", _BARE])
        ours = measured(serve)
        with Log(log) as kept:
            print(f"# {sum(kept.ends('plays')):,} records kept; millrace {ours}; bare {bare}", flush=True)
    return [
        figure("ingest, 200 clients, one core", ours.per_second, bare.per_second, "requests/s"),
        figure("ingest, for a second of processor time", ours.per_cpu_second, bare.per_cpu_second, "requests/s"),
        figure("ingest, p99 with 200 clients", ours.p99 * 1000, bare.p99 * 1000, "ms"),
    ]


def measured(command: list[str]) -> Load:
    """What a server does under load."""
    with _served(command) as (process, port):
        return uvloop.run(_loaded(process, port))


async def _loaded(process: int, port: int) -> Load:
    request = (
        f"POST /topics/plays HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(_BODY)}\r\n\r\n"
    ).encode() + _BODY
    loop, times = asyncio.get_running_loop(), list[float]()
    clients = [await loop.create_connection(lambda: _Client(request, times), "127.0.0.1", port) for _ in range(CLIENTS)]
    await asyncio.sleep(WARM)
    times.clear()
    began, cpu = time.perf_counter(), _cpu(process)
    await asyncio.sleep(SECONDS)
    took, used, found = time.perf_counter() - began, _cpu(process) - cpu, sorted(times)
    for transport, _ in clients:
        transport.abort()
    count = len(found)
    return Load(count / took, count / used, found[count // 2], found[int(count * 0.99)])


def _cpu(process: int) -> float:
    """The processor time of a process in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _served(command: list[str]) -> Iterator[tuple[int, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.sched_setaffinity(0, cores[:1])  # the server inherits it
    process = subprocess.Popen([sys.executable, *command, str(port)])
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.05)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait()
        os.sched_setaffinity(0, cores)
