"""The recent appends of producers, which make a repeated append idempotent."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from millrace.model.duration import SECOND
from millrace.model.errors import ConflictError

REMEMBERED = 16
"""How many recent appends are stored for each producer."""

FORGOTTEN = 30 * 86_400 * SECOND
"""Appends are forgotten after this many microseconds."""

PIPELINES = "millrace:"
"""The names of pipelines as producers start with this. Their last appends are never forgotten: a pipeline may pause."""

_SILENT = f"at < ? AND producer NOT GLOB '{PIPELINES}*'"
_OF = "topic = ? AND producer = ?"


@dataclass(frozen=True, slots=True)
class Appended:
    """The offset range of an append in one partition."""

    partition: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class SequenceMark:
    """The identity of an append. Appends of different sessions differ, even with the same sequence number."""

    producer: str
    sequence: int
    session: str = ""


def last(connection: sqlite3.Connection, topic: int, producer: str) -> int | None:
    """The last sequence number of a producer; None if none is stored."""
    (sequence,) = connection.execute(f"SELECT max(sequence) FROM sequences WHERE {_OF}", (topic, producer)).fetchone()
    return None if sequence is None else int(sequence)


def last_append(connection: sqlite3.Connection, topic: int, producer: str) -> tuple[int, str] | None:
    """The sequence number and the session of the last append of a producer; None if none is stored."""
    row = connection.execute(
        f"SELECT sequence, session FROM sequences WHERE {_OF} ORDER BY sequence DESC LIMIT 1", (topic, producer)
    ).fetchone()
    return None if row is None else (int(row[0]), str(row[1]))


def producers(connection: sqlite3.Connection, topic: int, prefix: str) -> list[str]:
    """The producers of a topic whose names start with a prefix."""
    rows = connection.execute("SELECT DISTINCT producer FROM sequences WHERE topic = ?", (topic,))
    return [name for (name,) in rows if name.startswith(prefix)]


def before(connection: sqlite3.Connection, topic: int, mark: SequenceMark) -> list[Appended] | None:
    """The offset ranges of the same append if it is stored; None if it is new.

    Refuses a number below the last one that is no longer stored, and a number that another session used.
    """
    row = connection.execute(
        f"SELECT session, appended FROM sequences WHERE {_OF} AND sequence = ?", (topic, mark.producer, mark.sequence)
    ).fetchone()
    if row is None:
        newest = last(connection, topic, mark.producer)
        if newest is not None and mark.sequence < newest:
            raise ConflictError(
                f"producer {mark.producer!r} has reached sequence {newest}, and the log no longer knows append "
                f"{mark.sequence}",
                f"this append was not kept: continue after {newest}, or use another producer id",
            )
        return None
    if row[0] != mark.session:
        raise ConflictError(
            f"sequence {mark.sequence} of producer {mark.producer!r} belongs to another append",
            "this append was not kept: two producers that append at the same time need two ids",
        )
    return [Appended(*each) for each in json.loads(row[1])]


def remember(
    connection: sqlite3.Connection, topic: int, mark: SequenceMark, appended: Sequence[Appended], now: int
) -> None:
    """Store an append, and delete the oldest of its producer beyond REMEMBERED."""
    connection.execute(
        "INSERT INTO sequences VALUES (?, ?, ?, ?, ?, ?)",
        (topic, mark.producer, mark.sequence, mark.session, json.dumps([astuple(each) for each in appended]), now),
    )
    connection.execute(
        f"DELETE FROM sequences WHERE {_OF} AND sequence <= "
        f"(SELECT sequence FROM sequences WHERE {_OF} ORDER BY sequence DESC LIMIT 1 OFFSET {REMEMBERED})",
        (topic, mark.producer) * 2,
    )


def any_silent(connection: sqlite3.Connection, now: int) -> bool:
    """Whether `forget` would delete anything."""
    return (
        connection.execute(f"SELECT 1 FROM sequences WHERE {_SILENT} LIMIT 1", (now - FORGOTTEN,)).fetchone()
        is not None
    )


def forget(connection: sqlite3.Connection, now: int) -> None:
    """Delete appends that are older than FORGOTTEN."""
    connection.execute(f"DELETE FROM sequences WHERE {_SILENT}", (now - FORGOTTEN,))
