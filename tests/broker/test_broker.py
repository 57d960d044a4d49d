"""A Kafka for development: started once in a folder, from pinned jars only, on this machine only."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from brokers import Kafka
from listening import LOOPBACK, listening_on
from millrace.background import process
from millrace.broker import broker, jars
from millrace.cli import app
from millrace.model.errors import ConflictError, CorruptError, MachineError, NotFoundError
from millrace.spark.java import java_in


def test_a_broker_listens_on_this_machine_only(kafka_: Kafka) -> None:
    found = listening_on(kafka_.broker.pid)
    assert found
    assert found <= LOOPBACK


def _kill(kafka_: Kafka) -> None:
    os.kill(kafka_.broker.pid, signal.SIGKILL)
    process.reap(kafka_.broker.pid)


def test_records_outlive_a_killed_broker(tmp_path: Path, kafka_: Kafka) -> None:
    """`kafka_` is asked for so that the jars are there."""
    own = Kafka(tmp_path)
    try:
        topic = own.topic()
        own.send(topic, ["1", "2"])
    finally:
        _kill(own)
    assert broker.running(tmp_path) is None
    again = Kafka(tmp_path)
    try:
        consumer = Consumer({"bootstrap.servers": again.address, "group.id": "none"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert [message.value() for message in consumer.consume(2, 30)] == [b"1", b"2"]
        consumer.close()
    finally:
        again.stop()
    assert broker.running(tmp_path) is None


def test_the_commands_tell_of_the_broker(kafka_: Kafka) -> None:
    told = CliRunner().invoke(app, ["kafka", "status", "--folder", str(kafka_.folder), "--json"])
    assert json.loads(told.stdout)["address"] == kafka_.address
    for code in (0, 6):
        made = CliRunner().invoke(app, ["kafka", "create", "by-command", "--folder", str(kafka_.folder)])
        assert made.exit_code == code
    second = CliRunner().invoke(app, ["kafka", "start", "--folder", str(kafka_.folder)])
    assert second.exit_code == 6
    assert f"already runs in {kafka_.folder} on {kafka_.address}" in second.stderr


def test_a_second_broker_in_a_folder_is_refused(kafka_: Kafka) -> None:
    with pytest.raises(ConflictError, match=r"already runs .* millrace kafka stop"):
        broker.start(kafka_.folder, 0)


def test_a_port_in_use_is_told(kafka_: Kafka, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=rf"port {kafka_.broker.port} cannot be used.*--port"):
        broker.start(tmp_path, kafka_.broker.port)
    assert broker.running(tmp_path) is None


def test_no_broker_to_stop(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no broker runs"):
        broker.stop(tmp_path)
    assert CliRunner().invoke(app, ["kafka", "status", "--folder", str(tmp_path)]).exit_code == 3


def test_a_folder_of_jars_must_hold_all_of_them(tmp_path: Path) -> None:
    for jar in jars.pinned()[1:]:
        (tmp_path / jar.file).touch()
    with pytest.raises(NotFoundError, match=rf"lacks 1 of the 46 jars .*{jars.pinned()[0].file}"):
        jars.given(tmp_path)


def test_the_jars_of_the_connector_are_pinned_too(tmp_path: Path) -> None:
    names = [jar.artifact for jar in jars.pinned(jars.CONNECTOR)]
    assert names == [
        "commons-pool2", "kafka-clients", "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13",
    ]  # fmt: skip
    with pytest.raises(NotFoundError, match=r"lacks 4 of the 4 jars of Spark's Kafka connector 4\.2\.0"):
        jars.given(tmp_path, jars.CONNECTOR)
    for jar in jars.pinned(jars.CONNECTOR):
        (tmp_path / jar.file).touch()
    with pytest.raises(CorruptError, match="another hash"):
        jars.given(tmp_path, jars.CONNECTOR)


def test_a_changed_jar_is_not_used(tmp_path: Path) -> None:
    for jar in jars.pinned():
        (tmp_path / jar.file).touch()
    with pytest.raises(CorruptError, match="another hash"):
        jars.given(tmp_path)


class Garbage(BaseHTTPRequestHandler):
    """A Maven repository whose jars are not what they should be."""

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(b"garbage")

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        self.send_response(200 if self.path.endswith(".jar") else 404)
        self.send_header("Content-Length", str(len(b"garbage") if self.path.endswith(".jar") else 0))
        self.end_headers()
        if self.path.endswith(".jar"):
            self.wfile.write(body)


@pytest.fixture
def garbage() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Garbage)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/maven2"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    some = jars.pinned()[:2]
    monkeypatch.setattr(jars, "pinned", lambda *_: some)
    return tmp_path / "cache"


def test_jars_of_a_repository_must_have_their_hashes(
    garbage: str, nothing_kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "version", lambda *_: "test")
    monkeypatch.setenv("MILLRACE_MAVEN", garbage)
    with pytest.raises(CorruptError, match="another hash"):
        jars.fetched(java_in(os.environ))
    assert not list(nothing_kept.rglob("*.jar"))


def test_a_repository_that_is_not_there_is_named(nothing_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "version", lambda *_: "test")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/maven2"
        monkeypatch.setenv("MILLRACE_MAVEN", url)
        began = time.monotonic()
        with pytest.raises(MachineError, match=rf"cannot be fetched from {url}.*MILLRACE_MAVEN.*--jars"):
            jars.fetched(java_in(os.environ))
        assert time.monotonic() - began < 60
    assert "lz4" in (nothing_kept / "millrace" / "kafka-test" / "fetch.log").read_text()
