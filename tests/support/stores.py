"""Answers for views in tests, and what a view must then hold: a plain dict."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.views.shape import ViewShape

Row: TypeAlias = tuple[Any, ...]
Answer: TypeAlias = tuple[int, Row]
"""A diff, and a row of the columns of the shape."""


def answers(shape: ViewShape, given: Sequence[Answer]) -> pa.Table:
    """Answers as an engine gives them."""
    place = len(shape.columns.names) - 3
    columns = [(column.name, arrow_type(column.type)) for column in shape.columns]
    columns.insert(place, (shape.diff.name, pa.int32()))
    rows = [(*row[:place], diff, *row[place:]) for diff, row in given]
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(value, kind) for value, (_, kind) in zip(values, columns, strict=True)]
    return pa.table(arrays, [name for name, _ in columns])


def plain(value: Any) -> Any:
    """A value that equals those that mean the same: NaN is NaN, and -0.0 is 0.0, and so on."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((name, plain(each)) for name, each in sorted(value.items()))
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        value = sorted(value)  # a map has no order
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def rows_of(table: pa.Table, width: int) -> list[Row]:
    """Rows of a table: its first columns."""
    columns = [column.to_pylist() for column in table.columns[:width]]
    return [tuple(map(plain, row)) for row in zip(*columns, strict=True)]


@dataclass
class Model:
    """What a view holds, by key."""

    shape: ViewShape
    rows: dict[Row, Row] = field(default_factory=dict)

    def commit(self, given: Iterable[Answer]) -> None:
        """Take in answers, one by one."""
        for diff, values in given:
            row = tuple(map(plain, values))
            key = self._key(row)
            if diff < 0:
                self.rows.pop(key, None)
                continue
            if self.shape.merges:
                self.rows = {other: kept for other, kept in self.rows.items() if not self._overlap(kept, row)}
            self.rows[key] = row

    def apply(self, changes: pa.Table) -> None:
        """Take in changes: each -1 must be of a row that is there, each +1 of a key that is not."""
        width = len(self.shape.columns.names)
        for row, diff in zip(rows_of(changes, width), changes.columns[-1].to_pylist(), strict=True):
            key = self._key(row)
            if diff < 0:
                assert self.rows.pop(key) == row
            else:
                assert key not in self.rows
                self.rows[key] = row

    def _key(self, row: Row) -> Row:
        return tuple(row[place] for place in self.shape.key_places)

    def _overlap(self, one: Row, other: Row) -> bool:
        start, end = self.shape.bound_places
        same = all(one[place] == other[place] for place in self.shape.group_places)
        return same and one[start] < other[end] and other[start] < one[end]
