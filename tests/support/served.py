"""A real `millrace serve`, in a process of its own."""

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2 as httpx


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    url: str
    port: int


@contextmanager
def served(
    folder: Path, *options: str, scheme: str = "http", certificate: Path | None = None, port: int = 0
) -> Iterator[Served]:
    """Serve the log and the store in a folder until the end, on a free port unless one is given."""
    trusted = True if certificate is None else ssl.create_default_context(cafile=str(certificate))
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "millrace", "serve", "--port", str(port), "--folder", ".", "--log", "log.db"]
    with (folder / "serve.log").open("wb") as told:  # for whoever looks into a failure
        process = subprocess.Popen([*command, "--store", "views.db", *options], cwd=folder, stderr=told)
    try:
        url, deadline = f"{scheme}://127.0.0.1:{port}", time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{url}/healthz", verify=trusted)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline, "the server does not come up"
                assert process.poll() is None, "the server has ended"
                time.sleep(0.05)
        yield Served(process, url, port)
    finally:
        process.kill()
        process.wait()
