"""Group commit: appends the records of concurrent requests to the log together.

The fsync of an append takes as long for one record as for many. So while an append runs, new requests wait; then all
that have come meanwhile are decoded, checked and appended together, in one thread that nothing else uses. Each request
is judged by itself. What waits is bounded in bytes; beyond that, requests are told to come again.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from millrace.eventlog.topics import Log
from millrace.model.errors import Kind, MillraceError
from millrace.server.body import Body, records_of_each
from millrace.server.gate import Gate, Marks
from millrace.server.refusals import BusyError
from millrace.sources.collect import keys_of

_FRESH = 0.2
"""How many seconds a lag is cached."""
_TOGETHER = 16 << 20
"""About how many bytes are appended together."""
_ROOM = 256 << 20
"""How many bytes of request bodies the server holds."""


@dataclass(frozen=True, slots=True)
class Post:
    """Records to append to a topic."""

    body: Body
    key: str | None = None
    """The field whose value assigns a record to a partition."""
    producer: str | None = None
    sequence: int | None = None


@dataclass(slots=True)
class Waiting:
    """A request that waits to be appended; it learns the number of its records."""

    post: Post
    done: asyncio.Future[int]


class Collector:
    """Appends the records of requests to one log."""

    def __init__(self, log: Log, marks: Marks, clock: Callable[[], float], room: int = _ROOM) -> None:
        """`clock` counts seconds. `room` is the number of bytes that may wait."""
        self._log, self._clock, self._room = log, clock, room
        self._gate = Gate(marks)
        self._lags: dict[str, tuple[float, int]] = {}
        self._waiting: dict[tuple[str, bool], list[Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(2, "millrace-append")

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Hold bytes of a request body until the block ends: the function takes more. Raises BusyError if too many."""
        held = 0

        def hold(more: int) -> None:
            nonlocal held
            if more > self._room:
                raise BusyError("the server holds as many records as it can", "send the records again later")
            held += more
            self._room -= more

        try:
            yield hold
        finally:
            self._room += held

    async def append(self, topic: str, post: Post) -> int:
        """Append; when this returns the number of records, they are on the disk. Raises BusyError if there is no room.

        An unknown topic is refused, even if there are no records.
        """
        mine = Waiting(post, asyncio.get_running_loop().create_future())
        # Appends of producers are idempotent one by one, so each is an append of its own: they wait in another line.
        line = topic, post.producer is not None
        if line in self._waiting:
            self._waiting[line].append(mine)
        else:
            self._waiting[line] = [mine]
            task = asyncio.create_task(self._drain(line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await mine.done

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)

    async def _drain(self, line: tuple[str, bool]) -> None:
        """Append the waiting requests until there are none."""
        loop = asyncio.get_running_loop()
        while waiting := self._waiting[line]:
            some = waiting[: _first(waiting)]
            self._waiting[line] = waiting[len(some) :]
            posts = [each.post for each in some]
            try:
                outcomes = await loop.run_in_executor(self._threads, self._appended, line[0], posts)
            except BaseException as error:  # every waiting request gets the error, and the collector continues
                outcomes = [error if isinstance(error, Exception) else _stopped()] * len(some)
            for each, outcome in zip(some, outcomes, strict=True):
                if each.done.done():  # the client has disconnected
                    continue
                if isinstance(outcome, int):
                    each.done.set_result(outcome)
                else:
                    each.done.set_exception(outcome)
        del self._waiting[line]

    def _appended(self, topic: str, posts: Sequence[Post]) -> list[int | Exception]:
        """Decode, check and append posts; the number of records of each, or why it is refused. Runs in a thread."""
        try:
            if not self._gate.admits(topic, self._lag(topic)):
                advice = "send the records again later"
                raise BusyError(f"the consumer groups of topic {topic!r} lag too far behind", advice)
        except MillraceError as error:  # an unknown topic
            return [error] * len(posts)
        decoded = records_of_each([post.body for post in posts])
        outcomes: list[int | Exception] = [each if isinstance(each, MillraceError) else len(each) for each in decoded]
        good = [
            (place, posts[place], each) for place, each in enumerate(decoded) if not isinstance(each, MillraceError)
        ]
        for place, why in self._put(topic, [each for each in good if len(each[2])]):
            outcomes[place] = why
        return outcomes

    def _put(self, topic: str, good: Sequence[tuple[int, Post, pa.Array]]) -> Iterator[tuple[int, Exception]]:
        """Append the records of posts; the place and the error of those that are refused."""
        if not good:
            return
        try:
            values = pa.concat_arrays([values for _, _, values in good])
            has_keys = any(post.key is not None for _, post, _ in good)
            keys = pa.concat_arrays([_keys(post, values) for _, post, values in good]) if has_keys else None
            first = good[0][1]
            if len(good) == 1 and first.producer is not None:
                self._log.append(topic, values, keys, producer=first.producer, sequence=first.sequence)
            else:
                self._log.append(topic, values, keys)
        except Exception as error:
            if len(good) == 1 or (isinstance(error, MillraceError) and error.kind is Kind.MACHINE):
                yield from ((place, error) for place, _, _ in good)
                return
            for each in good:  # one of them is at fault
                yield from self._put(topic, [each])

    def _lag(self, topic: str) -> int:
        now = self._clock()
        known = self._lags.get(topic)
        if known is None or known[0] + _FRESH < now:
            self._log.topic(topic)  # its error says how to make the topic
            known = self._lags[topic] = now, max(self._log.lag(topic).values(), default=0)
        return known[1]


def _first(waiting: Sequence[Waiting]) -> int:
    """How many of the waiting requests are appended together: one of a producer, or some of the others."""
    if waiting[0].post.producer is not None:
        return 1
    size = 0
    for count, each in enumerate(waiting):
        size += len(each.post.body.content)
        if size > _TOGETHER and count:
            return count
    return len(waiting)


def _keys(post: Post, values: pa.Array) -> pa.Array:
    if post.key is None:
        return pa.nulls(len(values), pa.string())
    return keys_of(values, post.key).cast(pa.string())


def _stopped() -> MillraceError:
    return BusyError("the server stops", "send the records again later")
