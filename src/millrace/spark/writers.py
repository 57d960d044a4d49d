"""Writers of answers, one micro-batch at a time, and delivery guarantees.

A writer receives the answers of a micro-batch with a commit: the pipeline, the checkpoint, the number and the digest of
the batch. Spark repeats an interrupted batch with the same commit and the same answers, so a writer that finds the
commit stored does nothing: that is exactly-once. At-least-once writes without checking. At-most-once records the batch
before it writes, and does not write a recorded batch.

A writer stores the last commit with its answers, and writes a batch only on top of its predecessor. So a sink that does
not belong to a checkpoint, such as a restored copy, is detected.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa

from millrace.eventlog.durable import write_whole
from millrace.eventlog.sealed import sealed, unsealed
from millrace.model.connectors import Commit
from millrace.model.errors import PipelineError, unknown
from millrace.spark.crash import reach


class Guarantee(StrEnum):
    """How often an answer is delivered despite failures."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


def parse_guarantee(text: str) -> Guarantee:
    """A guarantee by its name."""
    if text not in tuple(Guarantee):
        raise PipelineError(unknown("guarantee", text, Guarantee))
    return Guarantee(text)


class Writer(Protocol):
    """Writes answers to one sink."""

    def last(self) -> Commit | None:
        """The last commit that was stored, in the sink or beside the checkpoint; None if there is none."""

    def lost(self) -> str | None:
        """What is missing of the answers up to the last commit, in words; None if nothing is known to be missing."""

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Write the answers of a micro-batch together with the commit; if `once`, unless that is stored already.

        Raises ConflictError if the last commit that the sink stores is not the one before.
        """

    def replace(self, answers: pa.Table) -> None:
        """Replace all earlier answers with those of a batch."""

    def newest(self) -> int:
        """The newest generation that the sink has something of; 0 if there is none."""

    def serve(self) -> None:
        """Put the answers of this generation, which a replay wrote, in the place of the earlier ones. Idempotent."""


class Views(Protocol):
    """Stores the answers of all views of a pipeline."""

    def write(self, answers: Mapping[str, pa.Table], commit: Commit, once: bool) -> None:
        """Store the answers of a micro-batch, by view, in one transaction; `once` is as for a writer."""

    def replace(self, answers: Mapping[str, pa.Table]) -> None:
        """Replace all stored answers with those of a batch, by view."""


Answers: TypeAlias = Mapping[str, pa.Table]
"""The answers of a micro-batch, by output."""
Write: TypeAlias = Callable[[Answers, Commit, bool], None]
"""Writes the answers of a commit to an output, with the flag `once`."""


class Delivery:
    """Delivers answers to writers with a guarantee."""

    def __init__(self, pipeline: str, checkpoint: str, guarantee: Guarantee, noted: Path) -> None:
        """`noted` is the file with the last batch begun, for at-most-once."""
        self._pipeline, self._checkpoint, self._guarantee, self._noted = pipeline, checkpoint, guarantee, noted

    def deliver(self, batch: int, digest: str, answers: Answers, writes: Iterable[Write]) -> None:
        """Write the answers of a micro-batch. At-most-once writes none for a batch that may have been written."""
        reach("sink before write")
        if self._guarantee is Guarantee.AT_MOST_ONCE and not self._begin(batch):
            answers = {output: rows.slice(0, 0) for output, rows in answers.items()}
        once = self._guarantee is not Guarantee.AT_LEAST_ONCE
        for write in writes:
            write(answers, Commit(self._pipeline, self._checkpoint, batch, digest), once)
        reach("sink after write")

    def _begin(self, batch: int) -> bool:
        """Record that a batch is begun; False if it was begun before, so that it may have been written."""
        if self._noted.exists() and begun_batch(self._noted) >= batch:
            return False
        text = json.dumps(sealed({"batch": batch}))
        write_whole(self._noted, lambda path: path.write_text(text))
        return True


def begun_batch(file: Path) -> int:
    """The last batch whose write was started, from the file that records it. Raises ValueError if it is damaged."""
    batch = unsealed(file.read_text()).get("batch")
    if not isinstance(batch, int):
        raise ValueError("it names no batch")
    return batch
