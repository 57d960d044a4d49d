"""Rows of a view with what queries need of them, made once for all queries and only when needed."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from millrace.live.canonical import row_texts
from millrace.live.ordering import sort_keys
from millrace.live.query import Ordering, QueryShape
from millrace.live.window import Difference, Entry

Step = dict[str, tuple[Entry | None, Entry | None]]
"""By id: a row of a result before and after."""


class Rowset:
    """Rows of a view; changes have a version and a diff, too."""

    def __init__(self, rows: pa.Table, key: tuple[str, ...], is_changes: bool = False) -> None:
        """Take rows as a store returns them: the last two columns of changes are version and diff."""
        self.rows = rows.select(rows.column_names[:-2]) if is_changes else rows
        self.ids = row_texts(rows, key)
        self.versions: list[int] = rows.column(rows.num_columns - 2).to_pylist() if is_changes else []
        self.diffs: list[int] = rows.column(rows.num_columns - 1).to_pylist() if is_changes else []
        self._texts: dict[tuple[str, ...], list[str]] = {}
        self._keys: dict[tuple[Ordering, ...], list[bytes]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def entry(self, place: int, shape: QueryShape) -> Entry:
        """A row as an entry of the result of a query."""
        texts = self._texts.get(shape.columns)
        if texts is None:
            texts = self._texts[shape.columns] = row_texts(self.rows, shape.columns)
        if not shape.order:
            return Entry(b"", self.ids[place], texts[place])
        keys = self._keys.get(shape.order)
        if keys is None:
            keys = self._keys[shape.order] = sort_keys(self.rows, shape.order)
        return Entry(keys[place], self.ids[place], texts[place])

    def after(self, version: int) -> "Rowset":
        """The changes after a version."""
        first = int(np.searchsorted(self.versions, version, "right"))
        if not first:
            return self
        rest = object.__new__(Rowset)
        rest.rows, rest.ids = self.rows.slice(first), self.ids[first:]
        rest.versions, rest.diffs = self.versions[first:], self.diffs[first:]
        rest._texts, rest._keys = {}, {}
        return rest

    def step(self, places: Iterable[int], shape: QueryShape, step: Step, most: int | None = None) -> Step:
        """A step with further changes to it, in order; those after the version `most` are left out."""
        for place in places:
            if most is not None and self.versions[place] > most:
                break
            entry = self.entry(place, shape)
            before, _ = step.get(entry.id, (None, None))
            if self.diffs[place] < 0:
                # The first removal says what was there before; a row that was added within the step was not.
                step[entry.id] = (entry if entry.id not in step else before, None)
            else:
                step[entry.id] = (before, entry)
        return step


def merged(step: Step, more: Step) -> None:
    """Take a later step into an earlier one."""
    for id, (before, after) in more.items():
        first = step[id][0] if id in step else before
        if first == after:
            step.pop(id, None)
        else:
            step[id] = first, after


def plain_difference(step: Step) -> Difference:
    """The difference that a step makes to a result without order."""
    found = Difference([], [], [], [])
    for id, (before, after) in step.items():
        if after is None:
            if before is not None:
                found.removes.append(id)
        elif before is None:
            found.adds.append((id, after.text, None))
        elif before.text != after.text:
            found.changes.append((id, after.text))
    return found
