"""A Python that starts at once, for the Spark session that tests share.

Spark starts two Python processes for each stream, one that plans its micro-batches and one that asks for its state,
and each imports PySpark and a part of Millrace: about half of the time of a small run. Here a process that has imported
all of them forks both. Processes that tests start, such as `millrace run`, use the ordinary Python.
"""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import fork_server

_FORKED = (
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
)


@contextmanager
def started(forked: tuple[str, ...] = _FORKED) -> Iterator[Path]:
    """Start the server of these modules; gives a program that takes the arguments of Python."""
    # The path of a socket must be short, so this is not a folder of pytest's.
    with TemporaryDirectory(prefix="millrace-python-") as folder, _serving(Path(folder), forked) as program:
        yield program


@contextmanager
def _serving(folder: Path, forked: tuple[str, ...]) -> Iterator[Path]:
    path = folder / "socket"
    python, here = shlex.quote(sys.executable), shlex.quote(fork_server.__file__)
    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\ncase "$2" in\n{"|".join(forked)}) exec {python} -IS {here} start {shlex.quote(str(path))} "$2";;\n'
        f'*) exec {python} "$@";;\nesac\n'
    )
    program.chmod(0o755)
    # As Spark starts its processes, apart from the variables that each brings along.
    environment = {**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"), "PYTHONUNBUFFERED": "YES"}
    environment.pop("PYTHONPATH", None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        server = subprocess.Popen(
            [sys.executable, fork_server.__file__, "serve", str(listening.fileno())], stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()], env=environment, cwd=folder,
        )  # fmt: skip
    with server:  # it ends at the end of its input
        yield program
