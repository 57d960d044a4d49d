"""The process of a single-node Kafka for development, which listens on this machine only.

The broker inherits a lock on a file in its folder and holds it for as long as it lives. So a lock that is held tells
that the broker runs and that the stored process id is its own.
"""

import base64
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from millrace.broker.jars import classpath, fetched, given, version
from millrace.eventlog.durable import write_whole
from millrace.model.errors import ConflictError, MachineError, NotFoundError
from millrace.spark.java import java_in

PORT = 9092
_HOST = "127.0.0.1"
_START, _STOP = 120.0, 60.0
"""For how many seconds a broker may start, and stop."""
_LOG4J = """<Configuration status="ERROR">
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""

_STARTED: dict[int, "subprocess.Popen[bytes]"] = {}
"""The brokers that this process has started, by process id; they go on when it ends."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that runs."""

    port: int
    pid: int
    version: str

    @property
    def address(self) -> str:
        """The address for clients, such as 127.0.0.1:9092."""
        return f"{_HOST}:{self.port}"


def start(
    folder: Path, port: int = PORT, jars: Path | None = None, environment: Mapping[str, str] = os.environ,
    more: Mapping[str, str] | None = None,
) -> Broker:  # fmt: skip
    """Start a broker with its data in a folder, and wait until it listens. Port 0 takes a free one.

    `jars` is a folder with the jars of Kafka; by default they are fetched once and kept. `more` has other properties of
    the broker; listeners are added to its own.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with closing(_locked(folder)) as lock:
        _check_port(port)
        java = java_in(environment)
        classes = classpath(fetched(java, environment) if jars is None else given(jars))
        port = port or _free_port()
        (folder / "log4j2.xml").write_text(_LOG4J, encoding="utf-8")
        properties = folder / "server.properties"
        properties.write_text(_properties(folder / "data", port, _free_port(), more or {}), encoding="utf-8")
        command = [str(java), f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}", "-cp", classes]
        if not (folder / "data" / "meta.properties").exists():
            _format(command, properties, folder)
        process = _run([*command[:1], "-Xmx512m", *command[1:], "kafka.Kafka", str(properties)], folder, lock)
        broker = Broker(port, process.pid, version())
        text = json.dumps(asdict(broker))
        write_whole(_about(folder), lambda path: path.write_text(text, encoding="utf-8"))
        try:
            _wait_until_open(process, broker, folder)
        except BaseException:
            process.kill()
            process.wait()
            raise
        _STARTED[process.pid] = process
    return broker


def running(folder: Path) -> Broker | None:
    """The broker that runs in a folder; None if none does."""
    if not (folder / "lock").exists():
        return None
    with (folder / "lock").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(FileNotFoundError):
                return Broker(**json.loads(_about(folder).read_text(encoding="utf-8")))
    return None


def stop(folder: Path) -> Broker:
    """Stop the broker that runs in a folder, and wait until it has ended; it is killed if that takes a minute."""
    broker = running(folder)
    if broker is None:
        raise NotFoundError(f"no broker runs in {folder}", "check --folder")
    for sent, seconds in ((signal.SIGTERM, _STOP), (signal.SIGKILL, _STOP)):
        with suppress(ProcessLookupError):
            os.kill(broker.pid, sent)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if running(folder) is None:
                own = _STARTED.pop(broker.pid, None)
                if own is not None:
                    own.wait()
                return broker
            time.sleep(0.05)
    raise MachineError(f"the broker {broker.pid} does not end", "see what it is doing; its folder is still in use")


def _locked(folder: Path) -> IO[bytes]:
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        now = running(folder)
        at = "" if now is None else f" on {now.address}"
        raise ConflictError(
            f"a broker already runs in {folder}{at}", f"use it, or stop it: millrace kafka stop --folder {folder}"
        ) from None
    return lock


def _format(command: Sequence[str], properties: Path, folder: Path) -> None:
    """Make the folder of the data; Kafka does not start in one that it did not format."""
    # An id that begins with a dash would be taken for an option.
    cluster = base64.b64encode(uuid.uuid4().bytes, altchars=b"xy").decode().rstrip("=")
    shutil.rmtree(folder / "data", ignore_errors=True)  # what an interrupted format has left
    made = _run([*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)], folder)
    if made.wait():
        raise _failed(folder)


def _run(command: Sequence[str], folder: Path, lock: IO[bytes] | None = None) -> "subprocess.Popen[bytes]":
    """Start Java in a session of its own, with its output in the log of the folder."""
    with (folder / "kafka.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            pass_fds=() if lock is None else (lock.fileno(),),
        )  # fmt: skip


def _wait_until_open(process: "subprocess.Popen[bytes]", broker: Broker, folder: Path) -> None:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _failed(folder)
        with suppress(OSError), socket.create_connection((_HOST, broker.port), timeout=1):
            return
        time.sleep(0.05)
    raise MachineError(f"Kafka does not listen after {_START:.0f} seconds", f"see {folder / 'kafka.log'}")


def _failed(folder: Path) -> MachineError:
    return MachineError("Kafka did not start", f"its own output, with the reason, is in {folder / 'kafka.log'}")


def _about(folder: Path) -> Path:
    return folder / "broker.json"


def _check_port(port: int) -> None:
    if not port:
        return
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HOST, port))
        except OSError as error:
            raise MachineError(
                f"port {port} cannot be used: {error.strerror}", "choose another one: --port NUMBER, or 0 for any"
            ) from None


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind((_HOST, 0))
        port: int = trial.getsockname()[1]
        return port


def _properties(data: Path, port: int, controller: int, more: Mapping[str, str]) -> str:
    """The configuration of a node that is broker and controller. Its internal topics have one copy and partition."""
    alone = dict.fromkeys(
        (
            "offsets.topic.replication.factor", "offsets.topic.num.partitions",
            "transaction.state.log.replication.factor", "transaction.state.log.num.partitions",
            "transaction.state.log.min.isr", "share.coordinator.state.topic.replication.factor",
            "share.coordinator.state.topic.num.partitions", "share.coordinator.state.topic.min.isr",
        ),
        1,
    )  # fmt: skip
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{_HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{_HOST}:{port},CONTROLLER://{_HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{_HOST}:{port}",
        "log.dirs": str(data).replace("\\", "\\\\"),
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
        "log.retention.ms": -1,  # by default, records whose timestamps are a week old go after some minutes
        **alone,
    }
    for name, value in more.items():
        settings[name] = f"{settings[name]},{value}" if name.endswith("listeners") else value
    return "".join(f"{name}={value}\n" for name, value in settings.items())
