"""Assignment of records to partitions.

The hash of a key selects the partition, so that records of one key stay in order. It is the hash of Kafka's Java
producer, computed by column: a key has the same partition in Kafka. Records without a key go to the partitions with
the lowest end offsets.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.formats.texts import offsets_of

SPREAD = 1_000
"""An append without keys uses one partition per this many records."""

_LONGEST = 1024
"""Only this many bytes of a key are hashed; a longer key has the partition of its prefix."""

_SEED, _M = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)

Ints = npt.NDArray[np.int64]


def spread(records: pa.Table, partitions: int, ends: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
    """Records by partition, in their given order. `ends` are the end offsets of the partitions."""
    keys = records["key"].combine_chunks()
    if partitions == 1:
        yield 0, records
        return
    places = np.zeros(len(records), np.int64)
    keyless = keys.is_null().to_numpy(zero_copy_only=False)
    if not keyless.all():
        places = partitions_of(keys, partitions)
    if keyless.any():
        places[keyless] = _evenly(int(keyless.sum()), ends)
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], np.arange(partitions + 1)).tolist()
    ordered = records if np.array_equal(order, np.arange(len(order))) else records.take(pa.array(order))
    for partition, (start, end) in enumerate(pairwise(bounds)):
        if end > start:
            yield partition, ordered.slice(start, end - start)


def partitions_of(keys: pa.Array, partitions: int) -> Ints:
    """The partition of each key."""
    return (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def murmur2(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """MurmurHash2 as in Kafka, vectorized: each step hashes four bytes of every key that is long enough."""
    ends = offsets_of(keys).astype(np.int64)
    starts, lengths = ends[:-1], np.minimum(np.diff(ends), _LONGEST)
    data = keys.buffers()[2]
    padded = np.zeros((data.size if data else 0) + 4, np.uint8)
    if data:
        padded[:-4] = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(padded) - 3,), np.uint32, padded, strides=(1,))
    hashes = _SEED ^ lengths.astype(np.uint32)
    for place in range(0, int(lengths.max(initial=0)), 4):
        whole = np.flatnonzero(lengths >= place + 4)
        word = words[starts[whole] + place] * _M
        word = (word ^ (word >> np.uint32(24))) * _M
        hashes[whole] = (hashes[whole] * _M) ^ word
        last = np.flatnonzero((lengths > place) & (lengths < place + 4))
        keep = (np.uint32(1) << (np.uint32(8) * (lengths[last] - place).astype(np.uint32))) - np.uint32(1)
        hashes[last] = (hashes[last] ^ (words[starts[last] + place] & keep)) * _M
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _M
    mixed: npt.NDArray[np.uint32] = hashes ^ (hashes >> np.uint32(15))
    return mixed


def _evenly(count: int, ends: Sequence[int]) -> Ints:
    """Assign records in contiguous runs, one per SPREAD records at most, to the partitions with the lowest ends."""
    many = min(len(ends), max(1, count // SPREAD))
    fewest = np.argsort(np.array(ends), kind="stable")[:many]
    bounds = np.linspace(0, count, many + 1).astype(np.int64)
    return np.repeat(fewest, bounds[1:] - bounds[:-1])
