"""A topic of the log as a source: read by the offsets of its partitions."""

import json
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.eventlog.durable import write_whole
from millrace.eventlog.sealed import sealed, unsealed
from millrace.eventlog.topics import Log
from millrace.formats.texts import as_texts
from millrace.model.errors import AGAIN, ConflictError, gone
from millrace.model.stream import Source
from millrace.sources.admission import Admission, share
from millrace.sources.bundle import Bundle, stamp_of
from millrace.sources.skipped import Skipped

SPLIT = 64 << 20
"""The approximate size of a split, in bytes."""


class Feed:
    """A topic, by position: an offset for each partition."""

    def __init__(
        self, source: Source, log: str, journal: Path, target: float, clock: Callable[[], float],
        group: str | None = None, member: str = "", skipped: Skipped | None = None,
    ) -> None:  # fmt: skip
        """Start from the journal, which the first run writes. Records that are `skipped` are not read.

        A consumer group reports its offsets to the log, which blocks producers that are too far ahead of it.
        """
        self._source, self._path, self._journal = source, log, journal
        self._group, self._member = group, member
        self._log = _existing(log)
        self._log.topic(source.name)
        self._skipped = skipped or Skipped()
        self._admission = Admission(target)
        self._clock = clock
        self._planned: tuple[float, int] | None = None
        """The time at which the last micro-batch was planned, and the number of its records."""
        self._warm = False
        self._reported: list[int] | None = None
        self._journaled: dict[str, Any] | None = None

    def start(self) -> list[int]:
        """The position at which the first run began, from the journal."""
        begun: list[int] = self._begun()["start"]
        return begun

    def end(self) -> list[int]:
        """The position after the last record that exists now."""
        return self._log.ends(self._source.name)

    def latest(self, at: list[int], until: list[int] | None = None) -> list[int]:
        """The end of a micro-batch that starts at `at`. The call implies that everything before `at` was processed."""
        now = self._clock()
        self._learn(now)
        ends = self.end()
        self._check(at, ends)
        at = self._after_gaps(at)
        ends = ends if until is None else until
        if self._group is not None and at != self._reported:
            self._log.report(self._group, self._source.name, at, self._member)
            self._reported = at
        waiting = [max(0, end - offset) for end, offset in zip(ends, at, strict=True)]
        taken = share(waiting, self._admission.limit)
        self._planned = now, sum(taken)
        return [offset + many for offset, many in zip(at, taken, strict=True)]

    def splits(self, start: list[int], end: list[int]) -> list["FeedSplit"]:
        """The splits between two positions; a large partition has several."""
        self._check(start, self.end())
        start = self._after_gaps(start)
        return [
            split
            for partition, (first, last) in enumerate(zip(start, end, strict=True))
            if first < last
            for split in self._pieces(partition, first, last)
        ]

    def stamp(self) -> Hashable:
        """The state of the files of the log: an append changes the journal of SQLite."""
        return stamp_of(self._path), stamp_of(f"{self._path}-wal")

    def identity(self, at: list[int]) -> dict[str, Any]:
        """The topic, its uid, and the mark of the append that wrote the last record of each partition."""
        topic = self._source.name
        return {"topic": topic, "uid": self._log.uid_of(topic), "marks": self._log.marks(topic, at)}

    def _pieces(self, partition: int, first: int, last: int) -> list["FeedSplit"]:
        pieces: list[FeedSplit] = []
        begin, size = first, 0
        for block, many, held in self._log.sizes(self._source.name, partition, first, last):
            size += held
            after = min(block + many, last)
            if size >= SPLIT or after == last:
                pieces.append(FeedSplit(self._path, self._source.name, partition, begin, after, size))
                begin, size = after, 0
        if begin < last:  # retention deleted these records; reading them raises an error
            pieces.append(FeedSplit(self._path, self._source.name, partition, begin, last, 0))
        return pieces

    def _after_gaps(self, at: list[int]) -> list[int]:
        return self._skipped.raised(self._begun()["topic"], at)

    def _check(self, at: list[int], ends: list[int]) -> None:
        """Refuse a topic that is not the one that was read up to `at`."""
        topic = self._source.name
        is_another = self._log.uid_of(topic) != self._begun()["topic"] or len(at) != len(ends)
        if is_another or any(end < offset for offset, end in zip(at, ends, strict=True)):
            raise ConflictError(
                f"topic {topic!r} was read up to {at}, but is another one now, which ends at {ends}: it was removed "
                f"and made again, or {self._path} is another log",
                AGAIN,
            )

    def _begun(self) -> dict[str, Any]:
        """The content of the journal: the uid and the name of the topic, and the first position."""
        if self._journaled is None:
            try:
                self._journaled = unsealed(self._journal.read_bytes())
            except FileNotFoundError:
                name = self._source.name
                self._journaled = {"topic": self._log.uid_of(name), "name": name, "start": self._begin()}
                text = json.dumps(sealed(self._journaled))
                self._journal.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._journal, lambda path: path.write_text(text, encoding="utf-8"))
        return self._journaled

    def _begin(self) -> list[int]:
        topic, start = self._source.name, dict(self._source.options).get("start", "earliest")
        if start == "earliest":
            return self._log.starts(topic)
        return self._log.ends(topic) if start == "latest" else self._log.at_time(topic, int(start))

    def _learn(self, now: float) -> None:
        if self._planned is None or not self._planned[1]:
            return
        began, taken = self._planned
        if self._warm:  # the first micro-batch is slow whatever its size
            self._admission = self._admission.after(taken, now - began)
        self._warm = True


@dataclass(frozen=True, slots=True)
class FeedSplit:
    """Consecutive records of a partition."""

    log: str
    topic: str
    partition: int
    start: int
    end: int
    size: int

    def read(self, wanted: Container[str] | None = None) -> Bundle:
        """The records. Raises MillraceError if they no longer exist."""
        records = _opened(self.log).read(self.topic, self.partition, self.start, self.end)
        found = records["value"]
        values = found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()
        origin, offsets = f"{self.topic}/{self.partition}", records["offset"].to_numpy()
        logged = records["timestamp"].cast(pa.int64()).to_numpy()
        return Bundle(origin, offsets, as_texts(values), partition=self.partition, logged=logged)


@lru_cache(4)
def _opened(log: str) -> Log:
    return _existing(log)


def _existing(path: str) -> Log:
    """A log that must be there: a new one must not be made in the place of a file system that is not mounted."""
    if not Path(path).exists():
        raise gone(f"log {path}")
    return Log(path)
