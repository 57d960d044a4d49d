"""Topics of Kafka as a source: where they are, which parts of records are columns, and the properties of the client."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from millrace.model.duration import to_instant
from millrace.model.errors import caller, refuse, refuse_unknown
from millrace.model.registry import check_properties, encoding
from millrace.model.schema import Column, Schema, parse_schema
from millrace.model.stream import METADATA, STRICT, Source

KIND = "kafka"
SERVERS, START, PROPERTIES = "servers", "start", "properties"
"""Options of the source: the brokers, where it starts, the file with properties."""
PARTS = {
    "key": "STRING",
    "timestamp": "TIMESTAMP",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "headers": "MAP<STRING, STRING>",
}
"""The parts of a record beside its value, with the types of their columns."""
HEADER = "header "
"""The beginning of a part that is one header: then its name. Its column is a STRING."""
_OWN = (
    "bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "enable.auto.commit",
    "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof", "allow.auto.create.topics", "log_level",
    "debug",
)  # fmt: skip
"""Properties that Millrace sets, or that could write secrets to a log."""
_SCHEME = "kafka://"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class KafkaPlace:
    """The brokers of a URL, and its topics: names between commas, or a pattern that begins with ^."""

    servers: str
    topics: str

    @property
    def pattern(self) -> "re.Pattern[str] | None":
        """The pattern of the names of topics; None if they are named."""
        return re.compile(self.topics) if self.topics.startswith("^") else None

    @property
    def names(self) -> tuple[str, ...]:
        """The named topics."""
        return () if self.topics.startswith("^") else tuple(self.topics.split(","))

    def includes(self, topic: str) -> bool:
        """Whether a topic is one of these."""
        return topic in self.names if self.pattern is None else self.pattern.search(topic) is not None


def kafka(
    url: str,
    schema: str | Mapping[str, str] | Schema,
    start: str | datetime = "earliest",
    strict: bool = False,
    metadata: Mapping[str, str] | None = None,
    options: Mapping[str, str | int | bool] | None = None,
    properties: str | None = None,
    format: str = "json",
    registry: str | None = None,
    reader: str | None = None,
) -> Source:
    """The rows of Kafka topics, each a record with these columns: `kafka("kafka://localhost:9092/plays", ...)`.

    The URL names one topic or several (`/plays,skips`), or holds a pattern of names (`/^plays-.*`); a pipeline reads
    partitions and topics that are added while it runs. `start`, `strict` and NOT NULL are as for `log`. `metadata`
    makes columns of other parts of a record: `{"user": "key", "sent_at": "timestamp", "app": "header app"}`. `options`
    holds properties of librdkafka, such as those of TLS and SASL, and `properties` names a file with more; neither is
    shown or stored. Only records of committed transactions are read, unless `isolation.level` says otherwise.

    A record is a JSON object, or has another `format`: "avro", "json-schema" or "protobuf", with the id of a schema of
    the schema registry at `registry`. With `reader`, Avro's records are read by that schema, "SUBJECT:VERSION".
    """
    place, columns = parse_url(url), parse_schema(schema)
    parts = _metadata(metadata or {}, columns)
    if isinstance(start, str) and start not in ("earliest", "latest"):
        raise refuse(f"start= must be 'earliest', 'latest' or a datetime, not {start!r}")
    begin = start if isinstance(start, str) else str(to_instant(start))
    options_ = (
        (SERVERS, place.servers),
        *encoding(format, registry, reader),
        *(() if begin == "earliest" else ((START, begin),)),
        *((f"{METADATA}{name}", part) for name, part in parts.items()),
        *(() if properties is None else ((PROPERTIES, str(properties)),)),
        *(((STRICT, "true"),) if strict else ()),
    )
    whole = columns.with_columns(Column(name, PARTS.get(part, "STRING")) for name, part in parts.items())
    return Source(KIND, place.topics, whole, options_, caller(), secrets=client_properties((options or {}).items()))


def parse_url(url: str) -> KafkaPlace:
    """The place that a URL names, such as kafka://localhost:9092/plays."""
    example = f"write it like {_SCHEME}localhost:9092/plays"
    if not isinstance(url, str) or not url.startswith(_SCHEME):
        raise refuse(f"the URL of a Kafka topic must begin with {_SCHEME}", advice=example)
    servers, _, topics = url.removeprefix(_SCHEME).partition("/")
    if "@" in servers:
        raise refuse("the URL of a Kafka topic has no user", advice="pass options={'sasl.username': ...}")
    if not servers or not all(re.fullmatch(r"[^\s:]+:\d+|\[[^\s]+\]:\d+", each) for each in servers.split(",")):
        raise refuse(f"the URL {url!r} needs the host and the port of a broker", advice=example)
    if topics.startswith("^"):
        try:
            re.compile(topics)
        except re.error as error:
            raise refuse(f"the pattern {topics!r} does not parse: {error}") from None
    else:
        for name in topics.split(","):
            if not _NAME.fullmatch(name) or name in (".", ".."):
                raise refuse(f"{name!r} in {url!r} is no name of a Kafka topic", advice=example)
        if len(set(topics.split(","))) != len(topics.split(",")):
            raise refuse(f"the URL {url!r} names a topic twice")
    return KafkaPlace(servers, topics)


def client_properties(given: Iterable[tuple[str, str | int | bool]]) -> tuple[tuple[str, str], ...]:
    """Properties of librdkafka, as text. Refuses those that Millrace sets itself."""
    found: dict[str, str] = {}
    for name, value in given:
        if not isinstance(name, str) or not isinstance(value, str | int | bool):
            raise refuse(f"a property of Kafka is text with a value that is text or a number: {name!r} is not")
        if name in _OWN:
            raise refuse(f"property {name!r} cannot be set: Millrace sets it", advice="leave it out")
        check_properties([name])
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return tuple(sorted(found.items()))


def _metadata(given: Mapping[str, str], columns: Schema) -> dict[str, str]:
    for name, part in given.items():
        if part not in PARTS and not (isinstance(part, str) and part.startswith(HEADER)):
            raise refuse_unknown("part of a Kafka record", part, [*PARTS, "header NAME"])
        if name in columns:
            raise refuse(f"column {name!r} is in the schema and in metadata=", advice="give one of them another name")
    return dict(given)
