"""Rows that a test gives by hand, and the times at which they come: a source that is a list.

    Script([Happening([{"k": "a", "at": ...}]), Happening(watermark=12 * SECOND), Happening(now=5 * SECOND)])

A micro-batch takes one happening. A script without times of its own goes by the clock of whoever runs it.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.schema import Schema
from millrace.model.stream import Source
from millrace.model.window import Row
from millrace.sources.bundle import Bundle, Times


@dataclass(frozen=True, slots=True)
class Happening:
    """One micro-batch of a script: rows, and where the clock and the watermark then are, if they move."""

    rows: Sequence[Row] = ()
    now: int | None = None
    watermark: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryScript:
    """What happens to a source, one micro-batch at a time, by position."""

    happenings: Sequence[Happening]
    timed: bool = True
    """Whether the clock is the script's."""
    derived: bool = True
    """Whether the watermark follows from the rows, or is only where the script says."""
    start: int = 0
    """Where the clock of a timed script starts."""
    _clocks: list[int] = field(init=False, default_factory=list, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Note where the clock is after each."""
        self._clocks.append(self.start)
        for happening in self.happenings:
            self._clocks.append(max(self._clocks[-1], happening.now or 0))

    def times(self, start: int, end: int) -> Times | None:
        """The clock of a micro-batch between two positions, if it is the script's."""
        if not self.timed:
            return None
        marks = [happening.watermark for happening in self.happenings[start:end] if happening.watermark is not None]
        given = max(marks, default=None if self.derived else BEGINNING_OF_TIME)
        return Times(self._clocks[start], self._clocks[end], given)


@dataclass(frozen=True, slots=True)
class Scripted:
    """A source that a script plays."""

    script: MemoryScript
    source: Source

    def start(self) -> int:
        """Before the first happening."""
        return 0

    def end(self) -> int:
        """After the last."""
        return len(self.script.happenings)

    def latest(self, at: int, until: int | None = None) -> int:
        """After the next."""
        return min(at + 1, self.end())

    def splits(self, start: int, end: int) -> list["ScriptSplit"]:
        """What happens between two positions."""
        first = sum(len(happening.rows) for happening in self.script.happenings[:start])
        splits = []
        for happening in self.script.happenings[start:end]:
            splits.append(ScriptSplit(self.source.name, self.source.schema, tuple(happening.rows), first))
            first += len(happening.rows)
        return splits


@dataclass(frozen=True, slots=True)
class ScriptSplit:
    """Some rows of a script."""

    origin: str
    schema: Schema
    rows: tuple[Row, ...]
    first: int

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        return 100 * len(self.rows)

    def read(self, wanted: Container[str] | None = None) -> Bundle:
        """The rows in columns, all of them."""
        columns = {
            column.name: pa.array([row.get(column.name) for row in self.rows], arrow_type(column.type))
            for column in self.schema
        }
        return Bundle(self.origin, np.arange(self.first, self.first + len(self.rows)), rows=pa.table(columns))
