"""Processing time: it advances with the wall clock, stands still for jitter, and follows a clock that was set back."""

from millrace.model.duration import SECOND

JITTER = 10 * SECOND
"""A wall clock that goes back by at most this much was adjusted, as NTP does; processing time waits for it."""


def after_step(before: int, now: int) -> int:
    """Rule 15: processing time after a clock step to `now`, in microseconds; it goes back only by more than `JITTER`.

    If it goes back, the caller moves every instant of processing time that it stores back by the same amount.

    >>> after_step(60 * SECOND, 50 * SECOND) == 60 * SECOND, after_step(60 * SECOND, 49 * SECOND) == 49 * SECOND
    (True, True)
    """
    return now if now < before - JITTER else max(before, now)
