"""The value of a typed expression for one row, with Spark 4's ANSI semantics.

A recursive evaluation of the tree. It evaluates the operands that Spark evaluates, in Spark's order, so that a guarded
division does not fail: the right operand only if the left one is not NULL, the divisor before the dividend, and only
the chosen branch of a CASE.
"""

import math
import operator
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, assert_never

from millrace.model.aggregate import sort_key
from millrace.model.errors import NoValueError
from millrace.model.typed import Call, Case, Cast, ColumnOf, Literal, Node
from millrace.model.types import decimal_of, is_decimal, is_integer
from millrace.model.values import EXACT, cast_value, in_range, since_1970, to_decimal, to_float
from millrace.model.window import Row


def value_of(node: Node, row: Row) -> Any:
    """The value of a typed tree for a row. Raises NoValueError if it has none."""
    match node:
        case ColumnOf(path=path):
            value = row[path[0]]
            for field in path[1:]:
                value = None if value is None else value[field]
            return value
        case Literal(value=value):
            return value
        case Cast(child=child, type=type, safe=safe):
            return _cast(value_of(child, row), child.type, type, safe)
        case Case(branches=branches, otherwise=otherwise):
            chosen = (value for condition, value in branches if value_of(condition, row) is True)
            return value_of(next(chosen, otherwise), row)
        case Call(name=name, arguments=arguments):
            return _LAZY[name](arguments, row) if name in _LAZY else _strict(node, row)
    assert_never(node)


def _cast(value: Any, source: str, target: str, safe: bool) -> Any:
    try:
        return cast_value(value, source, target)
    except NoValueError:
        if safe:
            return None
        raise


def _strict(node: Call, row: Row) -> Any:
    """A call that is NULL if an argument is NULL; the arguments after that one are not evaluated."""
    order = reversed(node.arguments) if node.name in ("div", "intdiv", "mod") else node.arguments
    values = []
    for argument in order:
        value = value_of(argument, row)
        if value is None:
            return None
        values.append(value)
    if node.name in ("div", "intdiv", "mod"):
        values.reverse()
        if values[1] == 0:
            raise NoValueError("division by zero")
    if node.name in _ARITHMETIC:
        return _computed(node, values)
    return _STRICT[node.name](*values)


def _computed(node: Call, values: list[Any]) -> Any:
    """Arithmetic in the type of the result."""
    if is_integer(node.type):
        return in_range(_INTEGER[node.name](*values), node.type)
    if is_decimal(node.type):
        exact = getattr(EXACT, _DECIMAL[node.name])(*values)
        if node.name == "div":
            exact = EXACT.divide(*values).quantize(Decimal(1).scaleb(-decimal_of(node.type)[1]), ROUND_HALF_UP, EXACT)
        return to_decimal(exact, node.type)
    if node.type == "FLOAT":
        return to_float(_float_computed(node.name, values), "FLOAT")
    return _float_computed(node.name, values)


def _float_computed(name: str, values: list[float]) -> float:
    try:
        return float(_FLOAT[name](*values))
    except OverflowError:
        return math.inf
    except ValueError:  # fmod with an infinite dividend
        return math.nan


# Calls that evaluate only the arguments they need.


def _and(arguments: tuple[Node, ...], row: Row) -> bool | None:
    left = value_of(arguments[0], row)
    if left is False:
        return False
    right = value_of(arguments[1], row)
    return False if right is False else None if None in (left, right) else True


def _or(arguments: tuple[Node, ...], row: Row) -> bool | None:
    left = value_of(arguments[0], row)
    if left is True:
        return True
    right = value_of(arguments[1], row)
    return True if right is True else None if None in (left, right) else False


def _coalesce(arguments: tuple[Node, ...], row: Row) -> Any:
    values = (value_of(argument, row) for argument in arguments)
    return next((value for value in values if value is not None), None)


def _in(arguments: tuple[Node, ...], row: Row) -> bool | None:
    value = value_of(arguments[0], row)
    if value is None:
        return None
    members = [value_of(member, row) for member in arguments[1:]]
    if any(member is not None and sort_key(member) == sort_key(value) for member in members):
        return True
    return None if None in members else False


def _same(arguments: tuple[Node, ...], row: Row) -> bool:
    left, right = (value_of(argument, row) for argument in arguments)
    return left is right if left is None or right is None else sort_key(left) == sort_key(right)


def _picked(choose: Callable[..., Any]) -> Callable[[tuple[Node, ...], Row], Any]:
    def pick(arguments: tuple[Node, ...], row: Row) -> Any:
        values = [value_of(argument, row) for argument in arguments]
        return choose((value for value in values if value is not None), key=sort_key, default=None)

    return pick


_LAZY: dict[str, Callable[[tuple[Node, ...], Row], Any]] = {
    "and": _and,
    "or": _or,
    "coalesce": _coalesce,
    "in": _in,
    "same": _same,
    "is_null": lambda arguments, row: value_of(arguments[0], row) is None,
    "greatest": _picked(max),
    "least": _picked(min),
}

# Arithmetic.


def _whole_quotient(left: int, right: int) -> int:
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


_ARITHMETIC = ("add", "sub", "mul", "div", "intdiv", "mod", "neg", "abs")
_INTEGER: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "intdiv": _whole_quotient,
    "mod": lambda left, right: left - right * _whole_quotient(left, right),
    "neg": operator.neg,
    "abs": abs,
}
_DECIMAL = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "mod": "remainder", "neg": "copy_negate",
    "abs": "copy_abs",
}  # fmt: skip
_FLOAT: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "mod": math.fmod,
    "neg": operator.neg,
    "abs": abs,
}


def _whole(rounds: Callable[[float], int]) -> Callable[[int | float], int]:
    """Floor or ceil; the result for NaN is 0, as in Java."""

    def whole(value: int | float) -> int:
        if isinstance(value, float) and not math.isfinite(value):
            if math.isnan(value):
                return 0
            raise NoValueError(f"{value} is not a whole number")
        return in_range(rounds(value), "BIGINT")

    return whole


def _rounded(value: float, digits: int) -> float:
    if not math.isfinite(value):
        return value
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, EXACT)) + 0.0  # not -0.0


# Text.


def _substring(text: str, start: int, length: int) -> str:
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    return text[max(begin, 0) : max(begin + length, 0)] if length > 0 else ""


def _like(text: str, pattern: str) -> bool:
    tokens = re.findall(r"\\?.", pattern, re.DOTALL)  # a backslash escapes the next character
    regex = "".join({"%": ".*", "_": "."}.get(token, re.escape(token[-1])) for token in tokens)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def _at(values: list[Any], place: int) -> Any:
    if not 0 <= place < len(values):
        raise NoValueError(f"index {place} is outside an array of {len(values)} elements")
    return values[place]


# Times.


def _truncated(unit: str, at: datetime) -> datetime:
    if unit == "MICROSECOND":
        return at
    if unit == "MILLISECOND":
        return at.replace(microsecond=at.microsecond // 1000 * 1000)
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    match unit:
        case "YEAR":
            return day.replace(month=1, day=1)
        case "QUARTER":
            return day.replace(month=(at.month - 1) // 3 * 3 + 1, day=1)
        case "MONTH":
            return day.replace(day=1)
        case "WEEK":
            if at.toordinal() <= at.weekday():
                raise NoValueError("the week begins before the year 1")
            return day - timedelta(days=at.weekday())
        case "DAY":
            return day
        case "HOUR":
            return at.replace(minute=0, second=0, microsecond=0)
        case "MINUTE":
            return at.replace(second=0, microsecond=0)
    return at.replace(microsecond=0)


def _micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _from_1970(unit: int) -> Callable[[int], datetime]:
    return lambda number: since_1970(in_range(number * unit, "BIGINT"))


def _compare(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda left, right: holds(sort_key(left), sort_key(right))


def _day_of_year(day: date) -> int:
    return day.timetuple().tm_yday


_STRICT: dict[str, Callable[..., Any]] = {
    "not": operator.not_,
    "eq": _compare(operator.eq),
    "ne": _compare(operator.ne),
    "lt": _compare(operator.lt),
    "le": _compare(operator.le),
    "gt": _compare(operator.gt),
    "ge": _compare(operator.ge),
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _rounded,
    "concat": lambda *parts: "".join(parts),
    "length": len,
    "lower": str.lower,
    "upper": str.upper,
    "trim": str.strip,
    "ltrim": str.lstrip,
    "rtrim": str.rstrip,
    "substring": _substring,
    "like": _like,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "contains": operator.contains,
    "index": _at,
    "date_trunc": _truncated,
    "year": lambda day: day.year,
    "quarter": lambda day: (day.month - 1) // 3 + 1,
    "month": lambda day: day.month,
    "day": lambda day: day.day,
    "dayofyear": _day_of_year,
    "dayofweek": lambda day: day.isoweekday() % 7 + 1,
    "weekday": lambda day: day.weekday(),
    "weekofyear": lambda day: day.isocalendar().week,
    "hour": lambda at: at.hour,
    "minute": lambda at: at.minute,
    "second": lambda at: at.second,
    "timestamp_seconds": _from_1970(1_000_000),
    "timestamp_millis": _from_1970(1_000),
    "timestamp_micros": _from_1970(1),
    "unix_seconds": lambda at: _micros(at) // 1_000_000,
    "unix_millis": lambda at: _micros(at) // 1_000,
    "unix_micros": _micros,
}
