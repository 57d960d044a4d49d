"""Groups of rows with equal keys: exact grouping, and reductions of columns over groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.panes.arms import Ints
from millrace.panes.nested import sortable

Rows = TypeVar("Rows", pa.Table, pa.Array)


@dataclass(frozen=True, slots=True)
class Grouping:
    """An assignment of rows to `count` groups, numbered from 0; each group has at least one row."""

    ids: Ints
    count: int
    order: npt.NDArray[np.intp]
    """The rows sorted by group; rows of a group keep their order."""
    starts: npt.NDArray[np.intp]
    """The index in `order` at which each group starts."""

    @property
    def firsts(self) -> npt.NDArray[np.intp]:
        """The first row of each group."""
        return self.order[self.starts]

    @property
    def lasts(self) -> npt.NDArray[np.intp]:
        """The last row of each group."""
        return self.order[np.append(self.starts[1:], len(self.order)) - 1] if self.count else self.order

    def sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over each group."""
        return np.add.reduceat(values[self.order], self.starts) if self.count else values[:0]

    def min(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The minimum of each group."""
        return np.minimum.reduceat(values[self.order], self.starts) if self.count else values[:0]

    def max(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The maximum of each group."""
        return np.maximum.reduceat(values[self.order], self.starts) if self.count else values[:0]

    def bits(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The bitwise OR of each group."""
        return np.bitwise_or.reduceat(values[self.order], self.starts) if self.count else values[:0]

    def least(self, *keys: pa.Array) -> npt.NDArray[np.intp]:
        """The first row of each group in the order of the keys; a NULL first key is chosen only if all are NULL."""
        return self._ranked(keys)[self.starts]

    def greatest(self, *keys: pa.Array) -> npt.NDArray[np.intp]:
        """The last row of each group in the order of the keys; a NULL first key is chosen only if all are NULL."""
        known = self.sum(keys[0].is_valid().to_numpy(zero_copy_only=False).astype(np.int64))
        ends: npt.NDArray[np.intp] = self.starts + np.maximum(known - 1, 0)
        return self._ranked(keys)[ends]

    def lists(self, column: pa.Array) -> pa.Array:
        """Concatenate the lists of each group; NULL is an empty list."""
        ordered = column.take(pa.array(self.order))
        held = lengths(ordered)
        totals = np.add.reduceat(held, self.starts) if self.count else held
        return pa.ListArray.from_arrays(offsets(totals), ordered.flatten())

    def _ranked(self, keys: Sequence[pa.Array]) -> npt.NDArray[np.intp]:
        """The rows sorted by group and keys: numbers, then NaN, then NULL."""
        names = [f"c{number}" for number in range(len(keys))]
        table = pa.table([pa.array(self.ids), *map(sortable, keys)], names=["group", *names])
        order = [(name, "ascending") for name in ("group", *names)]
        ranked: npt.NDArray[np.intp] = pc.sort_indices(table, sort_keys=order).to_numpy().astype(np.intp)
        return ranked


def group(ids: Ints, count: int) -> Grouping:
    """The grouping of rows by known group numbers."""
    held = np.bincount(ids, minlength=count)
    _, order = sort_by(ids.astype(np.uint64) << _places(len(ids)))
    return Grouping(ids, count, order, np.cumsum(held) - held)


def sort_by(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]]:
    """The keys in ascending order with their low bits cleared, and the row of each.

    As many low bits are cleared as a row number needs. Rows with equal remaining bits keep their order. Sorting
    integers is several times as fast as an argsort, so the row number is stored in the low bits during the sort.
    """
    rows = np.arange(len(keys), dtype=np.uint64)
    last = (np.uint64(1) << _places(len(keys))) - np.uint64(1)
    together = np.sort((keys & ~last) | rows)
    return together & ~last, (together & last).astype(np.intp)


def without_last_bits(keys: npt.NDArray[np.uint64], rows: int) -> npt.NDArray[np.uint64]:
    """Keys with the low bits cleared that `sort_by` clears for this number of rows."""
    return (keys >> _places(rows)) << _places(rows)


def _places(rows: int) -> np.uint64:
    """The number of bits of a row number."""
    return np.uint64(max(rows - 1, 0).bit_length())


def identify(columns: Sequence[pa.Array | npt.NDArray[Any]], rows: int) -> Grouping:
    """Group rows that are equal in all columns; NULL equals NULL. It is exact and does not use hashes."""
    ids, count = np.zeros(rows, np.int64), min(rows, 1)
    for column in columns:
        if count == rows:  # all rows are distinct
            break
        codes, many = _codes(column)
        if count == 1:
            ids, count = codes, many
        elif many > 1:
            # Renumbering the groups after each column keeps this product from overflowing.
            different, ids = np.unique(ids * many + codes, return_inverse=True)
            ids, count = ids.astype(np.int64), len(different)
    return group(ids, count)


def pick(rows: Rows, which: npt.NDArray[np.intp]) -> Rows:
    """The rows with these numbers; without a copy if they are all rows in order, which is common."""
    if len(which) == len(rows) and (which == np.arange(len(rows))).all():
        return rows
    return rows.take(pa.array(which))


def keep(rows: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows that the mask selects; without a copy if it selects all.

    Rows without columns, such as the keys of a query that groups by none, are returned as they are: Arrow does not
    count them reliably, so that a filter would fail.
    """
    return rows if mask.all() or not rows.num_columns else rows.filter(pa.array(mask))


def lengths(lists: pa.Array) -> Ints:
    """The lengths of lists; that of NULL is 0."""
    held: Ints = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return held


def offsets(held: Ints) -> pa.Array:
    """List offsets from the lengths of the lists."""
    return pa.array(np.concatenate([[0], np.cumsum(held)]).astype(np.int32))


def _codes(column: pa.Array | npt.NDArray[Any]) -> tuple[Ints, int]:
    """A code for each value, equal for equal values, and the number of codes."""
    if isinstance(column, np.ndarray):
        different, codes = np.unique(column, return_inverse=True)
        return codes.astype(np.int64), len(different)
    encoded = sortable(column).dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
