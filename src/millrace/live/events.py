"""What happens to the hub, and what it then wants done. Time and the store are events and instructions, too."""

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from millrace.live.query import LiveQuery
from millrace.live.token import Asked, Token
from millrace.model.errors import MillraceError


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A client subscribes to a query, under a name that it has not in use."""

    client: str
    sub: str
    query: LiveQuery
    asked: Asked


@dataclass(frozen=True, slots=True)
class Resume:
    """A client goes on with what it asked for, after a version whose state it has."""

    client: str
    sub: str
    query: LiveQuery
    """The query of the token, under the rights that the client has now."""
    token: Token
    version: int
    rights: str = ""
    """The name of the rights that the client has now."""


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A client ends a subscription."""

    client: str
    sub: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A client has disconnected."""

    client: str


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """The answer to a ReadSnapshot: a table for each of its reads, all of one version of the store."""

    view: str
    number: int
    version: int
    generation: int
    tables: tuple[pa.Table, ...]


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A ReadSnapshot failed. Its subscriptions end with the error."""

    view: str
    number: int
    error: MillraceError


@dataclass(frozen=True, slots=True)
class ChangesRead:
    """The answer to a ReadChanges: the changes up to a version; None if they are no longer kept."""

    view: str
    number: int
    version: int
    rows: pa.Table | None


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of a view after the version `since`, up to `version`, as `Store.changes` returns them."""

    view: str
    since: int
    version: int
    rows: pa.Table
    watermark: str | None = None


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another generation of a view is served."""

    view: str
    generation: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Changes after the version that the hub has reached are no longer kept."""

    view: str


@dataclass(frozen=True, slots=True)
class Tick:
    """It is this time, in microseconds; a few times a second."""

    now: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """So many messages wait to be sent to a client."""

    client: str
    messages: int


@dataclass(frozen=True, slots=True)
class RightsChanged:
    """Rights of this name have changed or were revoked."""

    rights: str


Event: TypeAlias = (
    Subscribe
    | Resume
    | Unsubscribe
    | Gone
    | SnapshotRead
    | ReadFailed
    | ChangesRead
    | Changes
    | Replaced
    | Forgotten
    | Tick
    | Backlog
    | RightsChanged
)


@dataclass(frozen=True, slots=True)
class Read:
    """Rows to read. One query: exactly its rows, sorted, the first `end` of them. Several: the rows of any of them."""

    queries: tuple[LiveQuery, ...]
    end: int | None = None


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """Read rows of a view, all in one transaction; the answer is a SnapshotRead or ReadFailed with the number."""

    view: str
    number: int
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Read the changes of a view after a version; the answer is a ChangesRead with the number."""

    view: str
    number: int
    since: int


@dataclass(frozen=True, slots=True)
class Follow:
    """From now on report the changes of a view after a version; this replaces an earlier Follow of the view."""

    view: str
    since: int


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Nobody wants the changes of a view any more."""

    view: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send messages to a client, in order."""

    client: str
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection of a client, after the messages that were sent to it."""

    client: str
    reason: str


Instruction: TypeAlias = ReadSnapshot | ReadChanges | Follow | Unfollow | Send | Disconnect
