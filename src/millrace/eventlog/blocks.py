"""The blocks of partitions in the database. Callers pass a connection; functions that write need an open transaction.

Many small appends must not leave many small blocks: an append merges with the preceding blocks that are no larger, as
a binary counter carries. So a partition has few small blocks, and a record is rewritten only when its block at least
doubles.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from millrace.eventlog.content import MERGED, Content, decode, encode
from millrace.eventlog.marks import joined, single
from millrace.eventlog.retention import Block, stale
from millrace.eventlog.sequences import Appended
from millrace.eventlog.topic import Topic
from millrace.model.errors import CorruptError

_COLUMNS = "partition, first, records, bytes, latest, begun, ended, content"
_PARTITION = "topic = :topic AND partition = :partition AND first"
_OVERLAPPING = (
    f"{_PARTITION} < :end AND first + records > :start "
    f"AND first >= coalesce((SELECT max(first) FROM blocks WHERE {_PARTITION} <= :start), 0) ORDER BY first"
)
_AT_ONCE = 256
"""Retention removes at most this many blocks in one transaction, so that appends do not wait long for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Records to append to a partition."""

    partition: int
    records: pa.Table
    content: Content | None
    """The encoded records if they are too large to merge; otherwise None, as the block is encoded after merging."""


def piece_of(partition: int, records: pa.Table) -> Piece:
    """A piece; records too large to merge are encoded here, before the transaction."""
    return Piece(partition, records, encode(records) if records.nbytes > MERGED else None)


def bounds(connection: sqlite3.Connection, topic: int) -> list[tuple[int, int]]:
    """The start offset and the end offset of each partition."""
    rows = connection.execute(
        "SELECT start, (SELECT first + records FROM blocks WHERE topic = p.topic AND partition = p.partition "
        "ORDER BY first DESC LIMIT 1) FROM partitions p WHERE topic = ? ORDER BY partition",
        (topic,),
    )
    return [(start, start if end is None else end) for start, end in rows]


def put(
    connection: sqlite3.Connection,
    id: int,
    topic: Topic,
    pieces: Iterable[Piece],
    now: int,
    mark: int,
    merge: bool = True,
) -> list[Appended]:
    """Append records to partitions, with the mark of the append; returns their offset ranges.

    With `merge`, preceding blocks are read to merge them, which can raise an error if the file is damaged.
    """
    ends = {partition: end for partition, (_, end) in enumerate(bounds(connection, id))}
    added: dict[int, Appended] = {}
    for piece in pieces:
        end, count = ends[piece.partition], len(piece.records)
        _put(connection, id, topic.max_age, piece, end, now, mark, merge)
        ends[piece.partition] += count
        before = added.get(piece.partition, Appended(piece.partition, end, 0))
        added[piece.partition] = Appended(before.partition, before.first, before.count + count)
    return list(added.values())


def sizes(connection: sqlite3.Connection, id: int, partition: int, start: int, end: int) -> list[tuple[int, int, int]]:
    """The blocks that overlap an offset range, in order: first offset, number of records, bytes."""
    asked = {"topic": id, "partition": partition, "start": start, "end": end}
    return connection.execute(f"SELECT first, records, bytes FROM blocks WHERE {_OVERLAPPING}", asked).fetchall()


def contents(
    connection: sqlite3.Connection, id: int, partition: int, start: int, end: int
) -> Iterator[tuple[int, int, int | None, bytes | None, int]]:
    """The blocks that overlap an offset range, one by one: first offset, number of records, content, block, checksum.

    A gap has no content. A block is None if it is missing.
    """
    asked = {"topic": id, "partition": partition, "start": start, "end": end}
    columns, tables = "first, records, content, block, checksum", "blocks LEFT JOIN contents ON id = content"
    yield from connection.execute(f"SELECT {columns} FROM {tables} WHERE {_OVERLAPPING}", asked)


def first_since(connection: sqlite3.Connection, id: int, partition: int, instant: int) -> int | None:
    """The first offset of the first block that holds a timestamp at or after an instant; None if there is none.

    Gaps are passed over.
    """
    row = connection.execute(
        "SELECT first FROM blocks WHERE topic = ? AND partition = ? AND latest >= ? AND content IS NOT NULL "
        "ORDER BY first LIMIT 1",
        (id, partition, instant),
    ).fetchone()
    return None if row is None else int(row[0])


def latest(connection: sqlite3.Connection, id: int) -> int | None:
    """The latest timestamp of a topic's records; None if it has none."""
    asked = "SELECT max(latest) FROM blocks WHERE topic = ? AND content IS NOT NULL"
    (found,) = connection.execute(asked, (id,)).fetchone()
    return None if found is None else int(found)


def expired(connection: sqlite3.Connection, id: int, topic: Topic, now: int) -> list[Block]:
    """The blocks that retention removes in its next transaction."""
    if topic.max_age is None and topic.max_bytes is None:
        return []
    rows = connection.execute(f"SELECT {_COLUMNS} FROM blocks WHERE topic = ? ORDER BY partition, first", (id,))
    return stale([Block(*row) for row in rows], topic.max_age, topic.max_bytes, now)[:_AT_ONCE]


def expire(connection: sqlite3.Connection, id: int, blocks: Sequence[Block]) -> None:
    """Remove blocks from the start of their partitions, and advance the start offsets."""
    _delete(connection, id, blocks)
    for block in blocks:
        connection.execute(
            "UPDATE partitions SET start = max(start, ?) WHERE topic = ? AND partition = ?",
            (block.end, id, block.partition),
        )


def _put(
    connection: sqlite3.Connection, id: int, max_age: int | None, piece: Piece, first: int, now: int, mark: int,
    merge: bool,
) -> None:  # fmt: skip
    latest = pc.max(piece.records["timestamp"]).value
    block = Block(piece.partition, first, len(piece.records), piece.records.nbytes, latest, now, now, 0)
    content, marks = piece.content, single(mark)
    if content is None:
        merged, before = _mergeable(connection, id, max_age, block) if merge else ([], [])
        content = encode(pa.concat_tables([*(records for records, _ in before), piece.records]).combine_chunks())
        if merged:
            old = [(each.first, found) for each, (_, found) in zip(merged, before, strict=True)]
            marks = joined([*old, (first, marks)])
            block = _together([*merged, block])
            _delete(connection, id, merged)
    row = connection.execute(
        "INSERT INTO contents (checksum, marks, block) VALUES (?, ?, ?)", (content.checksum, marks, content.block)
    ).lastrowid
    places = ", ".join("?" * 9)
    connection.execute(f"INSERT INTO blocks (topic, {_COLUMNS}) VALUES ({places})", (id, *_row(block, row)))


def _mergeable(
    connection: sqlite3.Connection, id: int, max_age: int | None, block: Block
) -> tuple[list[Block], list[tuple[pa.Table, bytes]]]:
    """The preceding blocks to merge with a new one, in order, with their records and marks."""
    merged: list[Block] = []
    before: list[tuple[pa.Table, bytes]] = []
    with suppress(CorruptError):  # a damaged block is not merged, nor is what precedes it
        for each in _to_merge(connection, id, max_age, block):
            before.insert(0, _stored(connection, each))
            merged.insert(0, each)
    return merged, before


def _to_merge(connection: sqlite3.Connection, id: int, max_age: int | None, block: Block) -> Iterator[Block]:
    """The preceding blocks to merge with a new one, nearest first."""
    size = block.bytes
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM blocks WHERE topic = ? AND partition = ? ORDER BY first DESC", (id, block.partition)
    )
    for before in (Block(*row) for row in rows):
        if before.content is None or before.bytes > size or before.bytes + size > MERGED:
            return
        if max_age is not None and block.ended - before.begun > max_age // 8:
            return  # a merged block expires as a whole, so old records would outlive the topic's retention
        size += before.bytes
        yield before


def _row(block: Block, content: int | None) -> tuple[int | None, ...]:
    # `astuple` copies every field deeply, which is a tenth of a small append.
    return (
        block.partition, block.first, block.records, block.bytes, block.latest, block.begun, block.ended, content,
    )  # fmt: skip


def _together(blocks: Sequence[Block]) -> Block:
    """One block in place of several adjacent ones."""
    first, last = blocks[0], blocks[-1]
    return Block(
        first.partition,
        first.first,
        last.end - first.first,
        sum(block.bytes for block in blocks),
        max(block.latest for block in blocks),
        first.begun,
        last.ended,
        last.content,
    )


def _stored(connection: sqlite3.Connection, block: Block) -> tuple[pa.Table, bytes]:
    """The records and the marks of a block. Raises CorruptError if they are damaged."""
    row = connection.execute("SELECT block, checksum, marks FROM contents WHERE id = ?", (block.content,)).fetchone()
    if row is None:
        raise CorruptError(f"the block at offset {block.first} is missing", "skip it: millrace repair FILE --yes")
    records = decode(row[0], row[1], f"offset {block.first}")
    if len(records) != block.records:
        raise CorruptError(f"the block at offset {block.first} is damaged", "skip it: millrace repair FILE --yes")
    return records, row[2]


def _delete(connection: sqlite3.Connection, id: int, blocks: Sequence[Block]) -> None:
    held = [(block.content,) for block in blocks if block.content is not None]
    connection.executemany("DELETE FROM contents WHERE id = ?", held)
    connection.executemany(
        "DELETE FROM blocks WHERE topic = ? AND partition = ? AND first = ?",
        [(id, block.partition, block.first) for block in blocks],
    )
