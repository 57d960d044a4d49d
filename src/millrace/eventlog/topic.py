"""A topic: its name, partitions, retention and interceptors."""

import re
import sqlite3
import uuid
from dataclasses import dataclass
from typing import Any

from millrace.eventlog.intercept import INTERCEPTORS, Interceptor, dump, load
from millrace.model.duration import Duration, format_duration, parse_positive
from millrace.model.errors import ConflictError, not_found, refuse, shown

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_MOST_PARTITIONS = 1024
_COLUMNS = "name, partitions, max_age, max_bytes, interceptors"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. Ages are microseconds since a record was appended; bytes are sizes before compression."""

    name: str
    partitions: int = 1
    max_age: int | None = None
    max_bytes: int | None = None
    interceptors: tuple[Interceptor, ...] = ()

    def __post_init__(self) -> None:
        """Refuse invalid names, limits and interceptors."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name in (".", ".."):
            raise refuse(f"a topic is named by up to 200 letters, digits, '.', '_' and '-', not {shown(self.name)}")
        if not _is_whole(self.partitions) or not 1 <= self.partitions <= _MOST_PARTITIONS:
            raise refuse(f"a topic has 1 to {_MOST_PARTITIONS} partitions, not {shown(self.partitions)}")
        for limit, what in ((self.max_age, "max_age"), (self.max_bytes, "max_bytes")):
            if limit is not None and (not _is_whole(limit) or limit < 1):
                raise refuse(f"{what} must be at least 1, or None to keep all, not {shown(limit)}")
        for interceptor in self.interceptors:
            if not isinstance(interceptor, INTERCEPTORS):
                raise refuse(f"an interceptor is the result of add, drop, rename or keep, not {shown(interceptor)}")

    def __str__(self) -> str:
        limits = [] if self.max_age is None else [f"kept {format_duration(self.max_age)}"]
        limits += [] if self.max_bytes is None else [f"at most {self.max_bytes} bytes"]
        parts = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return ", ".join([f"{self.name}: {parts}", *limits, *map(str, self.interceptors)])


def age(given: int | Duration | None) -> int | None:
    """An age in microseconds, from microseconds or a duration."""
    return given if given is None or isinstance(given, int) else parse_positive(given, "max_age")


def insert_topic(connection: sqlite3.Connection, topic: Topic) -> None:
    """Create a topic. Refuses a name that exists."""
    if connection.execute("SELECT 1 FROM topics WHERE name = ?", (topic.name,)).fetchone():
        raise ConflictError(f"topic {topic.name!r} exists already", "choose another name, or remove it first")
    made = connection.execute(
        f"INSERT INTO topics (uid, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", (uuid.uuid4().hex, *_row(topic))
    ).lastrowid
    rows = [(made, number) for number in range(topic.partitions)]
    connection.executemany("INSERT INTO partitions VALUES (?, ?, 0)", rows)


def update_topic(connection: sqlite3.Connection, id: int, topic: Topic) -> None:
    """Update the settings of a topic."""
    connection.execute(f"UPDATE topics SET ({_COLUMNS}) = (?, ?, ?, ?, ?) WHERE id = ?", (*_row(topic), id))


def delete_topic(connection: sqlite3.Connection, id: int) -> None:
    """Delete a topic with its records, producer sequences and consumer offsets. Content that was set aside stays."""
    connection.execute("DELETE FROM contents WHERE id IN (SELECT content FROM blocks WHERE topic = ?)", (id,))
    for table in ("blocks", "partitions", "sequences", "consumers"):
        connection.execute(f"DELETE FROM {table} WHERE topic = ?", (id,))
    connection.execute("DELETE FROM topics WHERE id = ?", (id,))


def all_topics(connection: sqlite3.Connection) -> list[Topic]:
    """All topics, by name."""
    return [_topic(row) for row in connection.execute(f"SELECT {_COLUMNS} FROM topics ORDER BY name")]


def find_topic(connection: sqlite3.Connection, name: str, advice: str | None = None) -> tuple[int, Topic]:
    """A topic and its id; ids are never reused. Raises NotFoundError if the topic does not exist.

    The default advice is to name a topic that exists.
    """
    row = connection.execute(f"SELECT id, {_COLUMNS} FROM topics WHERE name = ?", (name,)).fetchone()
    if row is None:
        known = [each.name for each in all_topics(connection)]
        raise not_found("topic", name, known, advice or ("name one of them" if known else "the log has no topics"))
    return row[0], _topic(row[1:])


def find_uid(connection: sqlite3.Connection, name: str) -> str:
    """The unique id of a topic. Raises MillraceError if the topic does not exist."""
    id, _ = find_topic(connection, name)
    (uid,) = connection.execute("SELECT uid FROM topics WHERE id = ?", (id,)).fetchone()
    return str(uid)


def _row(topic: Topic) -> tuple[Any, ...]:
    return topic.name, topic.partitions, topic.max_age, topic.max_bytes, dump(topic.interceptors)


def _topic(row: tuple[Any, ...]) -> Topic:
    name, partitions, max_age, max_bytes, interceptors = row
    return Topic(name, partitions, max_age, max_bytes, load(interceptors))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
