"""Ports of this machine on which background processes listen."""

import socket
import subprocess
import time
from contextlib import suppress

from millrace.model.errors import MachineError

HOST = "127.0.0.1"
"""The address of this machine that no other machine reaches."""


def check_port(port: int) -> None:
    """Refuse a port that cannot be listened on; 0 means any."""
    if not port:
        return
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError as error:
            raise MachineError(
                f"port {port} cannot be used: {error.strerror}", "choose another one: --port NUMBER, or 0 for any"
            ) from None


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as trial:
        trial.bind((HOST, 0))
        port: int = trial.getsockname()[1]
        return port


def wait_until_open(process: "subprocess.Popen[bytes]", port: int, seconds: float) -> bool | None:
    """Wait until somebody listens on a port: True; False if the process ends before, None after so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return True
        time.sleep(0.05)
    return None
