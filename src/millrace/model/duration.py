"""Durations and instants: whole microseconds; instants count from 1970 in UTC."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from millrace.model.errors import refuse

SECOND = 1_000_000
BEGINNING_OF_TIME = -(2**63)
END_OF_TIME = 2**63 - 1
"""The watermark of an input that has ended. It is past the end of every window, including the global one."""

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3_600 * SECOND,
    "d": 86_400 * SECOND,
    "w": 7 * 86_400 * SECOND,
}
_LONGEST = 10_000 * 366 * _UNITS["d"]
_WORDS = {
    "microsecond": "us",
    "millisecond": "ms",
    "second": "s",
    "sec": "s",
    "minute": "m",
    "min": "m",
    "hour": "h",
    "day": "d",
    "week": "w",
}
_PART = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EXAMPLES = "write it like '500ms', '10s', '2m', '1h' or '1d'"

Duration: TypeAlias = str | timedelta
"""A duration as users write it: `"500ms"`, `"10s"`, `"1h30m"`, or a timedelta."""

Moment: TypeAlias = int | str | timedelta | datetime
"""A point in time as tests write it: microseconds, a duration since 0, or a datetime."""


def parse_duration(value: Duration, what: str = "duration") -> int:
    """Read a duration as microseconds.

    >>> parse_duration("1h30m") == 5400 * SECOND
    True
    """
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise refuse(f"{what} must not be negative, but is {value}")
        return min(value // _MICROSECOND, _LONGEST)
    if not isinstance(value, str):
        raise refuse(f"{what} {value!r} has no unit", advice=_EXAMPLES)
    text = value.replace(" ", "")
    parts = [(number, _WORDS.get(unit.removesuffix("s"), unit)) for number, unit in _PART.findall(text)]
    if not parts or _PART.sub("", text) or any(unit not in _UNITS for _, unit in parts):
        raise refuse(f"{what} {value!r} does not parse", advice=_EXAMPLES)
    length = sum(Decimal(number) * _UNITS[unit] for number, unit in parts)
    if length > _LONGEST:
        raise refuse(f"{what} {value!r:.40} is longer than the maximum of 10,000 years")
    return round(length)


def parse_positive(value: Duration, what: str) -> int:
    """Read a duration that must be longer than 0."""
    length = parse_duration(value, what)
    if length <= 0:
        raise refuse(f"{what} must be longer than 0, but is {value!r}")
    return length


def format_duration(length: int) -> str:
    """Format microseconds so that `parse_duration` reads them back.

    >>> format_duration(5400 * SECOND), format_duration(0), format_duration(1500)
    ('1h30m', '0s', '1ms500us')
    """
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, length = divmod(length, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def to_instant(value: object) -> int:
    """Microseconds since 1970 of a timestamp value; a datetime without a zone is taken as UTC."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND
    raise refuse(f"a timestamp must be a datetime, not {value!r:.60}")


def to_micros(value: Moment) -> int:
    """A moment as microseconds."""
    if isinstance(value, datetime):
        return to_instant(value)
    return value if isinstance(value, int) else parse_duration(value, "time")


def to_datetime(instant: int) -> datetime:
    """The same instant as a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=instant)
