"""What producers have appended of late, so that an append that is repeated adds nothing."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from millrace.model.duration import SECOND
from millrace.model.errors import ConflictError

REMEMBERED = 16
"""How many appends of a producer are remembered."""

FORGOTTEN = 30 * 86_400 * SECOND
"""A producer is forgotten so long after its last append."""

_OF = "topic = ? AND producer = ?"


@dataclass(frozen=True, slots=True)
class Appended:
    """Records of an append, one after the other in a partition."""

    partition: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class SequenceMark:
    """Which append this is. One of another session is another, whatever its number."""

    producer: str
    sequence: int
    session: str = ""


def last(connection: sqlite3.Connection, topic: int, producer: str) -> int | None:
    """The last sequence number of a producer; None if it is not known."""
    (sequence,) = connection.execute(f"SELECT max(sequence) FROM sequences WHERE {_OF}", (topic, producer)).fetchone()
    return None if sequence is None else int(sequence)


def before(connection: sqlite3.Connection, topic: int, mark: SequenceMark) -> list[Appended] | None:
    """What the same append has added already; None if it is new. Refuses one that can be neither."""
    row = connection.execute(
        f"SELECT session, appended FROM sequences WHERE {_OF} AND sequence = ?", (topic, mark.producer, mark.sequence)
    ).fetchone()
    if row is None:
        newest = last(connection, topic, mark.producer)
        if newest is not None and mark.sequence < newest:
            raise ConflictError(
                f"producer {mark.producer!r} has come to sequence {newest}, and it is no longer known what "
                f"{mark.sequence} was",
                f"nothing of this was kept: go on after {newest}, or take another producer id",
            )
        return None
    if row[0] != mark.session:
        raise ConflictError(
            f"sequence {mark.sequence} of producer {mark.producer!r} is another's append",
            "nothing of this was kept: two that append at once need two producer ids",
        )
    return [Appended(*each) for each in json.loads(row[1])]


def remember(
    connection: sqlite3.Connection, topic: int, mark: SequenceMark, appended: Sequence[Appended], now: int
) -> None:
    """Note an append, and forget the oldest of that producer."""
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
    """Whether there may be something to forget."""
    return connection.execute("SELECT 1 FROM sequences WHERE at < ? LIMIT 1", (now - FORGOTTEN,)).fetchone() is not None


def forget(connection: sqlite3.Connection, now: int) -> None:
    """Forget producers that have long been silent."""
    connection.execute("DELETE FROM sequences WHERE at < ?", (now - FORGOTTEN,))
