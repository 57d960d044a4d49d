"""Panes, the answers of a window, and how the panes of one window relate to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from millrace.model.window import Window


class Mode(StrEnum):
    """The relation of a pane to the earlier panes of its window."""

    DISCARDING = "discarding"
    """A pane covers the elements since the previous pane."""
    ACCUMULATING = "accumulating"
    """A pane covers all elements so far."""
    RETRACTING = "retracting"
    """A pane covers all elements so far and follows a retraction of the previous pane."""


class Timing(StrEnum):
    """The time of a firing relative to the close of the window: before, at or after it."""

    EARLY = "early"
    ON_TIME = "on-time"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Pane:
    """One answer of one (key, window) or, with `diff` -1, the retraction of one."""

    key: tuple[Any, ...]
    window: Window
    values: Mapping[str, Any]
    timing: Timing
    index: int
    last: bool = False
    diff: int = 1
    at: int = field(default=0, compare=False)
    """The event time of the answer, in microseconds: the last instant of its window or, for the global window and for
    count windows, the greatest event time of the elements it holds. A retraction has that of the pane it cancels."""

    def retraction(self) -> "Pane":
        """The retraction of the pane."""
        return replace(self, diff=-1)


@dataclass(frozen=True, slots=True)
class Failure:
    """A firing without an answer, and the reason: a sum beyond its type, a user's function that raised."""

    key: tuple[Any, ...]
    window: Window
    reason: str
