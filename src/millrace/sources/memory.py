"""A source in memory: rows that a test provides, and the times at which they arrive.

    MemoryScript([Happening([{"k": "a", "at": ...}]), Happening(watermark=12 * SECOND), Happening(now=5 * SECOND)])

A micro-batch reads one happening. A script that is not timed uses the clock of the host that runs it.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.model.clock import after_step
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.schema import Schema
from millrace.model.stream import Source
from millrace.model.window import Row
from millrace.sources.bundle import Bundle, Times


@dataclass(frozen=True, slots=True)
class Happening:
    """One micro-batch of a script: rows, and the new clock and watermark, if they advance."""

    rows: Sequence[Row] = ()
    now: int | None = None
    watermark: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryScript:
    """The micro-batches of a source, by position."""

    happenings: Sequence[Happening]
    timed: bool = True
    """Whether the script sets the clock."""
    derived: bool = True
    """Whether the watermark is estimated from the rows, or only set by the script."""
    start: int = 0
    """The initial clock of a timed script."""
    _clocks: list[int] = field(init=False, default_factory=list, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Compute the clock after each happening."""
        self._clocks.append(self.start)
        for happening in self.happenings:
            before = self._clocks[-1]
            self._clocks.append(before if happening.now is None else after_step(before, happening.now))

    def times(self, start: int, end: int) -> Times | None:
        """The times of a micro-batch between two positions; None if the script does not set the clock."""
        if not self.timed:
            return None
        marks = [happening.watermark for happening in self.happenings[start:end] if happening.watermark is not None]
        given = max(marks, default=None if self.derived else BEGINNING_OF_TIME)
        return Times(self._clocks[start], self._clocks[end], given)

    def watermark(self, end: int) -> int:
        """The watermark that the script has set up to a position."""
        marks = [happening.watermark for happening in self.happenings[:end] if happening.watermark is not None]
        return max(marks, default=BEGINNING_OF_TIME)

    def logged(self, number: int) -> int | None:
        """The log time of the rows of a happening, which arrive before its clock; None if the host's clock counts."""
        return self._clocks[number] if self.timed else None


@dataclass(frozen=True, slots=True)
class Scripted:
    """A source that reads a script, by position."""

    script: MemoryScript
    source: Source

    def start(self) -> int:
        """The position before the first happening."""
        return 0

    def end(self) -> int:
        """The position after the last happening."""
        return len(self.script.happenings)

    def latest(self, at: int, until: int | None = None) -> int:
        """The position after the next happening."""
        return min(at + 1, self.end())

    def stamp(self) -> None:
        """Not known."""

    def splits(self, start: int, end: int) -> list["ScriptSplit"]:
        """The splits between two positions, one for each happening."""
        first = sum(len(happening.rows) for happening in self.script.happenings[:start])
        splits = []
        for number, happening in enumerate(self.script.happenings[start:end], start):
            logged = self.script.logged(number)
            splits.append(ScriptSplit(self.source.name, self.source.schema, tuple(happening.rows), first, logged))
            first += len(happening.rows)
        return splits

    def identity(self, at: object) -> None:
        """Nothing: a script does not change."""


@dataclass(frozen=True, slots=True)
class ScriptSplit:
    """Some rows of a script."""

    origin: str
    schema: Schema
    rows: tuple[Row, ...]
    first: int
    logged: int | None = None

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return 100 * len(self.rows)

    def read(self, wanted: Container[str] | None = None) -> Bundle:
        """The rows as columns, all of them."""
        columns = {
            column.name: pa.array([row.get(column.name) for row in self.rows], arrow_type(column.type))
            for column in self.schema
        }
        offsets = np.arange(self.first, self.first + len(self.rows))
        return Bundle(self.origin, offsets, rows=pa.table(columns), logged=self.logged)
