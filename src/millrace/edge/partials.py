"""Slices and partials in DuckDB's SQL: the slice of an element, and the partial columns of an aggregate.

Each computes the same as its counterpart in `millrace.panes`, for the same rows.
"""

import sys
from collections.abc import Callable
from typing import assert_never

from millrace.formats.sql import CannotFuseError, to_duckdb
from millrace.model.aggregate import (
    Aggregate,
    Collect,
    Count,
    CountIf,
    First,
    Fold,
    Last,
    Max,
    Min,
    Sum,
    TopK,
    Variance,
)
from millrace.model.expression import Expression
from millrace.model.query import Computed
from millrace.model.schema import is_integer
from millrace.model.sketch import ApproxDistinct, ApproxQuantile, ApproxTopK, SecondMoment
from millrace.model.window import Calendar, CountWindow, Custom, Fixed, Global, Session, Sliding, Windowing

_SMALLER = 2.0**-64
_LARGEST = sys.float_info.max
AT = "__at"
"""The column with the event time of a row, in microseconds."""


class NotInSqlError(CannotFuseError):
    """The reason why DuckDB does not compute a window or an aggregate, although it computes the inputs."""


def slice_of(windowing: Windowing) -> str:
    """The start of an element's slice: `panes.slices.slice_of` in SQL, whose % has the sign of the dividend."""
    match windowing:
        case Fixed(size, offset):
            return f"({AT} - {_modulo(offset, size)})"
        case Sliding(size, every, offset):
            into, cut = _modulo(offset, every), size % every
            return f"({AT} - {into} + CASE WHEN {into} < {cut} THEN 0 ELSE {cut} END)"
        case Session():
            return AT
        case Global():
            return "CAST(0 AS BIGINT)"
        case Calendar() | CountWindow() | Custom():
            raise NotInSqlError(f"{windowing} has no slices in SQL")
        case never:
            assert_never(never)


def _modulo(offset: int, size: int) -> str:
    return f"((({AT} - {offset}) % {size} + {size}) % {size})"


def partials_of(computed: Computed) -> list[str]:
    """The partial columns of an aggregate, as `panes.columns` defines them."""
    for kind, write in _AGGREGATES:
        if isinstance(computed.aggregate, kind):
            return write(computed)
    if isinstance(computed.aggregate, _BY_VALUE):
        raise NotInSqlError(f"{computed.aggregate} has no partials in SQL")
    raise TypeError(f"{type(computed.aggregate).__name__} has no SQL; add it to edge.partials")


def _counted(computed: Computed) -> list[str]:
    if not computed.arguments:
        return ["count(*)"]
    argument = to_duckdb(computed.arguments[0])
    return [f"count(*) FILTER (WHERE {argument})" if isinstance(computed.aggregate, CountIf) else f"count({argument})"]


def _summed(computed: Computed) -> list[str]:
    (argument,) = computed.arguments
    if not is_integer(argument.type) and argument.type not in ("DOUBLE", "FLOAT"):
        raise NotInSqlError(f"SQL does not sum {argument.type} exactly")
    kind = "HUGEINT" if is_integer(argument.type) else "DOUBLE"
    value = to_duckdb(argument)
    return [f"CAST(coalesce(sum({value}), 0) AS {kind})", f"count({value})"]


def _spread(computed: Computed) -> list[str]:
    """Count, mean and squared deviations; NaN if a value is not finite, and infinite squares if they overflow DOUBLE.

    The mean is computed of values scaled down by a power of two, which is exact, so their sum never overflows. If the
    squares overflow, DuckDB returns any of -inf, inf and NaN. The mean of equal values is exact, because the squares of
    its error might overflow too.
    """
    value = f"CAST({to_duckdb(computed.arguments[0])} AS DOUBLE)"
    count, mean, spread = f"count({value})", f"avg({value} * {_SMALLER!r})", f"var_pop({value})"
    near = f"greatest(least({mean} / {_SMALLER!r}, {_LARGEST!r}), -{_LARGEST!r})"
    near = f"CASE WHEN {spread} = 0 THEN any_value({value}) ELSE {near} END"
    finite = f"CASE WHEN isfinite({spread}) THEN {spread} * {count} ELSE CAST('inf' AS DOUBLE) END"
    return [
        count,
        *(
            f"CASE WHEN {mean} IS NULL THEN 0.0 WHEN isfinite({mean}) THEN {known} ELSE CAST('nan' AS DOUBLE) END"
            for known in (near, finite)
        ),
    ]


def _extreme(computed: Computed) -> list[str]:
    return [f"{'max' if isinstance(computed.aggregate, Max) else 'min'}({_value(computed.arguments[0])})"]


def _value(argument: Expression) -> str:
    """A value as answers show it: -0.0 is 0.0."""
    return f"({to_duckdb(argument)} + 0.0)" if argument.type in ("DOUBLE", "FLOAT") else to_duckdb(argument)


def _timed(computed: Computed) -> list[str]:
    value = _value(computed.arguments[0])
    choose = "max" if isinstance(computed.aggregate, Last) else "min"
    whole = f"{choose}({{'at': {AT}, 'value': {value}}}) FILTER (WHERE {value} IS NOT NULL)"
    return [f"({whole}).at", f"({whole}).value"]


def _listed(computed: Computed) -> list[str]:
    value = _value(computed.arguments[0])
    return [f"list({value}) FILTER (WHERE {value} IS NOT NULL)"]


def _topped(computed: Computed) -> list[str]:
    value, rank = _value(computed.arguments[0]), _value(computed.arguments[-1])
    held = f"FILTER (WHERE {value} IS NOT NULL AND {rank} IS NOT NULL)"
    return [f"list({value}) {held}", f"list({rank}) {held}"]


_AGGREGATES: tuple[tuple[type[Aggregate], Callable[[Computed], list[str]]], ...] = (
    (Count, _counted),
    (Sum, _summed),
    (Variance, _spread),
    (Min, _extreme),
    (First, _timed),
    (Collect, _listed),
    (TopK, _topped),
)
_BY_VALUE = (Fold, ApproxDistinct, ApproxQuantile, ApproxTopK, SecondMoment)
"""The aggregates that Python computes, one value at a time."""
