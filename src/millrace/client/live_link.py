"""How a live query reaches a hub."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class LostError(Exception):
    """The connection cannot be used any more; another one may."""


class Wire(Protocol):
    """A connection that is open. Its methods raise LostError if it breaks, and MillraceError if it is refused."""

    async def send(self, text: str) -> None:
        """Send a message."""

    async def receive(self) -> str | bytes:
        """Wait for the next message."""


class Link(Protocol):
    """A way to a hub."""

    def open(self) -> AbstractAsyncContextManager[Wire]:
        """Connect. Raises LostError if there is no way now, and MillraceError if there will be none."""
