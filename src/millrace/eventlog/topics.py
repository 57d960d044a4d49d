"""The embedded log: topics in one SQLite file, each in partitions, each record at an offset that never changes.

    log = Log(".millrace/log.db")
    log.create("plays", partitions=4, max_age="7d")
    log.append("plays", [b'{"track": "Hey"}'], keys=[b"ann"])
    log.read("plays", 0, 0, log.ends("plays")[0])

Guarantees: an append is durable when it returns, and atomic; the offsets of a partition have no gaps between its start
and its end; only retention moves the start, and the end only grows. Any number of processes may append and read
concurrently.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.eventlog import blocks, sequences
from millrace.eventlog.content import cut, decode
from millrace.eventlog.database import Database
from millrace.eventlog.intercept import Interceptor, intercept
from millrace.eventlog.partition import spread
from millrace.eventlog.records import SCHEMA, Headers, Texts, records_of
from millrace.eventlog.sequences import Appended, SequenceMark
from millrace.eventlog.topic import Topic, age, all_topics, delete_topic, find_topic, insert_topic, update_topic
from millrace.model.duration import SECOND, Duration
from millrace.model.errors import MachineError, MillraceError, NotFoundError, not_found, refuse

__all__ = ["Appended", "Log", "Topic", "now"]

_RETAIN_EVERY = 5 * SECOND


def now() -> int:
    """Microseconds since 1970, from the system clock."""
    return time.time_ns() // 1000


class Log:
    """A log in a file. Threads may share it; it can be pickled and used after a fork."""

    def __init__(self, path: str | Path, clock: Callable[[], int] = now) -> None:
        """Open the log, or create it and its folder. Raises MillraceError if that fails."""
        self.path = Path(path).absolute()
        self._clock = clock
        self._database = Database(self.path)
        self._retained = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Log, (self.path, self._clock)

    def __repr__(self) -> str:
        return f"Log({str(self.path)!r})"

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections; later calls open new ones."""
        self._database.close()

    def create(
        self,
        name: str,
        partitions: int = 1,
        max_age: int | Duration | None = None,
        max_bytes: int | None = None,
        interceptors: Iterable[Interceptor] = (),
    ) -> Topic:
        """Create a topic. Refuses a name that exists. An age is microseconds or a duration such as "7d"."""
        made = Topic(name, partitions, age(max_age), max_bytes, tuple(interceptors))
        with self._database.write() as connection:
            insert_topic(connection, made)
        return made

    def change(
        self,
        name: str,
        *,
        max_age: int | Duration | EllipsisType | None = ...,
        max_bytes: int | EllipsisType | None = ...,
        interceptors: Iterable[Interceptor] | EllipsisType = ...,
    ) -> Topic:
        """Change the given settings of a topic. Interceptors do not apply to stored records; retention does."""
        changes: dict[str, Any] = {
            **({} if max_age is ... else {"max_age": age(max_age)}),
            **({} if max_bytes is ... else {"max_bytes": max_bytes}),
            **({} if interceptors is ... else {"interceptors": tuple(interceptors)}),
        }
        with self._database.write() as connection:
            id, old = find_topic(connection, name)
            changed = replace(old, **changes)
            update_topic(connection, id, changed)
        return changed

    def remove(self, name: str) -> None:
        """Delete a topic and its records. The file keeps its size; later appends reuse the space."""
        with self._database.write() as connection:
            delete_topic(connection, find_topic(connection, name)[0])

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        with self._database.read() as connection:
            return all_topics(connection)

    def topic(self, name: str) -> Topic:
        """A topic by its name. Raises MillraceError, which lists the known topics, if there is none."""
        with self._database.read() as connection:
            return find_topic(connection, name)[1]

    def id_of(self, name: str) -> int:
        """The id of a topic; no other topic of the log has or had it, not even an earlier one of the same name."""
        with self._database.read() as connection:
            return find_topic(connection, name)[0]

    def append(
        self,
        topic: str,
        values: Texts,
        keys: Texts | None = None,
        timestamps: pa.Array | pa.ChunkedArray | Sequence[Any] | None = None,
        headers: pa.Array | pa.ChunkedArray | Sequence[Headers | None] | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        session: str = "",
    ) -> list[Appended]:
        """Append records atomically; returns their offset ranges when they are on the disk.

        A value may be NULL, a tombstone in Kafka. Records of one key stay in order, in one partition; records that the
        topic's interceptors drop are not stored. With a producer and an increasing sequence number the append is
        idempotent: a repeated one adds nothing and returns the first result. A session detects two producers that share
        a name by mistake: a sequence number that another session used is refused.
        """
        if (producer is None) != (sequence is None):
            raise refuse("an append that may be repeated needs both producer= and sequence=")
        with self._database.read() as connection:
            id, about = find_topic(connection, topic)
            ends = [end for _, end in blocks.bounds(connection, id)]
        clock = self._clock()
        records = records_of(values, keys, timestamps, headers, clock)
        mark = None if producer is None or sequence is None else SequenceMark(producer, sequence, session)
        parts = spread(intercept(about.interceptors, records), about.partitions, ends)
        pieces = [blocks.piece_of(partition, piece) for partition, part in parts for piece in cut(part)]
        with self._database.write() as connection:
            if find_topic(connection, topic)[0] != id:
                raise MachineError(f"topic {topic!r} was made anew meanwhile", "nothing of this was kept: do it again")
            before = None if mark is None else sequences.before(connection, id, mark)
            if before is not None:
                return before
            appended = blocks.put(connection, id, about, pieces, clock)
            if mark is not None:
                sequences.remember(connection, id, mark, appended, clock)
        if clock - self._retained >= _RETAIN_EVERY:
            self._retained = clock
            with suppress(MillraceError):  # the append is committed, even if retention fails
                self.retain()
        return appended

    def last(self, topic: str, producer: str) -> int | None:
        """The last sequence number of a producer; None if it never appended, or if its appends are forgotten by now."""
        with self._database.read() as connection:
            return sequences.last(connection, find_topic(connection, topic)[0], producer)

    def starts(self, topic: str) -> list[int]:
        """The first stored offset of each partition."""
        return [start for start, _ in self._bounds(topic)]

    def ends(self, topic: str) -> list[int]:
        """The next offset of each partition."""
        return [end for _, end in self._bounds(topic)]

    def at_time(self, topic: str, instant: int) -> list[int]:
        """The first offset of each partition with a timestamp at or after an instant; its end if there is none."""
        offsets = []
        with self._database.snapshot() as connection:
            id, _ = find_topic(connection, topic)
            for partition, (_, end) in enumerate(blocks.bounds(connection, id)):
                first = blocks.first_since(connection, id, partition, instant)
                if first is not None:
                    ((_, records),) = _decoded(connection, id, topic, partition, first, first + 1)
                    end = first + int(np.argmax(records["timestamp"].cast(pa.int64()).to_numpy() >= instant))
                offsets.append(end)
        return offsets

    def sizes(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, int, int]]:
        """The blocks that overlap an offset range: first offset, number of records, bytes. Reads metadata only."""
        with self._database.read() as connection:
            return blocks.sizes(connection, find_topic(connection, topic)[0], partition, start, end)

    def read(self, topic: str, partition: int, start: int, end: int) -> pa.Table:
        """The records from `start` to before `end`: key, value, offset, timestamp, headers, each column in one chunk.

        Raises NotFoundError if retention removed some of them, or if they are beyond the end.
        """
        with self._database.snapshot() as connection:
            id, about = find_topic(connection, topic)
            if not 0 <= partition < about.partitions:
                raise NotFoundError(
                    f"topic {topic!r} has no partition {partition}", f"it has only 0 to {about.partitions - 1}"
                )
            _check_bounds(f"{topic}/{partition}", start, end, blocks.bounds(connection, id)[partition])
            end = max(start, end)
            found = _decoded(connection, id, topic, partition, start, end)
        records = pa.concat_tables([SCHEMA.empty_table(), *(table for _, table in found)])
        records = records.slice(start - found[0][0] if found else 0, end - start).combine_chunks()
        return records.add_column(2, "offset", pa.array(np.arange(start, end)))

    def retain(self) -> dict[str, int]:
        """Apply retention to all topics, in whole blocks. Returns the number of removed records by topic.

        `append` does this every few seconds.
        """
        removed: dict[str, int] = {}
        for topic in self.topics():
            while count := self._expire(topic.name):
                removed[topic.name] = removed.get(topic.name, 0) + count
        with self._database.read() as connection:
            silent = sequences.any_silent(connection, self._clock())
        if silent:
            with self._database.write() as connection:
                sequences.forget(connection, self._clock())
        return removed

    def report(self, group: str, topic: str, offsets: Sequence[int], member: str = "") -> None:
        """Store the next offsets of a consumer group, one for each partition. A power cut may undo it.

        A group that reads a topic several times reports as several members.
        """
        with self._database.write(durable=False) as connection:
            id, about = find_topic(connection, topic)
            if len(offsets) != about.partitions:
                raise refuse(f"topic {topic!r} has {about.partitions} partitions, but {len(offsets)} offsets are given")
            row = (id, group, member, json.dumps([int(offset) for offset in offsets]))
            connection.execute("INSERT OR REPLACE INTO consumers VALUES (?, ?, ?, ?)", row)

    def forget(self, group: str) -> None:
        """Remove the offsets of a consumer group, so that no producer waits for it. A running group reports again."""
        with self._database.write() as connection:
            rows = connection.execute("SELECT DISTINCT consumer_group FROM consumers ORDER BY 1").fetchall()
            known = [name for (name,) in rows]
            if group not in known:
                raise not_found("consumer group", group, known, "millrace topics list shows them")
            connection.execute("DELETE FROM consumers WHERE consumer_group = ?", (group,))

    def lag(self, topic: str) -> dict[str, int]:
        """The lag of each consumer group, in stored records: that of its slowest member."""
        with self._database.snapshot() as connection:
            id, _ = find_topic(connection, topic)
            asked = "SELECT consumer_group, offsets FROM consumers WHERE topic = ? ORDER BY consumer_group"
            consumers = [(group, json.loads(offsets)) for group, offsets in connection.execute(asked, (id,))]
            bounds = blocks.bounds(connection, id)
        lags: dict[str, int] = {}
        for group, offsets in consumers:
            behind = sum(max(0, end - max(start, at)) for (start, end), at in zip(bounds, offsets, strict=True))
            lags[group] = max(behind, lags.get(group, 0))
        return lags

    def _bounds(self, topic: str) -> list[tuple[int, int]]:
        with self._database.snapshot() as connection:
            return blocks.bounds(connection, find_topic(connection, topic)[0])

    def _expire(self, topic: str) -> int:
        """Remove some expired blocks; a read checks for them first, to avoid needless write transactions."""
        with self._database.snapshot() as connection:
            id, about = find_topic(connection, topic)
            if not blocks.expired(connection, id, about, self._clock()):
                return 0
        with self._database.write() as connection:
            id, about = find_topic(connection, topic)
            found = blocks.expired(connection, id, about, self._clock())
            blocks.expire(connection, id, found)
        return sum(block.records for block in found)


def _decoded(
    connection: sqlite3.Connection, id: int, topic: str, partition: int, start: int, end: int
) -> list[tuple[int, pa.Table]]:
    """The decoded blocks that overlap an offset range: first offset, records."""
    found = blocks.contents(connection, id, partition, start, end)
    return [(first, decode(block, check, f"{topic}/{partition}, offset {first}")) for first, block, check in found]


def _check_bounds(where: str, start: int, end: int, kept: tuple[int, int]) -> None:
    """Refuse offsets that retention removed or that are beyond the end."""
    if start >= end:
        return
    if start < kept[0]:
        raise NotFoundError(
            f"offsets {start} to {min(end, kept[0]) - 1} of {where} are gone: retention removed them",
            f"start at {kept[0]}, and let the topic keep more: millrace topics change",
        )
    if end > kept[1]:
        raise NotFoundError(
            f"offsets {max(start, kept[1])} to {end - 1} of {where} are not there: it ends at {kept[1]}",
            "is this another log than the one that was read before?",
        )
