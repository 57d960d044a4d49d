"""Files that a pipeline has yet to read and cannot: damaged ones, and those that were moved away."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.eventlog.sealed import unsealed
from millrace.model.errors import MillraceError
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import source_id
from millrace.running.agreement import Parts, is_being_written
from millrace.sources.files import Files
from millrace.spark.checkpoint import Checkpoint, journal_of


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that the journal of a source lists."""

    path: str
    error: MillraceError
    is_written: bool
    """Whether an output may hold answers from its rows: the micro-batch in progress has read it, and is run again."""


def unreadable_files(pipeline: Pipeline, parts: Parts) -> Iterator[UnreadableFile]:
    """The files that the next micro-batches of a pipeline would read, and cannot, each once.

    The checkpoint must be whole.
    """
    sources = [source for source in pipeline.sources if source.kind == "files"]
    if parts.history is None or not sources:
        return
    checkpoint = Checkpoint(parts.folder)
    readers = unsealed((parts.folder / "millrace.json").read_bytes())["spark_sources"]
    done, planned = (_positions(checkpoint.offsets(n)) for n in (parts.history.committed, parts.history.planned))
    being_written = is_being_written(parts)
    told: set[str] = set()
    for source in sources:
        since, until = (at.get(source_id(source), 0) for at in (done, planned))
        journals = [journal_of(parts.folder, reader, source.name, "jsonl") for reader in readers]
        for journal in filter(Path.exists, journals):
            for position, path, error in Files(source, journal, parts.history.skipped.files).unreadable(since):
                if path not in told:
                    told.add(path)
                    yield UnreadableFile(path, error, being_written and position < until)


def _positions(offsets: Path) -> dict[str, int]:
    """How many files of each source were read at an offset; of several readers, by the one that has read the least."""
    found: dict[str, int] = {}
    if not offsets.exists():  # before the first batch
        return found
    for line in offsets.read_text(encoding="utf-8").splitlines()[2:]:
        at: dict[str, Any] = {} if line == "-" else json.loads(line)["at"]
        for source, position in at.items():
            if isinstance(position, int):
                found[source] = min(position, found.get(source, position))
    return found
