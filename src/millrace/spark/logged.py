"""The batches that Spark has logged in a checkpoint, without files that a power cut left behind.

Spark does not fsync its files, so that the last ones may be empty or cut off after a power cut. Two of them it writes
again:

- A damaged commit. Spark then runs the last batch again, from the state before it. An output that has the batch
  recognizes it by its digest. For a batch before the last one, the offsets of the last one prove that it was done.
- The offsets of the last batch, if it has no commit. Millrace fsyncs offsets before it delivers the answers of their
  batch, so nothing of this batch was delivered, and it is planned again. If the file was damaged later, the outputs
  that have the batch are ahead of the checkpoint, and the run is refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from millrace.spark.logfiles import DamageError, batches_in, json_lines, positions_in


@dataclass(frozen=True, slots=True)
class Logged:
    """The batches of a checkpoint, in order."""

    planned: tuple[int, ...]
    committed: tuple[int, ...]
    unusable: tuple[Path, ...] = ()
    """Damaged files that Spark must not find, because it writes them again."""
    replanned: int | None = None
    """The batch whose damaged offsets are among them, as Spark numbers it."""


def batches_of(spark: Path, first: int = 0) -> Logged:
    """The batches in Spark's part of a checkpoint; `first` is the number of Spark's batch 0."""
    offsets, commits = spark / "offsets", spark / "commits"
    planned, done = batches_in(offsets), batches_in(commits)
    replanned = None
    if planned and planned[-1] > max(done, default=-1) and _is_damaged(offsets / str(planned[-1]), positions_in):
        replanned = planned.pop()
    committed = list(done)
    while committed and _is_damaged(commits / str(committed[-1]), json_lines):
        committed.pop()
    unusable = [commits / str(batch) for batch in done[len(committed) :]]
    unusable += [] if replanned is None else [offsets / str(replanned)]
    numbered, finished = (tuple(first + batch for batch in each) for each in (planned, committed))
    return Logged(numbered, finished, tuple(unusable), replanned)


def discard_unusable(spark: Path) -> None:
    """Remove damaged files that Spark writes again, and the state of a batch that is planned again."""
    logged = batches_of(spark)
    left = [] if logged.replanned is None else list(_state_of(spark, logged.replanned))
    for path in [*left, *logged.unusable]:  # the damaged file comes last, so that an interrupted removal is repeated
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _state_of(spark: Path, batch: int) -> Iterator[Path]:
    """The files of the state after a batch; Spark might take up a snapshot among them."""
    for path in (spark / "state").glob("*/*/**/*"):
        if path.name.partition(".")[0].partition("_")[0] == str(batch + 1) and path.suffix in (".changelog", ".zip"):
            yield path


def _is_damaged(file: Path, read: Callable[[Path], object]) -> bool:
    try:
        read(file)
    except DamageError:
        return True
    return False
