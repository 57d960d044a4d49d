"""Slices and partials in DuckDB's SQL: the slice of an element, and the partial columns of an aggregate.

Each computes the same as its counterpart in `millrace.panes`, for the same rows. SQL cannot express exact sums of
floats; it computes columns from which `panes.exact` makes them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import numpy as np

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
from millrace.model.nested import nested
from millrace.model.query import Computed
from millrace.model.schema import is_integer
from millrace.model.sketch import ApproxDistinct, ApproxQuantile, ApproxTopK, SecondMoment
from millrace.model.window import Calendar, CountWindow, Custom, Fixed, Global, Session, Sliding, Windowing
from millrace.panes import exact
from millrace.panes.columns import Columns
from millrace.panes.grouping import lengths

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


@dataclass(frozen=True, slots=True)
class Written:
    """The columns that a statement computes for an aggregate, and the function that makes the partial columns of them.

    Without a function, they are the partial columns.
    """

    sql: list[str]
    finish: Callable[[Columns], Columns] | None = None


def partials_of(computed: Computed, near: dict[str, str]) -> Written:
    """The partial columns of an aggregate, as `panes.columns` defines them.

    `near` receives columns that the rows need for it: their names by their SQL.
    """
    if isinstance(computed.aggregate, Sum) and computed.arguments[0].type in ("DOUBLE", "FLOAT"):
        return _float_sum(computed, near)
    if isinstance(computed.aggregate, Min | First | Collect | TopK):
        for argument in computed.arguments:
            if nested(argument.type) is not None:
                raise NotInSqlError(f"SQL has another order of values of {argument.type}")
    for kind, write in _AGGREGATES:
        if isinstance(computed.aggregate, kind):
            written = write(computed)
            return written if isinstance(written, Written) else Written(written)
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
    if not is_integer(argument.type):
        raise NotInSqlError(f"SQL does not sum {argument.type} exactly")
    value = to_duckdb(argument)
    return [f"CAST(coalesce(sum({value}), 0) AS HUGEINT)", f"count({value})"]


def _float_sum(computed: Computed, near: dict[str, str]) -> Written:
    """The sums of the two parts of near values, which are exact; the list of the other values; and the count."""
    value, unit = _double(computed.arguments[0]), 2.0**-exact.SUMS.unit
    is_near = f"abs({value}) < {exact.LIMIT!r}e0 AND {value} * {unit!r} = trunc({value} * {unit!r})"
    own = near.setdefault(f"CASE WHEN {is_near} THEN {value} END", f"__near{len(near)}")
    high = f"{own} * {2.0**exact.HIGH!r}e0"
    parts = f"trunc({high})", f"({high} - trunc({high})) * {2.0**exact.LOW!r}"
    sums = [f"CAST(coalesce(sum(CAST({part} AS BIGINT)), 0) AS HUGEINT)" for part in parts]
    rest = f"list({value}) FILTER (WHERE {own} IS NULL AND {value} IS NOT NULL)"
    return Written([*sums, rest, f"count({value})"], _finish_sum)


def _finish_sum(columns: Columns) -> Columns:
    high, low, rest, count = columns
    return [exact.from_parts(high, low, rest), count]


def _spread(computed: Computed) -> Written:
    value = _double(computed.arguments[0])
    return Written([f"count({value})", f"list({value}) FILTER (WHERE {value} IS NOT NULL)"], _finish_spread)


def _finish_spread(columns: Columns) -> Columns:
    count, lists = columns
    values, groups = lists.flatten().to_numpy(), np.repeat(np.arange(len(lists)), lengths(lists))
    return [count, *(exact.add(kind, values, groups, len(lists)) for kind in (exact.SUMS, exact.SQUARES))]


def _double(argument: Expression) -> str:
    return to_duckdb(argument) if argument.type == "DOUBLE" else f"CAST({to_duckdb(argument)} AS DOUBLE)"


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


_AGGREGATES: tuple[tuple[type[Aggregate], Callable[[Computed], list[str] | Written]], ...] = (
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
