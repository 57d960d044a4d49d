"""A vectorized 64-bit hash of key columns. Equal hashes select candidates; equality of the keys decides.

The hash is part of the format of stored state: equal values have the same hash on every machine and in every release.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.panes.arms import Ints
from millrace.panes.floats import as_compared

Hashes = npt.NDArray[np.uint64]

_SEED = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def hash_keys(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """The hash of each row, from all columns in order."""
    hashes = np.full(rows, _SEED, np.uint64)
    for column in columns:
        hashes = mix(hashes ^ _hash(column))
    return hashes


def mix(values: Hashes) -> Hashes:
    """Mix the bits of each value (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * _M1
    values = (values ^ (values >> np.uint64(27))) * _M2
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def with_number(hashes: Hashes, numbers: Ints) -> Hashes:
    """The hash of a key together with a number, such as the start of its window."""
    return mix(hashes ^ mix(numbers.view(np.uint64) + _SEED))


def _hash(column: pa.Array) -> Hashes:
    kind = column.type
    if types.is_floating(kind):
        numbers = pc.fill_null(as_compared(column.cast(pa.float64())), 0.0).to_numpy()
        hashes = mix(numbers.view(np.uint64) + _SEED)
    elif types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind):
        # Arrow has no direct cast from booleans and dates to 64 bits.
        narrow = pa.int8() if types.is_boolean(kind) else pa.int32() if types.is_date32(kind) else pa.int64()
        whole = column.cast(narrow).cast(pa.int64())
        hashes = mix(pc.fill_null(whole, 0).to_numpy().view(np.uint64) + _SEED)
    else:
        hashes = _hash_bytes(column.cast(pa.string()) if not types.is_binary(kind) else column)
    return np.where(column.is_null().to_numpy(zero_copy_only=False), _SEED, hashes)


def _hash_bytes(column: pa.Array) -> Hashes:
    """The hash of each string, eight bytes at a time.

    While many strings are left, one step hashes eight bytes of each of them. The few longest are then hashed one by
    one: a step for them costs as much as a step for thousands.
    """
    _, offsets_buffer, data = column.buffers()
    ends = np.frombuffer(offsets_buffer, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    padded = np.zeros((data.size if data else 0) + 8, np.uint8)
    if data:
        padded[:-8] = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(padded) - 7,), np.uint64, padded, strides=(1,))
    hashes = mix(lengths.view(np.uint64) + _SEED)
    place = 0
    going = np.flatnonzero(lengths > place)
    while len(going) > _FEW and place < _CHAINED:
        left = np.minimum(lengths[going] - place, 8).astype(np.uint64)
        keep = np.uint64(0xFFFFFFFFFFFFFFFF) >> ((np.uint64(8) - left) * np.uint64(8))
        hashes[going] = mix(hashes[going] ^ (words[starts[going] + place] & keep))
        place += 8
        going = going[lengths[going] > place]
    for row in going:
        rest = padded[starts[row] + place : starts[row] + lengths[row]].tobytes()
        hashes[row] = _hash_rest(int(hashes[row]), rest, _CHAINED - place)
    return hashes


_FEW = 16
"""The number of strings up to which they are hashed one by one."""
_CHAINED = 1 << 16
"""The bytes of a string that are hashed eight at a time; a digest of the bytes after them is hashed as one step."""


def _hash_rest(hashed: int, rest: bytes, chained: int) -> int:
    """Hash a string, from the hash of its beginning and the rest; a digest stands for all after `chained` bytes."""
    steps = np.frombuffer(rest[:chained] + bytes(-len(rest[:chained]) % 8), "<u8").tolist()
    if len(rest) > chained:
        steps.append(int.from_bytes(blake2b(rest[chained:], digest_size=8).digest(), "little"))
    first, second, whole = int(_M1), int(_M2), (1 << 64) - 1
    for step in steps:
        hashed ^= step
        hashed = (hashed ^ hashed >> 30) * first & whole
        hashed = (hashed ^ hashed >> 27) * second & whole
        hashed ^= hashed >> 31
    return hashed
