"""Decodes the JSON records that match learnt shapes into columns."""

from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.formats.forms import BOOLEAN, DECIMAL, DOUBLE, STRING, Form
from millrace.formats.shapes import Graph
from millrace.formats.texts import ends_of
from millrace.model.arrow import arrow_type
from millrace.model.schema import Column

Bools = npt.NDArray[np.bool_]

_ROWS, _BYTES = 1 << 16, 8 << 20
"""The most records, and about the most bytes of them, that are decoded at a time; each column of text reserves as many
bytes."""
_LONGEST = 1 << 30
"""A record of that many bytes is left to DuckDB."""
_TEXT, _DOUBLE, _WHOLE = range(3)
"""How a column is stored: as text, as floating point numbers, or as whole numbers of 64 bits."""


class ShapeReader:
    """Decodes records by shape into some columns."""

    def __init__(self, columns: Sequence[Column], forms: Sequence[Form], kernel: ModuleType) -> None:
        """Prepare the columns, given their forms. `kernel` is `millrace.formats.kernel`, which needs Numba."""
        self._kernel, self._forms = kernel, forms
        self._schema = pa.schema([(column.name, arrow_type(column.type)) for column in columns])
        storages = [_storage(form) for form in forms]
        self._many = [storages.count(storage) for storage in (_TEXT, _DOUBLE, _WHOLE)]
        self._places = [storages[:number].count(storage) for number, storage in enumerate(storages)]
        described = [
            [form.low, form.high, form.scale, place, storage == _TEXT]
            for form, place, storage in zip(forms, self._places, storages, strict=True)
        ]
        self._columns = np.array(described, np.int64)
        self._required = sum(1 << number for number, column in enumerate(columns) if column.required)

    def decode(self, values: pa.Array, graph: Graph) -> tuple[pa.Table, Bools]:
        """The rows of the records that match, in their order, and which records do. No text may be NULL."""
        starts = ends_of(values)
        data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
        safe = len(data) - self._kernel.PADDING
        matched = np.zeros(len(values), np.bool_)
        batches = []
        for first, last in _pieces(starts, safe):
            held, cut = data, starts[first : last + 1]
            if cut[-1] > safe:
                held = np.concatenate([data[cut[0] : cut[-1]], np.zeros(self._kernel.PADDING, np.uint8)])
                cut = cut - cut[0]
            if cut[-1] - cut[0] < _LONGEST:
                batches.append(self._piece(held, cut, graph, matched[first:last]))
        return pa.Table.from_batches(batches, self._schema), matched

    def _piece(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], graph: Graph, matched: Bools
    ) -> pa.RecordBatch:
        many, size = len(starts) - 1, int(starts[-1] - starts[0])
        texts = np.empty((self._many[_TEXT], size + self._kernel.PADDING), np.uint8)
        offsets = np.zeros((self._many[_TEXT], many + 1), np.int32)
        doubles = np.empty((self._many[_DOUBLE], many))
        wholes = np.empty((self._many[_WHOLE], many), np.int64)
        valid = np.ones((len(self._forms), many), np.bool_)
        taken = self._kernel.match(
            data.ctypes.data, starts, graph.edges, graph.words, graph.masks, graph.roots, self._columns, self._required,
            wholes, doubles, offsets, texts, valid, matched,
        )  # fmt: skip
        arrays = []
        for form, field, there, place in zip(self._forms, self._schema, valid[:, :taken], self._places, strict=True):
            mask = None if there.all() else pa.array(there).buffers()[1]
            if form.kind == STRING:
                buffers = [mask, pa.py_buffer(offsets[place, : taken + 1]), pa.py_buffer(texts[place])]
            elif form.kind == DOUBLE:
                buffers = [mask, pa.py_buffer(doubles[place, :taken])]
            else:
                buffers = [mask, _buffer(wholes[place, :taken], form, field.type)]
            arrays.append(pa.Array.from_buffers(field.type, taken, buffers))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _storage(form: Form) -> int:
    return {STRING: _TEXT, DOUBLE: _DOUBLE}.get(form.kind, _WHOLE)


def _buffer(values: npt.NDArray[np.int64], form: Form, type: pa.DataType) -> pa.Buffer:
    """Whole numbers as the buffer of an Arrow type."""
    if form.kind == BOOLEAN:
        return pa.array(values.astype(np.bool_)).buffers()[1]
    if form.kind == DECIMAL:
        return pa.py_buffer(np.stack([values, values >> 63], axis=1))
    return pa.py_buffer(values.astype(f"i{type.bit_width // 8}", copy=False))


def _pieces(starts: npt.NDArray[np.int64], safe: int) -> Iterator[tuple[int, int]]:
    """The first record of each piece, and the one after its last; records that end beyond `safe` are in pieces apart.

    >>> list(_pieces(np.array([0, 10, 20, 30, 40]), 20))
    [(0, 2), (2, 4)]
    """
    many = len(starts) - 1
    until = min(many, max(0, int(np.searchsorted(starts, safe, "right")) - 1))
    for first, last in ((0, until), (until, many)):
        while first < last:
            fits = int(np.searchsorted(starts, starts[first] + _BYTES, "right")) - 1
            after = min(last, first + _ROWS, max(first + 1, fits))
            yield first, after
            first = after
