"""A standalone Spark cluster of separate processes on one machine, which listens on this machine only.

The master and each worker have a folder of their own, with their lock and their output. Workers start executors, which
end with them.
"""

import json
import os
import time
import urllib.request
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millrace.background.port import HOST, check_port, free_port, wait_until_open
from millrace.background.process import Background, TakenError, keep
from millrace.model.errors import ConflictError, MachineError, NotFoundError, PipelineError
from millrace.spark.java import java_home, java_in

PORT = 7077
_START = 300.0
"""For how many seconds a process may start."""
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_ABOUT, _OUTPUT = "process.json", "output.log"


@dataclass(frozen=True, slots=True)
class Master:
    """The process that workers and pipelines connect to."""

    port: int
    page: int
    """The port of its page and of its state as JSON."""
    pid: int

    @property
    def url(self) -> str:
        """The URL for --master, such as spark://127.0.0.1:7077."""
        return f"spark://{HOST}:{self.port}"


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that starts executors."""

    number: int
    cores: int
    memory: str
    pid: int | None
    """None if it has ended."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of which at least one process runs."""

    master: Master | None
    """None if it has ended."""
    workers: tuple[Worker, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all its processes run."""
        return self.master is not None and all(worker.pid is not None for worker in self.workers)


def start(
    folder: Path, workers: int, cores: int | None = None, memory: str = "1g", port: int = PORT,
    environment: Mapping[str, str] = os.environ,
) -> Cluster:  # fmt: skip
    """Start a master and workers in a folder, and wait until all workers are registered. Port 0 takes a free one.

    Each worker offers `cores`, by default its share of the machine's, and `memory`, as Spark writes sizes.
    """
    if workers < 1:
        raise PipelineError("a cluster has at least one worker", "--workers 2")
    folder = folder.absolute()
    now = running(folder)
    if now is not None:
        at = "" if now.master is None else f" on {now.master.url}"
        raise ConflictError(
            f"a cluster already runs in {folder}{at}", f"use it, or stop it: millrace cluster stop --folder {folder}"
        )
    each = cores or max(1, len(os.sched_getaffinity(0)) // workers)
    for old in folder.glob("worker-*/worker.json"):  # of an earlier cluster, which may have had more
        old.unlink()
    try:
        master = _start_master(folder, port, environment)
        for number in range(1, workers + 1):
            start_worker(folder, master, Worker(number, each, memory, None), environment)
        _wait_for_workers(folder, master, workers)
    except BaseException:
        if running(folder) is not None:
            stop(folder)
        raise
    started = running(folder)
    assert started is not None
    return started


def start_worker(folder: Path, master: Master, worker: Worker, environment: Mapping[str, str] = os.environ) -> Worker:
    """Start a worker of a cluster that runs: a new one, or one that has ended. Does not wait until it is registered."""
    home = _home(folder, f"worker-{worker.number}")
    (home.folder / "worker.json").write_text(
        json.dumps({"number": worker.number, "cores": worker.cores, "memory": worker.memory}), encoding="utf-8"
    )
    arguments = [
        "--host", HOST, "--webui-port", "0", "--cores", str(worker.cores), "--memory", worker.memory,
        "--work-dir", str(home.folder / "work"), master.url,
    ]  # fmt: skip
    with closing(_locked(home)) as lock:
        process = home.run([*_program(environment), _WORKER, *arguments], lock, _variables(environment))
        home.note({"pid": process.pid})
        keep(process)
    return Worker(worker.number, worker.cores, worker.memory, process.pid)


def running(folder: Path) -> Cluster | None:
    """The cluster in a folder; None if none of its processes runs."""
    known = _home(folder, "master", make=False).known()
    workers = []
    for about in sorted(folder.glob("worker-*/worker.json")):
        of = _home(folder, about.parent.name, make=False).known()
        fields = json.loads(about.read_text(encoding="utf-8"))
        workers.append(Worker(**fields, pid=None if of is None else of["pid"]))
    if known is None and all(worker.pid is None for worker in workers):
        return None
    return Cluster(None if known is None else Master(**known), tuple(sorted(workers, key=lambda each: each.number)))


def stop(folder: Path) -> Cluster:
    """Stop all processes of the cluster in a folder, and wait until they have ended."""
    cluster = running(folder)
    if cluster is None:
        raise NotFoundError(f"no cluster runs in {folder}", "check --folder")
    for worker in cluster.workers:
        if worker.pid is not None:
            _home(folder, f"worker-{worker.number}").end(worker.pid, "worker")
    if cluster.master is not None:
        _home(folder, "master").end(cluster.master.pid, "master")
    return cluster


def state_of(master: Master) -> dict[str, Any]:
    """What the master says of its workers and of the pipelines that run: its page as JSON. Raises OSError."""
    with urllib.request.urlopen(f"http://{HOST}:{master.page}/json/", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _start_master(folder: Path, port: int, environment: Mapping[str, str]) -> Master:
    check_port(port)
    home = _home(folder, "master")
    listens, page = port or free_port(), free_port()
    arguments = ["--host", HOST, "--port", str(listens), "--webui-port", str(page)]
    with closing(_locked(home)) as lock:
        process = home.run([*_program(environment), _MASTER, *arguments], lock, _variables(environment))
        master = Master(listens, page, process.pid)
        home.note(asdict(master))
        keep(process)
    is_open = wait_until_open(process, listens, _START) and wait_until_open(process, page, _START)
    if not is_open:
        raise MachineError("the master of the cluster did not start", f"its own output is in {home.log}")
    return master


def _wait_for_workers(folder: Path, master: Master, wanted: int) -> None:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        now = running(folder)
        ended = [] if now is None else [worker.number for worker in now.workers if worker.pid is None]
        if now is None or now.master is None:
            raise MachineError("the master of the cluster ended", f"its own output is in {folder / 'master' / _OUTPUT}")
        if ended:
            log = _home(folder, f"worker-{ended[0]}").log
            raise MachineError(f"worker {ended[0]} of the cluster did not start", f"its own output is in {log}")
        with suppress(OSError, ValueError):
            if state_of(master)["aliveworkers"] == wanted:
                return
        time.sleep(0.1)
    raise MachineError(
        f"not all workers are registered after {_START:.0f} seconds", f"see the output files in {folder}"
    )


def _home(folder: Path, name: str, make: bool = True) -> Background:
    own = folder.absolute() / name
    if make:
        own.mkdir(parents=True, exist_ok=True)
    return Background(own, _ABOUT, _OUTPUT)


def _locked(home: Background) -> Any:
    try:
        return home.lock()
    except TakenError:
        raise ConflictError(f"a process of a cluster already runs in {home.folder}", "millrace cluster stop") from None


def _program(environment: Mapping[str, str]) -> list[str]:
    """Spark's script that starts its classes; the process that it starts takes its place."""
    return [str(Path(_variables(environment)["SPARK_HOME"], "bin", "spark-class"))]


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the processes: the Java and the Spark of pipelines, and addresses of this machine only."""
    from millrace.spark.home import spark_home  # imports Spark, which most commands do not need

    java = java_home(environment)
    return {
        "SPARK_HOME": str(spark_home(java_in(environment))),
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true",
        **environment,
        **({} if java is None else {"JAVA_HOME": java}),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_PUBLIC_DNS": HOST,
    }
