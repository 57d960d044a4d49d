"""The content of a block: some thousands of records of a partition, as an Arrow IPC stream.

Buffers are compressed with LZ4, which shrinks JSON to two fifths, so that appending and reading are both faster than
without compression. Zstandard shrinks it to a fifth, but takes twice as long to read.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from millrace.eventlog.records import SCHEMA
from millrace.model.errors import CorruptError

MERGED = 1 << 20
"""Small blocks are merged up to this many bytes."""

LARGEST = 4 << 20
"""The approximate maximum size of a block in bytes."""

_WRITE = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
"""Threads are off because a task has one core."""


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """Encoded records and their checksum."""

    block: memoryview
    checksum: int


def encode(records: pa.Table) -> Content:
    """Encode records and compute their checksum."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_WRITE) as writer:
        writer.write_table(records)
    block = memoryview(sink.getvalue())
    return Content(block, zlib.crc32(block))


def decode(block: bytes, checksum: int, where: str) -> pa.Table:
    """Decode records. Raises CorruptError if the checksum does not match."""
    if zlib.crc32(block) != checksum:
        raise CorruptError(
            f"the log is damaged at {where}",
            "put a copy of it in its place, or skip the damaged block: millrace repair FILE --yes",
        )
    return pa.ipc.open_stream(block, options=_READ).read_all()


def cut(records: pa.Table) -> Iterator[pa.Table]:
    """Split records into pieces that fit into a block."""
    if len(records) and records.nbytes <= LARGEST:
        yield records
        return
    pieces = max(1, -(-records.nbytes // LARGEST))
    bounds = np.linspace(0, len(records), min(pieces, len(records)) + 1).astype(np.int64).tolist()
    for start, end in pairwise(bounds):
        yield records.slice(start, end - start)
