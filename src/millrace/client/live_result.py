"""The result of a live query as a client holds it. Pure: messages of the protocol go in, changes come out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from millrace.live.canonical import canonical, checksum, hashed

Row: TypeAlias = dict[str, Any]
"""A row by column. Values are those of JSON: times, decimals and whole numbers beyond 2^53 - 1 are text."""
_MODULUS = 2**32


class DivergedError(Exception):
    """A message does not fit the result: it must be read anew."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a message did to a result."""

    before: Mapping[str, Row | None]
    """The rows that changed, by id, as they were before; None for one that was not there."""
    moved: Sequence[str]
    """The ids of rows whose position among the others changed."""


@dataclass(frozen=True, slots=True)
class Change:
    """How a result differs from the one that was told before.

    The rows of `changed` are the new ones, those of `removed` the last ones.
    """

    version: int
    """The version of the view."""
    watermark: str | None
    """The watermark of the pipeline as of that version, if it is known."""
    added: tuple[Row, ...]
    changed: tuple[Row, ...]
    removed: tuple[Row, ...]
    moved: tuple[Row, ...]
    """Rows of a sorted query that are the same, in another position."""
    rows: list[Row] = field(repr=False)
    """The whole result."""


class LiveResult:
    """The rows of a live query, by id; of a sorted query also their order."""

    def __init__(self) -> None:
        """Begin without rows, at no version."""
        self.version: int | None = None
        self.columns: tuple[str, ...] = ()
        self._rows: dict[str, Row] = {}
        self._texts: dict[str, str] = {}
        self._ids: list[str] | None = None
        """The order; None for a query that is not sorted."""
        self._total = 0
        """The sum of the hashes of the rows, if they have no order."""
        self._listed: list[Row] | None = []

    @property
    def rows(self) -> list[Row]:
        """The rows, in order; another list after each change."""
        if self._listed is None:
            self._listed = list(self._rows.values()) if self._ids is None else [self._rows[id] for id in self._ids]
        return self._listed

    def row(self, id: str) -> Row | None:
        """A row by its id."""
        return self._rows.get(id)

    def begin(self, columns: Sequence[str], is_sorted: bool, rows: Sequence[Any], version: int) -> Step:
        """Take a snapshot in the place of what was there."""
        before, order = self._rows, self._ids or ()
        self.version, self.columns = version, tuple(columns)
        self._rows, self._texts, self._total, self._listed = {}, {}, 0, None
        self._ids = [id for id, _ in rows] if is_sorted else None
        for id, values in rows:
            self._put(id, values)
        kept = zip(
            (id for id in order if id in self._rows), (id for id in self._ids or () if id in before), strict=False
        )
        moved = [new for old, new in kept if old != new]
        return Step({id: before.get(id) for id in (*before, *self._rows)}, moved)

    def apply(self, batch: Mapping[str, Any]) -> Step:
        """Take the changes of a version: removes, moves, changes and adds. Changes nothing if they do not fit."""
        known = (*batch["removes"], *(id for id, _ in (*batch["moves"], *batch["changes"])))
        if not self._rows.keys() >= {*known} or not self._rows.keys().isdisjoint(id for id, *_ in batch["adds"]):
            raise DivergedError
        if self._ids is not None:
            self._ids = _ordered(self._ids, batch)
        before: dict[str, Row | None] = {id: self._remove(id) for id in batch["removes"]}
        for id, values, *_ in (*batch["changes"], *batch["adds"]):
            before[id] = self._rows.get(id)
            self._put(id, values)
        self.version, self._listed = batch["version"], None
        return Step(before, [id for id, _ in batch["moves"]])

    def agrees(self, rows: int, sum: int) -> bool:
        """Whether the result has so many rows, and this checksum."""
        if self._ids is not None:
            found = checksum(((id, self._texts[id]) for id in self._ids), is_sorted=True)
        else:
            found = self._total % _MODULUS
        return rows == len(self._rows) and sum == found

    def _put(self, id: str, values: Sequence[Any]) -> None:
        if id in self._texts:
            self._total -= hashed(id, self._texts[id])
        self._rows[id] = dict(zip(self.columns, values, strict=True))
        self._texts[id] = text = canonical(values)
        self._total += hashed(id, text)

    def _remove(self, id: str) -> Row:
        self._total -= hashed(id, self._texts.pop(id))
        return self._rows.pop(id)


def _ordered(ids: list[str], batch: Mapping[str, Any]) -> list[str]:
    """The order after a batch: moved and added rows have their final positions, the others fill what is left."""
    placed = {place: id for id, place in batch["moves"]} | {place: id for id, _, place in batch["adds"]}
    gone = {*batch["removes"], *(id for id, _ in batch["moves"])}
    kept = [id for id in ids if id not in gone]
    size = len(kept) + len(batch["moves"]) + len(batch["adds"])
    if len(placed) != size - len(kept) or any(place >= size for place in placed):
        raise DivergedError
    left = iter(kept)
    return [placed[place] if place in placed else next(left) for place in range(size)]


class Watcher:
    """What has changed in a result since a watcher was last told; of several changes of a row only the net one."""

    def __init__(self) -> None:
        """Begin as one who knows nothing: the first change adds all rows."""
        self._before: dict[str, Row | None] | None = None
        self._moved: dict[str, None] = {}

    def note(self, step: Step) -> None:
        """Take in a step of the result."""
        if self._before is not None:
            for id, row in step.before.items():
                self._before.setdefault(id, row)
            self._moved |= dict.fromkeys(step.moved)

    def take(self, result: LiveResult, watermark: str | None) -> Change | None:
        """The change to tell now; None if there is none."""
        if result.version is None:
            return None
        before, moved = self._before, self._moved
        self._before, self._moved = {}, {}
        if before is None:
            return Change(result.version, watermark, tuple(result.rows), (), (), (), result.rows)
        pairs = {id: (row, result.row(id)) for id, row in before.items()}
        added = tuple(new for old, new in pairs.values() if old is None and new is not None)
        changed = {id: new for id, (old, new) in pairs.items() if old is not None and new is not None and old != new}
        removed = tuple(old for old, new in pairs.values() if old is not None and new is None)
        others = (result.row(id) for id in moved if id not in changed and (id not in pairs or pairs[id][0] is not None))
        still = tuple(row for row in others if row is not None)
        if not (added or changed or removed or still):
            return None
        return Change(result.version, watermark, added, tuple(changed.values()), removed, still, result.rows)
