"""Processing time and log time.

Processing time advances with the wall clock, stands still for jitter, and follows a clock that was set back. The log
time of a record is the time at which its source received it; an event that is far ahead of it is a mistake.
"""

from dataclasses import dataclass

from millrace.model.duration import SECOND, format_duration, to_datetime

JITTER = 10 * SECOND
"""A wall clock that goes back by at most this much was adjusted, as NTP does; processing time waits for it."""


def after_step(before: int, now: int) -> int:
    """Rule 15: processing time after a clock step to `now`, in microseconds; it goes back only by more than `JITTER`.

    If it goes back, the caller moves every instant of processing time that it stores back by the same amount.

    >>> after_step(60 * SECOND, 50 * SECOND) == 60 * SECOND, after_step(60 * SECOND, 49 * SECOND) == 49 * SECOND
    (True, True)
    """
    return now if now < before - JITTER else max(before, now)


DAY = 86_400 * SECOND
FIRST_TIME = 365 * DAY
"""A clock before 1971 was never set: scripts count from 0, and so do machines without a clock of their own."""


def is_ahead(at: int, logged: int, ahead: int) -> bool:
    """Whether an instant is more than `ahead` after the log time of its record.

    >>> is_ahead(3 * DAY, 0, DAY), is_ahead(1003 * DAY, 1000 * DAY, DAY), is_ahead(1001 * DAY, 1000 * DAY, DAY)
    (False, True, False)
    """
    return logged >= FIRST_TIME and at - ahead > logged


@dataclass(frozen=True, slots=True)
class Untimely:
    """Why a row is a dead letter because of its event time, and what to do about it."""

    problem: str
    """The reason without the times of the record, so that records with the same problem can be counted."""
    reason: str
    hint: str


def too_far_ahead(what: str, at: int, logged: int, ahead: int) -> Untimely:
    """The dead letter of a row whose event time is too far ahead."""
    how = f"more than {format_duration(ahead)} after its record was logged"
    reason = f"{what} is {_written(at)}, {how}, {_written(logged)}"
    return Untimely(f"{what} is {how}", reason, "if such times are right, allow them with ahead= of event_time")


def _written(instant: int) -> str:
    return f"{to_datetime(instant):%Y-%m-%d %H:%M:%S}"
