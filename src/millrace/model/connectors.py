"""Base classes for sources and sinks of your own, and the contracts that they keep.

Spark reruns an interrupted micro-batch with the same positions and the same commit. Answers are exact after a crash
because sources and sinks keep two promises: a source reads the same rows between the same positions, and a sink stores
the rows of a commit once. `millrace.testing` has a check for each: `check_source` and `check_sink`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from millrace.model.errors import AGAIN, ConflictError, PipelineError

Position: TypeAlias = Any
"""How far a source was read, as a JSON value. Only the source interprets it."""

Rows: TypeAlias = pa.Table | Iterable[Mapping[str, Any]]
"""Rows as an Arrow table or as mappings from column to value."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The identity of the rows that a micro-batch writes."""

    pipeline: str
    checkpoint: str
    """The id of the checkpoint whose batches are counted; another checkpoint counts from 0 again."""
    batch: int
    digest: str = ""
    """A digest of the offsets of the batch: another batch with the same number has another one."""


def is_stored(last: Commit | None, commit: Commit, where: str) -> bool:
    """Whether an output stores a commit already; False if the last one that it stores is the one before.

    Raises ConflictError for any other: the output and the checkpoint do not belong together.
    """
    if last is None:
        return False
    if last.checkpoint in ("", commit.checkpoint):  # the log does not store the checkpoint
        if last.batch == commit.batch - 1:
            return False
        if (last.batch, last.digest) == (commit.batch, commit.digest):
            return True
    raise ConflictError(
        f"{where} was last written by batch {last.batch} of checkpoint {last.checkpoint}, so that batch {commit.batch} "
        f"of {commit.checkpoint} cannot follow",
        f"if a replay has replaced it, run the pipeline again; otherwise {AGAIN}",
    )


class CustomSource(ABC):
    """A replayable source: rows between positions.

    The driver calls `start`, `end` and `limit`, and splits what lies between two positions. Splits travel to workers
    by pickle, with the source itself, and are read there.

    The contract: the rows between two positions never change. `read` gives the same rows in the same order whenever it
    is called for a split of those positions, in any process, after any crash. A source that cannot keep old rows must
    refuse to read them (raise `MachineError` or `NotFoundError`), not skip them.
    """

    @abstractmethod
    def start(self) -> Position:
        """The position before the first row; the same whenever it is called."""

    @abstractmethod
    def end(self) -> Position:
        """The position after the last row that exists now."""

    def limit(self, at: Position, end: Position) -> Position:
        """The position up to which a micro-batch that starts `at` may read; by default, the end."""
        return end

    @abstractmethod
    def splits(self, start: Position, end: Position) -> Sequence[Any]:
        """The rows between two positions in pieces that tasks read independently. Each can be pickled."""

    @abstractmethod
    def read(self, split: Any) -> Rows:
        """The rows of a split, in order. A column that is missing is NULL; one that the schema does not have fails."""


class CustomSink(ABC):
    """A sink: the rows of one micro-batch at a time, on the driver.

    The contract for exactly-once: `write` is atomic and idempotent. Either all rows of a commit are stored or none,
    and a second `write` of the same commit changes nothing, also in another process after a crash. The usual way is
    one transaction that stores the rows together with the commit, and does nothing if the commit is stored already.
    """

    @abstractmethod
    def write(self, rows: pa.Table, commit: Commit) -> None:
        """Store the rows of a micro-batch. Rows of a query carry a `diff`: 1 adds a row, -1 retracts it."""

    def last(self, pipeline: str, checkpoint: str) -> Commit | None:
        """Optional: the last commit of a checkpoint of a pipeline that the sink stores; None if it stores none.

        A sink that defines it is compared with the checkpoint before a run: one that was emptied, or replaced by an
        older or a newer copy, is noticed. Its `write` is then called for every micro-batch, also without rows.
        Otherwise Millrace records the commits beside the checkpoint, and notices only that the checkpoint was lost or
        replaced.
        """
        raise NotImplementedError

    def replace(self, rows: pa.Table) -> None:
        """Replace all stored rows with the rows of a batch; only `run(mode="batch")` calls it."""
        raise PipelineError(
            f"{type(self).__name__} has no replace(), which a batch needs", "define replace(), or run a stream"
        )
