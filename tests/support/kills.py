"""Running `millrace run` as a process of its own, and killing it with all that it started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from millrace.spark import workers
from millrace.spark.crash import VARIABLE

_DAEMON = workers.__name__.rpartition(".")[2]
"""The name by which the operating system knows the daemon and its workers."""
PATIENCE = 180
"""How many seconds a process may take for anything; it never does, unless something is wrong."""


STARTED: list["Process"] = []
"""All that were started; what a failed test leaves behind is ended by a fixture."""


class Process:
    """A pipeline that runs, and can be killed."""

    def __init__(
        self,
        pipeline: Path,
        options: list[str],
        environment: Mapping[str, str] | None = None,
        master: str = "local[2,100]",
    ) -> None:
        """Start it; its progress goes to a file. By default a task may fail often, as its worker is killed often."""
        self.output = pipeline.parent / "output.txt"
        command = [sys.executable, "-m", "millrace", "run", str(pipeline), "--json", *options]
        command += ["--master", master]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=pipeline.parent, env={**os.environ, **(environment or {})},
                start_new_session=True,
            )  # fmt: skip
        STARTED.append(self)

    def is_over(self) -> bool:
        """Whether it has ended; it must not have failed."""
        ended = self._process.poll()
        assert ended in (None, 0), self.output.read_text()[-3000:]
        return ended == 0

    def wait_for(self, path: Path) -> bool:
        """Wait until a file is there; False if the process ends without it."""
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            if self.is_over():
                return False
            assert time.monotonic() < deadline, self.output.read_text()[-3000:]
            time.sleep(0.02)
        return True

    def wait_for_batches(self, count: int) -> bool:
        """Wait until so many more micro-batches are done; False if the process ends before."""
        return self.wait_for_batch(self.batches() + count)

    def wait_for_batch(self, wanted: int) -> bool:
        """Wait until so many micro-batches are done in all; False if the process ends before."""
        deadline = time.monotonic() + PATIENCE
        while self.batches() < wanted:
            if self.is_over():
                return False
            assert time.monotonic() < deadline, self.output.read_text()[-3000:]
            time.sleep(0.02)
        return True

    def batches(self) -> int:
        """How many micro-batches were done, over all the times that it was started."""
        return sum(line.startswith("{") for line in self.output.read_text().splitlines())

    def wait(self) -> None:
        """Wait for the end, its own and that of all that it started."""
        started: set[int] = set()
        deadline = time.monotonic() + PATIENCE
        while not self.is_over():
            started.update(descendants(self._process.pid))
            assert time.monotonic() < deadline, self.output.read_text()[-3000:]
            time.sleep(0.1)
        self._wait_for_the_rest(started)

    def tell(self, number: int) -> None:
        """Send a signal to it and to all that it started, as service managers do."""
        for pid in (self._process.pid, *descendants(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def has_java(self) -> bool:
        """Whether Spark is being started, or runs."""
        for pid in descendants(self._process.pid):
            with suppress(OSError):
                if b"org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return True
        return False

    def said(self) -> list[str]:
        """The lines that are not of a micro-batch."""
        return [line for line in self.output.read_text().splitlines() if not line.startswith("{")]

    def kill(self) -> None:
        """Kill it and all that it started, at once."""
        found = [self._process.pid, *descendants(self._process.pid)]
        for pid in found:
            kill(pid)
        self._process.wait(PATIENCE)
        self._wait_for_the_rest(found)

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self._process.poll() is None:
            self.kill()

    def workers(self) -> list[int]:
        """The Python workers that run tasks."""
        return [pid for pid in descendants(self._process.pid) if is_worker(pid)]

    def _wait_for_the_rest(self, pids: Iterable[int]) -> None:
        deadline = time.monotonic() + PATIENCE
        while any(_is_alive(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def held_at(point: str, count: int, marker: Path) -> dict[str, str]:
    """The environment of a process that holds still at a point."""
    marker.unlink(missing_ok=True)
    return {VARIABLE: f"{point}:{count}:{marker}"}


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found


def is_worker(pid: int) -> bool:
    """Whether a process was forked by a daemon of Spark's for Python workers."""
    try:
        return all(Path(f"/proc/{each}/comm").read_text().strip() == _DAEMON for each in (pid, _parent(pid)))
    except OSError:
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
