"""Sends dead letters to the Kafka topics that they are from, each once.

A transaction holds the records and the number of the append, as that of a sink does. So an append that a crash has cut
off is found: it was made, or it is made again.
"""

from collections.abc import Sequence
from functools import cached_property

from millrace.letters.letter import Letter
from millrace.letters.resending import HEADER
from millrace.model.errors import ConflictError, PipelineError
from millrace.model.kafka import KIND, PROPERTIES, SERVERS
from millrace.model.kafka_sink import KafkaSink
from millrace.model.pipeline import Pipeline
from millrace.model.registry import FORMAT
from millrace.model.stream import Source
from millrace.sources.kafka_cluster import opened, remember
from millrace.spark.kafka_transactions import Record, Transactions


class KafkaTopics:
    """The topics of Kafka that a pipeline reads, for the letters of its box."""

    def __init__(self, pipeline: Pipeline, box: str) -> None:
        """`box` is the id of the box. Connect when something is sent."""
        self._pipeline, self._box = pipeline, box
        self._topics: dict[str, Transactions] = {}

    @cached_property
    def _sources(self) -> dict[str, Source]:
        return {source.name: source for source in self._pipeline.sources if source.kind == KIND}

    def check(self, letter: Letter) -> None:
        """Refuse a letter that cannot be sent."""
        source = self._sources.get(letter.rejected.source)
        if source is None:
            problem = (
                f"the pipeline does not read {letter.rejected.source!r}, from which dead letter {letter.number} is"
            )
            raise PipelineError(problem, "name the file of the pipeline that has set it aside")
        if FORMAT in dict(source.options):
            raise PipelineError(
                f"dead letter {letter.number} is from a topic with format {dict(source.options)[FORMAT]!r}",
                "send its value with a producer that has a serializer: millrace dead show PIPELINE --values",
            )

    def prepare(self, letter: Letter) -> None:
        """Make Kafka know the topic of a letter, so that it cannot know nothing of an append that was begun."""
        topic = self._transactions(letter)
        topic.open()
        if topic.last() is None:
            topic.write((), 0)

    def append(self, letters: Sequence[Letter], sequence: int) -> None:
        """Send letters of one topic, unless they were sent under this number."""
        topic = self._transactions(letters[0])
        topic.open()  # ends what an earlier process has left
        last = topic.last()
        if last is None:
            raise ConflictError(
                f"Kafka has forgotten whether dead letter {letters[0].number} was sent again",
                "look into the topic: send it with a producer if it is not there, and then drop it: millrace dead drop",
            )
        if last[0] < sequence + 1:
            topic.write([self._record(letter) for letter in letters], sequence + 1)

    def _record(self, letter: Letter) -> Record:
        about = letter.rejected
        return Record(letter.text, self._key(letter), ((HEADER, f"{about.origin}:{about.offset}"),))

    def _key(self, letter: Letter) -> bytes | None:
        """The key of the record that was set aside, so that those with one key stay in one partition.

        A record that the topic no longer has, or does not have since it was made again, has none.
        """
        about = letter.rejected
        assert about.partition is not None
        assert about.offset is not None
        topic, place = topic_of(letter), (topic_of(letter), about.partition)
        cluster = opened(remember(self._sources[about.source]))
        if about.offset >= cluster.ends({topic: cluster.topic(topic)}).get(place, 0):
            return None
        try:
            read = cluster.read(topic, about.partition, about.offset, about.offset + 1)
        except ConflictError:  # retention has removed it
            return None
        key = read.messages[0].key() if len(read.messages) else None
        return key.encode() if isinstance(key, str) else key

    def _transactions(self, letter: Letter) -> Transactions:
        topic = topic_of(letter)
        if topic not in self._topics:
            source = self._sources[letter.rejected.source]
            options = dict(source.options)
            given = tuple((name, each) for name, each in source.secrets if name != "isolation.level")
            sink = KafkaSink(options[SERVERS], topic, properties=options.get(PROPERTIES), secrets=given)
            self._topics[topic] = Transactions(sink, f"millrace-{self._pipeline.name}@resend{self._box}-{topic}")
        return self._topics[topic]


def topic_of(letter: Letter) -> str:
    """The topic of the record of a letter."""
    return letter.rejected.origin.rpartition("/")[0]
