"""What a caller may do: send records to topics, read views or certain rows of them, or everything."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What a token is for."""

    SEND = "send"
    """Append records to topics."""
    READ = "read"
    """Read views, and, without a list of views, the status of pipelines and topics."""
    ADMIN = "admin"
    """Everything, also to correct, send again and drop dead letters."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What a caller may do. Equal rights see the same rows, so that answers may be shared between their callers.

    >>> norway = Rights(Scope.READ, views=frozenset(["hourly"]), row_filters=(("hourly", "country = 'NO'"),))
    >>> norway.may_read("hourly"), norway.may_read("daily"), norway.row_filter("hourly"), norway.may_send("plays")
    (True, False, "country = 'NO'", False)
    """

    scope: Scope = Scope.ADMIN
    views: frozenset[str] | None = None
    """The views that may be read; None for all."""
    topics: frozenset[str] | None = None
    """The topics to which records may be sent; None for all."""
    row_filters: tuple[tuple[str, str], ...] = ()
    """Views, and the condition in SQL of the rows that may be read of each (`views.rowfilter`)."""

    @property
    def reads_all(self) -> bool:
        """Whether everything may be read: all views, the status of pipelines, topics and dead letters."""
        return self.scope is not Scope.SEND and self.views is None and not self.row_filters

    @property
    def is_admin(self) -> bool:
        """Whether everything may be changed."""
        return self.scope is Scope.ADMIN and self.reads_all and self.topics is None

    def may_read(self, view: str) -> bool:
        """Whether rows of a view may be read."""
        return self.scope is not Scope.SEND and (self.views is None or view in self.views)

    def may_send(self, topic: str) -> bool:
        """Whether records may be appended to a topic."""
        return self.scope is not Scope.READ and (self.topics is None or topic in self.topics)

    def row_filter(self, view: str) -> str | None:
        """The condition of the rows of a view that may be read; None for all."""
        return dict(self.row_filters).get(view)


EVERYTHING = Rights()
"""The rights of a caller on a server that has no tokens."""
