"""Decides which records are decoded by shape: it learns shapes, and steps aside where they do not help.

Records of one producer have the same names in the same order, with the same punctuation. So most records are read by
comparing the text between the values with what was seen before, which takes a fifth of the time of parsing
(`docs/decisions/031-json-by-shape.md`). A record that does not match is left to DuckDB.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.edge.shaped import Bools, ShapeReader
from millrace.formats.compiled import kernel_after
from millrace.formats.forms import form_of
from millrace.formats.shapes import Graph, Shapes
from millrace.model.schema import Column, Schema

_LEAST = 1 << 20
"""The bytes of a bundle that is worth it: a smaller one takes DuckDB a millisecond or two."""
_MOST_COLUMNS = 60
_SAMPLE = 100
"""How many records of a bundle are learnt from."""
_ROUNDS = 3
"""How often a bundle is decoded at most, each time with more shapes."""
_MISSES = 0.2
"""The share of records without a match from which on decoding by shape does not pay."""
_AWAY = 16
"""How many bundles are then left to DuckDB before shapes are learnt anew."""


class ByShape:
    """Decodes records of one source by shape."""

    def __init__(self, columns: Sequence[Column], schema: Schema, is_strict: bool) -> None:
        """Know no shapes yet. `columns` are those that are read; a strict source allows no fields but columns."""
        self._columns = columns
        self._known = schema.names if is_strict else None
        forms = [form_of(column) for column in columns]
        self._forms = [form for form in forms if form is not None]
        self._is_possible = 0 < len(columns) <= _MOST_COLUMNS and None not in forms
        self._kinds = {column.name: form.kind for column, form in zip(columns, forms, strict=True) if form is not None}
        self._reader: ShapeReader | None = None
        self._shapes, self._graph = self._nothing()
        self._away = 0
        self.records, self.matched = 0, 0
        """How many records were tried, and how many of them matched."""

    def takes(self, values: pa.Array) -> bool:
        """Whether the records of a bundle are to be decoded by shape."""
        if not self._is_possible or values.nbytes < _LEAST or values.null_count:
            return False
        if self._away:
            self._away -= 1
            return False
        kernel = kernel_after(values.nbytes)
        if kernel is not None and self._reader is None:
            self._reader = ShapeReader(self._columns, self._forms, kernel)
        return self._reader is not None

    def decode(self, values: pa.Array) -> tuple[pa.Table, Bools]:
        """The rows of the records that match a shape, in their order, and which records do; after `takes` said so."""
        assert self._reader is not None
        if not len(self._shapes):
            self._learn(values, np.arange(len(values)))
        for _ in range(_ROUNDS):
            rows, matched = self._reader.decode(values, self._graph)
            if len(rows) == len(values) or not self._learn(values, np.flatnonzero(~matched)):
                break
        self.records += len(values)
        self.matched += len(rows)
        if len(rows) < len(values) * (1 - _MISSES):
            self._away = _AWAY
            self._shapes, self._graph = self._nothing()
        return rows, matched

    def _learn(self, values: pa.Array, places: npt.NDArray[np.int64]) -> bool:
        """Learn from some of the records at these places; whether there is something new."""
        # At random: records of several producers may take turns.
        some = np.random.default_rng(0).permutation(places)[:_SAMPLE]
        is_new = self._shapes.learn(values.take(pa.array(some)).to_pylist())
        if is_new:
            self._graph = self._shapes.graph()
        return is_new

    def _nothing(self) -> tuple[Shapes, Graph]:
        shapes = Shapes(self._kinds, self._known)
        return shapes, shapes.graph()
