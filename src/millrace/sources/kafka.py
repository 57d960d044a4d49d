"""Topics of Kafka as a source: read by the offsets of their partitions.

A position holds, for each topic, its id and the offset of each partition. So a topic that was deleted and made again is
noticed wherever a position is used, and after a read as well.
"""

import json
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.eventlog.durable import write_whole
from millrace.eventlog.sealed import sealed, unsealed
from millrace.formats.texts import as_texts
from millrace.model.errors import FILE, ConflictError, MillraceError, NotFoundError
from millrace.model.kafka import START
from millrace.model.registry import FORMAT, READER
from millrace.model.stream import Source
from millrace.sources.admission import Admission, share
from millrace.sources.bundle import Bundle, Encoded
from millrace.sources.kafka_cluster import Cluster, Offsets, Topic, metadata_of, opened, remember, removed

SPLIT = 64 << 20
"""The approximate size of a split, in bytes."""
_SOME, _LEAST, _MOST = 200, 5_000, 250_000
"""The records whose size is measured, and the least and the most records of a split."""
_DESCRIBED = 1.0
"""For how many seconds topics count as unchanged, if nothing was appended."""

KafkaPosition = dict[str, Any]
"""By topic: its `id`, and `at`, the offset of each partition; partitions that are missing begin at 0."""


class KafkaFeed:
    """Topics of Kafka, by position."""

    def __init__(
        self, source: Source, journal: Path, target: float, clock: Callable[[], float], group: str | None = None
    ) -> None:
        """Start from the journal, which the first run writes. A consumer group reports its offsets to Kafka."""
        self._source, self._journal, self._group, self._clock = source, journal, group, clock
        self._name = remember(source)
        self._cluster: Cluster = opened(self._name)
        self._admission = Admission(target)
        self._planned: tuple[float, int] | None = None
        """The time at which the last micro-batch was planned, and the number of its records."""
        self._warm = False
        self._started: KafkaPosition | None = None
        self._reported: KafkaPosition | None = None
        self._looked: tuple[float, dict[str, Topic], Offsets] | None = None
        """When the topics were last looked at, what they were, and their ends."""

    def start(self) -> KafkaPosition:
        """The position at which the first run began, from the journal."""
        if self._started is None:
            try:
                self._started = unsealed(self._journal.read_bytes())["start"]
            except FileNotFoundError:
                self._started = self._begin()
                text = json.dumps(sealed({"start": self._started}))
                self._journal.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._journal, lambda path: path.write_text(text, encoding="utf-8"))
        return self._started

    def end(self) -> KafkaPosition:
        """The position after the last record that can be read now."""
        topics = self._cluster.topics()
        return _position(topics, self._cluster.ends(topics))

    def latest(self, at: KafkaPosition, until: KafkaPosition | None = None) -> KafkaPosition:
        """The end of a micro-batch that starts at `at`. The call implies that everything before `at` was processed."""
        now = self._clock()
        self._learn(now)
        topics, ends = self._look(at, now)
        if until is not None:
            ends = {place: _offset(until, *place) for place in ends}
        places = sorted(ends)
        waiting = [max(0, ends[place] - _offset(at, *place)) for place in places]
        taken = dict(zip(places, share(waiting, self._admission.limit), strict=True))
        self._report(at, topics)
        self._planned = now, sum(taken.values())
        return {
            name: {"id": topic.id, "at": offsets}
            for name, topic in topics.items()
            if (offsets := _advanced(at, name, topic, taken)) or name in at
        }

    def splits(self, start: KafkaPosition, end: KafkaPosition) -> list["KafkaSplit"]:
        """The splits between two positions; a large partition has several."""
        topics = self._described(start)
        starts = self._cluster.starts(topics)
        places = [(name, number) for name, to in end.items() for number in range(len(to["at"]))]
        spans = {place: (_offset(start, *place), _offset(end, *place)) for place in places}
        spans = {place: (first, last) for place, (first, last) in spans.items() if first < last}
        for (name, number), (first, _) in spans.items():
            if topics[name].id != end[name]["id"]:
                raise made_again(name)
            if first < starts[name, number]:
                raise removed(name, number, first)
        if not spans:
            return []
        size, most = self._sizes(spans)
        return [
            KafkaSplit(self._name, name, end[name]["id"], number, begin, min(begin + most, last), int(most * size))
            for (name, number), (first, last) in spans.items()
            for begin in range(first, last, most)
        ]

    def stamp(self) -> None:
        """Not known: only the brokers can tell."""

    def identity(self, at: KafkaPosition) -> None:
        """Nothing more: the position holds the ids of the topics."""

    def _begin(self) -> KafkaPosition:
        topics, start = self._cluster.topics(), dict(self._source.options).get(START, "earliest")
        if start == "earliest":
            return _position(topics, self._cluster.starts(topics))
        offsets = self._cluster.ends(topics) if start == "latest" else self._cluster.at_time(topics, int(start))
        return _position(topics, offsets)

    def _look(self, at: KafkaPosition, now: float) -> tuple[dict[str, Topic], Offsets]:
        """The topics and their ends. Refuses other topics than those that were read up to `at`.

        The topics are described again only after an append, or after a second.
        """
        if self._looked is not None and now < self._looked[0] + _DESCRIBED:
            _, topics, before = self._looked
            if self._cluster.ends(topics) == before:
                return topics, before
        topics = self._described(at)
        starts, ends = self._cluster.starts(topics), self._cluster.ends(topics)
        for place, end in ends.items():
            offset = _offset(at, *place)
            if end < offset:
                raise made_again(place[0])
            if offset < starts[place]:
                raise removed(*place, offset)
        self._looked = now, topics, ends
        return topics, ends

    def _described(self, at: KafkaPosition) -> dict[str, Topic]:
        """The topics as they are now. Refuses those that are not the ones that were read up to `at`."""
        try:
            topics = self._cluster.topics()
        except NotFoundError:
            if not at:
                raise
            raise made_again(self._source.name) from None
        for name, read in at.items():
            if name not in topics or topics[name].id != read["id"] or topics[name].partitions < len(read["at"]):
                raise made_again(name)
        return topics

    def _sizes(self, spans: dict[tuple[str, int], tuple[int, int]]) -> tuple[float, int]:
        """The average size of a record, and how many records a split has."""
        longest = max(spans, key=lambda place: spans[place][1] - spans[place][0])
        first, last = spans[longest]
        if last - first < _LEAST:
            return SPLIT / _MOST, _LEAST
        size = max(1.0, self._cluster.sample(*longest, first, _SOME))
        return size, min(max(int(SPLIT / size), 1), _MOST)

    def _report(self, at: KafkaPosition, topics: dict[str, Topic]) -> None:
        if self._group is not None and at != self._reported:
            read = {(name, number): offset for name, each in at.items() for number, offset in enumerate(each["at"])}
            if read:
                self._cluster.report(self._group, read)
            self._reported = at

    def _learn(self, now: float) -> None:
        if self._planned is None or not self._planned[1]:
            return
        began, taken = self._planned
        if self._warm:  # the first micro-batch is slow whatever its size
            self._admission = self._admission.after(taken, now - began)
        self._warm = True


def made_again(topic: str) -> ConflictError:
    """The error for a topic that is not the one that was read."""
    return ConflictError(
        f"topic {topic!r} of Kafka is not the one that was read before: it was deleted, or deleted and made again, or "
        "has lost records that were read",
        f"read it from its start: millrace replay {FILE}; or name another topic",
    )


def lags_of(sources: Iterable[Source], group: str) -> dict[str, int]:
    """The records of each topic that a consumer group has yet to read; nothing where that is not known."""
    lags: dict[str, int] = {}
    for source in sources:
        with suppress(MillraceError):
            lags |= opened(remember(source)).lags(group)
    return lags


def lags_at(source: Source, at: KafkaPosition) -> dict[str, int]:
    """The records of each topic of a source after a position; nothing if Kafka cannot be asked."""
    lags: dict[str, int] = {}
    with suppress(MillraceError):
        cluster = opened(remember(source))
        for (topic, partition), end in cluster.ends(cluster.topics()).items():
            lags[topic] = lags.get(topic, 0) + max(0, end - _offset(at, topic, partition))
    return lags


def _position(topics: dict[str, Topic], offsets: Offsets) -> KafkaPosition:
    return {
        name: {"id": topic.id, "at": [offsets[name, number] for number in range(topic.partitions)]}
        for name, topic in topics.items()
    }


def _offset(at: KafkaPosition, topic: str, partition: int) -> int:
    """The offset of a partition at a position. A partition that was added later begins at 0."""
    offsets = at[topic]["at"] if topic in at else []
    return int(offsets[partition]) if partition < len(offsets) else 0


def _advanced(at: KafkaPosition, name: str, topic: Topic, taken: Offsets) -> list[int]:
    """The offsets of a topic after a micro-batch. New partitions that have no records yet are left out."""
    offsets = [_offset(at, name, number) + taken.get((name, number), 0) for number in range(topic.partitions)]
    known = len(at[name]["at"]) if name in at else 0
    while len(offsets) > known and not offsets[-1]:
        offsets.pop()
    return offsets


@dataclass(frozen=True, slots=True)
class KafkaSplit:
    """Consecutive records of a partition. It names its source, whose properties the process remembers."""

    source: str
    topic: str
    id: str
    partition: int
    start: int
    end: int
    size: int

    def read(self, wanted: Container[str] | None = None) -> Bundle:
        """The records. Raises MillraceError if they no longer exist, or if the topic is another one now."""
        cluster = opened(self.source)
        records = cluster.read(self.topic, self.partition, self.start, self.end)
        if cluster.topic(self.topic).id != self.id:  # after the read: an id that was replaced never comes back
            raise made_again(self.topic)
        more = metadata_of(records, self.topic, self.partition, cluster.source.metadata)
        texts, encoded = None, None
        if cluster.registry is None:
            texts = as_texts(records.values)
        else:
            options = dict(cluster.source.options)
            encoded = Encoded(records.values, options[FORMAT], cluster.registry, options.get(READER))
        return Bundle(
            f"{self.topic}/{self.partition}", records.offsets, texts, partition=self.partition,
            logged=records.timestamps, metadata=more, encoded=encoded, raw=records.values,
        )  # fmt: skip
