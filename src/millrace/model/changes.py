"""Changes: the input of a query that reads the panes of another query.

A change adds a row (diff 1) or takes an equal row back (diff -1). The answer of an aggregate is that of the multiset of
rows that remain. A discarding query answers with increments, so what it takes back may remain: such a change counts
with its sign.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from math import inf, isfinite, nan, sqrt
from typing import Any, TypeAlias

from millrace.model.aggregate import (
    Aggregate,
    Collect,
    Count,
    First,
    Fold,
    Mean,
    Min,
    Partial,
    StdDev,
    Sum,
    TopK,
    Values,
    Variance,
    one_zero,
    sort_key,
)
from millrace.model.errors import refuse
from millrace.model.pane import Mode, Pane
from millrace.model.sketch import ApproxDistinct, ApproxQuantile, ApproxTopK, SecondMoment
from millrace.model.window import Row

Contribution: TypeAlias = tuple[Values, int]
"""The argument values of an aggregate in one row, and the event time of the row."""

ANSWER_ONCE = "let the query answer once for each window: .trigger(on.watermark()).accumulating()"
"""The advice for what cannot read answers that are taken back."""

_EXACT = Context(prec=200, rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Change:
    """A row that is added (diff 1) or taken back (diff -1)."""

    row: Row
    at: int
    """The event time in microseconds."""
    diff: int = 1
    pane: Pane | None = field(default=None, compare=False, repr=False)
    """The pane that it comes from, if it comes from one."""


def check_over_changes(aggregate: Aggregate, mode: Mode) -> None:
    """Refuse an aggregate that cannot take rows back, for input that may do so."""
    if isinstance(aggregate, ApproxDistinct | ApproxQuantile | ApproxTopK):
        raise refuse(
            f"{aggregate} reads a query that takes answers back, and a sketch cannot forget a value",
            advice=f"use an exact aggregate, or {ANSWER_ONCE}",
        )
    if isinstance(aggregate, Fold):
        raise refuse(
            f"{aggregate} reads a query that takes answers back, and a function of yours has no inverse",
            advice=f"use another aggregate, or {ANSWER_ONCE}",
        )
    if mode is Mode.DISCARDING and isinstance(aggregate, Min | First | Collect | TopK):
        raise refuse(
            f"{aggregate} under discarding() reads a query that takes answers back, and its answer since the previous "
            "pane may be a value that is gone",
            advice="call .accumulating() or .retracting() instead",
        )


def answer_over_changes(aggregate: Aggregate, changes: Sequence[tuple[Values, int, int]]) -> Any:
    """The answer of an aggregate over changes: argument values, event time, diff. Raises NoValueError."""
    kept, owed = _net(aggregate, changes)
    added, taken = (aggregate.combine([aggregate.partial(*each) for each in side]) for side in (kept, owed))
    if taken is None:
        return aggregate.result(added)
    match aggregate:
        case Count():
            return aggregate.result(added) - aggregate.result(taken)
        case Sum():
            return _signed_sum(aggregate, added or (type(taken[0])(0), 0), taken)
        case Variance():
            return _signed_variance(aggregate, [(value, 1) for (value,), _ in kept] + [(v, -1) for (v,), _ in owed])
        case SecondMoment():
            return aggregate.result(taken if added is None else aggregate.inverse(added, taken))
        case Min() | First() | Collect() | TopK():
            return aggregate.result(added)
    raise TypeError(f"{aggregate} cannot take a contribution back")


def _net(
    aggregate: Aggregate, changes: Sequence[tuple[Values, int, int]]
) -> tuple[list[Contribution], list[Contribution]]:
    """The contributions that remain, and those that are taken back but were not added."""
    counts: dict[Any, int] = {}
    examples: dict[Any, Contribution] = {}
    for values, at, diff in changes:
        if any(value is None for value in values):
            continue
        identity = tuple(map(_comparable, values)), at if isinstance(aggregate, First) else None
        counts[identity] = counts.get(identity, 0) + diff
        examples.setdefault(identity, (values, at))
    kept = [examples[identity] for identity, count in counts.items() for _ in range(count)]
    owed = [examples[identity] for identity, count in counts.items() for _ in range(-count)]
    return kept, owed


def _comparable(value: Any) -> Any:
    """A value that can be hashed, equal for values that are one value."""
    match value:
        case list():
            return tuple(map(_comparable, value))
        case dict():
            return tuple((name, _comparable(each)) for name, each in value.items())
    return sort_key(one_zero(value))


def _signed_sum(aggregate: Sum, added: Partial, taken: Partial) -> Any:
    """The sum or the mean of values with signs. The sum is NULL if neither values nor a sum remain."""
    total = _EXACT.subtract(added[0], taken[0]) if isinstance(taken[0], Decimal) else added[0] + -taken[0]
    count = added[1] - taken[1]
    if count == 0 and (isinstance(aggregate, Mean) or total == type(total)(0)):
        return None
    return aggregate.finish((-total, -count) if isinstance(aggregate, Mean) and count < 0 else (total, count))


def _signed_variance(aggregate: Variance, values: list[tuple[Any, int]]) -> float | None:
    """The variance of values with signs. A negative variance has no standard deviation."""
    count = sum(sign for _, sign in values)
    if count < 2:
        return None
    if not all(isfinite(value) for value, _ in values):
        return nan
    total = sum((Fraction(value) * sign for value, sign in values), Fraction(0))
    squares = sum((Fraction(value) ** 2 * sign for value, sign in values), Fraction(0))
    try:
        variance = float((squares - total * total / count) / (count - 1))
    except OverflowError:
        variance = inf if squares > 0 else -inf
    if isinstance(aggregate, StdDev):
        return sqrt(variance) if variance >= 0 else None
    return variance
