"""Windows, and how elements are assigned to them.

A window is a span `[start, end)` of event time, in microseconds. A *windowing* assigns windows to an element. Most
windowings need only the element's event time (`assign`). Two do not: the bounds of a session depend on neighbouring
elements (each element is assigned the span `[at, at + gap)` and overlapping spans are merged), and a count window
depends on the order of arrival.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from millrace.model.duration import (
    BEGINNING_OF_TIME,
    END_OF_TIME,
    Duration,
    format_duration,
    parse_duration,
    parse_positive,
    to_datetime,
    to_instant,
)
from millrace.model.errors import MillraceError, NoValueError, raised_by, refuse, refuse_unknown, shown
from millrace.model.version import check_version

Row: TypeAlias = Mapping[str, Any]


_MOST_WINDOWS = 100_000


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The span `[start, end)`, in instants or, for count windows, in ordinals."""

    start: int
    end: int


GLOBAL_WINDOW = Window(BEGINNING_OF_TIME, END_OF_TIME - 1)
"""The window of all time. It ends just before the end of time, so that the end of the input closes and expires it."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Windows of one size, back to back, the first starting at `offset` past 1970."""

    size: int
    offset: int = 0

    def assign(self, at: int, row: Row) -> tuple[Window, ...]:
        """The one window around `at`."""
        start = at - (at - self.offset) % self.size
        return (Window(start, start + self.size),)

    def __str__(self) -> str:
        return f"fixed({format_duration(self.size)}{_offset(self.offset)})"


@dataclass(frozen=True, slots=True)
class Sliding:
    """Overlapping windows of one size, one starting every `every`."""

    size: int
    every: int
    offset: int = 0

    def assign(self, at: int, row: Row) -> tuple[Window, ...]:
        """Every window that covers `at`, earliest first."""
        last = at - (at - self.offset) % self.every
        first = last - (self.size - 1 - (at - last)) // self.every * self.every
        return tuple(Window(start, start + self.size) for start in range(first, last + 1, self.every))

    def __str__(self) -> str:
        every = format_duration(self.every)
        return f"sliding({format_duration(self.size)}, every={every}{_offset(self.offset)})"


@dataclass(frozen=True, slots=True)
class Session:
    """Bursts of activity of a key, separated by at least `gap` without elements."""

    gap: int

    def assign(self, at: int, row: Row) -> tuple[Window, ...]:
        """The span of a session with this element alone; the engine merges overlapping spans."""
        return (Window(at, at + self.gap),)

    def __str__(self) -> str:
        return f"session(gap={format_duration(self.gap)})"


@dataclass(frozen=True, slots=True)
class CountWindow:
    """Groups of `size` elements of a key in order of arrival, regardless of event time."""

    size: int

    def __str__(self) -> str:
        return f"count({self.size})"


@dataclass(frozen=True, slots=True)
class Global:
    """One window for all of time. It closes only when the input ends."""

    def assign(self, at: int, row: Row) -> tuple[Window, ...]:
        """The global window."""
        return (GLOBAL_WINDOW,)

    def __str__(self) -> str:
        return "global()"


@dataclass(frozen=True, slots=True)
class Calendar:
    """Days, weeks (from Monday), months, quarters or years in a named time zone."""

    unit: str
    zone: str

    def assign(self, at: int, row: Row) -> tuple[Window, ...]:
        """The one window around `at`; a day on which the zone's clocks change has 23 or 25 hours."""
        unit, zone = _CALENDAR[self.unit], _zone(self.zone)
        start = unit.start(_date_at(at, zone))
        end = _first_of(unit.following(start), zone)
        if at >= end:
            # The clocks went back over midnight: they show the previous date again, but the new day has started.
            start = unit.following(start)
            end = _first_of(unit.following(start), zone)
        return (Window(_first_of(start, zone), end),)

    def __str__(self) -> str:
        return f"calendar({self.unit}, zone={self.zone})"


@dataclass(frozen=True, slots=True)
class Custom:
    """Windows assigned by a user's function: `(event time, row) -> [(start, end), ...]`."""

    function: Callable[[datetime, Row], Iterable[tuple[datetime, datetime]]]
    version: str | None = None

    def assign(self, at: int, row: Row) -> tuple[Window, ...]:
        """The windows that the function returns, validated."""
        windows = []
        for start, end in self.function(to_datetime(at), row):
            window = Window(to_instant(start), to_instant(end))
            if window.end <= window.start:
                raise refuse(f"{self} assigned a window that ends before it starts: {start} to {end}")
            windows.append(window)
        return tuple(windows)

    def try_assign(self, at: int, row: Row) -> tuple[Window, ...]:
        """As `assign`, but raises NoValueError if the function raises or returns invalid windows."""
        try:
            return self.assign(at, row)
        except MillraceError as error:
            raise NoValueError(error.message) from None
        except Exception as error:
            raise raised_by(str(self), error) from None

    def __str__(self) -> str:
        return f"custom({getattr(self.function, '__name__', 'function')})"


Windowing: TypeAlias = Fixed | Sliding | Session | CountWindow | Global | Calendar | Custom


def fixed(size: Duration, offset: Duration = "0s") -> Fixed:
    """Back-to-back windows of one size: `fixed("1h")`; `offset` shifts their starts."""
    length = parse_positive(size, "window size")
    return Fixed(length, parse_duration(offset, "window offset") % length)


def sliding(size: Duration, every: Duration, offset: Duration = "0s") -> Sliding:
    """Overlapping windows: `sliding("1h", every="5m")` is the last hour, every five minutes."""
    length, period = parse_positive(size, "window size"), parse_positive(every, "window period")
    if period > length:
        raise refuse(
            f"sliding windows of {size} every {every} leave gaps, and elements in a gap belong to no window",
            advice=f"choose an every= of at most {size}",
        )
    if length // period > _MOST_WINDOWS:
        raise refuse(
            f"sliding windows of {size} every {every} put each element into {length // period:,} windows, more than "
            f"the maximum of {_MOST_WINDOWS:,}",
            advice="choose a longer every=",
        )
    return Sliding(length, period, parse_duration(offset, "window offset") % period)


def session(gap: Duration) -> Session:
    """Bursts of activity of a key: a session ends after `gap` of event time without elements."""
    return Session(parse_positive(gap, "session gap"))


def count(size: int) -> CountWindow:
    """Groups of `size` elements of a key, in order of arrival."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise refuse(f"the size of a count window must be a whole number of at least 1, not {size!r}")
    return CountWindow(size)


def all_time() -> Global:
    """One window for all of time; a trigger such as `every` makes it a running answer."""
    return Global()


def calendar(unit: str, zone: str = "UTC") -> Calendar:
    """Calendar days, weeks, months, quarters or years of a time zone: `calendar("day", zone="Europe/Berlin")`."""
    if unit not in _CALENDAR:
        if unit in ("hour", "minute", "second"):
            raise refuse(f"unknown calendar unit {unit!r}", advice="use window.fixed('1h') for parts of a day")
        raise refuse_unknown("calendar unit", unit, _CALENDAR)
    try:
        _zone(zone)
    except (ZoneInfoNotFoundError, ValueError):
        advice = "use a name such as 'Europe/Berlin' or 'UTC'"
        raise refuse(f"unknown time zone {zone!r}", advice=advice) from None
    return Calendar(unit, zone)


def custom(
    function: Callable[[datetime, Row], Iterable[tuple[datetime, datetime]]], version: str | None = None
) -> Custom:
    """Windows assigned by your own function, which maps an event time and a row to spans.

    A run from a checkpoint is refused if the code of the function has changed. With a `version`, only a change of the
    version counts; change it when the function assigns other windows.
    """
    if not callable(function):
        raise refuse(f"window.custom() takes a function of (event time, row), not {shown(function)}")
    return Custom(function, check_version(version))


@dataclass(frozen=True, slots=True)
class _Unit:
    start: Callable[[date], date]
    following: Callable[[date], date]


def _date_at(at: int, zone: ZoneInfo) -> date:
    return to_datetime(at).astimezone(zone).date()


@lru_cache(4096)
def _first_of(day: date, zone: ZoneInfo) -> int:
    """The first instant at which the clocks of a zone show this date or, if they skip it, a later one."""
    first, second = (
        to_instant(datetime(day.year, day.month, day.day, tzinfo=zone, fold=fold).astimezone(UTC)) for fold in (0, 1)
    )
    if first <= second:  # midnight comes once, or twice
        return first
    # Midnight is skipped: bisect for the change of clocks, which lies between midnight by either offset.
    before, at = second - 1, first
    while at - before > 1:
        middle = (before + at) // 2
        before, at = (before, middle) if _date_at(middle, zone) >= day else (middle, at)
    return at


def _add_months(day: date, months: int) -> date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return date(year, month + 1, 1)


_CALENDAR = {
    "day": _Unit(lambda day: day, lambda start: start + timedelta(days=1)),
    "week": _Unit(lambda day: day - timedelta(days=day.weekday()), lambda start: start + timedelta(weeks=1)),
    "month": _Unit(lambda day: day.replace(day=1), lambda start: _add_months(start, 1)),
    "quarter": _Unit(lambda day: date(day.year, (day.month - 1) // 3 * 3 + 1, 1), lambda start: _add_months(start, 3)),
    "year": _Unit(lambda day: date(day.year, 1, 1), lambda start: date(start.year + 1, 1, 1)),
}


@lru_cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _offset(offset: int) -> str:
    return f", offset={format_duration(offset)}" if offset else ""
