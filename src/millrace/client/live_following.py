"""Keeps a live query connected. `live_rows` hosts it in a thread, `live_async` in a task of asyncio.

A query has one connection. When it breaks, the query connects again after a random time that grows up to half a minute,
and goes on where it was: no change is missed, and none is told twice.

Rows are taken in by a thread (or task) of the query, whatever its user does. Who is slow to ask for changes is told of
several as one: so a slow loop costs neither memory nor the rows' being current.
"""

import asyncio
import random
import threading
from abc import ABC, abstractmethod

from millrace.client.live_link import Link, LostError
from millrace.client.live_result import Row
from millrace.client.live_session import LiveSession
from millrace.model.errors import MachineError, MillraceError

_FIRST, _LONGEST = 0.25, 30.0
"""The seconds before the first and before the last attempts to connect again."""


def pause(attempts: int, chance: float) -> float:
    """The seconds until the next attempt to connect, after so many; `chance` is from 0 to 1.

    >>> [pause(attempts, 1.0) for attempts in (0, 1, 2, 9)], pause(0, 0.0)
    ([0.25, 0.5, 1.0, 30.0], 0.125)
    """
    return min(_LONGEST, _FIRST * 2.0 ** min(attempts, 10)) * (0.5 + chance / 2)


class Following(ABC):
    """A live query that is followed."""

    def __init__(self, session: LiveSession, link: Link, where: str) -> None:
        """`where` names the other side in errors."""
        self._session, self._link, self._where = session, link, where
        self._lock = threading.Lock()

    @property
    def rows(self) -> list[Row]:
        """The rows as they are now, in the order of the query; another list after each change.

        Values are those of JSON: times, decimals and whole numbers beyond 2^53 - 1 are text.
        """
        with self._lock:
            return self._session.rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        with self._lock:
            return self._session.columns

    @property
    def version(self) -> int | None:
        """The version of the view that the rows are of."""
        with self._lock:
            return self._session.version

    @property
    def watermark(self) -> str | None:
        """The watermark of the pipeline as of that version, if it is known."""
        return self._session.watermark

    @property
    def state(self) -> str:
        """The state: connecting, live, reconnecting or closed."""
        return self._session.state.value

    @abstractmethod
    def _wake(self) -> None:
        """Wake who waits for news."""

    async def _follow(self) -> None:
        """Take in the messages of one connection after the other, until the query ends."""
        attempts = 0
        try:
            while not self._session.is_over:
                try:
                    async with self._link.open() as wire:
                        await wire.send(self._greeting())
                        while not self._session.is_over:
                            replies = self._take(await wire.receive())
                            attempts = 0
                            for reply in replies:
                                await wire.send(reply)
                except LostError as lost:
                    self._lost(lost)
                    if not self._session.is_over:
                        await asyncio.sleep(pause(attempts, random.random()))
                        attempts += 1
        except MillraceError as error:
            self._end(error)
        except Exception as error:
            self._end(MillraceError(f"the live query has failed: {error!r}"))
            raise
        finally:
            self._end(self._session.error)

    def _stop(self, task: asyncio.Task[None]) -> None:
        """End the task that follows, unless it ends already: it must close its connection."""
        if not self._session.is_over:
            task.cancel()

    def _greeting(self) -> str:
        with self._lock:
            return self._session.greeting()

    def _take(self, text: str | bytes) -> list[str]:
        with self._lock:
            replies = self._session.take(text)
        self._wake()
        return replies

    def _lost(self, lost: LostError) -> None:
        with self._lock:
            self._session.lost()
        if self.version is None:  # a wrong address is more likely than a server that went away
            advice = "check the address, and that millrace serve runs there"
            self._end(MachineError(f"cannot reach {self._where}: {lost}", advice))

    def _end(self, error: MillraceError | None) -> None:
        with self._lock:
            self._session.end(error)
        self._wake()
