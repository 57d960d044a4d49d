"""Topics of Kafka as a sink: where rows go, and which columns are keys, headers and timestamps of their records."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.model.errors import refuse, shown
from millrace.model.kafka import KIND, KafkaPlace, client_properties, parse_url
from millrace.model.pane import Mode
from millrace.model.query import Query
from millrace.model.refined import check_view_rows, query_of
from millrace.model.registry import JSON, PROTOBUF, REGISTRY, encoding
from millrace.model.stream import Source, Stream, reads_changes
from millrace.model.window import Global, Session

_OWN = ("transactional.id", "enable.idempotence", "acks", "isolation.level", "partitioner", "message.timeout.ms")
"""Properties on which exactly-once rests."""


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A topic of Kafka, with a record for each change of an answer, or for the latest row of each answer."""

    servers: str
    topic: str
    key: tuple[str, ...] | None = None
    """The columns of the key; None for those of the query."""
    headers: tuple[tuple[str, str], ...] = ()
    """The names of headers, and the columns whose text they hold."""
    timestamp: str | None = None
    """The column with the timestamp of a record; None for the time at which it is sent."""
    changelog: bool = False
    """Whether a record replaces the earlier ones of its key, so that the topic can be compacted."""
    properties: str | None = None
    """The file with properties of the client."""
    format: str = JSON
    registry: str | None = None
    """The schema registry of a format that has one."""
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of the client that may hold passwords: never shown."""

    @property
    def id(self) -> str:
        """State and commits are stored under this id."""
        return f"kafka {self.topic}"

    def __str__(self) -> str:
        return f"Kafka {'changelog' if self.changelog else 'topic'} {self.topic}"


def to_kafka(
    url: str,
    *,
    key: str | tuple[str, ...] | list[str] | None = None,
    headers: Mapping[str, str] | None = None,
    timestamp: str | None = None,
    changelog: bool = False,
    options: Mapping[str, str | int | bool] | None = None,
    properties: str | None = None,
    format: str = JSON,
    registry: str | None = None,
) -> KafkaSink:
    """Write to a topic of Kafka, in a transaction for each micro-batch: `to_kafka("kafka://localhost:9092/charts")`.

    A record is keyed by the columns `key`, by default those of `group_by`: by the text of one column, or by a JSON
    object of several. `headers` names the columns whose texts are headers, `timestamp` the column with the timestamp.
    With `changelog`, a record replaces the earlier ones of its answer, for a compacted topic. `options` holds
    properties of librdkafka, such as those of TLS and SASL, and `properties` names a file with more. Values are JSON
    objects, or have the `format` "avro" or "json-schema": then their schema is registered at `registry`.
    """
    place = parse_url(url)
    if len(place.names) != 1:
        raise refuse(f"a sink writes to one topic, and {url!r} has several", advice="use a sink for each topic")
    if changelog and key is not None:
        raise refuse("the key of a changelog is that of its answers", advice="leave key= out")
    chosen = (key,) if isinstance(key, str) else None if key is None else tuple(key)
    if chosen is not None and (len(set(chosen)) < len(chosen) or not all(isinstance(each, str) for each in chosen)):
        raise refuse(f"key= takes the names of columns, each once, not {key!r}")
    if format == PROTOBUF:
        raise refuse("a sink does not write Protobuf", advice='use format="avro" or format="json-schema"')
    encoded = dict(encoding(format, registry))
    given = (options or {}).items()
    check_own(name for name, _ in given)
    named = tuple((headers or {}).items())
    return KafkaSink(
        place.servers, place.names[0], chosen, named, timestamp, bool(changelog),
        None if properties is None else str(properties), format, encoded.get(REGISTRY), client_properties(given),
    )  # fmt: skip


def check_own(names: Iterable[str]) -> None:
    """Refuse properties on which exactly-once rests."""
    for name in names:
        if name in _OWN:
            raise refuse(f"property {name!r} cannot be set: Millrace sets it", advice="leave it out")


def check_kafka_sink(of: Query | Stream, sink: KafkaSink) -> None:
    """Refuse columns that the rows do not have, and a changelog of rows that no key tells apart."""
    if sink.changelog:
        if not isinstance(of, Query) and not reads_changes(of):
            raise refuse("a changelog needs answers, and a stream of rows has none", advice="call .aggregate(...)")
        if not isinstance(of, Query):
            check_view_rows(sink.topic, of)
        query = query_of(of)
        if query.mode is Mode.DISCARDING:
            problem = "a changelog needs answers that replace each other, and panes that are discarding do not"
            raise refuse(problem, advice="call .accumulating() or .retracting(), or leave changelog= out")
        if isinstance(query.windowing, Session) and query.mode is Mode.ACCUMULATING:
            problem = "a changelog of sessions needs the answers that a longer session takes back"
            raise refuse(problem, advice="call .retracting() before .aggregate(...)")
    for name in (*(sink.key or ()), *(column for _, column in sink.headers)):
        of.schema.type_of(name)
    if sink.timestamp is not None and of.schema.type_of(sink.timestamp) != "TIMESTAMP":
        raise refuse(f"timestamp= takes a column of type TIMESTAMP, and {sink.timestamp!r} is none")


def check_dead_letters(sink: object, sources: Iterable[Source]) -> None:
    """Refuse a sink that cannot take dead letters, and a topic that the pipeline reads."""
    if not isinstance(sink, KafkaSink):
        raise refuse(f"dead_letters= takes a topic of Kafka, as to_kafka(...) names it, not {shown(sink)}")
    if sink != KafkaSink(sink.servers, sink.topic, properties=sink.properties, secrets=sink.secrets):
        problem = "key=, headers=, timestamp=, changelog= and format= are for answers, not for dead letters"
        raise refuse(problem, advice="leave them out")
    for source in sources:
        if source.kind == KIND and KafkaPlace(sink.servers, source.name).includes(sink.topic):
            problem = f"the pipeline reads topic {sink.topic!r}, to which its dead letters would be sent"
            raise refuse(problem, source.place, "name another topic in dead_letters=")


def key_of(of: Query | Stream, sink: KafkaSink) -> tuple[str, ...]:
    """The columns of the key: the given ones, or those of the query; a stream has none.

    Those of a changelog tell its rows apart: the keys of the query, and the window if there is more than one.
    """
    if sink.key is not None:
        return sink.key
    if not isinstance(of, Query) and not reads_changes(of):
        return ()
    if sink.changelog:
        query = query_of(of)
        return query.keys if isinstance(query.windowing, Global) else query.key_names
    return of.keys if isinstance(of, Query) else ()
