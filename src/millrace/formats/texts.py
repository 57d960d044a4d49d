"""Columns of text and bytes."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SPACES = " \t\r\n"
"""The characters that JSON allows around a value. Python's `strip()` also removes control characters."""


def as_texts(values: pa.Array) -> pa.Array:
    """Bytes as text; None, which no record is, for bytes that are not UTF-8."""
    try:
        return values.cast(pa.large_string() if pa.types.is_large_binary(values.type) else pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values.to_pylist()], pa.large_string())


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def offsets_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """The start of each value of a binary array, and the end of the last."""
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def ends_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """The start of each value of a text or binary array, large or not, and the end of the last."""
    if not len(column):
        return np.zeros(1, np.int64)
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    kind = np.dtype(np.int64 if is_large else np.int32)
    held = np.frombuffer(column.buffers()[1], kind, len(column) + 1, column.offset * kind.itemsize)
    return held.astype(np.int64)


class First(dict[str, object]):
    """A JSON object as Python reads it; of several fields with one name, the first counts."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs):
            self.update(reversed(pairs))


class Written(str):
    """A number of JSON, as it was written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
