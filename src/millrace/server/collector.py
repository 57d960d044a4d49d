"""Records of many requests into the log, those that come together in one append.

An append ends with a write to the disk that takes as long for one record as for many; so while one is under way,
requests that come wait for the next, together.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from millrace.eventlog.topics import Log
from millrace.model.errors import MachineError
from millrace.server.gate import Gate, Marks

_FRESH = 0.2
"""For how many seconds a lag that was looked up is believed."""


class BusyError(MachineError):
    """The readers of a topic are too far behind."""


@dataclass(slots=True)
class Waiting:
    """A request that waits to be appended."""

    values: pa.Array
    keys: pa.Array | None
    done: asyncio.Future[None]


class Collector:
    """Appends for one log."""

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
        """Append; when this returns, the records are on the disk. Raises BusyError if the topic is closed."""
        await asyncio.to_thread(self._log.topic, topic)
        if not self._gate.admits(topic, await self._lag(topic)):
            raise BusyError("the pipelines that read this topic are too far behind", "try again in a while")
        if producer is not None:  # an append with a name is one of its own
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
        """Append what waits, until nothing does."""
        while together := self._waiting[topic]:
            self._waiting[topic] = []
            # Those with keys are divided between partitions by them, the others in turn: two appends.
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
        except Exception as error:  # whoever waits is told, whatever it is, and others go on
            failure = error
        for each in some:
            if each.done.done():  # who asked has gone
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
