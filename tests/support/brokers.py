"""A real Kafka for tests, and what tests do with it."""

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic
from cryptography.hazmat.primitives import serialization

from millrace.broker import broker
from millrace.broker.jars import fetched
from millrace.model.errors import MachineError
from millrace.spark.java import java_in

_SECONDS = 30.0


class Tls:
    """A listener with TLS, for clients with a certificate of a CA that is made here."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = trustme.CA()
        broker_, client = self.authority.issue_cert("127.0.0.1"), self.authority.issue_cert("client")
        self.ca, own = folder / "ca.pem", folder / "broker.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        own.write_bytes(_pkcs8(broker_) + b"".join(each.bytes() for each in broker_.cert_chain_pems))
        client.private_key_pem.write_to_path(str(folder / "client.key"))
        client.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
        with socket.socket() as trial:
            trial.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{trial.getsockname()[1]}"
        listener = f"SSL://{self.address}"
        self.of_broker = {
            "listeners": listener, "advertised.listeners": listener, "ssl.client.auth": "required",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": str(own), "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        }  # fmt: skip
        self.options = {
            "security.protocol": "ssl", "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": str(folder / "client.pem"), "ssl.key.location": str(folder / "client.key"),
        }  # fmt: skip
        """The properties of a client."""


def _pkcs8(issued: trustme.LeafCert) -> bytes:
    """The key of a certificate in the form that Java reads."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)


class Kafka:
    """A broker that runs, and its topics."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls = Tls(folder / "tls")
        self.broker = broker.start(folder, 0, more=self.tls.of_broker)
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self._numbers = count(1)

    @property
    def address(self) -> str:
        return self.broker.address

    def url(self, topic: str) -> str:
        return f"kafka://{self.address}/{topic}"

    def topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """The name of a new topic."""
        made = name or f"topic-{next(self._numbers)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self._done(self.admin.create_topics([NewTopic(made, partitions, 1, config=settings)]))
        self.until(lambda: len(self._partitions(made)) == partitions)
        return made

    def delete(self, topic: str) -> None:
        self._done(self.admin.delete_topics([topic]))
        self.until(lambda: not self._partitions(topic))

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        self._done(self.admin.create_partitions([NewPartitions(topic, partitions)]))
        self.until(lambda: len(self._partitions(topic)) == partitions)

    def forget(self, topic: str, before: int, partition: int = 0) -> None:
        """Remove the records before an offset, as retention does."""
        self._done(self.admin.delete_records([TopicPartition(topic, partition, before)]))

    def send(
        self, topic: str, values: Iterable[bytes | str | None], partition: int = 0, key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None, timestamp: int = 0, transaction: str | None = None,
        commit: bool = True,
    ) -> None:  # fmt: skip
        """Append records, each acknowledged; in a transaction that is committed or aborted, if it has a name.

        Kafka ends a transaction after it has answered: the marker, which takes an offset, is waited for.
        """
        values = list(values)
        before = 0 if transaction is None else self.end(topic, partition)
        own = {} if transaction is None else {"transactional.id": transaction}
        producer = Producer({"bootstrap.servers": self.address, "acks": "all", "log_level": 0, **own})
        if transaction is not None:
            producer.init_transactions()
            producer.begin_transaction()
        failed: list[Any] = []

        def delivered(error: Any, _: object) -> None:
            if error is not None:
                failed.append(error)

        more: dict[str, Any] = {"headers": list((headers or {}).items()), "timestamp": timestamp}
        for value in values:
            producer.produce(topic, value, key, partition=partition, on_delivery=delivered, **more)
            producer.poll(0)
        assert producer.flush(_SECONDS) == 0
        assert not failed, failed
        if transaction is not None and commit:
            producer.commit_transaction()
        elif transaction is not None:
            producer.abort_transaction()
        if transaction is not None:
            self.until(lambda: self.end(topic, partition) == before + len(values) + 1)

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset after the last record of a partition that is not in an open transaction."""
        asked = {TopicPartition(topic, partition): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        ends: list[int] = []

        def answered() -> bool:
            (found,) = self.admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED).values()
            with suppress(KafkaException):  # a new partition has no leader for a moment
                ends.append(int(found.result(_SECONDS).offset))
            return bool(ends)

        self.until(answered)
        return ends[0]

    def messages(self, topic: str, committed: bool = True) -> list[Message]:
        """All records that a reader sees, of the first partition first."""
        places = [TopicPartition(topic, partition, 0) for partition in self._partitions(topic)]
        isolation = "read_committed" if committed else "read_uncommitted"
        consumer = Consumer({
            "bootstrap.servers": self.address, "group.id": "tests", "isolation.level": isolation,
            "enable.partition.eof": True, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0,
            "fetch.wait.max.ms": 20,
        })  # fmt: skip
        found: list[Message] = []
        consumer.assign(places)
        ends, deadline = 0, time.monotonic() + _SECONDS
        while ends < len(places):
            assert time.monotonic() < deadline
            for message in consumer.consume(1000, 0.05):
                error = message.error()
                assert error is None or error.code() == KafkaError._PARTITION_EOF, error
                ends += error is not None
                found += [message] if error is None else []
        consumer.close()
        return sorted(found, key=lambda each: (each.partition() or 0, each.offset() or 0))

    def forget_group(self, group: str) -> None:
        """Remove a consumer group, as Kafka does after a week without commits."""
        self._done(self.admin.delete_consumer_groups([group]))

    def kill_and_start(self) -> None:
        """Kill the broker with SIGKILL, and start it again at its address."""
        os.kill(self.broker.pid, signal.SIGKILL)
        self.until(lambda: broker.running(self.folder) is None)
        self.broker = broker.start(self.folder, self.broker.port, more=self.tls.of_broker)

    def stop(self) -> None:
        broker.stop(self.folder)

    def _partitions(self, topic: str) -> Mapping[int, Any]:
        known = self.admin.list_topics(topic, timeout=_SECONDS).topics[topic]
        return {} if known.error is not None else known.partitions

    def _done(self, asked: Mapping[Any, Any]) -> None:
        for future in asked.values():
            future.result(_SECONDS)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@contextmanager
def running() -> Iterator[Kafka]:
    """A broker that runs until the end. Without its jars, tests are skipped, but fail where CI runs them."""
    try:
        fetched(java_in(os.environ))
    except MachineError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"Kafka is not here: {error}")
    with tempfile.TemporaryDirectory(prefix="millrace-kafka-") as folder:
        started = Kafka(Path(folder))
        try:
            yield started
        finally:
            started.stop()
