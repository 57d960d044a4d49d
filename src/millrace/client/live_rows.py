"""A live query in a thread: its rows as they are now, and their changes."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from millrace.client.live_following import Following
from millrace.client.live_link import Link
from millrace.client.live_result import Change
from millrace.client.live_session import LiveSession
from millrace.model.errors import MillraceError

_LOGGER = logging.getLogger("millrace")


class LiveRows(Following):
    """A live query. `Connection.live` makes one; `close` it, or use it in a `with` block."""

    def __init__(self, session: LiveSession, link: Link, where: str) -> None:
        """Connect, and wait for the first rows. Raises what is wrong with the query."""
        super().__init__(session, link, where)
        self._news = threading.Condition(self._lock)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._task = self._loop.create_task(self._follow())
        self._thread = threading.Thread(target=self._work, name="millrace-live", daemon=True)
        self._thread.start()
        try:
            with self._news:
                self._news.wait_for(lambda: session.version is not None or session.is_over)
            if session.error is not None:
                raise session.error
        except BaseException:
            self.close()
            raise

    def on_change(self, work: Callable[[Change], object]) -> Self:
        """Call a function with the rows as they are, and then after each change, in a thread of its own.

        While it runs, changes are joined. An error that it raises is logged, and it is called again after the next
        change.
        """

        def call() -> None:
            with suppress(MillraceError):  # who iterates is told
                for change in self:
                    try:
                        work(change)
                    except Exception:
                        _LOGGER.exception("a function that is called on changes of a live query has failed")

        threading.Thread(target=call, name="millrace-live-changes", daemon=True).start()
        return self

    def __iter__(self) -> Iterator[Change]:
        """The changes: first all rows as they are, then what changes. Ends when the query does, with its error."""
        with self._lock:
            watcher = self._session.watch()
        try:
            while True:
                with self._news:
                    while (change := self._session.told(watcher)) is None and not self._session.is_over:
                        self._news.wait()
                if change is None:
                    break
                yield change
            if self._session.error is not None:
                raise self._session.error
        finally:
            with self._lock:
                self._session.unwatch(watcher)

    def close(self) -> None:
        """Stop. Loops over the changes end; the rows stay as they are."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop, self._task)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _work(self) -> None:
        async def ended() -> None:
            with suppress(asyncio.CancelledError):
                await self._task

        with self._runner as runner:
            runner.run(ended())

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()
