"""The wall clock of a run: when processing time follows it back, and which of its jumps users are told about."""

import time
from dataclasses import dataclass

from millrace.model.clock import JITTER
from millrace.model.duration import SECOND

PATIENCE = 10.0
"""The seconds for which the wall clock must be behind before a running stream follows it back."""
JUMP = 3_600 * SECOND
"""A clock that gains more than this on the time that has passed has jumped ahead."""


@dataclass(slots=True)
class ClockFollower:
    """Decides the processing time of each micro-batch of one run, from the wall clock.

    Processing time does not go back while the wall clock is behind by at most `JITTER`. If it is further behind for
    `PATIENCE` seconds, processing time follows it. The first micro-batch of a run follows at once: a run until caught
    up would otherwise end before that.
    """

    _has_begun: bool = False
    _behind_since: float | None = None

    def now(self, before: int, wall: int, elapsed: float) -> int:
        """Processing time after `before`, by the wall clock; `elapsed` is the seconds of a clock that nobody sets."""
        is_first, self._has_begun = not self._has_begun, True
        if wall >= before - JITTER:
            self._behind_since = None
            return max(before, wall)
        if self._behind_since is None:
            self._behind_since = elapsed - PATIENCE if is_first else elapsed
        return wall if elapsed - self._behind_since >= PATIENCE else before


@dataclass(slots=True)
class JumpDetector:
    """Compares processing time with the time that has passed, over the micro-batches of one run."""

    _last: tuple[int, float] | None = None
    _went_back: float | None = None

    def moved(self, now: int, back: int, elapsed: float) -> int:
        """By how many microseconds the clock jumped: -back if it went back, more than `JUMP` if ahead, otherwise 0."""
        last, self._last = self._last, (now, elapsed)
        if back:
            # Sources that Spark plans apart follow the clock one after the other; that is one event.
            is_same = self._went_back is not None and elapsed - self._went_back < PATIENCE
            self._went_back = elapsed
            return 0 if is_same else -back
        if last is None:  # the pipeline may have been stopped for any time
            return 0
        ahead = now - last[0] - round((elapsed - last[1]) * SECOND)
        return ahead if ahead > JUMP else 0


def seconds_elapsed() -> float:
    """The seconds since some moment, including those of a suspended machine where the system counts them."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def wall_clock() -> int:
    """The time of day, in microseconds since 1970."""
    return time.time_ns() // 1000
