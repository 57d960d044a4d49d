"""What the server asks of a query process, and the limits of an answer."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from millrace.views.rights import Rights
from millrace.views.store import Filter, Order

MOST_ROWS = 10_000
"""The maximum number of rows of a view in a response of JSON."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an answer."""

    seconds: float = 60.0
    """The maximum time limit that a client may ask for."""
    bytes: int = 64 << 20
    """The maximum size of an answer: one of JSON is cut there, one of Arrow refused."""
    memory: int = 1 << 30
    """The maximum memory of a query process, beyond what it starts with."""


@dataclass(frozen=True, slots=True)
class AskQuery:
    """The answer to an SQL query."""

    sql: str
    seconds: float
    limit: int | None
    params: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class AskRows:
    """The rows of a view."""

    view: str
    where: tuple[Filter, ...]
    order: tuple[Order, ...]
    limit: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class AskChanges:
    """The changes of a view after a version."""

    view: str
    since: int


@dataclass(frozen=True, slots=True)
class AskHistory:
    """The last changes of some rows of a view."""

    view: str
    where: tuple[Filter, ...]
    last: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A question, by whom, and the form of the answer."""

    what: AskQuery | AskRows | AskChanges | AskHistory
    rights: Rights
    is_arrow: bool
    known: str | None
    """The ETags of answers that the caller has, as in If-None-Match."""


@dataclass(frozen=True, slots=True)
class Head:
    """The start of an answer."""

    etag: str | None
    is_known: bool = False
    """Whether the caller has this answer already, so that nothing follows."""


Part: TypeAlias = Head | bytes
"""An answer is a head, and then its body in pieces."""
