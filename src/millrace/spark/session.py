"""The Spark session that everything runs in."""

import atexit
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from types import MappingProxyType

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace.model.errors import MachineError
from millrace.spark import workers
from millrace.spark.forks import Forks
from millrace.spark.home import lacks_archive, make_archive_later, settings_of, spark_home
from millrace.spark.java import java_home, java_in
from millrace.spark.master import Reach, reach_of
from millrace.spark.trouble import machine_trouble


def start(
    name: str, master: str = "local[*]", log: Path | None = None, conf: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """Start Spark on a supported Java, or return the existing session.

    The output of Spark and its workers goes to the file `log`, if one is given. `conf` holds settings of Spark, which
    come before those of Millrace.
    """
    home = java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    if "SPARK_HOME" not in os.environ and master.startswith(("local", "spark://")):
        _HOME[:] = [spark_home(java_in(os.environ))]
        os.environ["SPARK_HOME"] = str(_HOME[0])
    # PySpark logs every failed query there as JSON, in addition to the exception it raises.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    builder = (
        SparkSession.builder.appName(name)
        .master(master)
        .config("spark.driver.memory", f"{_heap()}m")
        .config("spark.log.level", "FATAL")
        .config("spark.python.daemon.module", workers.__name__)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    is_new = SparkContext._gateway is None and reach_of(master) is Reach.LOCAL
    ours = settings_of(os.environ["SPARK_HOME"]) if is_new else {}
    for key, value in {**_address(master), **ours, **conf}.items():
        builder = builder.config(key, value)
    with _printing_to(log), _own_interrupt(), _python(master):
        try:
            started = builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            _end_forks()
            limits = _limits()
            if SparkContext._gateway is not None and limits is None:  # Java runs, and says why Spark does not
                raise
            _end_java()
            raise _not_started(error, limits, log) from error
    if log is not None:
        _PRINTED_TO[:] = [log.absolute()]
    return started


@contextmanager
def quiet(name: str, master: str) -> Iterator[SparkSession]:
    """A session for the block; until it ends, a temporary file holds the output of Spark and its workers."""
    log = Path(gettempdir(), f"millrace-spark-{os.getpid()}.log")
    started = start(name, master, log)
    try:
        yield started
    finally:
        stop(started)
        log.unlink(missing_ok=True)


def until_the_end(name: str, master: str) -> SparkSession:
    """The active session, or one as in `quiet` that is stopped when the process ends."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    held = ExitStack()
    atexit.register(held.close)
    return held.enter_context(quiet(name, master))


def _address(master: str) -> dict[str, str]:
    """The address at which executors reach this process: on this machine only, unless they may be on others."""
    if reach_of(master) is Reach.CLUSTER:
        return {}  # Spark takes the name of this machine, or SPARK_LOCAL_IP; spark.driver.host names another
    return {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


@contextmanager
def _python(master: str) -> Iterator[None]:
    """Let Spark that is started in the block run this Python with its packages, not the first one on the PATH."""
    mine = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if mine == sys.executable and not is_active() and reach_of(master) is Reach.LOCAL and sys.platform == "linux":
        with suppress(OSError):  # then Python is started as usual
            _FORKS.append(Forks())
            os.environ["PYSPARK_PYTHON"] = str(_FORKS[-1].program)
    try:
        yield
    finally:
        os.environ["PYSPARK_PYTHON"] = mine


def _end_forks() -> None:
    while _FORKS:
        _FORKS.pop().close()


_FORKS: list[Forks] = []
"""The server that forks the Python processes of the session; empty if they are started one by one."""
_HOME: list[Path] = []
"""The Spark home that this process has chosen; empty if the environment names one."""
_FILES = 1024
"""About as many files as Spark opens at the same time."""


def _limits() -> tuple[str, str] | None:
    """The limit of this process that Java probably exceeds, and how to raise it; None if there is no such limit."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    if files != resource.RLIM_INFINITY and files < _FILES:
        return f"the limit of open files is {files}", f"Spark needs about {_FILES}: raise it with ulimit -n 4096"
    if memory != resource.RLIM_INFINITY:
        return f"the limit of memory is {memory >> 20:,} MB", "raise it with ulimit -v unlimited"
    return None


def _not_started(error: Exception, limits: tuple[str, str] | None, log: Path | None) -> MachineError:
    """The error for a Java that does not start or ends at once: the likely reason, and the file with Java's output."""
    known = machine_trouble(error)
    if limits is not None:
        why, way = f": {limits[0]}", limits[1]
    elif known is not None:
        why, way = f": {known.problem}", str(known.advice)
    else:
        why, way = "", "check that JAVA_HOME names a Java that runs, and that there is memory for it"
    said = "it printed the reason above" if log is None else f"its own output is in {log}"
    return MachineError(f"Java did not start{why}", f"{way}; {said}")


def _end_java() -> None:
    """End a Java that was started but does not work."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    java = getattr(gateway, "proc", None)
    if java is not None:
        java.kill()
        java.wait()
    SparkContext._gateway = SparkContext._jvm = None


_PRINTED_TO: list[Path] = []
"""The file that this process's JVM prints to; empty if that is the terminal."""


def printed_to() -> Path | None:
    """The file that Spark and its workers print to; None if that is the terminal."""
    return _PRINTED_TO[0] if _PRINTED_TO else None


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Restore the handler of Ctrl-C, which PySpark replaces."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _heap() -> int:
    """The JVM's heap in megabytes: a quarter of the memory, 1 to 8 GB. Spark's 1 GB does not hold ten million keys."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return min(max(machine // 4, 1024), 8192)


def stop(spark: SparkSession) -> None:
    """Stop Spark and its JVM. Otherwise objects registered there would still be alive when Python exits."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is not None:
        gateway.shutdown()
        java = getattr(gateway, "proc", None)
        if java is not None:
            java.stdin.close()  # the JVM exits at the end of its input
            java.wait()
            if _HOME and lacks_archive(_HOME[0]):
                make_archive_later(_HOME[0])
    SparkContext._gateway = SparkContext._jvm = None
    _end_forks()
    _PRINTED_TO.clear()


def is_active() -> bool:
    """Whether a Spark context runs in this process, whoever started it."""
    return SparkContext._active_spark_context is not None


def is_stopped(spark: SparkSession) -> bool:
    """Whether a session was stopped, by `stop` or by its own method."""
    return spark.sparkContext._jsc is None


@contextmanager
def _printing_to(log: Path | None) -> Iterator[None]:
    """Redirect to a file the output of processes that are started in the block."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for number, copy in enumerate(kept, 1):
            os.dup2(copy, number)
            os.close(copy)


def separate(spark: SparkSession) -> SparkSession:
    """A second session on the same workers, with the settings on which the meaning of expressions depends.

    The user's session may have other settings, which do not change.
    """
    own = spark.newSession()
    for name, value in _MEANING.items():
        own.conf.set(name, value)
    return own


_MEANING = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


def streaming(spark: SparkSession, shards: int) -> SparkSession:
    """A session of its own for a stream, on the same workers; decision 006 explains each setting."""
    own = separate(spark)
    for name, value in _STREAMING.items():
        own.conf.set(name, value)
    own.conf.set("spark.sql.shuffle.partitions", str(shards))
    return own


_STREAMING = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Both file managers create files by renaming; the other one does not use LocalFiles, but starts a `chmod` for each.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Otherwise stopping a stream would wait for ever for a sink that never returns.
    "spark.sql.streaming.stopTimeout": "5s",
}


def labels_of(shards: int) -> tuple[int, ...]:
    """A number for each shard, such that Spark hashes each shard to a partition of its own."""
    labels: dict[int, int] = {}
    label = 0
    while len(labels) < shards:
        labels.setdefault(_spark_hash(label) % shards, label)
        label += 1
    return tuple(labels[part] for part in range(shards))


def _spark_hash(number: int) -> int:
    """Spark's `hash` of a non-negative INT: one round of Murmur3 with the seed 42."""
    mixed = _turned(number * 0xCC9E2D51, 15) * 0x1B873593
    mixed = _turned(42 ^ (mixed & _WORD), 13) * 5 + 0xE6546B64
    mixed = (mixed & _WORD) ^ 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> shift)) * factor & _WORD
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


_WORD = (1 << 32) - 1


def _turned(number: int, by: int) -> int:
    number &= _WORD
    return (number << by | number >> (32 - by)) & _WORD
