"""A subscription of a client, and what it has been sent."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from millrace.live.rowset import Rowset, Step
from millrace.live.token import Asked
from millrace.live.window import Shown

if TYPE_CHECKING:
    from millrace.live.followed import Result


class Phase(Enum):
    """The phase of a subscription."""

    WAITING = auto()
    """For a snapshot."""
    RESUMING = auto()
    """For the changes since its version."""
    LIVE = auto()
    GONE = auto()


@dataclass(slots=True, eq=False)
class Client:
    """A connected client."""

    name: str
    subs: dict[str, "Subscriber"] = field(default_factory=dict)
    backlog: int = 0
    slow_since: int = 0
    """Since when it is slow, if it is."""
    held: int = 0
    """How many rows are held back for it."""


@dataclass(slots=True, eq=False)
class Subscriber:
    """A subscription. The state that was last sent is of version `at`, and `pending` or `shown` say how it differs."""

    client: Client
    name: str
    asked: Asked
    result: "Result"
    phase: Phase = Phase.WAITING
    at: int = 0
    pending: Step = field(default_factory=dict)
    """Changes that are held back, of a result without order."""
    shown: Shown = ()
    """The rows that were last sent, of a sorted result."""
    is_behind: bool = False
    """Whether changes are held back."""
    due: int = 0
    """Before this time nothing is sent."""
    is_watched: bool = False
    """Whether it is told of progress when idle."""
    heard: int = 0
    """When the last message was sent."""
    generation: int = 0
    """The generation that a resumed client knows."""
    missed: tuple[int, Rowset] | None = None
    """The changes since the version of a resumed client, and up to which version."""

    @property
    def is_sorted(self) -> bool:
        """Whether its checksum depends on the order of rows."""
        return self.result.query.is_sorted and self.asked.form != "upsert"
