"""The offsets that consumer groups have reported."""

import json
import sqlite3
from collections.abc import Sequence

from millrace.eventlog import blocks
from millrace.eventlog.topic import find_topic
from millrace.model.errors import not_found, refuse


def report(connection: sqlite3.Connection, group: str, topic: str, offsets: Sequence[int], member: str) -> None:
    """Store the next offsets of a member of a consumer group, one for each partition."""
    id, about = find_topic(connection, topic)
    if len(offsets) != about.partitions:
        raise refuse(f"topic {topic!r} has {about.partitions} partitions, but {len(offsets)} offsets are given")
    row = (id, group, member, json.dumps([int(offset) for offset in offsets]))
    connection.execute("INSERT OR REPLACE INTO consumers VALUES (?, ?, ?, ?)", row)


def forget(connection: sqlite3.Connection, group: str) -> None:
    """Remove the offsets of a consumer group. Refuses an unknown one."""
    rows = connection.execute("SELECT DISTINCT consumer_group FROM consumers ORDER BY 1").fetchall()
    known = [name for (name,) in rows]
    if group not in known:
        raise not_found("consumer group", group, known, "millrace topics list shows them")
    connection.execute("DELETE FROM consumers WHERE consumer_group = ?", (group,))


def lags(connection: sqlite3.Connection, topic: str) -> dict[str, int]:
    """The lag of each consumer group, in stored records: that of its slowest member. Needs a snapshot."""
    id, _ = find_topic(connection, topic)
    asked = "SELECT consumer_group, offsets FROM consumers WHERE topic = ? ORDER BY consumer_group"
    consumers = [(group, json.loads(offsets)) for group, offsets in connection.execute(asked, (id,))]
    bounds = blocks.bounds(connection, id)
    found: dict[str, int] = {}
    for group, offsets in consumers:
        behind = sum(max(0, end - max(start, at)) for (start, end), at in zip(bounds, offsets, strict=True))
        found[group] = max(behind, found.get(group, 0))
    return found
