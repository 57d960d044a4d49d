"""Damaged blocks, and gaps: blocks whose damaged content was set aside.

A gap keeps its offsets, so no other record moves, and its marks, so that readers still recognise the history.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from millrace.eventlog.content import decode
from millrace.eventlog.database import Database
from millrace.eventlog.topic import find_topic
from millrace.eventlog.trouble import is_damage
from millrace.model.errors import ConflictError, CorruptError, NotFoundError

_METADATA = ("log", "topics", "partitions", "blocks", "set_aside", "sequences", "consumers")
_BLOCK = "topic = ? AND partition = ? AND first = ?"


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """Records that cannot be read, from offset `first` to before `end`."""

    partition: int
    first: int
    end: int
    why: str


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Offsets whose records were skipped, from `first` to before `end`."""

    partition: int
    first: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A block to check. Its `content` is None where offsets have no block at all."""

    partition: int
    first: int
    end: int
    bytes: int
    content: int | None


def check_metadata(database: Database) -> None:
    """Raise CorruptError if SQLite cannot read all rows of the log, apart from the content of blocks."""
    with database.snapshot() as connection:
        for asked in (*(f"SELECT * FROM {table}" for table in _METADATA), "SELECT id FROM contents"):
            for _ in connection.execute(asked):
                pass


def damaged(database: Database, topic: str, progress: Callable[[int, int], object] | None) -> list[Damage]:
    """All damage of a topic. Calls `progress` after each block, with bytes read and bytes in all."""
    with database.snapshot() as connection:
        id, _ = find_topic(connection, topic)
        blocks = stored(connection, id)
    found: list[Damage] = []
    done, total = 0, sum(block.bytes for block in blocks)
    for block in blocks:
        with database.snapshot() as connection:  # one for each block, so that the journal can be truncated
            damage = check(connection, id, block)
        found += [] if damage is None else [damage]
        done += block.bytes
        if progress is not None:
            progress(done, total)
    return found


def stored(connection: sqlite3.Connection, id: int) -> list[Stored]:
    """All blocks with content, and the holes between blocks, by partition and offset."""
    rows = connection.execute(
        "SELECT partition, first, first + records, bytes, content FROM blocks WHERE topic = ?"
        " ORDER BY partition, first",
        (id,),
    )
    found: list[Stored] = []
    last: tuple[int, int] | None = None
    for partition, first, end, size, content in rows:
        if last is not None and last[0] == partition and last[1] < first:
            found.append(Stored(partition, last[1], first, 0, None))
        if content is not None:
            found.append(Stored(partition, first, end, size, content))
        last = partition, end
    return found


def check(connection: sqlite3.Connection, id: int, block: Stored) -> Damage | None:
    """The damage of a block; None if it is whole, or if it was merged or removed meanwhile. Needs a snapshot."""
    if block.content is None:
        filled = _is_block(connection, id, block.partition, block.first)
        return None if filled else _damage(block, "the log has no block for these offsets")
    held = connection.execute(
        f"SELECT 1 FROM blocks WHERE {_BLOCK} AND content = ?", (id, block.partition, block.first, block.content)
    ).fetchone()
    if held is None:
        return None
    try:
        row = connection.execute("SELECT block, checksum FROM contents WHERE id = ?", (block.content,)).fetchone()
        if row is None:
            return _damage(block, "its content is missing")
        if len(decode(row[0], row[1], "this block")) != block.end - block.first:
            return _damage(block, "it holds another number of records than it should")
    except CorruptError:
        return _damage(block, "its checksum does not match")
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return _damage(block, f"SQLite cannot read it: {error}")
    return None


def skip(database: Database, topic: str, partition: int, first: int, now: int) -> None:
    """Turn a damaged block into a gap. Refuses a block that is not damaged."""
    where = f"{topic}/{partition}"
    # The check comes before the transaction: SQLite lets no transaction write that has found damage.
    with database.snapshot() as connection:
        id, _ = find_topic(connection, topic)
        found = [block for block in stored(connection, id) if (block.partition, block.first) == (partition, first)]
        if not found and _is_block(connection, id, partition, first):
            return  # it is a gap already
        if not found:
            raise NotFoundError(f"no block of {where} starts at offset {first}", "look again: millrace repair FILE")
        (block,) = found
        damage = check(connection, id, block)
    if damage is None:
        raise ConflictError(
            f"the block of {where} at offset {first} is not damaged", "look again: millrace repair FILE"
        )
    with database.write() as connection:
        if block.content is None:
            _fill(connection, id, block)
        else:
            _set_aside(connection, id, block, damage.why, now)


def _is_block(connection: sqlite3.Connection, id: int, partition: int, first: int) -> bool:
    return connection.execute(f"SELECT 1 FROM blocks WHERE {_BLOCK}", (id, partition, first)).fetchone() is not None


def _fill(connection: sqlite3.Connection, id: int, hole: Stored) -> None:
    """Insert a gap for offsets that have no block, as old as the block before it."""
    connection.execute(
        "INSERT OR IGNORE INTO blocks SELECT topic, partition, ?, ?, 0, latest, ended, ended, NULL FROM blocks"
        " WHERE topic = ? AND partition = ? AND first < ? ORDER BY first DESC LIMIT 1",
        (hole.first, hole.end - hole.first, id, hole.partition, hole.first),
    )


def _set_aside(connection: sqlite3.Connection, id: int, block: Stored, why: str, now: int) -> None:
    """Take the content from a block, if nobody has taken or removed it since it was checked."""
    changed = connection.execute(
        f"UPDATE blocks SET content = NULL, bytes = 0 WHERE {_BLOCK} AND content = ?",
        (id, block.partition, block.first, block.content),
    ).rowcount
    if changed:
        connection.execute(
            "INSERT INTO set_aside VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (block.content, id, block.partition, block.first, block.end - block.first, block.bytes, why, now),
        )


def gaps(connection: sqlite3.Connection, id: int) -> list[Gap]:
    """The gaps that retention has not removed, by partition and offset."""
    rows = connection.execute(
        "SELECT partition, first, first + records, records FROM blocks WHERE topic = ? AND content IS NULL"
        " ORDER BY partition, first",
        (id,),
    )
    return [Gap(*row) for row in rows]


def _damage(block: Stored, why: str) -> Damage:
    return Damage(block.partition, block.first, block.end, why)
