"""Changes: what flows from one stage to the next; rules 1 to 3 of stages."""

from dataclasses import dataclass

from millrace.model.window import Row


@dataclass(frozen=True, slots=True)
class Change:
    """A row that is added (diff 1) or taken back (diff -1)."""

    row: Row
    at: int
    """The event time in microseconds."""
    diff: int = 1
