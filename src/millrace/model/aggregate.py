"""Aggregates: mergeable functions over the elements of a window.

Each aggregate has one definition that every engine follows:

- `partial(values, at)` is the partial of one element, `None` if it contributes nothing;
- `merge(a, b)` merges two partials, in any order and grouping;
- `result(partial)` is the answer; `None` is the partial of no contributions. It raises `NoValueError` if there is no
  answer, such as a sum beyond its type. That depends on the final partial only, not on the order of merges;
- `inverse(total, part)`, if the aggregate has one, removes a merged partial.

NULL is handled as in SQL: aggregates skip it, `count()` counts rows, and the answer over no values is NULL except for
counts (0) and collections (empty). Types and values are those of Spark 4 (ANSI); docs/aggregates.md lists the
exceptions and their reasons.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import reduce
from math import isnan, sqrt
from typing import Any, ClassVar, TypeAlias

from millrace.model import exact
from millrace.model.errors import NoValueError, raised_by, refuse
from millrace.model.exact import Exact
from millrace.model.schema import UNKNOWN, is_integer, is_numeric
from millrace.model.types import digits_of
from millrace.model.version import check_version

Partial: TypeAlias = Any
Values: TypeAlias = tuple[Any, ...]

_MOST_DIGITS = 38
_EXACT = Context(prec=200, rounding=ROUND_HALF_UP)
"""A precision sufficient for any sum of decimals."""


class Aggregate(ABC):
    """One aggregate over the expressions in `arguments`, evaluated for each row."""

    __slots__ = ()
    name: ClassVar[str]
    mergeable: ClassVar[bool] = True
    invertible: ClassVar[bool] = False
    numeric: ClassVar[bool] = False
    """Whether the first argument must be a number."""
    width: ClassVar[int] = 1
    """The number of columns of its partials in the columnar engine."""

    @property
    @abstractmethod
    def arguments(self) -> tuple[str, ...]:
        """The SQL expressions whose values `partial` takes."""

    def partial(self, values: Values, at: int) -> Partial | None:
        """The partial of one element; None if one of its values is NULL."""
        return None if any(value is None for value in values) else self.lift(values, at)

    @abstractmethod
    def lift(self, values: Values, at: int) -> Partial:
        """The partial of an element without NULLs."""

    @abstractmethod
    def merge(self, a: Partial, b: Partial) -> Partial:
        """Merge two partials."""

    def result(self, partial: Partial | None) -> Any:
        """The answer of a partial; None stands for no contributions."""
        return None if partial is None else self.finish(partial)

    def finish(self, partial: Partial) -> Any:
        """The answer of a partial with at least one contribution."""
        return partial

    def inverse(self, total: Partial, part: Partial) -> Partial | None:
        """The partial `total` without `part`, which was merged into it before; None if nothing remains."""
        raise NotImplementedError(f"{self.name} cannot take a contribution back")

    def result_type(self, types: Sequence[str]) -> str:
        """The SQL type of the answer, from the types of the arguments."""
        return types[0]

    def over(self, types: Sequence[str]) -> "Aggregate":
        """The aggregate specialized for the types of its arguments, if its answers depend on them."""
        return self

    def combine(self, partials: Sequence[Partial | None]) -> Partial | None:
        """Merge all partials; None if there are none."""
        given = [partial for partial in partials if partial is not None]
        return reduce(self.merge, given) if given else None

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})"


@dataclass(frozen=True, slots=True)
class OfOne(Aggregate):
    """An aggregate over one expression."""

    argument: str

    @property
    def arguments(self) -> tuple[str, ...]:
        return (self.argument,)


@dataclass(frozen=True, slots=True)
class Count(Aggregate):
    """The number of rows, or of values that are not NULL."""

    argument: str | None = None
    name: ClassVar[str] = "count"
    invertible: ClassVar[bool] = True

    @property
    def arguments(self) -> tuple[str, ...]:
        return () if self.argument is None else (self.argument,)

    def lift(self, values: Values, at: int) -> int:
        return 1

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, partial: int | None) -> int:
        return partial or 0

    def inverse(self, total: int, part: int) -> int | None:
        return total - part or None

    def result_type(self, types: Sequence[str]) -> str:
        return "BIGINT"


@dataclass(frozen=True, slots=True)
class CountIf(Count):
    """The number of rows that fulfil a condition."""

    name: ClassVar[str] = "count_if"

    def lift(self, values: Values, at: int) -> int:
        return int(bool(values[0]))


@dataclass(frozen=True, slots=True)
class Sum(OfOne):
    """The sum. A partial is (sum, count), so that removing all values leaves NULL, not 0.

    Partial sums are exact and unbounded. An answer over whole numbers or decimals must fit its type; one over floats is
    rounded once.
    """

    type: str = field(default=UNKNOWN, compare=False, repr=False)
    """The type of the argument, once it is known."""
    name: ClassVar[str] = "sum"
    width: ClassVar[int] = 2
    invertible: ClassVar[bool] = True
    numeric: ClassVar[bool] = True

    def lift(self, values: Values, at: int) -> tuple[Any, int]:
        is_float = self.type in ("DOUBLE", "FLOAT") or isinstance(values[0], float)
        return Exact.of(float(values[0])) if is_float else values[0], 1

    def merge(self, a: tuple[Any, int], b: tuple[Any, int]) -> tuple[Any, int]:
        return _added(a[0], b[0]), a[1] + b[1]

    def finish(self, partial: tuple[Any, int]) -> Any:
        total = partial[0]
        if isinstance(total, Exact):
            return total.over(1)
        if isinstance(total, Decimal):
            return self.fitting(total)
        if isinstance(total, int) and not -(2**63) <= total < 2**63:
            raise self.too_large(total)
        return total

    def fitting(self, answer: Decimal) -> Decimal:
        """A decimal rounded to the type of the answer. Raises NoValueError if it does not fit."""
        precision, scale = self.digits(-int(answer.as_tuple().exponent))
        rounded = answer.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
        if rounded.copy_abs() >= Decimal(10) ** (precision - scale):
            raise self.too_large(rounded)
        return rounded

    def too_large(self, answer: int | Decimal) -> NoValueError:
        """The error of an answer that its type cannot hold."""
        shown, kind = str(answer), "BIGINT"
        if isinstance(answer, Decimal):
            precision, scale = self.digits(-int(answer.as_tuple().exponent))
            shown, kind = f"{answer:f}", f"DECIMAL({precision}, {scale})"
        return NoValueError(f"{self} is {shown}, which {kind} cannot hold; cast its argument to a wider type")

    def digits(self, scale: int) -> tuple[int, int]:
        """The precision and the scale of an answer over decimals; `scale` is used if their type is not known."""
        return digits_of(self.result_type([self.type])) or (_MOST_DIGITS, scale)

    def inverse(self, total: tuple[Any, int], part: tuple[Any, int]) -> tuple[Any, int] | None:
        left = total[1] - part[1]
        return (_added(total[0], _negated(part[0])), left) if left else None

    def over(self, types: Sequence[str]) -> Aggregate:
        return replace(self, type=types[0])

    def result_type(self, types: Sequence[str]) -> str:
        """As in Spark: ten more digits for decimals, so that the sum of many values fits."""
        digits = digits_of(types[0])
        if digits is not None:
            return f"DECIMAL({min(_MOST_DIGITS, digits[0] + 10)}, {digits[1]})"
        return "DOUBLE" if types[0] in ("DOUBLE", "FLOAT") else "BIGINT" if is_integer(types[0]) else UNKNOWN


@dataclass(frozen=True, slots=True)
class Mean(Sum):
    """The arithmetic mean: the exact sum divided by the count, rounded once."""

    name: ClassVar[str] = "mean"

    def finish(self, partial: tuple[Any, int]) -> Any:
        total, count = partial
        if isinstance(total, Exact):
            return total.over(count)
        if not isinstance(total, Decimal):
            return total / count
        _, scale = self.digits(min(_MOST_DIGITS, 4 - int(total.as_tuple().exponent)))
        return self.fitting(_quotient(total, count, scale))

    def result_type(self, types: Sequence[str]) -> str:
        """As in Spark: four more digits after the point for decimals."""
        digits = digits_of(types[0])
        if digits is None:
            return "DOUBLE"
        return f"DECIMAL({min(_MOST_DIGITS, digits[0] + 4)}, {min(_MOST_DIGITS, digits[1] + 4)})"


@dataclass(frozen=True, slots=True)
class Variance(OfOne):
    """The sample variance of the values as DOUBLE. A partial is (count, sum, sum of squares), and exact.

    The answer is rounded once. It is NaN if a value is NaN or infinite.
    """

    name: ClassVar[str] = "variance"
    width: ClassVar[int] = 3
    invertible: ClassVar[bool] = True
    numeric: ClassVar[bool] = True

    def lift(self, values: Values, at: int) -> tuple[int, Exact, int]:
        value = float(values[0])
        return 1, Exact.of(value), exact.square(value)

    def merge(self, a: tuple[int, Exact, int], b: tuple[int, Exact, int]) -> tuple[int, Exact, int]:
        return a[0] + b[0], a[1] + b[1], a[2] + b[2]

    def inverse(self, total: tuple[int, Exact, int], part: tuple[int, Exact, int]) -> tuple[int, Exact, int] | None:
        left = self.merge(total, (-part[0], -part[1], -part[2]))
        return left if left[0] else None

    def finish(self, partial: tuple[int, Exact, int]) -> float | None:
        return exact.variance(*partial) if partial[0] > 1 else None

    def result_type(self, types: Sequence[str]) -> str:
        return "DOUBLE"


@dataclass(frozen=True, slots=True)
class StdDev(Variance):
    """The sample standard deviation: the square root of the variance."""

    name: ClassVar[str] = "stddev"

    def finish(self, partial: tuple[int, Exact, int]) -> float | None:
        return sqrt(exact.variance(*partial)) if partial[0] > 1 else None


@dataclass(frozen=True, slots=True)
class Min(OfOne):
    """The least value; NaN is greater than any other value."""

    name: ClassVar[str] = "min"

    def lift(self, values: Values, at: int) -> Any:
        return one_zero(values[0])

    def merge(self, a: Any, b: Any) -> Any:
        return min(a, b, key=sort_key)


@dataclass(frozen=True, slots=True)
class Max(Min):
    """The greatest value; NaN is greater than any other value."""

    name: ClassVar[str] = "max"

    def merge(self, a: Any, b: Any) -> Any:
        return max(a, b, key=sort_key)


@dataclass(frozen=True, slots=True)
class First(OfOne):
    """The value with the earliest event time; the least of several."""

    name: ClassVar[str] = "first"
    width: ClassVar[int] = 2

    def lift(self, values: Values, at: int) -> tuple[int, Any]:
        return at, one_zero(values[0])

    def merge(self, a: tuple[int, Any], b: tuple[int, Any]) -> tuple[int, Any]:
        return min(a, b, key=_by_time)

    def finish(self, partial: tuple[int, Any]) -> Any:
        return partial[1]


@dataclass(frozen=True, slots=True)
class Last(First):
    """The value with the latest event time; the greatest of several."""

    name: ClassVar[str] = "last"

    def merge(self, a: tuple[int, Any], b: tuple[int, Any]) -> tuple[int, Any]:
        return max(a, b, key=_by_time)


@dataclass(frozen=True, slots=True)
class Collect(OfOne):
    """All values, sorted."""

    name: ClassVar[str] = "collect"

    def lift(self, values: Values, at: int) -> tuple[Any, ...]:
        return (one_zero(values[0]),)

    def merge(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(heapq.merge(a, b, key=sort_key))

    def result(self, partial: tuple[Any, ...] | None) -> list[Any]:
        return list(partial or ())

    def result_type(self, types: Sequence[str]) -> str:
        return f"ARRAY<{types[0]}>"


@dataclass(frozen=True, slots=True)
class CollectSet(Collect):
    """The distinct values, sorted."""

    name: ClassVar[str] = "collect_set"

    def merge(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        distinct = {sort_key(value): value for value in (*a, *b)}
        return tuple(distinct[key] for key in sorted(distinct))


@dataclass(frozen=True, slots=True)
class TopK(Aggregate):
    """The `k` greatest values, or the values with the `k` greatest `by`, greatest first."""

    argument: str
    k: int
    by: str | None = None
    name: ClassVar[str] = "top_k"
    width: ClassVar[int] = 2

    @property
    def arguments(self) -> tuple[str, ...]:
        return (self.argument,) if self.by is None else (self.argument, self.by)

    def lift(self, values: Values, at: int) -> tuple[tuple[Any, ...], ...]:
        return ((one_zero(values[-1]), one_zero(values[0])),)

    def merge(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(heapq.nlargest(self.k, (*a, *b), key=lambda pair: (sort_key(pair[0]), sort_key(pair[1]))))

    def result(self, partial: tuple[Any, ...] | None) -> list[Any]:
        return [value for _, value in partial or ()]

    def result_type(self, types: Sequence[str]) -> str:
        return f"ARRAY<{types[0]}>"

    def __str__(self) -> str:
        return f"top_k({self.argument}, {self.k}{f', by={self.by}' if self.by else ''})"


@dataclass(frozen=True, slots=True)
class Fold(Aggregate):
    """A user's aggregate: `start`, then `add(state, value)` for each value in order of arrival.

    `join` merges two states. Without it, the partial is the list of values in order of arrival, and session windows
    are refused, because merging sessions would not keep that order.
    """

    argument: str
    start: Any
    add: Callable[[Any, Any], Any]
    join: Callable[[Any, Any], Any] | None = None
    answer: Callable[[Any], Any] | None = None
    type: str = "UNKNOWN"
    version: str | None = None
    name: ClassVar[str] = "fold"

    @property
    def arguments(self) -> tuple[str, ...]:
        return (self.argument,)

    @property
    def mergeable(self) -> bool:  # type: ignore[override]
        """Whether states can be merged in any order."""
        return self.join is not None

    def lift(self, values: Values, at: int) -> Any:
        if self.join is None:
            return (values[0],)
        return self._call(f" of {values[0]!r:.60}", self.add, deepcopy(self.start), values[0])

    def merge(self, a: Any, b: Any) -> Any:
        return self._call("", self.join, a, b) if self.join else a + b

    def result(self, partial: Any | None) -> Any:
        state = self.start if partial is None else partial
        if self.join is None:
            state = self._added(partial or ())
        return self._call("", self.answer, state) if self.answer else state

    def _call(self, of: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a user's function. Raises NoValueError if the function raises."""
        try:
            return function(*arguments)
        except Exception as error:
            raise raised_by(f"{self}{of}", error) from None

    def _added(self, values: Iterable[Any]) -> Any:
        """The state after all values. Raises NoValueError that names the value for which the function raises."""
        state, value = deepcopy(self.start), None
        try:
            for value in values:
                state = self.add(state, value)
        except Exception as error:
            raise raised_by(f"{self} of {value!r:.60}", error) from None
        return state

    def result_type(self, types: Sequence[str]) -> str:
        return self.type

    def __str__(self) -> str:
        return f"fold({self.argument}, {getattr(self.add, '__name__', 'function')})"


def count(column: str | None = None) -> Count:
    """The number of rows, or of rows with a value in `column`."""
    if isinstance(column, int):
        raise refuse(
            f"count() takes the name of a column, or nothing to count rows, not {column}",
            advice=f"use window.count({column}) for windows of {column} elements",
        )
    return Count(None if column in (None, "*") else _expression(column, "count"))


def count_if(condition: str) -> CountIf:
    """The number of rows that fulfil the condition."""
    return CountIf(_expression(condition, "count_if"))


def sum_(column: str) -> Sum:
    """The sum of the values."""
    return Sum(_expression(column, "sum"))


def min_(column: str) -> Min:
    """The least of the values."""
    return Min(_expression(column, "min"))


def max_(column: str) -> Max:
    """The greatest of the values."""
    return Max(_expression(column, "max"))


def mean(column: str) -> Mean:
    """The arithmetic mean of the values."""
    return Mean(_expression(column, "mean"))


def variance(column: str) -> Variance:
    """The sample variance of the values; NULL for fewer than two."""
    return Variance(_expression(column, "variance"))


def stddev(column: str) -> StdDev:
    """The sample standard deviation of the values; NULL for fewer than two."""
    return StdDev(_expression(column, "stddev"))


def first(column: str) -> First:
    """The value with the earliest event time."""
    return First(_expression(column, "first"))


def last(column: str) -> Last:
    """The value with the latest event time."""
    return Last(_expression(column, "last"))


def collect(column: str) -> Collect:
    """All values, as a sorted list."""
    return Collect(_expression(column, "collect"))


def collect_set(column: str) -> CollectSet:
    """The distinct values, as a sorted list."""
    return CollectSet(_expression(column, "collect_set"))


def top_k(column: str, k: int, by: str | None = None) -> TopK:
    """The `k` greatest values of `column`, or its values in the `k` rows with the greatest `by`."""
    return TopK(_expression(column, "top_k"), positive(k, "top_k"), None if by is None else _expression(by, "top_k"))


def fold(
    column: str,
    start: Any,
    add: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any] | None = None,
    result: Callable[[Any], Any] | None = None,
    type: str = "UNKNOWN",
    version: str | None = None,
) -> Fold:
    """An aggregate of your own: `fold("v", 1, lambda product, v: product * v)`.

    Session windows need `merge`, which merges two states. A run from a checkpoint is refused if the code of the
    functions has changed. With a `version`, only a change of the version counts; change it when their answers change.
    """
    for what, function in (("add", add), ("merge", merge), ("result", result)):
        if function is not None and not callable(function):
            raise refuse(f"{what}= of fold() must be a function, not {function!r}")
    return Fold(_expression(column, "fold"), start, add, merge, result, type, check_version(version))


def sort_key(value: Any) -> tuple[bool, Any]:
    """Order values as Spark does: NaN after every other number, arrays and structs part by part, NULL in them first."""
    match value:
        case list():
            return False, tuple(map(_part_key, value))
        case dict():
            return False, tuple(map(_part_key, value.values()))
    return (True, 0) if isinstance(value, float) and isnan(value) else (False, value)


def _part_key(value: Any) -> tuple[Any, ...]:
    return () if value is None else sort_key(value)


def one_zero(value: Any) -> Any:
    """A value with -0.0 replaced by 0.0, which it equals."""
    match value:
        case list():
            return [one_zero(each) for each in value]
        case dict():
            return {name: one_zero(each) for name, each in value.items()}
    return value + 0.0 if isinstance(value, float) else value


def positive(number: int, where: str) -> int:
    """Check a count that must be at least 1."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise refuse(f"{where}() takes a whole number of at least 1, not {number!r}")
    return number


def check_types(aggregate: Aggregate, types: Sequence[str]) -> None:
    """Refuse an aggregate whose arguments have unsuitable types."""
    if aggregate.numeric and not is_numeric(types[0]):
        raise refuse(f"{aggregate} needs numbers, but {aggregate.arguments[0]} is {types[0]}")
    if isinstance(aggregate, CountIf) and types[0] not in ("BOOLEAN", "UNKNOWN"):
        raise refuse(f"{aggregate} needs a condition, but {aggregate.arguments[0]} is {types[0]}")
    if isinstance(aggregate, Min | First | Collect | TopK):
        for argument, type in zip(aggregate.arguments, types, strict=True):
            if "MAP<" in type:
                advice = "use parts of it, or map_entries(...), which is an ARRAY of STRUCTs"
                raise refuse(f"{aggregate} needs values that have an order, but {argument} is {type}", advice=advice)


def _expression(value: str | None, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise refuse(f"{where}() takes the name of a column or an SQL expression, not {value!r}")
    return value


def _by_time(partial: tuple[int, Any]) -> tuple[int, tuple[bool, Any]]:
    return partial[0], sort_key(partial[1])


def _added(a: Any, b: Any) -> Any:
    if isinstance(a, Exact) != isinstance(b, Exact):  # the type of the argument is not known
        a, b = (each if isinstance(each, Exact) else Exact.of(float(each)) for each in (a, b))
    return _EXACT.add(a, b) if isinstance(a, Decimal) else a + b


def _negated(number: Any) -> Any:
    return number.copy_negate() if isinstance(number, Decimal) else -number


def _quotient(total: Decimal, count: int, scale: int) -> Decimal:
    """`total / count` with `scale` digits after the point, rounded once, half away from zero."""
    numerator, denominator = total.scaleb(scale, _EXACT).as_integer_ratio()
    whole, rest = divmod(abs(numerator), denominator * count)
    whole += 2 * rest >= denominator * count
    return Decimal(whole if numerator >= 0 else -whole).scaleb(-scale, _EXACT)
