"""The executors of a cluster: waited for, and checked before a pipeline runs on them.

Each task of the check tells the versions that it runs with, and writes to the folders that all machines must share. So
a machine that lacks something is named before it gives a wrong answer or an error that nobody understands.
"""

import platform
import re
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace import __version__
from millrace.model.errors import ConflictError, MachineError, MillraceError
from millrace.model.pipeline import Pipeline
from millrace.spark.master import Reach, reach_of
from millrace.spark.shipping import ship

_PACKAGES = ("pyspark", "pyarrow", "duckdb", "numpy", "pandas", "datasketches", "sqlglot", "confluent-kafka", "numba")
_PATIENCE = 120.0
"""For how many seconds a cluster may start the first executor."""
_STEADY = 1.0
"""After so many seconds without a new executor, all that a cluster can start now are taken to be there."""
_SAME = (
    "give executors the same environment: the same path on every machine, the same image, or "
    "--conf spark.archives=environment.tar.gz#environment (docs/cluster.md)"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a task found where it ran."""

    host: str
    versions: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    """The folders that it could not write to."""


def prepare(spark: SparkSession, pipeline: Pipeline, folders: Sequence[Path]) -> None:
    """Make executors ready for a pipeline, and check them; nothing if tasks run in this process's Java.

    `folders` are those that executors must share with this machine.
    """
    if reach_of(spark.sparkContext.master or "") is Reach.LOCAL:
        return
    ship(spark, {stream.place.file for stream in pipeline.streams})
    check_executors(spark, folders)


def check_executors(spark: SparkSession, folders: Sequence[Path]) -> None:
    """Wait for executors, and refuse a cluster whose executors differ from this process or lack one of the folders.

    Executors that join later are not checked.
    """
    wait_for_executors(spark)
    mark = uuid.uuid4().hex
    here = _versions()
    tasks = max(spark.sparkContext.defaultParallelism, _count(spark))
    folders = [folder.absolute() for folder in folders]
    names = [str(folder) for folder in folders]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        probes = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitionsWithIndex(
            lambda number, _: probed(number, mark, names)
        )
        found = probes.collect()
    except (PySparkException, Py4JError) as error:
        raise _unusable(error, spark.sparkContext.pythonExec) from error
    finally:
        written = [{path.name for path in folder.glob(f".{mark}-*")} for folder in folders]
        for folder in folders:
            for path in folder.glob(f".{mark}-*"):
                path.unlink(missing_ok=True)
    for number, machine in enumerate(found):
        _check(machine, here, names, [f".{mark}-{number}" in each for each in written])


def wait_for_executors(spark: SparkSession) -> None:
    """Wait until executors are there: as many as were asked for or, if that is not known, as come.

    With dynamic allocation, none comes before there is something to do.
    """
    conf = spark.sparkContext.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    asked = conf.get("spark.executor.instances")
    deadline = time.monotonic() + _PATIENCE
    many, since = 0, time.monotonic()
    while True:
        now, clock = _count(spark), time.monotonic()
        if now != many:
            many, since = now, clock
        if many and (many >= int(asked) if asked else clock - since >= _STEADY):
            return
        if clock > deadline:
            break
        time.sleep(0.1)
    if not many:
        raise MachineError(
            f"{spark.sparkContext.master} has started no executor within {_PATIENCE:.0f} seconds",
            "nothing was lost: check that the cluster has workers with free cores, and with the memory that an "
            "executor asks for (--conf spark.executor.memory=1g)",
        )


def _count(spark: SparkSession) -> int:
    """The executors that are registered now; Spark counts the driver, too."""
    context = spark.sparkContext._jsc
    assert context is not None
    return int(context.sc().getExecutorMemoryStatus().size()) - 1


def probed(number: int, mark: str, folders: Sequence[str]) -> Iterator[Machine]:
    """What a task finds; it leaves a file in each folder."""
    missing = []
    for folder in folders:
        try:
            # A folder is not made: on a machine that does not share it, that would only hide what is wrong.
            Path(folder, f".{mark}-{number}").write_bytes(b"")
        except OSError:
            missing.append(folder)
    yield Machine(socket.gethostname(), _versions(), tuple(missing))


def _check(machine: Machine, here: Sequence[tuple[str, str]], folders: Sequence[str], arrived: Sequence[bool]) -> None:
    for (name, ours), (_, theirs) in zip(here, machine.versions, strict=True):
        if ours != theirs:
            raise ConflictError(f"an executor on {machine.host} has {name} {theirs}, and this process {ours}", _SAME)
    for folder, is_here in zip(folders, arrived, strict=True):
        if folder in machine.missing or not is_here:
            raise ConflictError(
                f"an executor on {machine.host} does not share the folder {folder} with this machine",
                "mount one file system at the same path on all machines, writable for the user of the executors",
            )


def _versions() -> tuple[tuple[str, str], ...]:
    return (
        ("Python", ".".join(platform.python_version_tuple()[:2])),
        ("millrace", __version__),
        *((name, _version(name)) for name in _PACKAGES),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(none)"


_REASONS = (
    (r"No module named '?millrace", "has no millrace"),
    (r"No module named '?([\w.]+)", "has no package {}"),
    (r"PYTHON_VERSION_MISMATCH|different version", "has another version of Python"),
    (r'Cannot run program "([^"]+)"', "has no program {}"),
)


def _unusable(error: PySparkException | Py4JError, python: str | None) -> MillraceError:
    """The error for executors on which the check did not run."""
    text = str(error)
    for pattern, reason in _REASONS:
        found = re.search(pattern, text)
        if found:
            said = reason.format(*found.groups())
            return ConflictError(f"the Python {python or ''} of an executor {said}".replace("  ", " "), _SAME)
    from millrace.spark.failure import plain_error

    plain = plain_error(error)
    return plain if isinstance(plain, MillraceError) else MillraceError(f"executors cannot be used: {plain}")
