"""Group commit: appends the records of concurrent requests to the log together.

The fsync of an append takes as long for one record as for many. So while an append runs, new requests wait and are
appended together by the next one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from millrace.eventlog.topics import Log
from millrace.model.errors import MachineError
from millrace.server.gate import Gate, Marks

_FRESH = 0.2
"""How many seconds a lag is cached."""


class BusyError(MachineError):
    """The consumer groups of a topic lag too far behind."""


@dataclass(slots=True)
class Waiting:
    """A request that waits to be appended."""

    values: pa.Array
    keys: pa.Array | None
    done: asyncio.Future[None]


class Collector:
    """Appends the records of requests to one log."""

    def __init__(self, log: Log, marks: Marks, clock: Callable[[], float]) -> None:
        """`clock` counts seconds."""
        self._log, self._clock = log, clock
        self._gate = Gate(marks)
        self._lags: dict[str, tuple[float, int]] = {}
        self._waiting: dict[str, list[Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(
        self, topic: str, values: pa.Array, keys: pa.Array | None, producer: str | None, sequence: int | None
    ) -> None:
        """Append; when this returns, the records are on the disk. Raises BusyError if the topic is closed.

        An unknown topic is refused, even if there are no records.
        """
        await asyncio.to_thread(self._log.topic, topic)
        if not len(values):
            return
        if not self._gate.admits(topic, await self._lag(topic)):
            raise BusyError(
                f"the consumer groups of topic {topic!r} lag too far behind", "send the records again later"
            )
        if producer is not None:  # an idempotent append is not merged with others
            await asyncio.to_thread(self._log.append, topic, values, keys, producer=producer, sequence=sequence)
            return
        mine = Waiting(values, keys, asyncio.get_running_loop().create_future())
        if topic in self._waiting:
            self._waiting[topic].append(mine)
        else:
            self._waiting[topic] = [mine]
            task = asyncio.create_task(self._drain(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await mine.done

    async def _drain(self, topic: str) -> None:
        """Append the waiting requests until there are none."""
        while together := self._waiting[topic]:
            self._waiting[topic] = []
            # Requests with keys and those without need separate appends, as their records are partitioned differently.
            for keyed in (True, False):
                some = [each for each in together if (each.keys is not None) == keyed]
                if some:
                    await self._append(topic, some)
        del self._waiting[topic]

    async def _append(self, topic: str, some: list[Waiting]) -> None:
        values = pa.concat_arrays([each.values.cast(pa.string()) for each in some])
        keys = [each.keys for each in some if each.keys is not None]
        failure: Exception | None = None
        try:
            await asyncio.to_thread(self._log.append, topic, values, pa.concat_arrays(keys) if keys else None)
        except Exception as error:  # every waiting request gets the error, and the collector continues
            failure = error
        for each in some:
            if each.done.done():  # the client has disconnected
                continue
            if failure is None:
                each.done.set_result(None)
            else:
                each.done.set_exception(failure)

    async def _lag(self, topic: str) -> int:
        now = self._clock()
        known = self._lags.get(topic)
        if known is None or known[0] + _FRESH < now:
            lags = await asyncio.to_thread(self._log.lag, topic)
            known = self._lags[topic] = now, max(lags.values(), default=0)
        return known[1]
