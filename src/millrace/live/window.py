"""The rows of a sorted query that are held: the first ones, and some slack beyond what is shown."""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from millrace.live.canonical import checksum


class Entry(NamedTuple):
    """A row of a sorted result. Its key, by which rows are sorted, is unique."""

    key: bytes
    id: str
    text: str


Shown: TypeAlias = tuple[Entry, ...]
"""The rows of a result, in order."""


@dataclass(frozen=True, slots=True)
class Window:
    """The first rows of a sorted query, in order."""

    entries: Shown
    bound: bytes | None = None
    """Every row of the query up to this key is held; None if every row is."""

    def knows(self, end: int | None) -> bool:
        """Whether the first `end` rows are held, or all that there are."""
        return self.bound is None or (end is not None and len(self.entries) >= end)

    def changed(self, without: Collection[str], added: Iterable[Entry], most: int | None) -> "Window":
        """The window without the rows of these ids, and with others. Rows beyond the bound are ignored.

        Where more than twice as many rows are held as `most` says, the rest is let go.
        """
        held = [entry for entry in self.entries if entry.id not in without] if without else list(self.entries)
        held += [entry for entry in added if self.bound is None or entry.key <= self.bound]
        held.sort()
        return Window(tuple(held), self.bound).cut(most, most)

    def cut(self, most: int | None, slack: int | None = 0) -> "Window":
        """The window with the first `most` rows, if it has more than `slack` beyond them."""
        if most is None or len(self.entries) <= most + (slack or 0):
            return self
        entries = self.entries[:most]
        return Window(entries, entries[-1].key if entries else b"")

    def shown(self, offset: int, end: int | None) -> Shown:
        """The rows that a query shows."""
        return self.entries[offset:end] if offset or end is not None else self.entries


class Difference(NamedTuple):
    """How a result became another one. Positions are final ones."""

    removes: list[str]
    moves: list[tuple[str, int]]
    changes: list[tuple[str, str]]
    adds: list[tuple[str, str, int | None]]
    """Ids, texts and positions; None in a result without order."""

    def __bool__(self) -> bool:
        return any((self.removes, self.moves, self.changes, self.adds))


def difference(before: Shown, after: Shown) -> Difference:
    """What turns the rows before into those after, with as few moves as possible."""
    old = {entry.id: place for place, entry in enumerate(before)}
    new = {entry.id for entry in after}
    removes = [entry.id for entry in before if entry.id not in new]
    stays = [(place, old[entry.id]) for place, entry in enumerate(after) if entry.id in old]
    changes = [(after[place].id, after[place].text) for place, was in stays if after[place].text != before[was].text]
    adds = [(entry.id, entry.text, place) for place, entry in enumerate(after) if entry.id not in old]
    moved = _out_of_order([was for _, was in stays])
    moves = [(after[stays[each][0]].id, stays[each][0]) for each in moved]
    return Difference(removes, moves, changes, [*adds])


def _out_of_order(numbers: list[int]) -> list[int]:
    """The places of the fewest numbers without which the rest increases."""
    if all(left < right for left, right in pairwise(numbers)):
        return []
    ends: list[int] = []  # the smallest number at which an increasing run of each length ends
    places: list[int] = []
    previous: list[int | None] = []
    for place, number in enumerate(numbers):
        length = bisect_left(ends, number)
        previous.append(places[length - 1] if length else None)
        ends[length : length + 1] = [number]
        places[length : length + 1] = [place]
    kept: set[int] = set()
    at: int | None = places[-1]
    while at is not None:
        kept.add(at)
        at = previous[at]
    return [place for place in range(len(numbers)) if place not in kept]


def checksum_of(shown: Shown) -> int:
    """The checksum of a sorted result."""
    return checksum(((entry.id, entry.text) for entry in shown), is_sorted=True)
