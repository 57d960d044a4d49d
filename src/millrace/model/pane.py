"""What a window says: a pane, and how panes of one window relate to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from millrace.model.window import Window


class Mode(StrEnum):
    """How a pane relates to the panes of the same window before it."""

    DISCARDING = "discarding"
    """A pane holds what arrived since the last one."""
    ACCUMULATING = "accumulating"
    """A pane holds everything so far."""
    RETRACTING = "retracting"
    """A pane holds everything so far, after a retraction of what was said before."""


class Timing(StrEnum):
    """When a pane fired, seen from its window."""

    EARLY = "early"
    ON_TIME = "on-time"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Pane:
    """One answer of one (key, window), or with `diff` -1 the retraction of one."""

    key: tuple[Any, ...]
    window: Window
    values: Mapping[str, Any]
    timing: Timing
    index: int
    last: bool = False
    diff: int = 1

    def retraction(self) -> "Pane":
        """The same pane, taken back."""
        return replace(self, diff=-1)


@dataclass(frozen=True, slots=True)
class Failure:
    """A firing that had no answer, and why: a sum beyond its type, a function of the user's that raised."""

    key: tuple[Any, ...]
    window: Window
    reason: str
