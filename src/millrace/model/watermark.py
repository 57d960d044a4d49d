"""How far event time has come: policies that derive a watermark from the events themselves.

A watermark says that events before it are not expected any more. Each policy is a value; what it
has seen of one source is a `Progress`, also a value, so an engine may keep it with its state and
replay it. A watermark depends only on bundles, not on the order within one, so that the tasks of
a bundle can look at their share in parallel.
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
"""How many different lags are told apart exactly; beyond that, to three digits."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a bundle shows of event time, or the part of it that one task reads."""

    newest: int = BEGINNING_OF_TIME
    """The greatest event time."""
    closed: int = BEGINNING_OF_TIME
    """The greatest epoch end that the producer declares."""
    times: Mapping[int, int] = field(default_factory=dict)
    """For a policy that asks for it: how many events there are of each time."""

    def __add__(self, other: "Seen") -> "Seen":
        times = Counter(self.times) + Counter(other.times)
        return Seen(max(self.newest, other.newest), max(self.closed, other.closed), times)

    @property
    def is_something(self) -> bool:
        """Whether anything arrived."""
        return self.newest > BEGINNING_OF_TIME or self.closed > BEGINNING_OF_TIME


@dataclass(frozen=True, slots=True)
class Progress:
    """What has been seen of one source at the end of a bundle."""

    newest: int = BEGINNING_OF_TIME
    """The greatest event time."""
    lags: tuple[tuple[int, int], ...] = ()
    """How far events were behind the newest one of the bundles before their own: each lag, rising, and how many."""
    closed: int = BEGINNING_OF_TIME
    """The greatest epoch end that the producer declared."""
    active: int = 0
    """When, on the clock, something last arrived."""


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
    """At least `share` of the events come before the watermark has passed them.

    An event is too late for a watermark that stays `d` behind the newest event if, on arrival, it
    was more than `d` behind the newest of the bundles before it. So `d` is the quantile of these
    lags at `share`, from the events seen so far, and not less than `minimum`.
    """

    share: float
    minimum: int = 0

    def watermark(self, progress: Progress) -> int:
        """The newest event time, less the lag that `share` of the events keep within."""
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
    """The producer says so: rows carry in `column` the instant before which all has been sent.

    The column is NULL where nothing is closed. A row with a NULL event time may still close an
    epoch; it is then no element.
    """

    column: str

    def watermark(self, progress: Progress) -> int:
        """The end of the last epoch that was closed."""
        return progress.closed

    def __str__(self) -> str:
        return f"punctuated({self.column})"


Policy: TypeAlias = BoundedDelay | Percentile | Punctuated


@dataclass(frozen=True, slots=True)
class Estimator:
    """The watermark of one source: a policy, and how long the source may be silent.

    A source that brings nothing for `idle` of processing time does not hold others back. While
    all are idle, event time is taken to pass as fast as the clock, so the last windows close.
    """

    policy: Policy
    idle: int | None = None

    @property
    def needs_times(self) -> bool:
        """Whether the policy asks for every event time, not only for the newest."""
        return isinstance(self.policy, Percentile)

    def see(self, times: Sequence[int], closed: Iterable[int]) -> Seen:
        """What event times, and the epoch ends declared beside them, show."""
        every = Counter(times) if self.needs_times else {}
        return Seen(max(times, default=BEGINNING_OF_TIME), max(closed, default=BEGINNING_OF_TIME), every)

    def observe(self, before: Progress, bundle: Seen, now: int) -> Progress:
        """Add one bundle."""
        return replace(
            before,
            newest=max(before.newest, bundle.newest),
            lags=_with_lags(before, bundle.times) if bundle.times else before.lags,
            closed=max(before.closed, bundle.closed),
            active=now if bundle.is_something else before.active,
        )

    def is_idle(self, seen: Progress, now: int) -> bool:
        """Whether the source has been silent for so long that it is not waited for."""
        return self.idle is not None and now - seen.active >= self.idle

    def watermark(self, seen: Progress, now: int) -> int:
        """Where event time is, going on with the clock while the source is idle."""
        at = self.policy.watermark(seen)
        return at + now - seen.active if self.is_idle(seen, now) and at > BEGINNING_OF_TIME else at


def combine(sources: Sequence[tuple[Estimator, Progress]], now: int) -> int:
    """The watermark of several sources read as one: the least of those that are not idle.

    While all are idle, one that has never said anything is nowhere, and not waited for.
    """
    active = [(estimator, seen) for estimator, seen in sources if not estimator.is_idle(seen, now)]
    marks = [estimator.watermark(seen, now) for estimator, seen in active or sources]
    begun = [mark for mark in marks if mark > BEGINNING_OF_TIME]
    return min(marks if active else begun or marks)


def delay(length: Duration) -> BoundedDelay:
    """No event comes more than `length` after a newer one."""
    return BoundedDelay(parse_duration(length, "delay"))


def percentile(share: float, minimum: Duration = "0s") -> Percentile:
    """Wait as long as this share of the events needs: `percentile(0.99)`."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise refuse(f"percentile() takes a share above 0 and at most 1, such as 0.99, not {share!r}")
    return Percentile(float(share), parse_duration(minimum, "minimum of percentile()"))


def punctuated(column: str) -> Punctuated:
    """Go by what the producer says: a column with the instant up to which all has been sent."""
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
