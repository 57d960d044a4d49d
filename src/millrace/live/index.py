"""Indexes of constants: from the values of a row to the queries that may want it.

An index holds numbers of queries. Adding one costs microseconds, however many there are: ranges are sorted when they
are next searched, and the latest ones apart from the rest.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from millrace.live.ordering import Key, numbers

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Pairs: TypeAlias = tuple[Numbers, Numbers]
"""Places of rows, and numbers of queries, side by side."""
Range: TypeAlias = tuple[Key | None, Key | None]
"""The least and the largest key, both included; None is an open end."""
LOWEST, HIGHEST = -(2**63), 2**63 - 1
_LEAST_MERGED = 1_024


def nothing() -> Pairs:
    """No pairs."""
    return np.empty(0, np.int64), np.empty(0, np.int64)


def joined(pairs: Iterable[Pairs]) -> Pairs:
    """All of several pairs."""
    found = [each for each in pairs if len(each[0])]
    if len(found) < 2:
        return found[0] if found else nothing()
    return np.concatenate([rows for rows, _ in found]), np.concatenate([queries for _, queries in found])


class EqualityIndex:
    """Queries by the values that columns must equal."""

    def __init__(self) -> None:
        self._queries: dict[tuple[Key, ...], int | set[int]] = {}

    def add(self, number: int, keys: Sequence[Sequence[Key]]) -> None:
        """Add a query by the keys that each of its columns may have."""
        for each in product(*keys):
            held = self._queries.setdefault(each, number)
            if isinstance(held, set):
                held.add(number)
            elif held != number:
                self._queries[each] = {held, number}

    def remove(self, number: int, keys: Sequence[Sequence[Key]]) -> None:
        """Remove a query that was added with these keys."""
        for each in product(*keys):
            held = self._queries.get(each)
            if isinstance(held, set):
                held.discard(number)
                if not held:
                    del self._queries[each]
            elif held == number:
                del self._queries[each]

    def get(self, key: tuple[Key | None, ...]) -> int | set[int] | None:
        """The query or the queries under a key."""
        return self._queries.get(key)  # type: ignore[arg-type]  # a key with None is never found

    def find(self, columns: Sequence[Sequence[Key | None]]) -> Pairs:
        """The rows, by their keys, with the queries that want them."""
        rows: list[int] = []
        queries: list[int] = []
        get: Any = self._queries.get  # a key with None is never found
        for place, key in enumerate(zip(*columns, strict=True)):
            held = get(key)
            if held is None:
                continue
            if isinstance(held, int):
                rows.append(place)
                queries.append(held)
            else:
                rows.extend([place] * len(held))
                queries.extend(held)
        return np.array(rows, np.int64), np.array(queries, np.int64)


_LARGE = 64
"""With more pairs of a row and a query than this under one key, the ranges of its queries are sorted and searched."""


class EqualRangeIndex:
    """Queries by the values that columns must equal, and among many of them by the range of another value.

    It finds candidates: under a key with few pairs all of them, and perhaps queries that were removed.
    """

    def __init__(self) -> None:
        self._equal = EqualityIndex()
        self._ranges: dict[int, Range] = {}
        self._sorted: dict[tuple[Key, ...], RangeIndex] = {}
        self._gone: dict[tuple[Key, ...], int] = {}
        """How many queries under a key were removed since its ranges were sorted."""

    def add(self, number: int, keys: Sequence[Sequence[Key]], range: Range) -> None:
        """Add a query."""
        self._equal.add(number, keys)
        self._ranges[number] = range
        for each in product(*keys):
            if each in self._sorted:
                self._sorted[each].add(number, *range)

    def remove(self, number: int, keys: Sequence[Sequence[Key]]) -> None:
        """Remove a query that was added with these keys."""
        self._equal.remove(number, keys)
        del self._ranges[number]
        for each in product(*keys):
            if each not in self._sorted:
                continue
            self._gone[each] = self._gone.get(each, 0) + 1
            held = self._equal.get(each)
            if not isinstance(held, set) or self._gone[each] > len(held):  # it is sorted again when it is searched
                del self._sorted[each], self._gone[each]

    def find(self, columns: Sequence[Sequence[Key | None]], values: Sequence[Key | None]) -> Pairs:
        """The rows, by their keys and values, with queries that may want them."""
        rows: list[int] = []
        queries: list[int] = []
        shared: dict[tuple[Key, ...], list[int]] = defaultdict(list)
        for place, key in enumerate(zip(*columns, strict=True)):
            held = self._equal.get(key)
            if isinstance(held, int):
                rows.append(place)
                queries.append(held)
            elif held is not None:
                shared[key].append(place)
        found = []
        for key, places in shared.items():
            held = self._equal.get(key)
            assert isinstance(held, set)
            if len(held) * len(places) > _LARGE:
                at, matched = self._within(key).find([values[place] for place in places])
                found.append((np.array(places, np.int64)[at], matched))
                continue
            for place in places:
                rows.extend([place] * len(held))
                queries.extend(held)
        found.append((np.array(rows, np.int64), np.array(queries, np.int64)))
        return joined(found)

    def _within(self, key: tuple[Key, ...]) -> "RangeIndex":
        index = self._sorted.get(key)
        if index is None:
            index = self._sorted[key] = RangeIndex()
            held = self._equal.get(key)
            for number in held if isinstance(held, set) else ():
                index.add(number, *self._ranges[number])
        return index


@dataclass(slots=True)
class _Tier:
    """Ranges sorted by their lower bounds."""

    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]
    queries: Numbers

    def with_more(self, more: Sequence[tuple[Any, Any, int]]) -> "_Tier":
        kind = self.low.dtype
        low = np.concatenate([self.low, np.array([each[0] for each in more], kind)])
        high = np.concatenate([self.high, np.array([each[1] for each in more], kind)])
        queries = np.concatenate([self.queries, np.array([each[2] for each in more], np.int64)])
        order = np.argsort(low, kind="stable")
        return _Tier(low[order], high[order], queries[order])

    def find(self, values: np.ndarray[Any, Any], places: Numbers, length: int | None) -> Pairs:
        """The rows within ranges. No range is longer than `length`, so that those that end early are not looked at."""
        end = np.searchsorted(self.low, values, "right")
        start = np.zeros_like(end)
        if length is not None:
            least = np.where(values < LOWEST + length, LOWEST, values - length)
            start = np.searchsorted(self.low, least, "left")
        many = end - start
        total = int(many.sum())
        if not total:
            return nothing()
        rows = np.repeat(np.arange(len(values)), many)
        ranges = np.arange(total) + np.repeat(start - (np.cumsum(many) - many), many)
        within = self.high[ranges] >= values[rows]
        return places[rows[within]], self.queries[ranges[within]]


@dataclass(slots=True)
class _Class:
    """Ranges of similar length: the old ones, those added since, and those that are not sorted yet."""

    old: _Tier
    new: _Tier
    pending: list[tuple[Any, Any, int]] = field(default_factory=list)

    def settle(self) -> None:
        """Sort what was added."""
        if not self.pending:
            return
        self.new = self.new.with_more(self.pending)
        self.pending = []
        if len(self.new.low) > max(_LEAST_MERGED, len(self.old.low) // 4):
            added = zip(self.new.low.tolist(), self.new.high.tolist(), self.new.queries.tolist(), strict=True)
            self.old = self.old.with_more(list(added))
            self.new = _empty(self.old.low.dtype)


def _empty(kind: np.dtype[Any]) -> _Tier:
    return _Tier(np.empty(0, kind), np.empty(0, kind), np.empty(0, np.int64))


_TOP = "\U0010ffff" * 8
"""Text above all other text, or nearly: ranges of text are only candidates."""


class RangeIndex:
    """Queries by the range, both ends included, in which a value must be.

    Ranges of numbers are kept in classes by length, each twice as long as the one before. In a class, every range that
    holds a value starts within its length below the value, and at least about half of the ranges that start there hold
    it. Text has no length, so its ranges are one class.
    """

    def __init__(self) -> None:
        self._classes: dict[int | None, _Class] = {}

    def add(self, number: int, low: Key | None, high: Key | None) -> None:
        """Add a query; None is an open end."""
        least: Any
        most: Any
        if isinstance(low, str) or isinstance(high, str):
            bits, kind, least, most = None, np.dtype(object), low or "", _TOP if high is None else high
        else:
            least, most = LOWEST if low is None else low, HIGHEST if high is None else high
            if least > most:
                return
            bits, kind = (int(most) - int(least)).bit_length(), np.dtype(np.int64)
        if bits not in self._classes:
            self._classes[bits] = _Class(_empty(kind), _empty(kind))
        self._classes[bits].pending.append((least, most, number))

    def find(self, keys: Sequence[Key | None]) -> Pairs:
        """The rows, by their keys, with the queries in whose range they are; queries that were removed, too."""
        values, places = numbers(keys)
        if not len(values):
            return nothing()
        found: list[Pairs] = []
        for bits, held in self._classes.items():
            held.settle()
            length = None if bits is None or bits >= 63 else 2**bits - 1
            found += [tier.find(values, places, length) for tier in (held.old, held.new) if len(tier.low)]
        return joined(found)
