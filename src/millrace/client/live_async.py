"""A live query in a task of asyncio: its rows as they are now, and their changes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from inspect import isawaitable
from types import TracebackType
from typing import Self

from millrace.client.live_following import Following
from millrace.client.live_link import Link
from millrace.client.live_result import Change
from millrace.client.live_session import LiveSession
from millrace.model.errors import MillraceError

_LOGGER = logging.getLogger("millrace")


class AsyncLiveRows(Following):
    """A live query for asyncio. `Connection.live_async` makes one; it is open in an `async with` block."""

    def __init__(self, session: LiveSession, link: Link, where: str) -> None:
        """Connect when the block begins."""
        super().__init__(session, link, where)
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._calling: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connect, and wait for the first rows. Raises what is wrong with the query."""
        self._task = asyncio.create_task(self._follow())
        try:
            while self._session.version is None and not self._session.is_over:
                await self._news.wait()
            if self._session.error is not None:
                raise self._session.error
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop. Loops over the changes end; the rows stay as they are."""
        if self._task is not None:
            self._stop(self._task)
            await asyncio.wait([self._task])
        calling = [task for task in self._calling if task is not asyncio.current_task()]
        for task in calling:
            task.cancel()
        await asyncio.gather(*calling, return_exceptions=True)

    def on_change(self, work: Callable[[Change], object]) -> Self:
        """Call a function with the rows as they are, and then after each change; an awaitable result is awaited.

        While it runs, changes are joined. An error that it raises is logged, and it is called again after the next
        change.
        """
        task = asyncio.create_task(self._call(work))
        self._calling.add(task)
        task.add_done_callback(self._calling.discard)
        return self

    async def _call(self, work: Callable[[Change], object]) -> None:
        with suppress(MillraceError):  # who iterates is told
            async for change in self:
                try:
                    done = work(change)
                    if isawaitable(done):
                        await done
                except Exception:
                    _LOGGER.exception("a function that is called on changes of a live query has failed")

    async def __aiter__(self) -> AsyncIterator[Change]:
        """The changes: first all rows as they are, then what changes. Ends when the query does, with its error."""
        watcher = self._session.watch()
        try:
            while True:
                news, change = self._news, self._session.told(watcher)
                if change is not None:
                    yield change
                elif not self._session.is_over:
                    await news.wait()
                else:
                    break
            if self._session.error is not None:
                raise self._session.error
        finally:
            self._session.unwatch(watcher)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
