"""The log's own time, by which retention and the memory of producers measure ages.

The wall clock can be wrong, and a wrong clock must not remove records. The log therefore follows the wall clock with
three rules, for each look at the clock:

- A clock that is up to an hour ahead of the log's time is right. One that is up to an hour behind is waited for.
- A clock that is further ahead is in doubt: the machine may have been off, or the clock may be wrong. The log's time
  stands still until the clock has advanced ten minutes more, and then continues from where the clock was when the
  doubt began. If the clock comes back before, the doubt is dropped.
- A clock that is further behind is not followed: the log's time continues with the time that passes on that clock, at
  most an hour between two looks.

Appends are stamped with the log's time, or with the wall clock while it is in doubt. When a doubt ends, stamps that
are still in the future are set to the log's time.
"""

import sqlite3
from dataclasses import dataclass

from millrace.model.duration import SECOND

JUMP = 3_600 * SECOND
"""A larger difference between the clock and the log's time is a jump."""

GRACE = 600 * SECOND
"""How far a clock that jumped ahead must advance to be believed."""

_STORED = 60 * SECOND
"""The log's time is stored once a minute, because each stored change costs an append a page."""


@dataclass(frozen=True, slots=True)
class LogTime:
    """The log's time at a look at the wall clock. Instants are microseconds since 1970."""

    own: int
    wall: int
    seen: int | None = None
    """The wall clock when it was first seen ahead, or later if it was less; None if it is not in doubt."""

    @property
    def stamp(self) -> int:
        """The time to stamp appends with."""
        return self.own if self.seen is None else self.wall


def moved(time: LogTime, wall: int) -> LogTime:
    """The log's time at the next look at the wall clock."""
    own, seen = time.own, time.seen
    if seen is not None and wall >= seen + GRACE:
        own, seen = max(own, seen), None
    if wall > own + JUMP:
        return LogTime(own, wall, wall if seen is None else min(seen, wall))
    if wall >= own - JUMP:
        return LogTime(max(own, wall), wall)
    return LogTime(own + min(max(0, wall - time.wall), JUMP), wall)


def jump(time: LogTime, wall: int) -> int | None:
    """How far the wall clock is ahead if it was in doubt and still is, or how far it is behind; None if it is right.

    A log that nobody has appended to for an hour is behind the clock, too; that is no jump.
    """
    after = moved(time, wall)
    if after.seen is not None and after.seen == time.seen:
        return wall - after.own
    return after.own - wall if after.own - wall > JUMP else None


def load_time(connection: sqlite3.Connection) -> LogTime | None:
    """The stored time; None before the first append."""
    own, wall, seen = connection.execute("SELECT own, wall, seen FROM log").fetchone()
    return None if own is None else LogTime(own, wall, seen)


def is_due(before: LogTime | None, after: LogTime) -> bool:
    """Whether the time has changed so much that it is stored."""
    return (
        before is None
        or before.seen != after.seen
        or abs(after.wall - before.wall) >= _STORED
        or after.own - before.own >= _STORED
    )


def tick(connection: sqlite3.Connection, wall: int) -> LogTime:
    """Advance the log's time to the wall clock, in a write transaction."""
    before = load_time(connection)
    after = LogTime(wall, wall) if before is None else moved(before, wall)
    if is_due(before, after):
        _store(connection, after)
        if before is not None and before.seen is not None and (after.seen is None or after.seen > before.seen):
            _settle(connection, after.own)  # the doubt has ended, even if another one has begun
    return after


def follow(connection: sqlite3.Connection, wall: int) -> None:
    """Set the log's time to the wall clock, whatever it says. Where that is earlier, ages stay as they are."""
    before = load_time(connection)
    if before is None:
        return
    _store(connection, LogTime(wall, wall))
    _settle(connection, max(before.own, wall))
    back = before.own - wall
    if back > 0:
        connection.execute("UPDATE blocks SET begun = begun - ?, ended = ended - ?", (back, back))
        connection.execute("UPDATE sequences SET at = at - ?", (back,))


def _store(connection: sqlite3.Connection, time: LogTime) -> None:
    connection.execute("UPDATE log SET own = ?, wall = ?, seen = ?", (time.own, time.wall, time.seen))


def _settle(connection: sqlite3.Connection, own: int) -> None:
    """Set stamps of a clock that was wrong to the log's time. Those of the last minutes of a doubt may remain."""
    future = own + GRACE
    connection.execute("UPDATE blocks SET begun = min(begun, ?), ended = ? WHERE ended > ?", (own, own, future))
    connection.execute("UPDATE sequences SET at = ? WHERE at > ?", (own, future))
