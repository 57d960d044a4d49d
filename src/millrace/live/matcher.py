"""Which queries want which rows, for many queries and many rows at once.

Queries whose conditions differ only in constants form a group. A group looks up the values of a row in an index of
the constants, and evaluates what the index does not decide over the remaining pairs of a row and a query, all at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.live.condition import FLIPPED, Call, Condition, Constant, Slot, columns_of, conjuncts, has_slot, walk
from millrace.live.evaluate import arrow_type_of, columns, evaluate
from millrace.live.index import (
    HIGHEST,
    LOWEST,
    EqualityIndex,
    EqualRangeIndex,
    Numbers,
    Pairs,
    Range,
    RangeIndex,
    joined,
    nothing,
)
from millrace.live.ordering import Key, key_of, keys_of
from millrace.live.query import LiveQuery
from millrace.model.types import is_decimal

_MOST_PAIRS = 500_000
"""How many pairs are evaluated at once."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A comparison of an expression over columns with a constant."""

    expression: Condition
    name: str
    slot: Slot
    whole: Condition
    """The comparison itself."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a group decides its condition."""

    alone: Condition | None
    """What a row decides without a query."""
    equal: tuple[_Bound, ...]
    within: tuple[_Bound, ...]
    """Bounds of one expression."""
    rest: Condition | None
    """What is left to evaluate for pairs of a row and a query."""


def _planned(condition: Condition | None) -> _Plan:
    parts = conjuncts(condition)
    alone = [part for part in parts if not has_slot(part)]
    bounds = [bound for part in parts if (bound := _bound(part)) is not None]
    lists = [bound for bound in bounds if bound.name == "in"]  # a query is entered once for each member of one list
    equal = (*(bound for bound in bounds if bound.name == "eq"), *lists[:1])
    ranges = [bound for bound in bounds if bound.name in ("lt", "le", "gt", "ge")]
    within = tuple(each for each in ranges if each.expression == ranges[0].expression)
    # An index decides equality, or ranges of numbers alone; one range has one lower and one upper end.
    exact = len({each.name[0] for each in within}) == len(within) and all(each.slot.type != "STRING" for each in within)
    decided = {bound.whole for bound in (equal or (within if exact else ()))}
    rest = [part for part in parts if has_slot(part) and part not in decided]
    return _Plan(_all(alone), equal, within, _all(rest))


def _all(parts: Sequence[Condition]) -> Condition | None:
    return reduce(lambda left, right: Call("and", (left, right), "BOOLEAN"), parts) if parts else None


def _bound(part: Condition) -> _Bound | None:
    match part:
        case Call(name="in" | "eq" | "lt" | "le" | "gt" | "ge" as name, arguments=(value, Slot() as slot)):
            pass
        case Call(name="eq" | "lt" | "le" | "gt" | "ge" as name, arguments=(Slot() as slot, value)):
            name = FLIPPED[name]  # type: ignore[assignment]
        case _:
            return None
    usable = not has_slot(value) and value.type == slot.type
    return _Bound(value, name, slot, part) if usable else None


class _Group:
    """The queries of one condition, by number."""

    def __init__(self, condition: Condition | None) -> None:
        self.plan = _planned(condition)
        self.columns = columns_of(condition)
        self.handles = np.full(16, -1, np.int64)
        """The handle of each query; -1 for one that was removed."""
        self.live = 0
        self._many = 0
        self._slots: dict[int, _SlotColumn] = {}
        if condition is not None:
            for part in walk(condition):
                if isinstance(part, Call) and part.name == "in" and isinstance(part.arguments[1], Slot):
                    self._slots[part.arguments[1].number] = _SlotColumn(None)
                elif isinstance(part, Slot) and part.number not in self._slots:
                    self._slots[part.number] = _SlotColumn(part.type)
        self._equal = EqualityIndex()
        self._within = RangeIndex()
        self._both = EqualRangeIndex()

    def add(self, handle: int, constants: tuple[Constant, ...]) -> int:
        """Add a query; returns its number."""
        number = self._many
        if number == len(self.handles):
            self.handles = np.concatenate([self.handles, np.full(number, -1, np.int64)])
        self.handles[number] = handle
        self._many += 1
        self.live += 1
        for place, column in self._slots.items():
            column.put(number, constants[place])
        keys, range = self._equal_keys(constants), self._range(constants)
        if range is None:
            pass  # no row is within
        elif self.plan.equal and self.plan.within:
            self._both.add(number, keys, range)
        elif self.plan.equal:
            self._equal.add(number, keys)
        elif self.plan.within:
            self._within.add(number, *range)
        return number

    def remove(self, number: int, constants: tuple[Constant, ...]) -> None:
        """Remove a query."""
        self.handles[number] = -1
        self.live -= 1
        if self.plan.equal and self.plan.within and self._range(constants) is not None:
            self._both.remove(number, self._equal_keys(constants))
        elif self.plan.equal:
            self._equal.remove(number, self._equal_keys(constants))

    @property
    def is_worn(self) -> bool:
        """Whether most of its numbers are of removed queries, so that it is worth making it again."""
        return self._many > 1_000 and self.live * 2 < self._many

    def find(self, rows: "_Batch") -> Pairs:
        """The places of rows and the handles of queries that want them."""
        if self.plan.alone is None:
            return joined(self._decided(rows, pairs) for pairs in self._candidates(rows))
        kept = evaluate(self.plan.alone, rows.values, ()).fill_null(False)
        places = np.flatnonzero(kept.to_numpy(zero_copy_only=False))
        if not len(places):
            return nothing()
        some = rows.take(places, self.columns)
        at, handles = joined(self._decided(some, pairs) for pairs in self._candidates(some))
        return places[at], handles

    def _candidates(self, rows: "_Batch") -> list[Pairs]:
        """Pairs of rows and queries that may match, in pieces."""
        if self.plan.equal:
            found = [rows.keys(bound.expression) for bound in self.plan.equal]
            if self.plan.within:
                return _pieces(self._both.find(found, rows.keys(self.plan.within[0].expression)))
            return _pieces(self._equal.find(found))
        if self.plan.within:
            return _pieces(self._within.find(rows.keys(self.plan.within[0].expression)))
        queries = np.flatnonzero(self.handles[: self._many] >= 0)
        at_once = max(_MOST_PAIRS // max(len(queries), 1), 1)
        return [
            (np.repeat(np.arange(start, stop), len(queries)), np.tile(queries, stop - start))
            for start in range(0, rows.many, at_once)
            for stop in [min(start + at_once, rows.many)]
        ]

    def _decided(self, rows: "_Batch", pairs: Pairs) -> Pairs:
        """The pairs that match, by the rest of the condition."""
        at, queries = pairs
        alive = self.handles[queries] >= 0
        at, queries = at[alive], queries[alive]
        if self.plan.rest is not None and len(at):
            slots = {number: column.take(queries) for number, column in self._slots.items()}
            holds = evaluate(self.plan.rest, rows.take(at, self.columns).values, slots)
            matched = holds.fill_null(False).to_numpy(zero_copy_only=False)
            at, queries = at[matched], queries[matched]
        return at, self.handles[queries]

    def _equal_keys(self, constants: tuple[Constant, ...]) -> list[list[Key]]:
        """For each column, the keys that it may have."""
        found = []
        for bound in self.plan.equal:
            given = constants[bound.slot.number]
            members = given if isinstance(given, tuple) else (given,)
            keys = [key_of(value, bound.slot.type) for value in members]
            found.append([key for key in keys if key is not None])
        return found

    def _range(self, constants: tuple[Constant, ...]) -> Range | None:
        """The range of a query; None if nothing is within."""
        low: Any = None
        high: Any = None
        for bound in self.plan.within:
            value = constants[bound.slot.number]
            key: Any = None if isinstance(value, tuple) else key_of(value, bound.slot.type)
            if key is None:
                return None  # a comparison with NULL is never true
            if isinstance(key, int) and bound.name in ("gt", "lt"):
                key += 1 if bound.name == "gt" else -1
            if bound.name in ("gt", "ge"):
                low = key if low is None else max(low, key)
            else:
                high = key if high is None else min(high, key)
        beyond = (isinstance(low, int) and low > HIGHEST) or (isinstance(high, int) and high < LOWEST)
        return None if beyond else (low, high)


class _Batch:
    """Rows that are matched, by column; keys of an expression are computed once for all groups."""

    def __init__(self, values: Mapping[str, pa.Array], many: int) -> None:
        self.values, self.many = values, many
        self._keys: dict[Condition, list[Key | None]] = {}

    def keys(self, expression: Condition) -> list[Key | None]:
        """The keys of an expression, for each row."""
        found = self._keys.get(expression)
        if found is None:
            found = self._keys[expression] = keys_of(evaluate(expression, self.values, ()), expression.type)
        return found

    def take(self, places: Numbers, names: Sequence[str]) -> "_Batch":
        """Some of the rows, with these columns."""
        at = pa.array(places)
        return _Batch({name: self.values[name].take(at) for name in names}, len(places))


def _pieces(pairs: Pairs) -> list[Pairs]:
    rows, queries = pairs
    return [
        (rows[start : start + _MOST_PAIRS], queries[start : start + _MOST_PAIRS])
        for start in range(0, len(rows), _MOST_PAIRS)
    ]


class _SlotColumn:
    """The constants of one slot, by the number of a query."""

    def __init__(self, type: str | None) -> None:
        """Hold constants of a type; None for lists."""
        self._type = type
        exact = {"BIGINT": np.int64, "DATE": np.int64, "TIMESTAMP": np.int64, "DOUBLE": np.float64, "BOOLEAN": np.bool_}
        self._values: np.ndarray[Any, Any] = np.zeros(16, exact.get(type or "", object))
        self._null = np.zeros(16, bool)

    def put(self, number: int, value: Constant) -> None:
        """Set the constant of a query."""
        if number >= len(self._values):
            self._values = np.concatenate([self._values, np.zeros_like(self._values)])
            self._null = np.concatenate([self._null, np.zeros_like(self._null)])
        self._null[number] = value is None
        if value is not None:
            self._values[number] = value

    def take(self, numbers: Numbers) -> Any:
        """The constants of queries: an array, or a list of lists."""
        values = self._values[numbers]
        if self._type is None:
            return values.tolist()
        kind = pa.decimal128(38, arrow_type_of(self._type).scale) if is_decimal(self._type) else None
        return pa.array(values, kind or arrow_type_of(self._type), mask=self._null[numbers])


class Matcher:
    """Matches rows of one view with queries. Queries have handles, which the caller chooses."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._names: dict[str, str] = {}
        """Names of groups by the texts of shapes."""
        self._queries: dict[int, tuple[LiveQuery, int]] = {}

    def __len__(self) -> int:
        return len(self._queries)

    def add(self, handle: int, query: LiveQuery) -> None:
        """Add a query."""
        name = self._name(query)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(query.shape.condition)
        self._queries[handle] = query, group.add(handle, query.constants)

    def remove(self, handle: int) -> None:
        """Remove a query; nothing of it is kept."""
        query, number = self._queries.pop(handle)
        name = self._name(query)
        group = self._groups[name]
        group.remove(number, query.constants)
        if not group.live:
            del self._groups[name]
            self._names = {text: each for text, each in self._names.items() if each != name}
        elif group.is_worn:
            self._groups[name] = again = _Group(query.shape.condition)
            for each in group.handles[group.handles >= 0].tolist():
                kept, _ = self._queries[each]
                self._queries[each] = kept, again.add(each, kept.constants)

    def match(self, rows: pa.Table) -> Pairs:
        """The places of rows and the handles of the queries that want them, in no order."""
        batch = _Batch(columns(rows), len(rows))
        return joined([group.find(batch) for group in self._groups.values()]) if len(rows) else nothing()

    def _name(self, query: LiveQuery) -> str:
        name = self._names.get(query.shape.text)
        if name is None:
            name = self._names[query.shape.text] = repr(query.shape.condition)
        return name
