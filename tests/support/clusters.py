"""A standalone Spark cluster of separate processes for tests, and ways to kill its parts."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kills import PATIENCE, descendants, kill
from millrace.background.process import reap
from millrace.cluster import cluster

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = ("spark.executor.memory=512m", f"spark.executor.extraJavaOptions={QUICK}")
"""Settings of Spark with which small executors start soon."""


class LocalCluster:
    """A cluster that runs: a master, and two workers with one core each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "SPARK_DAEMON_JAVA_OPTS": QUICK}
        self._environment.pop("SPARK_SUBMIT_OPTS", None)
        started = cluster.start(folder, 2, 1, "512m", 0, self._environment)
        assert started.master is not None
        self.master = started.master

    @property
    def url(self) -> str:
        return self.master.url

    def options(self) -> list[str]:
        """The options of a run on this cluster, beside --master."""
        return [option for each in CONF for option in ("--conf", each)]

    def worker(self, number: int) -> cluster.Worker:
        found = cluster.running(self.folder)
        assert found is not None
        return found.workers[number - 1]

    def executors(self) -> list[int]:
        """The process ids of all executors."""
        pids = [worker.pid for worker in (self.worker(1), self.worker(2)) if worker.pid is not None]
        return [pid for worker in pids for pid in descendants(worker) if _is_executor(pid)]

    def kill_worker(self, number: int) -> None:
        pid = self.worker(number).pid
        assert pid is not None
        kill(pid)
        reap(pid)
        until(lambda: self.worker(number).pid is None)

    def start_worker(self, number: int) -> None:
        """Start a worker that was killed; a run gets an executor on it when it is registered."""
        cluster.start_worker(self.folder, self.master, self.worker(number), self._environment)

    def stop(self) -> None:
        cluster.stop(self.folder)


def until(holds: Callable[[], bool], check: Callable[[], object] = lambda: None) -> None:
    """Wait until something holds; `check` fails if it never will."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        check()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_executor(pid: int) -> bool:
    with suppress(OSError):
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@contextmanager
def running() -> Iterator[LocalCluster]:
    """A cluster that runs until the end."""
    with tempfile.TemporaryDirectory(prefix="millrace-cluster-", ignore_cleanup_errors=True) as folder:
        started = LocalCluster(Path(folder))
        try:
            yield started
        finally:
            started.stop()
