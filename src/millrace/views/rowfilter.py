"""The condition of a row filter: comparisons over the columns of a view, without functions and subqueries."""

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from millrace.model.errors import PipelineError, unknown

_ALLOWED = (
    exp.Add, exp.And, exp.Between, exp.Boolean, exp.Column, exp.Div, exp.EQ, exp.GT, exp.GTE, exp.Identifier, exp.In,
    exp.Is, exp.LT, exp.LTE, exp.Like, exp.Literal, exp.Mul, exp.NEQ, exp.Neg, exp.Not, exp.Null, exp.Or, exp.Paren,
    exp.Sub,
)  # fmt: skip
_ADVICE = "write a condition over its columns, such as \"country = 'NO'\""


def parse_filter(text: str, columns: tuple[str, ...] | None = None) -> exp.Expr:
    r"""A condition, with its columns quoted. Refuses other SQL and, if `columns` are known, other columns.

    >>> parse_filter("country = 'NO' AND plays > 5").sql("postgres")
    '"country" = \'NO\' AND "plays" > 5'
    """
    try:
        found = sqlglot.parse_one(f"SELECT 1 WHERE {text}", error_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError):
        raise PipelineError(f"the row filter {text!r} does not parse", _ADVICE) from None
    where = found.args.get("where")
    others = [name for name, value in found.args.items() if value and name not in ("where", "expressions", "kind")]
    if not isinstance(found, exp.Select) or where is None or others != []:
        raise PipelineError(f"the row filter {text!r} is not one condition", _ADVICE)
    condition: exp.Expr = where.this
    for node in condition.walk():
        if type(node) not in _ALLOWED or (isinstance(node, exp.Column) and node.table) or node.args.get("query"):
            raise PipelineError(f"a row filter cannot use {node.sql()!r}", _ADVICE)
        if isinstance(node, exp.Identifier):
            if columns is not None and node.name not in columns:
                raise PipelineError(unknown("column", node.name, columns))
            node.set("quoted", True)
    return condition


def sql_of(condition: exp.Expr, dialect: str) -> str:
    """A condition in the SQL of a database."""
    return condition.sql(dialect, comments=False, unsupported_level=ErrorLevel.RAISE)
