"""How far a checkpoint has come, by the files that Spark and Millrace keep in it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.eventlog.sealed import unsealed
from millrace.model.errors import AGAIN, ConflictError, CorruptError

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
    """The topics up to the last batch that was planned."""

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
        known = unsealed(about.read_bytes())
        check_format(known, folder)
        id, outputs, generation = str(known["id"]), dict(known["outputs"]), int(known["generation"])
    planned = _batches(spark / "offsets")[-2:]
    committed = max(_batches(spark / "commits"), default=-1)
    offsets = {batch: spark / "offsets" / str(batch) for batch in planned}
    read: dict[int, tuple[TopicRead, ...]] = {}
    for batch, path in offsets.items():
        with _damage(path):
            read[batch] = tuple(_read(path))
    last = max(planned, default=-1)
    digests = {batch: digest_of(path) for batch, path in offsets.items()}
    return History(id, generation, outputs, committed, digests, read.get(last, ()))


def _batches(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []


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
