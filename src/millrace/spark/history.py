"""How far a checkpoint has come, by the files that Spark and Millrace keep in it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millrace.eventlog.sealed import unsealed
from millrace.model.errors import AGAIN, ConflictError, CorruptError
from millrace.sources.skipped import FILE as SKIPPED
from millrace.sources.skipped import Skipped, read_skipped
from millrace.spark.handed import first_batch, offsets_before
from millrace.spark.logged import batches_of

FORMAT = 5
"""The format of checkpoints. Since 5 a checkpoint knows its generation and since when it writes each output."""

VIEWS = "views"
"""The name of all views of a pipeline as one output, because one transaction writes them."""


@dataclass(frozen=True, slots=True)
class TopicRead:
    """How far a topic was read: the identity of what was read, so that another topic or history is noticed."""

    topic: str
    uid: str
    offsets: tuple[int, ...]
    marks: tuple[int | None, ...]
    """The mark of the append that wrote the last record read, by partition."""
    since: tuple[int, ...] = ()
    """Where the micro-batch in progress, which is run again, begins to read; nothing if none is in progress."""


@dataclass(frozen=True, slots=True)
class History:
    """The past of a checkpoint."""

    id: str
    generation: int
    """The generation of views and sinks that it fills."""
    outputs: Mapping[str, int]
    """The first batch that was written to each output."""
    committed: int = -1
    """The last batch that Spark has committed; -1 if there is none."""
    digests: Mapping[int, str] = field(default_factory=dict)
    """Digests of the last batches that were planned: the last one, and the one before it."""
    read: tuple[TopicRead, ...] = ()
    """The topics up to the last batch that was planned; before the first one, up to the start of the first run."""
    skipped: Skipped = field(default_factory=Skipped)
    """The records that it goes on without."""

    @property
    def planned(self) -> int:
        """The last batch whose offsets are logged; -1 if there is none."""
        return max(self.digests, default=-1)

    @property
    def done(self) -> int:
        """The last batch that is not run again. A power cut may lose Spark's commit of the one before the last."""
        return max(self.committed, self.planned - 1)


def check_format(known: Mapping[str, Any], folder: Path) -> None:
    """Refuse the checkpoint of another release, by the content of its `millrace.json`."""
    format = known["format"]
    if format != FORMAT:
        raise ConflictError(
            f"checkpoint {folder} has format {format}, and this Millrace reads format {FORMAT}",
            AGAIN if format < FORMAT else "run the Millrace that made it",
        )


def digest_of(offsets: Path) -> str:
    """A digest of the offsets of a batch. They hold the time in microseconds, so no two batches have the same."""
    return hashlib.sha256(offsets.read_bytes()).hexdigest()[:16]


def history_of(folder: Path, spark: Path) -> History | None:
    """The history of the checkpoint in a folder; None if there is no checkpoint. Raises CorruptError for damage."""
    about = folder / "millrace.json"
    if not about.exists():
        return None
    with _damage(about):
        content = unsealed(about.read_bytes())
        check_format(content, folder)
        id, outputs, generation = str(content["id"]), dict(content["outputs"]), int(content["generation"])
    first = first_batch(folder)
    logged = batches_of(spark, first)
    # After a handover, the last batch before it is known by the offsets that were kept of it.
    planned = (*([first - 1] if first else []), *logged.planned)[-2:]
    committed = max(logged.committed, default=first - 1)
    offsets = {batch: offsets_before(folder, batch) or spark / "offsets" / str(batch - first) for batch in planned}
    read: dict[int, tuple[TopicRead, ...]] = {}
    for batch, path in offsets.items():
        with _damage(path):
            read[batch] = tuple(_read(path))
    last = max(planned, default=-1)
    digests = {batch: digest_of(path) for batch, path in offsets.items()}
    known = tuple(read.get(last, ()))
    if committed < last or last < 0:
        begun = topics_begun(folder)
        known = tuple(replace(each, since=_since(each, read.get(last - 1, ()), begun)) for each in known)
        known = known if last >= 0 else begun
    with _damage(folder / SKIPPED):
        skipped = read_skipped(folder)
    return History(id, generation, outputs, committed, digests, known, skipped)


def topics_begun(folder: Path) -> tuple[TopicRead, ...]:
    """The topics of a checkpoint at the start of its first run, from the journals of its sources."""
    found = []
    for path in sorted((folder / "sources").glob("*.json")):
        with _damage(path):
            begun = unsealed(path.read_bytes())
            if "name" in begun:  # earlier releases did not write it
                start = tuple(begun["start"])
                found.append(TopicRead(begun["name"], begun["topic"], start, (None,) * len(start)))
    return tuple(found)


def _since(read: TopicRead, before: tuple[TopicRead, ...], begun: tuple[TopicRead, ...]) -> tuple[int, ...]:
    """Where a batch begins to read a topic, by the batch before it. If several sources read it, the lowest offsets."""
    found = [each for each in before if each.uid == read.uid] or [each for each in begun if each.uid == read.uid]
    same = [each.offsets for each in found if len(each.offsets) == len(read.offsets)]
    return tuple(map(min, zip(*same, strict=True))) if same else read.offsets


def _read(offsets: Path) -> list[TopicRead]:
    """The topics that a file of offsets names: it has a line for each Spark source, after two other lines."""
    found = []
    for line in offsets.read_text(encoding="utf-8").splitlines()[2:]:
        offset: dict[str, Any] = {} if line == _NO_OFFSET else json.loads(line)
        for source, identity in offset.get("read", {}).items():
            offsets_read = tuple(offset["at"][source])
            found.append(TopicRead(identity["topic"], identity["uid"], offsets_read, tuple(identity["marks"])))
    return found


_NO_OFFSET = "-"
"""Spark's line for a source that has no offset yet."""


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raise what is wrong with the content of a file as CorruptError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CorruptError(f"{path} of the checkpoint is damaged", AGAIN) from error
