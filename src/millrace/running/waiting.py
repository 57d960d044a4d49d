"""Trouble of the machine that a run waits out: what it waits for, and how long until it tries again."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from millrace.eventlog.trouble import UncertainError
from millrace.model.errors import MachineError

LONGEST = 30.0
"""The most seconds between two tries."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that waits for a store, a log or a file system."""

    problem: str
    advice: str
    since: float
    """When the trouble began, in seconds since 1970."""
    until: float
    """When the run tries again, in seconds since 1970."""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC)
        left = max(0, round(self.until - time.time()))
        return f"waiting since {since:%H:%M:%S}Z: {self.problem}; retry in {left} s"


def may_pass(error: BaseException) -> bool:
    """Whether an error may pass by itself, so that the same work can succeed later.

    After an fsync that failed, the system may report pages as written that are not on the disk. What a retry would then
    read is not certain, so such an error ends the run.
    """
    return isinstance(error, MachineError) and not isinstance(error, UncertainError)


def backoff(tries: int, waited: float, patience: float) -> float | None:
    """The seconds until the next try, after so many tries and seconds; None when the patience is used up.

    The last try comes at the end of the patience.

    >>> [backoff(tries, 0.0, 600.0) for tries in range(6)]
    [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    >>> backoff(9, 595.0, 600.0), backoff(10, 600.0, 600.0)
    (5.0, None)
    """
    left = patience - waited
    return None if left <= 0 else min(2.0 ** min(tries, 10), LONGEST, left)
