"""The result of a query as far as it must be held: only its size and checksum, or the window of a sorted query."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from millrace.live.canonical import checksum, hashed
from millrace.live.rowset import Step
from millrace.live.window import Entry, Shown, Window, checksum_of

_MODULUS = 2**32


@dataclass(slots=True)
class PlainState:
    """A result without order. Its rows are not held: a change says what was there before."""

    rows: int = 0
    total: int = 0

    def take(self, step: Step) -> bool:
        """Make a step. Returns whether the result changed."""
        changed = False
        for id, (before, after) in step.items():
            if before is not None:
                self.rows -= 1
                self.total -= hashed(id, before.text)
            if after is not None:
                self.rows += 1
                self.total += hashed(id, after.text)
            changed = changed or (before and before.text) != (after and after.text)
        return changed

    def checksum(self, is_sorted: bool) -> int:
        """The checksum, which has no order here."""
        return self.total % _MODULUS


@dataclass(slots=True)
class SortedState:
    """A sorted result: the first rows, and some more."""

    offset: int
    end: int | None
    slack: int
    window: Window = field(default_factory=lambda: Window(()))
    shown: Shown = ()
    is_stale: bool = False
    """Whether too few rows are held to know the result, until it is read again."""
    _sums: dict[bool, int] = field(default_factory=dict)

    @property
    def most(self) -> int | None:
        """How many rows are read from the store and held."""
        return None if self.end is None else self.end + self.slack

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.shown)

    def begin(self, entries: Iterable[Entry], is_all: bool) -> None:
        """Hold rows that were read; all of the query, or the first ones."""
        held = tuple(sorted(entries))
        self.window = Window(held, None if is_all else held[-1].key if held else b"").cut(self.most)
        self._show()

    def take(self, step: Step) -> bool:
        """Make a step. Returns whether the result changed."""
        without = {id for id, (before, _) in step.items() if before is not None}
        added = [after for _, after in step.values() if after is not None]
        self.window = self.window.changed(without, added, self.most)
        return self._show()

    def before(self, step: Step) -> Shown | None:
        """The rows that were shown before a step that led to this result; None if that cannot be told."""
        without = {id for id, (_, after) in step.items() if after is not None}
        removed = [before for before, _ in step.values() if before is not None]
        window = self.window.changed(without, removed, None)
        return window.shown(self.offset, self.end) if window.knows(self.end) else None

    def checksum(self, is_sorted: bool) -> int:
        """The checksum, with or without regard to order."""
        if is_sorted not in self._sums:
            pairs = ((entry.id, entry.text) for entry in self.shown)
            self._sums[is_sorted] = checksum_of(self.shown) if is_sorted else checksum(pairs, False)
        return self._sums[is_sorted]

    def _show(self) -> bool:
        self.is_stale = not self.window.knows(self.end)
        if self.is_stale:
            return False
        shown, self.shown = self.shown, self.window.shown(self.offset, self.end)
        if shown != self.shown:
            self._sums = {}
        return shown != self.shown


State: TypeAlias = PlainState | SortedState
