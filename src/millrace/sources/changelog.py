"""The internal topics of real-time mode in Kafka: made, read from exact offsets, and trimmed when they were applied."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from millrace.model.errors import MachineError
from millrace.model.extra import extra
from millrace.sources.kafka_cluster import Offsets, ignore, removed, trouble_of

with extra("kafka", "real-time mode"):
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

_SECONDS = 30.0
_MOST = 20_000
"""The most records that are applied together."""
_MADE = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
"""Nothing is removed before it was applied; `trim` removes it then."""
_REMOVED = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class Changelogs:
    """Internal topics on one cluster."""

    def __init__(self, servers: str) -> None:
        """Connect when something is asked."""
        self._servers = servers
        quiet: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0, "error_cb": ignore}
        self._admin = AdminClient(quiet)
        self._consumer = Consumer({
            **quiet, "group.id": "millrace", "enable.auto.commit": False, "enable.auto.offset.store": False,
            "auto.offset.reset": "error", "allow.auto.create.topics": False, "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 100, "fetch.queue.backoff.ms": 2, "socket.nagle.disable": True,
        })  # fmt: skip

    def make(self, partitions: Mapping[str, int]) -> None:
        """Make the topics that do not exist, with so many partitions each, and wait until they have leaders."""
        with self._errors(partitions):
            known = self._admin.list_topics(timeout=_SECONDS).topics
            new = [NewTopic(name, many, -1, config=_MADE) for name, many in partitions.items() if name not in known]
            if not new:
                return
            for future in self._admin.create_topics(new).values():
                future.result(_SECONDS)
            deadline = time.monotonic() + _SECONDS
            while not self._have_leaders(each.topic for each in new):
                if time.monotonic() > deadline:
                    raise MachineError(f"new topics at {self._servers} have no leader", "run again")
                time.sleep(0.05)

    def delete(self, names: Iterable[str]) -> None:
        """Delete topics, if they exist."""
        for future in self._admin.delete_topics(list(names)).values():
            with suppress(KafkaException):
                future.result(_SECONDS)

    def follow(self, topics: Mapping[str, int], offsets: Offsets) -> None:
        """Read these topics, with so many partitions each, from these offsets on; from the start, where none is."""
        self._consumer.assign([
            TopicPartition(name, number, offsets.get((name, number), 0))
            for name, many in topics.items()
            for number in range(many)
        ])  # fmt: skip

    def take(self, first: float, more: float) -> list[Message]:
        """Records that came: waits `first` seconds for one, and then `more` seconds for others.

        Raises ConflictError if records were removed that were not read.
        """
        one = self._consumer.poll(first)
        if one is None:
            return []
        taken = [one, *self._consumer.consume(_MOST, more)]
        for message in taken:
            error = message.error()
            if error is not None and error.code() in _REMOVED:
                raise removed(str(message.topic()), message.partition() or 0, message.offset() or 0)
            if error is not None:
                raise trouble_of(error, self._servers, str(message.topic()))
        return taken

    def trim(self, offsets: Offsets) -> None:
        """Remove the records before these offsets. What cannot be removed now is removed the next time."""
        places = [TopicPartition(name, number, offset) for (name, number), offset in offsets.items() if offset]
        if places:
            for future in self._admin.delete_records(places).values():
                with suppress(KafkaException):
                    future.result(_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _have_leaders(self, names: Iterable[str]) -> bool:
        topics = self._admin.list_topics(timeout=_SECONDS).topics
        wanted = [topics.get(name) for name in names]
        return all(
            each is not None and each.partitions and all(part.leader >= 0 for part in each.partitions.values())
            for each in wanted
        )

    @contextmanager
    def _errors(self, topics: Iterable[str]) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise trouble_of(error.args[0], self._servers, ", ".join(topics)) from None
