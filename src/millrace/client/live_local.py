"""Live queries of a store on this machine, without a server."""

import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millrace.client.live_link import LostError, Wire
from millrace.server.live_queries import LiveClient, LiveQueries
from millrace.views.rights import EVERYTHING
from millrace.views.store import Store


class LocalLink:
    """A hub of its own over a store, in the event loop of the query."""

    def __init__(self, store: Store) -> None:
        """The store stays open."""
        self._store = store

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Wire]:
        """Start the hub; it ends with the block."""
        live = LiveQueries(self._store, secrets.token_bytes(32), time.monotonic)
        live.start()
        try:
            yield _Local(live, live.join(EVERYTHING, lambda: True))
        finally:
            await live.close()


class _Local:
    def __init__(self, live: LiveQueries, client: LiveClient) -> None:
        self._live, self._client = live, client
        self._taken: deque[str] = deque()

    async def send(self, text: str) -> None:
        await self._live.hear(self._client, text)

    async def receive(self) -> str:
        if not self._taken:
            self._taken.extend(await self._client.take())
            self._live.note_backlog(self._client)
        if not self._taken:
            raise LostError(str(self._client.closing))
        return self._taken.popleft()
