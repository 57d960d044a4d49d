"""Marks: the history of a partition.

Each append draws a random mark. The mark of an offset is that of the append which wrote its record. A reader that
stores the mark at its position notices when the log is replaced by an older copy: whatever is appended to the copy has
other marks at the same offsets. Two logs agree on a mark only if they share all records up to there.

A block stores the first offset and the mark of each of its appends, without a checksum: a damaged mark looks like
another history, so a reader refuses it, and computing again is exact.
"""

import os
import sqlite3
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.eventlog.trouble import is_damage

_MARK: Any = np.dtype([("at", "<u4"), ("mark", "<i8")])
_ONE = struct.Struct("<Iq")
"""An append: the distance of its first offset from that of the block, and its mark. Both describe the same bytes."""


def new_mark() -> int:
    """A random mark of 63 bits."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def single(mark: int) -> bytes:
    """The marks of a block with one append."""
    return _ONE.pack(0, mark)


def joined(marks: Sequence[tuple[int, bytes]]) -> bytes:
    """The marks of a block that is merged from adjacent ones, given with their first offsets."""
    first = marks[0][0]
    return b"".join(_shifted(each, at - first) for at, each in marks)


def _shifted(marks: bytes, by: int) -> bytes:
    if not by:
        return marks
    if len(marks) == _ONE.size:  # most merges are of single appends, for which NumPy is slow
        at, mark = _ONE.unpack(marks)
        return _ONE.pack(at + by, mark)
    array = np.frombuffer(marks, _MARK).copy()
    array["at"] += by
    return array.tobytes()


def mark_at(connection: sqlite3.Connection, id: int, partition: int, offset: int) -> int | None:
    """The mark of a record; None if the record is not stored. The content of its block is not read."""
    block = connection.execute(
        "SELECT first, first + records, content, (SELECT content FROM set_aside s WHERE s.topic = b.topic"
        " AND s.partition = b.partition AND s.first = b.first) FROM blocks b"
        " WHERE topic = ? AND partition = ? AND first <= ? ORDER BY first DESC LIMIT 1",
        (id, partition, offset),
    ).fetchone()
    if block is None or offset >= block[1]:
        return None
    first, _, content, aside = block
    try:
        row = connection.execute(
            "SELECT marks FROM contents WHERE id = ?", (aside if content is None else content,)
        ).fetchone()
    except sqlite3.DatabaseError as error:
        if content is None and is_damage(error):
            return None  # the damage that made this a gap includes the marks
        raise
    if row is None or not row[0] or len(row[0]) % _MARK.itemsize:
        return None
    marks = np.frombuffer(row[0], _MARK)
    return int(marks["mark"][max(0, np.searchsorted(marks["at"], offset - first, side="right") - 1)])
