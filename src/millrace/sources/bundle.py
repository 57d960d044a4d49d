"""How a source is read: by positions on the driver, as splits sent to tasks, as bundles in a task.

Positions only grow. The records between two positions are a list of splits, which can be read again and give the same
records each time; a task reads a split into a bundle.
"""

import os
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.clock import FIRST_TIME
from millrace.model.duration import END_OF_TIME

if TYPE_CHECKING:
    from millrace.sources.registry import Registry

LOGGED = "__logged"
"""The column with the log time of a row's record, where one is stored or processed with the rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Values in the wire format of a schema registry."""

    values: pa.Array
    """Their bytes, as a large binary array."""
    format: str
    registry: "Registry"
    reader: str | None = None
    """The subject and the version of the schema that reads records of Avro; None for the one that wrote each."""


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Records as the source stores them: JSON text, CSV text with its fields, columns, or values with a schema id."""

    origin: str
    """The file, or the partition of a topic, that holds the records."""
    offsets: npt.NDArray[np.int64]
    """The offset of each record in the origin."""
    texts: pa.Array | None = None
    rows: pa.Table | None = None
    partition: int | None = None
    """The partition of the topic; None for other sources."""
    cells: pa.Table | None = None
    """For CSV: the fields of the records that are not in `wrong`, as texts by name."""
    wrong: Mapping[int, str] = field(default_factory=dict)
    """For CSV: the records that cannot be divided into fields, with the reasons."""
    names: Sequence[str] | None = None
    """The fields that all records have; None if each may have others."""
    logged: npt.NDArray[np.int64] | int | None = None
    """The log time of each record, or of all, in microseconds; None if the source knows none."""
    metadata: pa.Table | None = None
    """The columns of the source that are not in the texts of the records."""
    encoded: Encoded | None = None
    """The values of records whose schemas are in a registry."""
    raw: pa.Array | None = None
    """For Kafka: the values as they are in the topic, for dead letters."""

    def __len__(self) -> int:
        return len(self.offsets)

    def log_times(self, now: int) -> npt.NDArray[np.int64]:
        """The log time of each record: `now` if the source knows none, the end of time if the clock was never set."""
        logged = now if self.logged is None else self.logged
        every = logged if isinstance(logged, np.ndarray) else np.full(len(self), logged, np.int64)
        return np.where(every < FIRST_TIME, END_OF_TIME, every)


@dataclass(frozen=True, slots=True)
class Times:
    """The clock before and at a micro-batch, in microseconds; and the watermark, if a script or a batch sets it."""

    before: int
    now: int
    watermark: int | None = None
    sides: tuple[int, int] | None = None
    """The watermarks of the sides of a join, if a script sets them."""

    @property
    def goes_back(self) -> bool:
        """Whether processing time follows a clock that was set back."""
        return self.now < self.before


def together(times: Sequence[Times]) -> Times:
    """The combined times of a micro-batch whose sources were planned at different moments."""
    mark = max((each.watermark for each in times if each.watermark is not None), default=None)
    sides = next((each.sides for each in times if each.sides is not None), None)
    before, now = [each.before for each in times], [each.now for each in times]
    if any(each.goes_back for each in times):  # another source may follow the clock back one micro-batch later
        return Times(max(before), min(now), mark, sides)
    return Times(min(before), max(now), mark, sides)


Position: TypeAlias = int | list[int] | dict[str, Any]
"""How far a source was read: a count, one for each of its partitions, or those of several topics by name."""


def stamp_of(path: str) -> tuple[int, int] | None:
    """The time of the last change of a file or folder, and its size; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class SourceFollower(Protocol):
    """A source as the driver reads it, by position."""

    def start(self) -> Position:
        """The first position; every call returns the same."""

    def latest(self, at: Any, until: Any = None) -> Position:
        """The end of a micro-batch that starts at `at`; not beyond `until`, if given."""

    def end(self) -> Position:
        """The position after everything that is available now."""

    def splits(self, start: Any, end: Any) -> Sequence["Split"]:
        """The splits between two positions."""

    def stamp(self) -> Hashable:
        """A value that changes with new input, and takes microseconds to read; None if there is no such value."""

    def identity(self, at: Any) -> dict[str, Any] | None:
        """The identity of the records before a position, to detect others in their place; None if it is not known."""


class Split(Protocol):
    """A part of a source that one task reads."""

    @property
    def size(self) -> int:
        """The approximate size in bytes."""

    def read(self, wanted: Container[str] | None = None) -> Bundle:
        """The records; a columnar source may read only the wanted columns."""
