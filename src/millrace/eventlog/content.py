"""What a block holds: some thousands of records of a partition, in Arrow's own format.

Buffers are compressed with LZ4: of JSON two fifths are left, so that appending and reading are both faster than
without. Zstandard leaves a fifth, but takes twice as long to read.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from millrace.eventlog.records import SCHEMA
from millrace.model.errors import PipelineError

MERGED = 1 << 20
"""Up to how many bytes small blocks are merged."""

LARGEST = 4 << 20
"""How many bytes a block holds at most, about."""

_WRITE = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
"""A task has one core."""


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """Records as bytes, and how to tell that they still are."""

    block: memoryview
    checksum: int


def encode(records: pa.Table) -> Content:
    """Records as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_WRITE) as writer:
        writer.write_table(records)
    block = memoryview(sink.getvalue())
    return Content(block, zlib.crc32(block))


def decode(block: bytes, checksum: int, where: str) -> pa.Table:
    """Records from bytes. Raises MillraceError if they are not those that were written."""
    if zlib.crc32(block) != checksum:
        raise PipelineError(f"the log is damaged at {where}; put a copy of it in its place, or start after that")
    return pa.ipc.open_stream(block, options=_READ).read_all()


def cut(records: pa.Table) -> Iterator[pa.Table]:
    """The same records in pieces that are not too large for a block."""
    pieces = max(1, -(-records.nbytes // LARGEST))
    bounds = np.linspace(0, len(records), min(pieces, len(records)) + 1).astype(np.int64).tolist()
    for start, end in pairwise(bounds):
        yield records.slice(start, end - start)
