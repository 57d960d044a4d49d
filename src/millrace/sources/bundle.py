"""What is read of a source: positions on the driver, splits on the way, bundles in a task.

A source is read by positions that only grow. What lies between two of them is a list of splits, which can be
read again and gives the same records each time; a task reads a split into a bundle.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Records as they are kept: JSON text, or columns."""

    origin: str
    """The file, or the partition of a topic, that they are from."""
    offsets: npt.NDArray[np.int64]
    """Where in it each of them is."""
    texts: pa.Array | None = None
    rows: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class Times:
    """The clock of a micro-batch, in microseconds: before it and at it; and the watermark, if a script says it."""

    before: int
    now: int
    watermark: int | None = None


def together(times: Sequence[Times]) -> Times:
    """The times of a micro-batch that is read as several sources, each at its own moment."""
    marks = [each.watermark for each in times if each.watermark is not None]
    return Times(min(each.before for each in times), max(each.now for each in times), max(marks, default=None))


Position: TypeAlias = int | list[int]
"""How far a source was read: a count, or one for each of its partitions."""


class SourceFollower(Protocol):
    """A source as the driver follows it."""

    def start(self) -> Position:
        """Where it begins; the same whenever this is asked."""

    def latest(self, at: Any, until: Any = None) -> Position:
        """How far a micro-batch that starts there may go; not beyond `until`, if that is given."""

    def end(self) -> Position:
        """The position after all that is there now."""

    def splits(self, start: Any, end: Any) -> Sequence["Split"]:
        """What lies between two positions."""


class Split(Protocol):
    """A part of a source that one task reads."""

    @property
    def size(self) -> int:
        """About how many bytes it holds."""

    def read(self, wanted: Container[str] | None = None) -> Bundle:
        """The records; where columns are kept apart, all of them or only those wanted."""
