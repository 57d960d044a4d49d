"""What a log does beside appends: it removes expired records and forgets silent producers, by its own time."""

from millrace.eventlog import blocks, logtime, sequences
from millrace.eventlog.database import Database
from millrace.eventlog.topic import all_topics, find_topic


def retain(database: Database, wall: int) -> dict[str, int]:
    """Apply retention to all topics, in whole blocks. Returns the number of removed records by topic."""
    now = _own_time(database, wall)
    removed: dict[str, int] = {}
    with database.read() as connection:
        topics = all_topics(connection)
    for topic in topics:
        while count := _expire(database, topic.name, now):
            removed[topic.name] = removed.get(topic.name, 0) + count
    with database.read() as connection:
        silent = sequences.any_silent(connection, now)
    if silent:
        with database.write() as connection:
            sequences.forget(connection, now)
    return removed


def _own_time(database: Database, wall: int) -> int:
    """The log's time now; it is stored if it has changed much."""
    with database.read() as connection:
        before = logtime.load_time(connection)
    if before is None:
        return wall
    after = logtime.moved(before, wall)
    if logtime.is_due(before, after):
        with database.write() as connection:
            after = logtime.tick(connection, wall)
    return after.own


def _expire(database: Database, topic: str, now: int) -> int:
    """Remove some expired blocks; a read checks for them first, to avoid needless write transactions."""
    with database.snapshot() as connection:
        id, about = find_topic(connection, topic)
        if not blocks.expired(connection, id, about, now):
            return 0
    with database.write() as connection:
        id, about = find_topic(connection, topic)
        found = blocks.expired(connection, id, about, now)
        blocks.expire(connection, id, found)
    return sum(block.records for block in found)
