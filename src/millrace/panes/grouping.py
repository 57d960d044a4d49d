"""Rows that belong together: identifying them exactly, and reducing columns over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.panes.arms import Ints

Rows = TypeVar("Rows", pa.Table, pa.Array)


@dataclass(frozen=True, slots=True)
class Grouping:
    """Rows by the number of their group; each group from 0 to `count` has at least one row."""

    ids: Ints
    count: int
    order: npt.NDArray[np.intp]
    """The rows, those of group 0 first; rows of a group keep their order."""
    starts: npt.NDArray[np.intp]
    """Where each group starts in that order."""

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
        """The least of each group."""
        return np.minimum.reduceat(values[self.order], self.starts) if self.count else values[:0]

    def max(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The greatest of each group."""
        return np.maximum.reduceat(values[self.order], self.starts) if self.count else values[:0]

    def bits(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The bits that any of each group has."""
        return np.bitwise_or.reduceat(values[self.order], self.starts) if self.count else values[:0]

    def least(self, *keys: pa.Array) -> npt.NDArray[np.intp]:
        """The row of each group that comes first by the keys; one whose first key is NULL only if all are."""
        return self._ranked(keys)[self.starts]

    def greatest(self, *keys: pa.Array) -> npt.NDArray[np.intp]:
        """The row of each group that comes last by the keys; one whose first key is NULL only if all are."""
        known = self.sum(keys[0].is_valid().to_numpy(zero_copy_only=False).astype(np.int64))
        ends: npt.NDArray[np.intp] = self.starts + np.maximum(known - 1, 0)
        return self._ranked(keys)[ends]

    def lists(self, column: pa.Array) -> pa.Array:
        """The lists of each group as one; NULL is an empty list."""
        ordered = column.take(pa.array(self.order))
        held = lengths(ordered)
        totals = np.add.reduceat(held, self.starts) if self.count else held
        return pa.ListArray.from_arrays(offsets(totals), ordered.flatten())

    def _ranked(self, keys: Sequence[pa.Array]) -> npt.NDArray[np.intp]:
        """Rows by group and keys: numbers, then NaN, then NULL."""
        names = [f"c{number}" for number in range(len(keys))]
        table = pa.table([pa.array(self.ids), *keys], names=["group", *names])
        order = [(name, "ascending") for name in ("group", *names)]
        ranked: npt.NDArray[np.intp] = pc.sort_indices(table, sort_keys=order).to_numpy().astype(np.intp)
        return ranked


def group(ids: Ints, count: int) -> Grouping:
    """Rows whose groups are numbered already."""
    held = np.bincount(ids, minlength=count)
    _, order = sort_by(ids.astype(np.uint64) << _places(len(ids)))
    return Grouping(ids, count, order, np.cumsum(held) - held)


def sort_by(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]]:
    """Keys in order, without the last bits, of which there are as many as the number of a row needs; and their rows.

    Rows with equal keys keep their order. Sorting numbers is several times as fast as sorting rows by numbers, so the
    number of the row takes the place of these bits while it is done.
    """
    rows = np.arange(len(keys), dtype=np.uint64)
    last = (np.uint64(1) << _places(len(keys))) - np.uint64(1)
    together = np.sort((keys & ~last) | rows)
    return together & ~last, (together & last).astype(np.intp)


def without_last_bits(keys: npt.NDArray[np.uint64], rows: int) -> npt.NDArray[np.uint64]:
    """Keys as `sort_by` has them for so many rows."""
    return (keys >> _places(rows)) << _places(rows)


def _places(rows: int) -> np.uint64:
    """How many bits the number of a row takes."""
    return np.uint64(max(rows - 1, 0).bit_length())


def identify(columns: Sequence[pa.Array | npt.NDArray[Any]], rows: int) -> Grouping:
    """Group rows that agree in all columns; NULL agrees with NULL. Exact: no hashing."""
    ids, count = np.zeros(rows, np.int64), min(rows, 1)
    for column in columns:
        if count == rows:  # no two of them agree
            break
        codes, many = _codes(column)
        if count == 1:
            ids, count = codes, many
        elif many > 1:
            # Numbering after each column keeps the product of two numbers far from overflowing.
            different, ids = np.unique(ids * many + codes, return_inverse=True)
            ids, count = ids.astype(np.int64), len(different)
    return group(ids, count)


def pick(rows: Rows, which: npt.NDArray[np.intp]) -> Rows:
    """Some rows, by their number; what is there, if it is all of them in order, as it often is."""
    if len(which) == len(rows) and (which == np.arange(len(rows))).all():
        return rows
    return rows.take(pa.array(which))


def keep(rows: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows for which it holds."""
    return rows if mask.all() else rows.filter(pa.array(mask))


def lengths(lists: pa.Array) -> Ints:
    """The lengths of lists; NULL is an empty one."""
    held: Ints = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return held


def offsets(held: Ints) -> pa.Array:
    """List offsets from the lengths of the lists."""
    return pa.array(np.concatenate([[0], np.cumsum(held)]).astype(np.int32))


def _codes(column: pa.Array | npt.NDArray[Any]) -> tuple[Ints, int]:
    """A number for each value, the same for the same; and how many there are."""
    if isinstance(column, np.ndarray):
        different, codes = np.unique(column, return_inverse=True)
        return codes.astype(np.int64), len(different)
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
