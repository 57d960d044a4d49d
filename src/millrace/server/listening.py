"""A server that listens: on an address, with TLS if there are files for it, in this thread or beside it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from millrace.model.errors import MachineError, PipelineError
from millrace.server.tokens import FILE, load

_ENDS_WITHIN = 2
"""How many seconds requests have to end when the server is told to."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Path | None = None
    key: Path | None = None

    @property
    def url(self) -> str:
        """The address for a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def sends_in_clear(self) -> bool:
        """Whether tokens would pass a network in clear."""
        return not self.is_loopback and self.certificate is None


def check_address(address: Address, folder: Path) -> None:
    """Refuse an address that others reach without tokens, in the file of a folder; and half of what TLS needs."""
    if (address.certificate is None) != (address.key is None):
        raise PipelineError("TLS needs a certificate and its key", "give both --tls-cert and --tls-key")
    if not address.is_loopback and not load(folder / FILE):
        raise PipelineError(
            f"other machines can reach {address.host}, and there are no tokens",
            "make one: millrace tokens create --scope read; or listen on 127.0.0.1",
        )


@contextmanager
def listening(address: Address) -> Iterator[socket.socket]:
    """A socket that listens."""
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        opened = socket.create_server((address.host, address.port), family=family, backlog=2048)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]
        problem = f"cannot listen on {address.host}:{address.port}: {why}"
        raise MachineError(problem, "choose another --port or --host") from None
    with opened:
        yield opened


def serve(app: FastAPI, address: Address, on: socket.socket) -> None:
    """Serve until a signal ends it."""
    _server(app, address).run([on])


@contextmanager
def serving(app: FastAPI, address: Address, on: socket.socket) -> Iterator[None]:
    """Serve in a thread until the block ends."""
    server = _server(app, address)
    thread = threading.Thread(target=server.run, args=([on],), name="millrace-serve", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_ENDS_WITHIN + 2)


def _server(app: FastAPI, address: Address) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_ENDS_WITHIN,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
            h11_max_incomplete_event_size=64 << 10,
        )
    )
