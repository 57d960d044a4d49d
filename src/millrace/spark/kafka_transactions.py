"""Transactions to a topic of Kafka, each with a commit: a number and a text that are stored with its records.

The commit is an offset of a consumer group of our own, which Kafka stores in the transaction itself: readers see both
or neither. The group and the transactional id have one name. A producer that starts under this name ends what an
earlier one has left, and fences it: from then on the earlier one can write nothing. So the last commit, read after the
start, stays the last until this producer writes.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from millrace.model.errors import MachineError, PipelineError
from millrace.model.extra import extra
from millrace.model.kafka_sink import KafkaSink, check_own
from millrace.model.registry import divided
from millrace.sources.kafka_cluster import ignore, properties_in, trouble_of, without
from millrace.spark.crash import reach

with extra("kafka", "a Kafka sink"):
    from confluent_kafka import (
        Consumer,
        ConsumerGroupTopicPartitions,
        IsolationLevel,
        KafkaError,
        KafkaException,
        Producer,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._listoffsets import OffsetSpec

_SECONDS = 10.0
"""For how long a request may take."""
_PATIENCE = 60.0
"""For how long a transaction may take; Kafka aborts one that takes longer."""
_SETTLES = 1.0
"""For how long a commit that another process makes may be under way, before it counts as left behind."""
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_STARTING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
)  # fmt: skip
"""What a broker answers while it starts."""
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)


@dataclass(frozen=True, slots=True)
class Record:
    """A record to write."""

    value: str | bytes | None
    key: str | bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    timestamp: int | None = None
    """In milliseconds since 1970; None for the time at which it is sent."""


class Transactions:
    """Transactions to one topic under one name."""

    def __init__(self, sink: KafkaSink, name: str) -> None:
        """Connect when something is asked. Refuses properties that librdkafka does not know."""
        self.name, self._servers, self._topic = name, sink.servers, sink.topic
        of_file = properties_in(sink.properties)
        check_own(of_file)
        own, _ = divided({**of_file, **dict(sink.secrets)})
        self._secrets: dict[str, Any] = {**own}
        self._given: dict[str, Any] = {
            **self._secrets, "bootstrap.servers": sink.servers, "log_level": 0, "error_cb": ignore,
            "allow.auto.create.topics": False,
        }  # fmt: skip
        self._own = {
            "transaction.timeout.ms": int(_PATIENCE * 1000), "retry.backoff.ms": 20, "partitioner": "murmur2_random",
            **self._given, "transactional.id": name,
        }  # fmt: skip
        with self._refusals():
            self._admin = AdminClient(self._given)
        self._producer: Producer | None = None
        self._group: Any = None
        self._is_shaken = False
        """Whether the producer has lost a connection. librdkafka may then wait without end for a coordinator that it
        remembers (confluentinc/librdkafka#5511), so the next transaction gets new clients."""

    @property
    def is_open(self) -> bool:
        """Whether nobody else can have written since `open`. A producer that has lost a connection is dropped."""
        if self._producer is not None:
            self._producer.poll(0)  # it learns of errors
        if self._is_shaken:
            self._producer = None
        return self._producer is not None

    def topic_id(self) -> str:
        """The id of the topic. Raises NotFoundError if it does not exist."""
        with self._errors():
            return str(self._described().topic_id)

    def offsets(self) -> int:
        """The sum of the ends of all partitions: it grows with every record, and never becomes less."""
        with self._errors():
            places = [TopicPartition(self._topic, each.id) for each in self._described().partitions]
            latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            asked = self._admin.list_offsets(
                dict.fromkeys(places, latest), isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_SECONDS
            )
            return sum(future.result().offset for future in asked.values())

    def _described(self) -> Any:
        (future,) = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=_SECONDS).values()
        return future.result()

    def open(self) -> None:
        """End what an earlier producer of this name has left, and fence it."""
        if self._producer is not None:
            return
        self._is_shaken = False
        with self._refusals():
            self._admin = AdminClient(self._given)
            self._group = _group_of({**self._given, "group.id": self.name, "enable.auto.commit": False})
            producer = Producer({**self._own, "error_cb": self._on_error})
        with self._errors():
            producer.init_transactions(_PATIENCE)
        self._producer = producer

    def _on_error(self, _: object) -> None:
        """Errors of connections are raised by the call that they hinder, or do no harm."""
        self._is_shaken = True

    def last(self) -> tuple[int, str] | None:
        """The last commit; None if there is none.

        If one is under way and does not end, its process was killed; it is ended by a producer of its name.
        """
        deadline = time.monotonic() + _SETTLES
        while (found := self._read()) is None:
            if time.monotonic() > deadline:
                self.open()
                deadline += _SECONDS
            time.sleep(0.02)
        offset, text = found
        return None if offset < 0 else (offset, text)

    def _read(self) -> tuple[int, str] | None:
        """The number and the text of the last commit, with a number below 0 if there is none; None if one is made."""
        deadline = time.monotonic() + _SECONDS
        with self._errors():
            while isinstance(found := self._asked(), KafkaError):
                if found.code() == KafkaError.UNSTABLE_OFFSET_COMMIT:
                    return None
                if found.code() not in _STARTING or time.monotonic() > deadline:
                    raise KafkaException(found)
                time.sleep(0.05)
            return found

    def _asked(self) -> tuple[int, str] | KafkaError:
        """The last commit as Kafka gives it, or its error."""
        asked = [ConsumerGroupTopicPartitions(self.name, [TopicPartition(self._topic, 0)])]
        try:
            (future,) = self._admin.list_consumer_group_offsets(
                asked, require_stable=True, request_timeout=_SECONDS
            ).values()
            (place,) = future.result().topic_partitions
        except KafkaException as error:
            failed: KafkaError = error.args[0]
            return failed
        return place.error or (int(place.offset), place.metadata or "")

    def groups(self, prefix: str) -> list[str]:
        """The names of all groups that begin so."""
        with self._errors():
            found = self._admin.list_consumer_groups(request_timeout=_SECONDS).result()
        return [group.group_id for group in found.valid if group.group_id.startswith(prefix)]

    def write(self, records: Iterable[Record], number: int | None, text: str = "") -> None:
        """Write records and a commit in one transaction; with None as its number, only the records.

        After an error nothing is known of the transaction, so the next write starts a producer, which ends it.
        """
        self.open()
        producer = self._producer
        assert producer is not None
        failed: list[KafkaError] = []
        self._producer = None
        with self._errors(failed):
            producer.begin_transaction()
            try:
                _produce(producer, self._topic, records, failed)
                producer.flush(_PATIENCE)
                if failed:
                    raise KafkaException(failed[0])
                if number is not None:
                    commit = TopicPartition(self._topic, 0, number, metadata=text)
                    _within(_PATIENCE, lambda: producer.send_offsets_to_transaction([commit], self._group, _PATIENCE))
                reach("sink during write")
                producer.commit_transaction(_PATIENCE)
            except KafkaException:
                with suppress(KafkaException):
                    _within(_SECONDS, lambda: producer.abort_transaction(_SECONDS))
                raise
        self._producer = producer

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Explain the error of a client that refuses its properties, without their values."""
        try:
            yield
        except (KafkaException, ValueError, TypeError) as error:
            said = without(self._secrets.values(), error)
            raise PipelineError(f"Kafka's client refuses its properties: {said}", "correct them") from None

    @contextmanager
    def _errors(self, failed: Sequence[KafkaError] = ()) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._plain(failed[0] if failed else error.args[0]) from None

    def _plain(self, error: KafkaError) -> Exception:
        if error.code() in _FENCED:
            return MachineError(
                f"another process writes to topic {self._topic!r} as {self.name!r}, or a transaction took longer than "
                "transaction.timeout.ms",
                "nothing was lost: stop the other run of this pipeline, if there is one, and run again",
            )
        if error.code() in _TOO_LARGE:
            return PipelineError(
                f"a row is larger than a record of topic {self._topic!r} may be",
                "raise max.message.bytes of the topic, and pass options={'message.max.bytes': ...}, or write less",
            )
        return trouble_of(error, self._servers, self._topic)


def _within(seconds: float, work: Callable[[], Any]) -> None:
    """Call librdkafka in a thread, because its own limit does not hold if it has lost the coordinator of a group.

    Raises its error, or that the time is over.
    """
    failed: list[BaseException] = [KafkaException(KafkaError(KafkaError._TIMED_OUT))]

    def call() -> None:
        try:
            work()
            failed.clear()
        except BaseException as error:
            failed[0] = error

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds + 1)
    if failed:
        raise failed[0]


def _group_of(settings: dict[str, Any]) -> Any:
    consumer = Consumer(settings)
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _produce(producer: Producer, topic: str, records: Iterable[Record], failed: list[KafkaError]) -> None:
    """Give records to librdkafka, which sends them in the background."""

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None and not failed:
            failed.append(error)

    for record in records:
        more: dict[str, Any] = {} if record.timestamp is None else {"timestamp": record.timestamp}
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                producer.produce(
                    topic, record.value, record.key, headers=list(record.headers), on_delivery=delivered, **more
                )
                break
            except BufferError:  # librdkafka has as many as it takes: wait until it has sent some
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
                producer.poll(0.1)
