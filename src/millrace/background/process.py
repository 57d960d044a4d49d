"""A process that goes on in the background, found again by its folder.

The process inherits a lock on a file in its folder and holds it for as long as it lives. So a lock that is held tells
that the process runs and that the stored process id is its own.
"""

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from millrace.eventlog.durable import write_whole
from millrace.model.errors import MachineError

_STOP = 60.0
"""For how many seconds a process may stop before it is killed, and after that."""
_STARTED: dict[int, "subprocess.Popen[bytes]"] = {}
"""The processes that this one has started, by process id; they go on when it ends."""


class TakenError(Exception):
    """Another process runs in the folder."""


@dataclass(frozen=True, slots=True)
class Background:
    """The folder of a background process: its lock, its output and what is known of it."""

    folder: Path
    about: str
    """The name of the file with what is known of it."""
    output: str
    """The name of the file with its output."""

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.folder / self.output

    def lock(self) -> IO[bytes]:
        """Lock the folder for a process that is about to start. Raises TakenError if one runs."""
        lock = (self.folder / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise TakenError from None
        return lock

    def is_running(self) -> bool:
        """Whether a process runs in the folder, or is being started."""
        try:
            file = (self.folder / "lock").open("rb")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def known(self) -> dict[str, Any] | None:
        """What is known of the process that runs; None if none does."""
        if self.is_running():
            with suppress(FileNotFoundError):
                found: dict[str, Any] = json.loads((self.folder / self.about).read_text(encoding="utf-8"))
                return found
        return None

    def note(self, known: Mapping[str, Any]) -> None:
        """Store what is known of the process."""
        text = json.dumps(known)
        write_whole(self.folder / self.about, lambda path: path.write_text(text, encoding="utf-8"))

    def run(
        self, command: Sequence[str], lock: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a program in a session of its own, with its output in the log of the folder; it inherits the lock."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                pass_fds=() if lock is None else (lock.fileno(),),
                env=None if environment is None else dict(environment),
            )  # fmt: skip

    def end(self, pid: int, what: str) -> None:
        """End the process that runs in the folder, and wait until it has ended; it is killed if that takes a minute."""
        for sent, seconds in ((signal.SIGTERM, _STOP), (signal.SIGKILL, _STOP)):
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if not self.is_running():
                    reap(pid)
                    return
                time.sleep(0.05)
        raise MachineError(f"the {what} {pid} does not end", "see what it is doing; its folder is still in use")


def keep(process: "subprocess.Popen[bytes]") -> None:
    """Remember a process that goes on, so that its end can be collected."""
    _STARTED[process.pid] = process


def reap(pid: int) -> None:
    """Collect the end of a process, if this one has started it."""
    own = _STARTED.pop(pid, None)
    if own is not None:
        own.wait()
