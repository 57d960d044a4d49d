"""A Python that starts at once, for the processes that Spark starts on this machine.

For each stream, Spark starts a Python process that plans micro-batches, one that asks for its state, and daemons that
fork the workers of tasks. Each imports PySpark and a part of Millrace, which was a third of the time until the first
answer. Here one process imports all of it while Java starts, and forks the others.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

from millrace.spark import fork_server, workers

FORKED = (
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    workers.__name__,
)
"""The modules that Spark runs as programs."""


class Forks:
    """A server that forks Python processes, until `close` or the end of this process."""

    def __init__(self, forked: tuple[str, ...] = FORKED) -> None:
        """Start the server of these modules."""
        self._folder = Path(mkdtemp(prefix="millrace-python-"))  # nobody else may enter it
        path = self._folder / "socket"
        self.program = self._folder / "python"
        """A program that takes the arguments of Python."""
        python, here = shlex.quote(sys.executable), shlex.quote(fork_server.__file__)
        self.program.write_text(
            f'#!/bin/sh\ncase "$2" in\n{"|".join(forked)})\n  shift\n'
            f'  exec {python} -IS {here} start {shlex.quote(str(path))} "$@";;\nesac\nexec {python} "$@"\n'
        )
        self.program.chmod(0o700)
        # As Spark starts its processes, apart from the variables that each brings along.
        variables = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"), "PYTHONUNBUFFERED": "YES"}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(path))
            listening.listen()
            self._server = subprocess.Popen(
                [sys.executable, fork_server.__file__, "serve", str(listening.fileno())], stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()], env={**os.environ, **variables}, cwd=self._folder,
                start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End the server, which ends at the end of its input; the processes that it forked go on."""
        self._server.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)
