"""Watermark policies: they derive a watermark from the events themselves.

A watermark is the event time up to which input is assumed to be complete. A policy is a value. Its state for one
source is a `Progress`, also a value, so an engine can store it with its state and replay it. A watermark depends on
the bundles but not on the order within one, so the tasks of a bundle observe their rows in parallel.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import ceil
from typing import TypeAlias

from millrace.model.duration import BEGINNING_OF_TIME, Duration, format_duration, parse_duration
from millrace.model.errors import refuse

_MOST_LAGS = 4096
"""Up to this many distinct lags are stored exactly; more are rounded up to three digits."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A summary of the event times of a bundle, or of the part of it that one task reads."""

    newest: int = BEGINNING_OF_TIME
    """The greatest event time."""
    closed: int = BEGINNING_OF_TIME
    """The greatest epoch end that the producer declares."""
    times: Mapping[int, int] = field(default_factory=dict)
    """For a policy that needs it: the number of events at each time."""

    def __add__(self, other: "Seen") -> "Seen":
        times = Counter(self.times) + Counter(other.times)
        return Seen(max(self.newest, other.newest), max(self.closed, other.closed), times)

    @property
    def is_something(self) -> bool:
        """Whether any event or epoch end arrived."""
        return self.newest > BEGINNING_OF_TIME or self.closed > BEGINNING_OF_TIME


@dataclass(frozen=True, slots=True)
class Progress:
    """The watermark state of one source after a bundle."""

    newest: int = BEGINNING_OF_TIME
    """The greatest event time."""
    lags: tuple[tuple[int, int], ...] = ()
    """Each lag behind the newest event of earlier bundles, ascending, and its number of events."""
    closed: int = BEGINNING_OF_TIME
    """The greatest epoch end that the producer declared."""
    active: int = 0
    """The processing time of the last arrival."""

    def moved_back(self, by: int) -> "Progress":
        """The same progress by a clock that is `by` microseconds behind; the watermark is the same: rule 15."""
        return replace(self, active=self.active - by)


@dataclass(frozen=True, slots=True)
class BoundedDelay:
    """No event is more than `delay` behind the newest one."""

    delay: int

    def watermark(self, progress: Progress) -> int:
        """The newest event time, less the delay."""
        return _behind(progress.newest, self.delay)

    def __str__(self) -> str:
        return f"delay({format_duration(self.delay)})"


@dataclass(frozen=True, slots=True)
class Percentile:
    """At least `share` of the events arrive before the watermark passes them.

    An event is late for a watermark that stays `d` behind the newest event if, on arrival, it was more than `d`
    behind the newest event of earlier bundles. So `d` is the quantile of these lags at `share`, over the events seen
    so far, and at least `minimum`.
    """

    share: float
    minimum: int = 0

    def watermark(self, progress: Progress) -> int:
        """The newest event time, less the lag that `share` of the events do not exceed."""
        if not progress.lags:
            return BEGINNING_OF_TIME
        upto = list(accumulate(many for _, many in progress.lags))
        wanted = ceil(self.share * upto[-1])
        lag = next(lag for (lag, _), many in zip(progress.lags, upto, strict=True) if many >= wanted)
        return _behind(progress.newest, max(lag, self.minimum))

    def __str__(self) -> str:
        minimum = f", minimum={format_duration(self.minimum)}" if self.minimum else ""
        return f"percentile({self.share:g}{minimum})"


@dataclass(frozen=True, slots=True)
class Punctuated:
    """The producer declares the watermark: `column` holds the instant before which all events have been sent.

    The column is NULL in rows that close no epoch. A row with a NULL event time can close an epoch; it is then no
    element.
    """

    column: str

    def watermark(self, progress: Progress) -> int:
        """The greatest epoch end that the producer declared."""
        return progress.closed

    def __str__(self) -> str:
        return f"punctuated({self.column})"


Policy: TypeAlias = BoundedDelay | Percentile | Punctuated


@dataclass(frozen=True, slots=True)
class Estimator:
    """The watermark of one source: a policy, and an idle timeout.

    A source without input for `idle` of processing time does not hold back the watermark of other sources. While all
    sources are idle, event time advances with the clock, so the last windows close.
    """

    policy: Policy
    idle: int | None = None

    @property
    def needs_times(self) -> bool:
        """Whether the policy needs every event time, not only the newest."""
        return isinstance(self.policy, Percentile)

    def see(self, times: Sequence[int], closed: Iterable[int]) -> Seen:
        """Summarize event times and the epoch ends declared with them."""
        every = Counter(times) if self.needs_times else {}
        return Seen(max(times, default=BEGINNING_OF_TIME), max(closed, default=BEGINNING_OF_TIME), every)

    def observe(self, before: Progress, bundle: Seen, now: int) -> Progress:
        """The progress after one more bundle."""
        return replace(
            before,
            newest=max(before.newest, bundle.newest),
            lags=_with_lags(before, bundle.times) if bundle.times else before.lags,
            closed=max(before.closed, bundle.closed),
            active=now if bundle.is_something else before.active,
        )

    def is_idle(self, seen: Progress, now: int) -> bool:
        """Whether the source has had no input for the idle timeout."""
        return self.idle is not None and now - seen.active >= self.idle

    def watermark(self, seen: Progress, now: int) -> int:
        """The watermark of the source; it advances with the clock while the source is idle."""
        at = self.policy.watermark(seen)
        return at + now - seen.active if self.is_idle(seen, now) and at > BEGINNING_OF_TIME else at


def combine(sources: Sequence[tuple[Estimator, Progress]], now: int) -> int:
    """The watermark of several sources read as one: the least of those that are not idle.

    While all are idle, a source that never had input is ignored.
    """
    active = [(estimator, seen) for estimator, seen in sources if not estimator.is_idle(seen, now)]
    marks = [estimator.watermark(seen, now) for estimator, seen in active or sources]
    begun = [mark for mark in marks if mark > BEGINNING_OF_TIME]
    return min(marks if active else begun or marks)


def next_idle(sources: Sequence[tuple[Estimator, Progress]], now: int) -> int | None:
    """The next instant at which a source becomes idle unless it has input; None if there is none."""
    ends = [seen.active + estimator.idle for estimator, seen in sources if estimator.idle is not None]
    return min((end for end in ends if end > now), default=None)


def follows_clock(sources: Sequence[tuple[Estimator, Progress]], now: int) -> bool:
    """Whether the watermark advances with the clock, because all sources are idle."""
    return bool(sources) and all(estimator.is_idle(seen, now) for estimator, seen in sources)


def delay(length: Duration) -> BoundedDelay:
    """No event is more than `length` older than the newest event before it."""
    return BoundedDelay(parse_duration(length, "delay"))


def percentile(share: float, minimum: Duration = "0s") -> Percentile:
    """Wait long enough that this share of the events is not late: `percentile(0.99)`."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise refuse(f"percentile() takes a share above 0 and at most 1, such as 0.99, not {share!r}")
    return Percentile(float(share), parse_duration(minimum, "minimum of percentile()"))


def punctuated(column: str) -> Punctuated:
    """Use the watermark that the producer declares: a column with the instant up to which all events have been sent."""
    if not isinstance(column, str):
        raise refuse(f"punctuated() takes the name of a column, not {column!r}")
    return Punctuated(column)


def coarse(length: int) -> int:
    """A length to three digits, rounded up: 12 345 becomes 12 400."""
    unit: int = 10 ** max(0, len(str(length)) - 3)
    return -(-length // unit) * unit


def _with_lags(before: Progress, times: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    lags = Counter(dict(before.lags))
    for at, many in times.items():
        lags[max(0, before.newest - at)] += many
    if len(lags) > _MOST_LAGS:
        exact, lags = lags, Counter()
        for lag, many in exact.items():
            lags[coarse(lag)] += many
    return tuple(sorted(lags.items()))


def _behind(newest: int, lag: int) -> int:
    return newest - lag if newest > BEGINNING_OF_TIME else newest
