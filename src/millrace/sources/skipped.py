"""Records and files that a pipeline goes on without: they are gone or damaged, and a person accepted the loss.

The checkpoint records them, so that the next run begins each partition after the gap, and a repeated micro-batch does
too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millrace.eventlog.durable import write_whole
from millrace.eventlog.sealed import sealed, unsealed

FILE = "skipped.json"
"""The name of the file in a checkpoint."""


@dataclass(frozen=True, slots=True)
class SkippedTopic:
    """A topic of which records are skipped."""

    topic: str
    starts: Mapping[int, int]
    """For each partition with a gap, the first offset after it."""
    records: int
    """The number of records skipped in all."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Everything that a checkpoint skips; records by the uid of the topic: a topic that was made again has no gaps."""

    topics: Mapping[str, SkippedTopic] = field(default_factory=dict)
    files: frozenset[str] = frozenset()
    """The paths of files that are not read."""

    @property
    def records(self) -> int:
        """The number of skipped records."""
        return sum(topic.records for topic in self.topics.values())

    def raised(self, uid: str, at: Sequence[int]) -> list[int]:
        """A position of a topic, with each offset before a gap moved to the end of the gap."""
        starts = self.topics[uid].starts if uid in self.topics else {}
        return [max(offset, starts.get(partition, 0)) for partition, offset in enumerate(at)]

    def adding(self, uid: str, topic: str, partition: int, first: int, end: int) -> "Skipped":
        """These records, and those of another gap."""
        before = self.topics.get(uid, SkippedTopic(topic, {}, 0))
        starts = {**before.starts, partition: max(end, before.starts.get(partition, 0))}
        return replace(self, topics={**self.topics, uid: SkippedTopic(topic, starts, before.records + end - first)})

    def adding_file(self, path: str) -> "Skipped":
        """These records and files, and another file."""
        return replace(self, files=self.files | {path})


def read_skipped(checkpoint: Path) -> Skipped:
    """What a checkpoint skips; nothing if nothing is recorded. Raises ValueError if the file is damaged."""
    try:
        content = unsealed((checkpoint / FILE).read_bytes())
    except FileNotFoundError:
        return Skipped()
    try:
        topics = {uid: _topic(about) for uid, about in content["topics"].items()}
        return Skipped(topics, frozenset(map(str, content.get("files", ()))))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it does not describe skipped records") from error


def write_skipped(checkpoint: Path, skipped: Skipped) -> None:
    """Record what a checkpoint skips, in place of what was recorded before."""
    topics = {
        uid: {"topic": each.topic, "starts": {str(number): end for number, end in each.starts.items()},
              "records": each.records}
        for uid, each in skipped.topics.items()
    }  # fmt: skip
    text = json.dumps(sealed({"topics": topics, "files": sorted(skipped.files)}))
    write_whole(checkpoint / FILE, lambda path: path.write_text(text, encoding="utf-8"))


def _topic(about: Mapping[str, Any]) -> SkippedTopic:
    starts = {int(partition): int(end) for partition, end in about["starts"].items()}
    return SkippedTopic(str(about["topic"]), starts, int(about["records"]))
