"""Python values of SQL types: whether a value fits a type, and the value that the type then holds."""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

from millrace.model.errors import NoValueError, shown
from millrace.model.nested import ArrayType, MapType, StructType, nested
from millrace.model.types import is_decimal, is_float, is_integer
from millrace.model.values import BITS, to_decimal, to_float

Hold: TypeAlias = Callable[[Any], Any]


def fits(value: Any, type: str) -> bool:
    """Whether a Python value belongs to an SQL type."""
    try:
        holder(type)(value)
    except NoValueError:
        return False
    return True


def held(value: Any, type: str) -> Any:
    """A value with the precision of its type: 0.1 is a different number as a FLOAT. Raises NoValueError."""
    return holder(type)(value)


@cache
def holder(type: str) -> Hold:
    """`held` for one type, which is then read once. NULL is a value of every type."""
    hold = _holder(type)

    def hold_or_null(value: Any) -> Any:
        return None if value is None else hold(value)

    return hold_or_null


def _holder(type: str) -> Hold:
    if is_integer(type):
        return _whole(type)
    if is_float(type):
        return _checked(type, lambda value: isinstance(value, int | float), lambda value: to_float(value, type))
    if is_decimal(type):
        return _checked(
            type, lambda value: isinstance(value, int | Decimal), lambda value: _with_digits(Decimal(value), type)
        )
    if type == "DATE":
        return _checked(type, lambda value: isinstance(value, date) and not isinstance(value, datetime))
    if type in _PYTHON:
        kind = _PYTHON[type]
        return _checked(type, lambda value: isinstance(value, kind))
    match nested(type):
        case ArrayType(element):
            each = holder(element)
            return _checked(
                type, lambda value: isinstance(value, list | tuple), lambda value: [each(item) for item in value]
            )
        case MapType(key, item):
            return _map(type, holder(key), holder(item))
        case StructType(fields):
            return _struct(type, {name: holder(kind) for name, kind in fields})
        case None:
            return lambda value: value


def _whole(type: str) -> Hold:
    limit = 1 << BITS[type] - 1

    def hold(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit:
            return value
        raise _misfit(value, type)

    return hold


def _checked(type: str, is_one: Callable[[Any], bool], hold: Hold = lambda value: value) -> Hold:
    truths = type == "BOOLEAN"

    def check(value: Any) -> Any:
        if not is_one(value) or (isinstance(value, bool) and not truths):
            raise _misfit(value, type)
        return hold(value)

    return check


def _map(type: str, key: Hold, item: Hold) -> Hold:
    def hold(value: Any) -> Any:
        try:
            pairs = dict(value)
        except (TypeError, ValueError):
            raise _misfit(value, type) from None
        if None in pairs:
            raise NoValueError(f"a key of {type} is NULL")
        return {key(name): item(each) for name, each in pairs.items()}

    return hold


def _struct(type: str, fields: Mapping[str, Hold]) -> Hold:
    def hold(value: Any) -> Any:
        if not isinstance(value, Mapping) or not value.keys() <= fields.keys():
            raise _misfit(value, type)
        return {name: each(value.get(name)) for name, each in fields.items()}

    return hold


def _with_digits(value: Decimal, type: str) -> Decimal:
    """A decimal of the type's scale; a number that would have to be rounded does not fit."""
    rounded = to_decimal(value, type) if value.is_finite() else None
    if rounded is None or rounded != value:
        raise _misfit(value, type)
    return rounded


def _misfit(value: Any, type: str) -> NoValueError:
    return NoValueError(f"{shown(value)} is not {type}")


_PYTHON = {"STRING": str, "BOOLEAN": bool, "TIMESTAMP": datetime, "BINARY": bytes}
