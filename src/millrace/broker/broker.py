"""The process of a single-node Kafka for development, which listens on this machine only."""

import base64
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from millrace.background.port import HOST, check_port, free_port, wait_until_open
from millrace.background.process import Background, TakenError, keep
from millrace.broker.jars import classpath, fetched, given, version
from millrace.model.errors import ConflictError, MachineError, NotFoundError
from millrace.spark.java import java_in

PORT = 9092
_START = 120.0
"""For how many seconds a broker may start."""
_LOG4J = """<Configuration status="ERROR">
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that runs."""

    port: int
    pid: int
    version: str

    @property
    def address(self) -> str:
        """The address for clients, such as 127.0.0.1:9092."""
        return f"{HOST}:{self.port}"


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
        check_port(port)
        java = java_in(environment)
        classes = classpath(fetched(java, environment) if jars is None else given(jars))
        port = port or free_port()
        (folder / "log4j2.xml").write_text(_LOG4J, encoding="utf-8")
        properties = folder / "server.properties"
        properties.write_text(_properties(folder / "data", port, free_port(), more or {}), encoding="utf-8")
        command = [str(java), f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}", "-cp", classes]
        if not (folder / "data" / "meta.properties").exists():
            _format(command, properties, folder)
        program = [*command[:1], "-Xmx512m", *command[1:], "kafka.Kafka", str(properties)]
        process = _home(folder).run(program, lock)
        broker = Broker(port, process.pid, version())
        _home(folder).note(asdict(broker))
        try:
            _wait_until_open(process, broker, folder)
        except BaseException:
            process.kill()
            process.wait()
            raise
        keep(process)
    return broker


def running(folder: Path) -> Broker | None:
    """The broker that runs in a folder; None if none does."""
    known = _home(folder).known()
    return None if known is None else Broker(**known)


def stop(folder: Path) -> Broker:
    """Stop the broker that runs in a folder, and wait until it has ended; it is killed if that takes a minute."""
    broker = running(folder)
    if broker is None:
        raise NotFoundError(f"no broker runs in {folder}", "check --folder")
    _home(folder).end(broker.pid, "broker")
    return broker


def _locked(folder: Path) -> IO[bytes]:
    try:
        return _home(folder).lock()
    except TakenError:
        now = running(folder)
        at = "" if now is None else f" on {now.address}"
        raise ConflictError(
            f"a broker already runs in {folder}{at}", f"use it, or stop it: millrace kafka stop --folder {folder}"
        ) from None


def _format(command: Sequence[str], properties: Path, folder: Path) -> None:
    """Make the folder of the data; Kafka does not start in one that it did not format."""
    # An id that begins with a dash would be taken for an option.
    cluster = base64.b64encode(uuid.uuid4().bytes, altchars=b"xy").decode().rstrip("=")
    shutil.rmtree(folder / "data", ignore_errors=True)  # what an interrupted format has left
    made = [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
    if _home(folder).run(made).wait():
        raise _failed(folder)


def _wait_until_open(process: "subprocess.Popen[bytes]", broker: Broker, folder: Path) -> None:
    is_open = wait_until_open(process, broker.port, _START)
    if is_open is False:
        raise _failed(folder)
    if is_open is None:
        raise MachineError(f"Kafka does not listen after {_START:.0f} seconds", f"see {_home(folder).log}")


def _failed(folder: Path) -> MachineError:
    return MachineError("Kafka did not start", f"its own output, with the reason, is in {_home(folder).log}")


def _home(folder: Path) -> Background:
    return Background(folder, "broker.json", "kafka.log")


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
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": str(data).replace("\\", "\\\\"),
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
        "log.retention.ms": -1,  # by default, records whose timestamps are a week old go after some minutes
        **alone,
    }
    for name, value in more.items():
        settings[name] = f"{settings[name]},{value}" if name.endswith("listeners") else value
    return "".join(f"{name}={value}\n" for name, value in settings.items())
