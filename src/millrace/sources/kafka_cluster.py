"""A Kafka cluster through librdkafka: its topics, their offsets and their records, and its errors.

Properties may hold passwords. A process remembers them by source, and only this module reads them, so that splits and
positions, which Spark stores, hold none.
"""

import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.errors import FILE, ConflictError, MachineError, NotFoundError, PipelineError, unreadable
from millrace.model.extra import extra
from millrace.model.kafka import HEADER, PROPERTIES, SERVERS, KafkaPlace, client_properties
from millrace.model.registry import FORMAT, PROTOBUF, REGISTRY, divided
from millrace.model.stream import Source

with extra("kafka", "a Kafka source"):
    from confluent_kafka import (
        Consumer,
        ConsumerGroupTopicPartitions,
        IsolationLevel,
        KafkaError,
        KafkaException,
        Message,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._listoffsets import OffsetSpec

if TYPE_CHECKING:
    from millrace.sources.registry import Registry

ISOLATION = "isolation.level"
_SECONDS = 10.0
"""For how long a request may take."""
_PATIENCE = 60.0
"""For how long a read may bring nothing."""
_MOST, _WAIT = 100_000, 0.05
"""The records that are taken from librdkafka at a time, and for how long it may wait for as many."""
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID)
_MOVING = (
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PART,
)  # fmt: skip
"""What brokers answer for a moment while a partition is new, or gets another leader."""
_PAUSE = 0.05
_REMOVED = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_REFUSED = (
    KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)  # fmt: skip

Offsets = dict[tuple[str, int], int]
"""An offset for each partition, by topic and number."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now."""

    id: str
    """Unique to this topic: one that was deleted and made again has another."""
    partitions: int


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of a partition by column."""

    offsets: npt.NDArray[np.int64]
    values: pa.Array
    messages: Sequence[Message]

    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        """The timestamps in microseconds."""
        at = map(itemgetter(1), map(Message.timestamp, self.messages))
        return np.fromiter(at, np.int64, len(self.messages)) * 1000


_KNOWN: dict[str, Source] = {}


def remember(source: Source) -> str:
    """The name by which `opened` finds the cluster of a source in this process."""
    shown = f"{source.name} {source.options}"
    name = f"{dict(source.options)[SERVERS]} {zlib.crc32(shown.encode()):08x}"
    if name in _KNOWN and _KNOWN[name].secrets != source.secrets:
        opened.cache_clear()
    _KNOWN[name] = source
    return name


@lru_cache(8)
def opened(name: str) -> "Cluster":
    """The cluster of a source that this process remembers."""
    return Cluster(_KNOWN[name])


class Cluster:
    """The brokers of a source."""

    def __init__(self, source: Source) -> None:
        """Connect when something is asked. Refuses properties that librdkafka does not know."""
        self.source = source
        options = dict(source.options)
        self.servers = options[SERVERS]
        self._place = KafkaPlace(self.servers, source.name)
        given, of_registry = divided(properties_in(options.get(PROPERTIES)) | dict(source.secrets))
        given = {ISOLATION: "read_committed", **given}
        self.registry: Registry | None = None
        """Where the schemas of its records are; None for plain JSON."""
        if REGISTRY in options:
            self.registry = registry_at(options[REGISTRY], options[FORMAT], of_registry)
        committed = given[ISOLATION] != "read_uncommitted"
        self._isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": ignore}
        own: dict[str, Any] = {
            "bootstrap.servers": self.servers, "group.id": "millrace", "enable.auto.commit": False,
            "enable.auto.offset.store": False, "auto.offset.reset": "error", "enable.partition.eof": True,
            "allow.auto.create.topics": False,
        }  # fmt: skip
        fast: dict[str, Any] = {
            "fetch.wait.max.ms": 20, "fetch.queue.backoff.ms": 5, "queued.max.messages.kbytes": 64 << 10,
        }  # fmt: skip
        try:
            self._consumer = Consumer({**fast, **given, **quiet, **own})
            shared = {name: value for name, value in given.items() if name != ISOLATION}
            self._admin = AdminClient({**shared, **quiet, "bootstrap.servers": self.servers})
        except (KafkaException, ValueError, TypeError) as error:
            raise PipelineError(f"Kafka's client refuses its properties: {without(given.values(), error)}") from None

    def topics(self) -> dict[str, Topic]:
        """The topics of the source that exist now, by name. Raises NotFoundError if one that it names does not."""
        names = list(self._place.names)
        pattern = self._place.pattern
        with self._errors():
            if pattern is not None:
                known = self._admin.list_topics(timeout=_SECONDS).topics
                names = sorted(name for name in known if pattern.search(name))
            return self._topics(names)

    def topic(self, name: str) -> Topic:
        """A topic as it is now."""
        with self._errors():
            return self._topics([name])[name]

    def _topics(self, names: list[str]) -> dict[str, Topic]:
        if not names:
            return {}
        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=_SECONDS)
        found = {name: future.result() for name, future in asked.items()}
        return {name: Topic(str(each.topic_id), len(each.partitions)) for name, each in found.items()}

    def starts(self, topics: Mapping[str, Topic]) -> Offsets:
        """The first offset of each partition that retention has kept."""
        return self._offsets(topics, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, topics: Mapping[str, Topic]) -> Offsets:
        """The offset after the last record that can be read: before the first transaction that is still open."""
        return self._offsets(topics, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def at_time(self, topics: Mapping[str, Topic], instant: int) -> Offsets:
        """The offset of the first record of each partition whose timestamp is not before an instant, or its end."""
        found = self._offsets(topics, OffsetSpec.for_timestamp(-(-instant // 1000)))
        ends = self.ends(topics)
        return {place: ends[place] if offset < 0 else min(offset, ends[place]) for place, offset in found.items()}

    def report(self, group: str, offsets: Offsets) -> None:
        """Let a consumer group have these offsets, for tools that show its lag. Nothing depends on it."""
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        self._admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=_SECONDS
        )

    def lags(self, group: str) -> dict[str, int]:
        """The records of each topic that a consumer group has yet to read; nothing if it has reported no offsets."""
        ends = self.ends(self.topics())
        asked = [ConsumerGroupTopicPartitions(group)]
        with self._errors():
            (future,) = self._admin.list_consumer_group_offsets(asked, request_timeout=_SECONDS).values()
            read = {(each.topic, each.partition): each.offset for each in future.result().topic_partitions}
        lags: dict[str, int] = {}
        for (topic, partition), end in ends.items() if read else ():
            lags[topic] = lags.get(topic, 0) + max(0, end - max(0, int(read.get((topic, partition), 0))))
        return lags

    def read(self, topic: str, partition: int, start: int, end: int) -> Records:
        """The records between two offsets, in order; those of aborted transactions and removed duplicates are left out.

        Raises ConflictError if retention has removed the first ones.
        """
        messages: list[Message] = []
        at, deadline = start, time.monotonic() + _PATIENCE
        with self._errors():
            self._consumer.assign([TopicPartition(topic, partition, start)])
            try:
                while at < end:
                    taken = self._consumer.consume(min(end - at, _MOST), _WAIT)
                    if not taken:
                        if time.monotonic() > deadline:
                            raise MachineError(
                                f"topic {topic!r} at {self.servers} brings no records for {_PATIENCE:.0f} seconds",
                                "nothing was lost: check that the broker runs, and run again",
                            )
                        continue
                    deadline = time.monotonic() + _PATIENCE
                    at = max(at, _after(taken, topic, partition, start))
                    messages += taken
            finally:
                self._consumer.unassign()
        return _records(messages, end)

    def sample(self, topic: str, partition: int, start: int, many: int) -> float:
        """The average size in bytes of some records from an offset on."""
        values = self.read(topic, partition, start, start + many).values
        return float(values.nbytes) / max(1, len(values))

    def _offsets(self, topics: Mapping[str, Topic], spec: OffsetSpec) -> Offsets:
        places = [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)]
        if not places:
            return {}
        deadline = time.monotonic() + _SECONDS
        with self._errors():
            while True:
                asked = self._admin.list_offsets(
                    dict.fromkeys(places, spec), isolation_level=self._isolation, request_timeout=_SECONDS
                )
                try:
                    return {(place.topic, place.partition): future.result().offset for place, future in asked.items()}
                except KafkaException as error:
                    if error.args[0].code() not in _MOVING or time.monotonic() > deadline:
                        raise
                    self._admin.list_topics(timeout=_SECONDS)  # so that the client learns the leaders anew
                    time.sleep(_PAUSE)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise trouble_of(error.args[0], self.servers, self._place.topics) from None


def registry_at(urls: str, format: str, properties: Mapping[str, str]) -> "Registry":
    """The schema registry at some URLs, for records of a format."""
    from millrace.sources.registry import Registry  # it is imported only if there is one

    return Registry(urls.split(","), properties, serialized=format == PROTOBUF)


def ignore(_: object) -> None:
    """Errors of connections are raised by the call that they hinder."""


def trouble_of(error: KafkaError, servers: str, topics: str) -> Exception:
    """The error of Millrace for one of Kafka's."""
    code = error.code()
    if code in _GONE:
        return NotFoundError(f"there is no topic {topics!r} at {servers}", "create it, or check its name")
    if code in _REFUSED:
        return MachineError(
            f"Kafka at {servers} refuses the client: {error.name()}",
            "check the properties of TLS and SASL, and the rights of the user",
        )
    return MachineError(
        f"Kafka at {servers} cannot be used: {error.name()}",
        "nothing was lost: check that the brokers run and can be reached, and run again",
    )


def _after(taken: Sequence[Message], topic: str, partition: int, start: int) -> int:
    """The offset after some messages; the end of the partition counts, also if no record is before it."""
    for error in filter(None, map(Message.error, taken)):
        if error.code() == KafkaError._PARTITION_EOF:
            continue
        if error.code() in _REMOVED:
            raise removed(topic, partition, start)
        raise KafkaException(error)
    last = taken[-1]
    offset = last.offset()
    assert offset is not None
    return offset if last.error() is not None else offset + 1


def _records(messages: list[Message], end: int) -> Records:
    kept = [each for each in messages if each.error() is None] if any(map(Message.error, messages)) else messages
    offsets = np.fromiter(map(Message.offset, kept), np.int64, len(kept))
    many = int(np.searchsorted(offsets, end))
    kept = kept[:many]
    values = pa.array(list(map(Message.value, kept)), pa.large_binary())
    return Records(offsets[:many], values, kept)


def removed(topic: str, partition: int, start: int) -> ConflictError:
    """The error for records that retention removed before they were read."""
    return ConflictError(
        f"topic {topic!r}: the records of partition {partition} from offset {start} on are gone: retention removed "
        "them before they were read",
        "give the topic a longer retention, and compute everything from the records that it still has: "
        f"millrace replay {FILE}",
    )


def properties_in(path: str | None) -> dict[str, str]:
    """The properties in a file: lines such as sasl.password=..., and comments that begin with #."""
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None
    found: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        name, sign, value = line.partition("=")
        if line and not line.startswith("#"):
            if not sign:
                raise PipelineError(f"{path}:{number}: a line of a properties file is name=value", "correct the line")
            found.append((name.strip(), value.strip()))
    return dict(client_properties(found))


def without(secrets: Iterable[str], error: Exception) -> str:
    """What librdkafka says of properties, without their values."""
    first = error.args[0] if error.args else error
    text = first.str() if isinstance(first, KafkaError) else str(error)
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, "...") if value else text
    return text


def metadata_of(records: Records, topic: str, partition: int, parts: Mapping[str, str]) -> pa.Table | None:
    """Parts of records beside their values as columns, by the name of the column; None if there are none."""
    columns = {name: _part(part, records, topic, partition) for name, part in parts.items()}
    return pa.table(columns) if columns else None


def _part(part: str, records: Records, topic: str, partition: int) -> pa.Array:
    many = len(records.messages)
    match part:
        case "key":
            return pa.array([_text(key) for key in map(Message.key, records.messages)], pa.string())
        case "timestamp":
            return pa.array(records.timestamps, pa.timestamp("us", "UTC"))
        case "topic":
            return pa.array([topic] * many, pa.string())
        case "partition":
            return pa.array(np.full(many, partition, np.int32))
        case "offset":
            return pa.array(records.offsets)
        case "headers":
            return pa.array([list(each.items()) for each in _headers(records)], pa.map_(pa.string(), pa.string()))
    name = part.removeprefix(HEADER)
    return pa.array([each.get(name) for each in _headers(records)], pa.string())


def _headers(records: Records) -> Iterator[dict[str, str | None]]:
    """The headers of each record; of several with one name, the last."""
    given: Iterator[Any] = map(Message.headers, records.messages)
    return (dict(map(_header, own or ())) for own in given)


def _header(header: tuple[str, bytes | str | None]) -> tuple[str, str | None]:
    return header[0], _text(header[1])


def _text(value: bytes | str | None) -> str | None:
    """Bytes as text; None for those that are not UTF-8."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return None
