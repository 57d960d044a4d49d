"""Hints for records that do not fit: what to declare, or how to write the value."""

from decimal import Decimal, InvalidOperation

from millrace.model.schema import Column
from millrace.model.types import INTEGERS, is_integer, is_number

_TIME = "write a time like 2026-01-31T12:00:00Z"
_SINCE_1970 = (
    (range(9, 12), "timestamp_seconds"),
    (range(12, 15), "timestamp_millis"),
    (range(15, 18), "timestamp_micros"),
)
"""The functions for times as numbers, by how many digits a time of our days has."""
_BIGGEST = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}
"""How many bits a whole number of each type has, without the sign."""


def hint_for_value(column: Column, found: object) -> str | None:
    """What to do about a value that is not of the type of its column; None if there is nothing better to say."""
    number = _number(found)
    if column.type == "TIMESTAMP":
        return _TIME if number is None else _time(column.name, number)
    if column.type == "BOOLEAN" and number in (0, 1):
        return f"declare it BIGINT and use {column.name} = 1"
    if is_integer(column.type) and number is not None:
        return _wider(number)
    return "declare it STRING to keep the text" if is_number(column.type) and isinstance(found, str) else None


def hint_for_text(text: str) -> str | None:
    """What to do about a text that is not a JSON object; None if there is nothing better to say."""
    if text.startswith("["):
        return "send each member of the array as a record of its own"
    if text.startswith("{'"):
        return "write names and texts in double quotes, as JSON does"
    return None


def _time(name: str, number: Decimal) -> str:
    if number != number.to_integral_value():
        return f"declare it DOUBLE and use timestamp_micros(CAST({name} * 1000000 AS BIGINT)), if it is in seconds"
    digits = len(str(abs(int(number))))
    function = next((function for many, function in _SINCE_1970 if digits in many), None)
    return _TIME if function is None else f"declare it BIGINT and use {function}({name})"


def _wider(number: Decimal) -> str | None:
    if number != number.to_integral_value():
        return "declare it DOUBLE"
    types = [type for type in INTEGERS if -(2 ** _BIGGEST[type]) <= number < 2 ** _BIGGEST[type]]
    if types:
        return f"declare it {types[0]}"
    return "declare it DECIMAL(38,0)" if len(str(abs(int(number)))) <= 38 else "declare it STRING to keep the text"


def _number(found: object) -> Decimal | None:
    """The number that a value is, or that its text is written as."""
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return None
    try:
        number = Decimal(str(found).strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) < 400 else None
