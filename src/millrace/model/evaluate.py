"""What a row expression means to the reference: its value for one row, or why it has none.

A row for which an expression has no value raises `RowError`; the row is then a dead letter.
"""

from typing import Any

from millrace.model.computed import value_of
from millrace.model.errors import NoValueError, refuse
from millrace.model.expression import Expression
from millrace.model.window import Row


class RowError(ValueError):
    """Why an expression has no value for a row."""


def evaluate(expression: Expression, row: Row) -> Any:
    """The value of the expression for this row."""
    check_known(expression)
    assert expression.node is not None
    try:
        return value_of(expression.node, row)
    except NoValueError:
        raise RowError(no_value(expression.sql)) from None


def no_value(sql: str) -> str:
    """Why a row is a dead letter that has no value for an expression; the same on every engine."""
    return f"{sql}: division by zero, overflow or a cast that fails; it has no value"


def check_known(expression: Expression) -> None:
    """Refuse an expression that this evaluator does not know, though Spark may."""
    if expression.node is None:
        raise refuse(f"the reference engine does not evaluate {expression.sql!r}: {expression.unresolved}")
