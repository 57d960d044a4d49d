"""Values of SQL types in Python, and casts between them by Spark 4's ANSI rules.

NULL is None. A TIMESTAMP is a datetime in UTC in the years 1 to 9999. A FLOAT is the Python float that equals it.
"""

import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from millrace.model.duration import to_datetime
from millrace.model.errors import NoValueError
from millrace.model.types import decimal_of, is_decimal, is_float, is_integer

BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
EXACT = Context(prec=400)
"""Decimals are computed with more digits than any decimal type has, and rounded once."""
_SPACES = "".join(map(chr, range(0x21))) + "\x7f"
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[dDfF]?")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), math.inf),
    **dict.fromkeys(("-inf", "-infinity"), -math.inf),
    "nan": math.nan,
}
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
_DAY = r"\+?(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
_DATE = re.compile(_DAY + r"(?:[T ].*)?)?)?", re.DOTALL)
_TIME = re.compile(
    _DAY + r"(?:[T ](?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})"
    r"(?:\.(?P<fraction>[0-9]*))?(?P<zone>.*))?)?)?)?)?",
    re.DOTALL,
)
_ZONE = re.compile(
    r"(?:UTC|GMT)?(?P<sign>[+-])(?P<hours>[0-9]{1,2})(?::(?P<minutes>[0-9]{1,2})|(?<=[0-9]{2})(?P<both>[0-9]{2}))?"
)


def cast_value(value: Any, source: str, target: str) -> Any:
    """Cast a value from one type to another. Raises NoValueError if the cast fails."""
    if value is None or source == target:
        return value
    if target == "STRING":
        return _as_text(value, source)
    if source == "STRING":
        value = value.strip(_SPACES if target != "DOUBLE" and not is_decimal(target) else _SPACES[:-1])
        return _FROM_TEXT[target](value) if target in _FROM_TEXT else _number_from_text(value, target)
    if target == "BOOLEAN":
        return bool(value)
    if is_integer(target):
        return _to_integer(value, target)
    if is_float(target):
        return to_float(value, target)
    if is_decimal(target):
        return to_decimal(Decimal(int(value)) if isinstance(value, bool) else Decimal(value), target)
    if target == "DATE":
        return value.date()
    if source == "DATE":
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return since_1970(value * 1_000_000)


def _to_integer(value: Any, target: str) -> int:
    if isinstance(value, datetime):
        return in_range((value - _EPOCH) // timedelta(seconds=1), target)
    if isinstance(value, float) and not math.isfinite(value):
        raise NoValueError(f"{value} is not a whole number")
    return in_range(math.trunc(value), target)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def in_range(number: int, type: str) -> int:
    """The number itself. Raises NoValueError if its type cannot hold it."""
    limit = 1 << BITS[type] - 1
    if not -limit <= number < limit:
        raise NoValueError(f"{number} does not fit into {type}")
    return number


def to_float(value: Any, type: str) -> float:
    """A number as a DOUBLE or a FLOAT."""
    value = int(value) if isinstance(value, bool) else value
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if type == "DOUBLE" or not math.isfinite(number):
        return number
    if isinstance(value, int | Decimal):  # rounded once, not twice
        return _nearest(value)
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _nearest(value: int | Decimal) -> float:
    import numpy as np

    return float(np.float32(str(value)))


def to_decimal(value: Decimal, type: str) -> Decimal:
    """A number rounded to the scale of a decimal type, half away from zero. Raises NoValueError if it does not fit."""
    precision, scale = decimal_of(type)
    if value and value.adjusted() >= precision:
        raise NoValueError(f"{value} does not fit into {type}")
    rounded = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, EXACT)
    if rounded.copy_abs() >= Decimal(10) ** (precision - scale):
        raise NoValueError(f"{value} does not fit into {type}")
    return rounded if rounded else rounded.copy_abs()  # a decimal has no -0


def since_1970(micros: int) -> datetime:
    """The datetime of an instant in microseconds. Raises NoValueError if it is not in the years 1 to 9999."""
    if not -62_135_596_800_000_000 <= micros <= 253_402_300_799_999_999:
        raise NoValueError(f"{micros} microseconds are outside the years 1 to 9999")
    return to_datetime(micros)


def _as_text(value: Any, source: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        whole = f"{value.year:04}-{value:%m-%d %H:%M:%S}"
        return f"{whole}.{value.microsecond:06}".rstrip("0") if value.microsecond else whole
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def _number_from_text(text: str, target: str) -> Any:
    if is_integer(target):
        if not _WHOLE.fullmatch(text) or len(text.lstrip("+-0")) > 20:
            raise NoValueError(f"{text!r:.40} is not a whole number")
        return in_range(int(text), target)
    if is_decimal(target):
        if not _DECIMAL.fullmatch(text):
            raise NoValueError(f"{text!r:.40} is not a number")
        try:
            return to_decimal(Decimal(text), target)
        except InvalidOperation:
            raise NoValueError(f"{text!r:.40} does not fit into {target}") from None
    raise NoValueError(f"text cannot be cast to {target}")


def _double(text: str) -> float:
    found = _NUMBER.fullmatch(text)
    if found:
        return float(found[1])
    found = _HEXADECIMAL.fullmatch(text)
    if found:
        return float.fromhex(found[1])
    if text in ("+NaN", "-NaN"):
        return math.nan
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    raise NoValueError(f"{text!r:.40} is not a number")


def _boolean(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise NoValueError(f"{text!r:.40} is neither true nor false")
    return text.lower() in _TRUE


def _date(text: str) -> date:
    found = _DATE.fullmatch(text)
    if not found:
        raise NoValueError(f"{text!r:.40} is not a date")
    try:
        return date(int(found["year"]), int(found["month"] or 1), int(found["day"] or 1))
    except ValueError:
        raise NoValueError(f"{text!r:.40} is not a date") from None


def _timestamp(text: str) -> datetime:
    found = _TIME.fullmatch(text)
    if not found:
        raise NoValueError(f"{text!r:.40} is not a timestamp")
    year, month, day, hour, minute, second = (int(found[name] or least) for name, least in _PARTS)
    fraction = int((found["fraction"] or "")[:6].ljust(6, "0"))
    try:
        zone = _zone((found["zone"] or "").strip())
        return datetime(year, month, day, hour, minute, second, fraction, zone).astimezone(UTC)
    except (ValueError, OverflowError):
        raise NoValueError(f"{text!r:.40} is not a timestamp") from None


_PARTS = (("year", 1), ("month", 1), ("day", 1), ("hour", 0), ("minute", 0), ("second", 0))


def _zone(text: str) -> timezone:
    """A time zone given as a fixed offset; named zones are left to Spark."""
    if text in ("", "Z", "UTC", "GMT"):
        return UTC
    found = _ZONE.fullmatch(text)
    if not found:
        raise ValueError(text)
    hours, minutes = int(found["hours"]), int(found["minutes"] or found["both"] or 0)
    if hours > 18 or minutes > 59 or (hours == 18 and minutes):
        raise ValueError(text)
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if found["sign"] == "-" else offset)


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "DOUBLE": _double,
    "BOOLEAN": _boolean,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
}
