"""A wall clock that a test moves by hand."""

from millrace.eventlog.topics import Log
from millrace.model.duration import SECOND

HOUR = 3_600 * SECOND
DAY = 24 * HOUR


class Clock:
    """Begins at a thousand days."""

    def __init__(self) -> None:
        self.now = 1_000 * DAY

    def __call__(self) -> int:
        return self.now

    def spend(self, log: Log, span: int) -> int:
        """Let time pass while the log is in use. Returns how many records retention removed."""
        removed = 0
        while span > 0:
            step = min(span, HOUR)
            self.now += step
            span -= step
            removed += sum(log.retain().values())
        return removed
