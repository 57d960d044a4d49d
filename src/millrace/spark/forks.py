"""A Python that starts at once, for the processes that Spark starts on this machine.

For each stream, Spark starts a Python process that plans micro-batches, one that asks for its state, and daemons that
fork the workers of tasks. Each imports PySpark and a part of Millrace, which was a fifth of the time until the first
answer. Here one process imports all of it while Java starts, and forks the others.
"""

import fcntl
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
        """Start the server of these modules. Raises OSError if the folder for temporary files is not fit for it."""
        self._folder = Path(mkdtemp(prefix="millrace-python-"))  # nobody else may enter it
        self._locked = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(self._locked, fcntl.LOCK_SH)  # programs that clean up temporary files leave it alone
        self.program = self._folder / "python"
        """A program that takes the arguments of Python."""
        try:
            self._write_program(forked)
            self._server = self._started()
        except OSError:
            self._remove()
            raise

    def _write_program(self, forked: tuple[str, ...]) -> None:
        python, here = shlex.quote(sys.executable), shlex.quote(fork_server.__file__)
        self.program.write_text(
            f'#!/bin/sh\ncase "$2" in\n{"|".join(forked)})\n  shift\n'
            f'  exec {python} -IS {here} start {shlex.quote(str(self._socket))} "$@";;\nesac\nexec {python} "$@"\n'
        )
        self.program.chmod(0o700)
        if not os.access(self.program, os.X_OK):
            raise PermissionError(f"programs in {self._folder} cannot be run")

    def _started(self) -> "subprocess.Popen[bytes]":
        # As Spark starts its processes, apart from the variables that each brings along.
        variables = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", **os.environ}
        paths = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
        variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(self._socket))
            listening.listen()
            number = str(listening.fileno())
            return subprocess.Popen(
                [sys.executable, fork_server.__file__, "serve", number, str(self._folder)], stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()], env=variables, cwd=self._folder, start_new_session=True,
            )  # fmt: skip

    @property
    def _socket(self) -> Path:
        return self._folder / "socket"

    def close(self) -> None:
        """End the server; the processes that it forked go on."""
        self._server.kill()
        self._server.communicate()
        self._remove()

    def _remove(self) -> None:
        os.close(self._locked)
        shutil.rmtree(self._folder, ignore_errors=True)
