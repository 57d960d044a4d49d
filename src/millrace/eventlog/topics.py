"""The embedded log: topics in one SQLite file, each in partitions, each record at an offset that never changes.

    log = Log(".millrace/log.db")
    log.create("plays", partitions=4, max_age="7d")
    log.append("plays", [b'{"track": "Hey"}'], keys=[b"ann"])
    log.read("plays", 0, 0, log.ends("plays")[0])

Guarantees: an append is durable when it returns, and atomic; the offsets of a partition have no gaps between its start
and its end, except where damaged blocks were skipped; only retention moves the start, and the end only grows. Any
number of processes may append and read concurrently. Where nothing may be written, a log can be read.
"""

import shlex
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any

import pyarrow as pa

from millrace.eventlog import blocks, consumers, damage, logtime, reading, sequences, upkeep
from millrace.eventlog.content import cut
from millrace.eventlog.damage import Damage, Gap
from millrace.eventlog.database import Database
from millrace.eventlog.intercept import Interceptor, intercept
from millrace.eventlog.marks import mark_at, new_mark
from millrace.eventlog.partition import spread
from millrace.eventlog.records import Headers, Texts, records_of
from millrace.eventlog.sequences import Appended, SequenceMark
from millrace.eventlog.topic import (
    Topic,
    age,
    all_topics,
    delete_topic,
    find_topic,
    find_uid,
    insert_topic,
    update_topic,
)
from millrace.model.duration import SECOND, Duration
from millrace.model.errors import ConflictError, CorruptError, MillraceError, NotFoundError, refuse

__all__ = ["DEFAULT_LOG", "Appended", "Damage", "Gap", "Log", "Topic", "existing_log", "now"]

DEFAULT_LOG = Path(".millrace", "log.db")
"""The log of commands that name no other."""

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
        """A topic by its name. Raises NotFoundError, which lists the known topics, if there is none."""
        with self._database.read() as connection:
            return find_topic(connection, name, f"make it: {_creating(self.path, name)}")[1]

    @property
    def id(self) -> str:
        """The id of the log. Copies of the file share it; no other log has it."""
        with self._database.read() as connection:
            return str(connection.execute("SELECT id FROM log").fetchone()[0])

    def uid_of(self, topic: str) -> str:
        """The id of a topic; no other topic of any log has or had it, not even an earlier one of the same name."""
        with self._database.snapshot() as connection:
            return find_uid(connection, topic)

    def marks(self, topic: str, offsets: Sequence[int]) -> list[int | None]:
        """For each partition, the mark of the append that wrote the record before an offset.

        None if the offset is 0, if that record is no longer stored, or if the offset is beyond the end. Two logs with
        the same mark at an offset have the same records before it.
        """
        with self._database.snapshot() as connection:
            id, about = find_topic(connection, topic)
            if len(offsets) != about.partitions:
                raise refuse(f"topic {topic!r} has {about.partitions} partitions, but {len(offsets)} offsets are given")
            return [mark_at(connection, id, partition, offset - 1) for partition, offset in enumerate(offsets)]

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
            raise refuse("an idempotent append needs both producer= and sequence=")
        with self._database.read() as connection:
            id, about = find_topic(connection, topic, f"make it: {_creating(self.path, topic)}")
            ends = [end for _, end in blocks.bounds(connection, id)]
        wall = self._clock()
        records = records_of(values, keys, timestamps, headers, wall)
        mark = None if producer is None or sequence is None else SequenceMark(producer, sequence, session)
        parts = spread(intercept(about.interceptors, records), about.partitions, ends)
        pieces = [blocks.piece_of(partition, piece) for partition, part in parts for piece in cut(part)]
        try:
            appended = self._put(id, about, pieces, mark, wall)
        except CorruptError:  # a block to merge with is damaged, which must not stop appends
            appended = self._put(id, about, pieces, mark, wall, merge=False)
        if not 0 <= wall - self._retained < _RETAIN_EVERY:  # a clock may be turned back
            self._retained = wall
            with suppress(MillraceError, sqlite3.Error):  # the append is committed, even if retention fails
                self.retain()
        return appended

    def last(self, topic: str, producer: str) -> int | None:
        """The last sequence number of a producer; None if it never appended, or if its appends are forgotten by now."""
        with self._database.read() as connection:
            return sequences.last(connection, find_topic(connection, topic)[0], producer)

    def last_append(self, topic: str, producer: str) -> tuple[int, str] | None:
        """The sequence number and the session of the last append of a producer; None as for `last`."""
        with self._database.read() as connection:
            return sequences.last_append(connection, find_topic(connection, topic)[0], producer)

    def producers(self, topic: str, prefix: str) -> list[str]:
        """The producers of a topic whose last appends are stored and whose names start with a prefix."""
        with self._database.read() as connection:
            return sequences.producers(connection, find_topic(connection, topic)[0], prefix)

    def starts(self, topic: str) -> list[int]:
        """The first stored offset of each partition."""
        return [start for start, _ in self._bounds(topic)]

    def ends(self, topic: str) -> list[int]:
        """The next offset of each partition."""
        return [end for _, end in self._bounds(topic)]

    def at_time(self, topic: str, instant: int) -> list[int]:
        """The first offset of each partition with a timestamp at or after an instant; its end if there is none."""
        with self._database.snapshot() as connection:
            return reading.at_time(connection, topic, instant)

    def latest(self, topic: str) -> int | None:
        """The latest timestamp of a topic's records; None if it has none. Reads metadata only."""
        with self._database.read() as connection:
            return blocks.latest(connection, find_topic(connection, topic)[0])

    def sizes(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, int, int]]:
        """The blocks that overlap an offset range: first offset, number of records, bytes. Reads metadata only.

        A gap has 0 bytes.
        """
        with self._database.read() as connection:
            return blocks.sizes(connection, find_topic(connection, topic)[0], partition, start, end)

    def read(self, topic: str, partition: int, start: int, end: int) -> pa.Table:
        """The records from `start` to before `end`: key, value, offset, timestamp, headers, each column in one chunk.

        Records of gaps are left out, so that offsets may have holes. Raises NotFoundError if retention removed some
        records, or if they are beyond the end, and CorruptError if a block is damaged.
        """
        with self._database.snapshot() as connection:
            return reading.read(connection, topic, partition, start, end)

    def check_metadata(self) -> None:
        """Raise CorruptError if SQLite cannot read all rows of the file; the content of blocks is left to `damaged`."""
        damage.check_metadata(self._database)

    def damaged(self, topic: str, progress: Callable[[int, int], object] | None = None) -> list[Damage]:
        """Read all records of a topic and return what is damaged; calls `progress` with bytes read and bytes in all."""
        return damage.damaged(self._database, topic, progress)

    def skip_damaged(self, topic: str, partition: int, first: int) -> None:
        """Replace a damaged block, found by `damaged`, by a gap. Its content is set aside, and no offset changes.

        Refuses a block that is not damaged. Skipping a gap again does nothing.
        """
        damage.skip(self._database, topic, partition, first, self._clock())

    def gaps(self, topic: str) -> list[Gap]:
        """The gaps of a topic: offsets whose records were damaged and skipped, unless retention has passed them."""
        with self._database.read() as connection:
            return damage.gaps(connection, find_topic(connection, topic)[0])

    def clock_jump(self) -> int | None:
        """By how many microseconds the wall clock jumped; None if it did not.

        A jump is a clock more than an hour ahead of the log's own time when something was appended in the last ten
        minutes, so that it is in doubt; or one that is more than an hour behind the log's time.
        """
        with self._database.read() as connection:
            time = logtime.load_time(connection)
        return None if time is None else logtime.jump(time, self._clock())

    def follow_clock(self) -> None:
        """Set the log's own time to the wall clock, for a person who knows that this clock is right.

        If the log's time was ahead, the ages of records stay as they are. A clock that is ahead is believed at once.
        """
        with self._database.write() as connection:
            logtime.follow(connection, self._clock())

    def retain(self) -> dict[str, int]:
        """Apply retention to all topics, in whole blocks. Returns the number of removed records by topic.

        Ages are measured by the log's own time. `append` does this every few seconds.
        """
        return upkeep.retain(self._database, self._clock())

    def report(self, group: str, topic: str, offsets: Sequence[int], member: str = "") -> None:
        """Store the next offsets of a consumer group, one for each partition. A power cut may undo it.

        A group that reads a topic several times reports as several members.
        """
        with self._database.write(durable=False) as connection:
            consumers.report(connection, group, topic, offsets, member)

    def forget(self, group: str) -> None:
        """Remove the offsets of a consumer group, so that no producer waits for it. A running group reports again."""
        with self._database.write() as connection:
            consumers.forget(connection, group)

    def lag(self, topic: str) -> dict[str, int]:
        """The lag of each consumer group, in stored records: that of its slowest member."""
        with self._database.snapshot() as connection:
            return consumers.lags(connection, topic)

    def _put(
        self,
        id: int,
        topic: Topic,
        pieces: list[blocks.Piece],
        mark: SequenceMark | None,
        wall: int,
        merge: bool = True,
    ) -> list[Appended]:
        """Append pieces in one transaction, unless the same append was made before."""
        with self._database.write() as connection:
            if find_topic(connection, topic.name)[0] != id:
                raise ConflictError(
                    f"topic {topic.name!r} was removed and made again meanwhile",
                    "this append was not kept: send all records to the new topic",
                )
            before = None if mark is None else sequences.before(connection, id, mark)
            if before is not None:
                return before
            stamp = logtime.tick(connection, wall).stamp
            appended = blocks.put(connection, id, topic, pieces, stamp, new_mark(), merge)
            if mark is not None:
                sequences.remember(connection, id, mark, appended, stamp)
        return appended

    def _bounds(self, topic: str) -> list[tuple[int, int]]:
        with self._database.snapshot() as connection:
            return blocks.bounds(connection, find_topic(connection, topic)[0])


def existing_log(path: str | Path, topic: str = "NAME") -> Log:
    """Open a log that exists. Raises NotFoundError, with the command that creates it and a topic, if there is none."""
    if not Path(path).exists():
        raise NotFoundError(f"there is no log {path}", f"make it with a topic: {_creating(path, topic)}")
    return Log(path)


def _creating(path: str | Path, topic: str) -> str:
    """The command that creates a topic, and the log if there is none."""
    where = [] if Path(path).absolute() == DEFAULT_LOG.absolute() else ["--log", str(path)]
    return shlex.join(["millrace", "topics", "create", topic, *where])
