"""Whether the log, the checkpoint, the store and the sinks of a pipeline belong together.

Each output stores the last commit that was written to it, with a digest of the batch's offsets, and a checkpoint holds
these offsets. A checkpoint also holds the identity of the records that it has read. So a part that was restored from
an older copy, deleted or made again is detected before anything is computed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millrace.model.connectors import Commit
from millrace.sources.skipped import Skipped
from millrace.spark.history import VIEWS, History, TopicRead


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic as the log has it now."""

    uid: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    marks: tuple[int | None, ...]
    """The marks of the appends that wrote the last records that the checkpoint has read."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the parts of a pipeline say of themselves."""

    folder: Path
    """The checkpoint's."""
    history: History | None
    """None if there is no checkpoint in the folder."""
    commits: Mapping[str, Commit | None]
    """The last commit of each output."""
    known: int = 1
    """The newest generation that the store knows."""
    newest: int = 1
    """The newest generation that has a checkpoint."""
    topics: Mapping[TopicRead, TopicNow] = field(default_factory=dict)
    """The topics that were read, as they are now."""
    lost: tuple[str, ...] = ()
    """What is missing of the answers in outputs, in words."""


def disagreement(parts: Parts) -> str | None:
    """The first reason why the parts do not belong together; None if they do."""
    return next(_reasons(parts), None)


@dataclass(frozen=True, slots=True, order=True)
class Lost:
    """Records that retention removed before they were read, from offset `first` to before `end`."""

    topic: str
    uid: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"retention removed offsets {self.first} to {self.end - 1} of {self.topic}/{self.partition} unread"


def gaps(parts: Parts) -> list[Lost]:
    """The records that retention removed before they were read, without those that the checkpoint skips."""
    skipped = Skipped() if parts.history is None else parts.history.skipped
    found: dict[tuple[str, int], Lost] = {}
    for read, now in parts.topics.items():
        first = skipped.raised(read.uid, read.since or read.offsets)
        for partition, (start, offset) in enumerate(zip(now.starts, first, strict=False)):
            lost = Lost(read.topic, read.uid, partition, offset, start)
            if offset < start:  # several sources may read one topic
                found[read.uid, partition] = min(lost, found.get((read.uid, partition), lost))
    return sorted(found.values())


def is_unused(parts: Parts) -> bool:
    """Whether no output has anything of the checkpoint, so that another pipeline may begin it anew.

    Views are written first, so an output that was removed since has nothing if the views have nothing.
    """
    history = parts.history
    if history is None or history.committed >= 0 or any(commit is not None for commit in parts.commits.values()):
        return False
    return VIEWS in parts.commits or set(history.outputs) <= set(parts.commits)


def is_skippable(parts: Parts, lost: Lost) -> bool:
    """Whether a pipeline can go on after a gap, so that its answers are those of all records that it reads."""
    return not is_written_in_part(parts, lost.uid, lost.partition, lost.first, lost.end)


def is_written_in_part(parts: Parts, uid: str, partition: int, first: int, end: int) -> bool:
    """Whether the micro-batch in progress reads some of these offsets, and an output may hold its answers already.

    That batch is run again. Without these records, its state would contradict the answers.
    """
    is_read = any(
        read.uid == uid and max(first, since) < min(end, until)
        for read in parts.topics
        for number, (since, until) in enumerate(zip(read.since, read.offsets, strict=False))
        if number == partition
    )
    return is_read and is_being_written(parts)


def is_being_written(parts: Parts) -> bool:
    """Whether an output may hold answers of the micro-batch in progress, which is run again."""
    history = parts.history
    if history is None or history.planned <= history.committed:
        return False
    written = [commit for commit in parts.commits.values() if commit is not None and commit.batch >= history.planned]
    return bool(written) or len(parts.commits) < len(history.outputs)


def _reasons(parts: Parts) -> Iterator[str]:
    if parts.newest > max(parts.known, 1):
        yield (
            f"there is a checkpoint of generation {parts.newest} beside {parts.folder}, which the store does not know: "
            "the store is an older copy, or another one"
        )
    for output, commit in parts.commits.items():
        reason = _reason(parts.folder, parts.history, output, commit)
        if reason is not None:
            yield reason
    yield from parts.lost
    for read, now in parts.topics.items():
        reason = _other_records(parts.folder, read, now)
        if reason is not None:
            yield reason


def _reason(folder: Path, history: History | None, output: str, commit: Commit | None) -> str | None:
    """The reason why an output does not belong to a checkpoint; None if it does."""
    called = "the store" if output == VIEWS else output
    if history is None:
        if commit is None:
            return None
        return f"{called} was written from checkpoint {commit.checkpoint or 'another'}, and there is none in {folder}"
    first = history.outputs.get(output, history.done + 1)
    if commit is None:
        if first > history.done:
            return None
        return f"{called} holds nothing of checkpoint {folder}, which has come to batch {history.done}"
    if commit.batch > history.planned:
        return f"checkpoint {folder} has come to batch {history.planned}, but {called} to {commit.batch}"
    if commit.batch < history.done:
        return f"checkpoint {folder} has come to batch {history.done}, but {called} only to {commit.batch}"
    if history.digests.get(commit.batch) != commit.digest or commit.batch < first:
        return f"batch {commit.batch} in {called} is not the one that checkpoint {folder} has computed"
    return None


def _other_records(folder: Path, read: TopicRead, now: TopicNow) -> str | None:
    """The reason why a topic does not hold the records that a checkpoint has read; None if it does."""
    if now.uid != read.uid or len(now.ends) != len(read.offsets):
        return f"topic {read.topic!r} is not the one that checkpoint {folder} has read: it was made again"
    for partition, (offset, end) in enumerate(zip(read.offsets, now.ends, strict=True)):
        if end < offset:
            return (
                f"{read.topic}/{partition} ends at offset {end}, but checkpoint {folder} has read up to {offset}: "
                "the log is an older copy"
            )
    for partition, (mark, found) in enumerate(zip(read.marks, now.marks, strict=True)):
        if mark is not None and found is not None and mark != found:
            return (
                f"offset {read.offsets[partition] - 1} of {read.topic}/{partition} is not the record that checkpoint "
                f"{folder} has read: the log is an older copy with other records"
            )
    return None
