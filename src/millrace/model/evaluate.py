"""Evaluates row expressions for the reference engine.

If an expression has no value for a row, `evaluate` raises `RowError`; the row is then a dead letter.
"""

from typing import Any

from millrace.model.computed import value_of
from millrace.model.errors import NoValueError, refuse
from millrace.model.expression import Expression
from millrace.model.window import Row


class RowError(ValueError):
    """The reason why an expression has no value for a row."""


def evaluate(expression: Expression, row: Row) -> Any:
    """The value of the expression for this row."""
    check_known(expression)
    assert expression.node is not None
    try:
        return value_of(expression.node, row)
    except NoValueError:
        raise RowError(no_value(expression.sql)) from None


def no_value(sql: str) -> str:
    """The reason of a dead letter whose row has no value for an expression; every engine uses the same text."""
    return f"{sql} has no value: division by zero, overflow or a failed cast"


def check_known(expression: Expression) -> None:
    """Refuse an expression that only Spark can evaluate."""
    if expression.node is None:
        raise refuse(
            f"the reference engine cannot evaluate {expression.sql!r}: {expression.unresolved}",
            advice="compute it on Spark: millrace run FILE, or engine='spark' in a test",
        )
