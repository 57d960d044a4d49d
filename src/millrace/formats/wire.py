"""The wire format of a schema registry: a byte 0, four bytes with the id of a schema, and the encoded record."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.formats.texts import ends_of

HEADER = 5
"""How many bytes come before a record."""


@dataclass(frozen=True, slots=True, eq=False)
class Wire:
    """Values in the wire format, with the id of each."""

    ids: npt.NDArray[np.int64]
    """The id of the schema of each value; -1 for a value that has none."""
    values: pa.Array

    def body(self, row: int) -> bytes:
        """The encoded record of a value that has an id."""
        return bytes(self.values[row].as_py()[HEADER:])

    def bodies(self, rows: npt.NDArray[np.intp]) -> pa.Array:
        """The encoded records of values that have ids, as a large binary array."""
        chosen = self.values if len(rows) == len(self.values) else self.values.take(pa.array(rows))
        ends = ends_of(chosen)
        first, signs = int(ends[0]), np.frombuffer(chosen.buffers()[2], np.uint8)
        kept = np.ones(int(ends[-1]) - first, np.bool_)
        kept[(ends[:-1, None] - first + np.arange(HEADER)).reshape(-1)] = False
        offsets = ends - first - HEADER * np.arange(len(ends))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(signs[first : ends[-1]][kept])]
        return pa.Array.from_buffers(pa.large_binary(), len(chosen), buffers)

    def reason(self, row: int) -> tuple[str, str | None]:
        """Why a value has no id: the problem, and what was found."""
        value = self.values[row].as_py()
        if value is None:
            return "it has no value", None
        if len(value) < HEADER:
            return "it is too short for the wire format of a schema registry", f"{value!r}"
        return "its first byte is not 0, so it is not in the wire format of a schema registry", f"{value[:20]!r}"


def read_wire(values: pa.Array) -> Wire:
    """The ids of large binary values."""
    ids = np.full(len(values), -1, np.int64)
    ends = ends_of(values)
    data = values.buffers()[2] if len(values) else None
    if data is None:
        return Wire(ids, values)
    signs = np.frombuffer(data, np.uint8)
    rows = np.flatnonzero((ends[1:] - ends[:-1] >= HEADER) & values.is_valid().to_numpy(zero_copy_only=False))
    rows = rows[signs[ends[rows]] == 0]
    at = ends[rows]
    ids[rows] = sum(signs[at + 1 + place].astype(np.int64) << (24 - 8 * place) for place in range(4))
    return Wire(ids, values)
