"""Row expressions: SQL over the columns of one row, checked when a pipeline is built.

An expression is kept as the text the user wrote and as sqlglot's tree of it. The reference engine
evaluates the tree (`evaluate.py`); the fused edge writes it out as DuckDB's SQL; Spark gets the text.
"""

from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types

from millrace.model.errors import refuse, unknown
from millrace.model.schema import DIALECT, UNKNOWN, Column, Schema

_REFUSED: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.AggFunc, "aggregates over rows; put it into .aggregate(...)"),
    (exp.Window, "looks at other rows; a row expression sees one row"),
    (exp.Query, "is a query; join a table instead"),
    (exp.Star, "stands for all columns; name the ones you want"),
    (exp.Rand, "is different on every replay; answers must not be"),
    (exp.Uuid, "is different on every replay; answers must not be"),
    (exp.CurrentTimestamp, "is different on every replay; use the event's own time"),
    (exp.CurrentDate, "is different on every replay; use the event's own time"),
)

_TYPED = {"timestamp_seconds": "TIMESTAMP", "timestamp_millis": "TIMESTAMP", "timestamp_micros": "TIMESTAMP"}


@dataclass(frozen=True, slots=True)
class Expression:
    """One SQL expression and the type of its value."""

    sql: str
    type: str
    tree: exp.Expr = field(compare=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads, each once."""
        return tuple(dict.fromkeys(map(root, self.tree.find_all(exp.Column, bfs=False))))

    def __str__(self) -> str:
        return self.sql


def parse_expression(sql: str, schema: Schema) -> Expression:
    """Read an expression over these columns, or refuse it with what is wrong."""
    if not isinstance(sql, str):
        raise refuse(f"a row expression is SQL in a string, such as 'ms >= 30000', not {sql!r}")
    try:
        tree = sqlglot.parse_one(sql, dialect=DIALECT)
    except SqlglotError as error:
        reason = str(error).splitlines()[0].replace("\x1b[4m", "").replace("\x1b[0m", "")
        raise refuse(f"expression {sql!r} does not parse: {reason}") from None
    for kind, why in _REFUSED:
        found = tree.find(kind)
        if found is not None:
            raise refuse(f"{found.sql(DIALECT)} in {sql!r} {why}")
    if isinstance(tree, exp.Alias):
        raise refuse(f"{sql!r} names its result; write {tree.alias}={tree.this.sql(DIALECT)!r} instead")
    for column in tree.find_all(exp.Column):
        if root(column) not in schema:
            raise refuse(unknown("column", root(column), schema.names))
    return Expression(sql, _type_of(tree, schema), tree)


def root(column: exp.Column) -> str:
    """The column itself; `place.city` is a field of the column `place`."""
    return column.parts[0].name


def named(name: str, expression: Expression) -> Column:
    """The column that holds an expression's values."""
    return Column(name, expression.type)


def _type_of(tree: exp.Expr, schema: Schema) -> str:
    if isinstance(tree, exp.Anonymous):
        return _TYPED.get(tree.name.lower(), UNKNOWN)
    if isinstance(tree, exp.TimestampTrunc):
        return "TIMESTAMP"
    tree = tree.copy()
    for column in tree.find_all(exp.Column):
        column.set("table", exp.to_identifier("t"))
    known = {column.name: column.type for column in schema if column.type != UNKNOWN}
    typed = annotate_types(exp.select(tree).from_("t"), schema={"t": known}, dialect=DIALECT).selects[0].type
    return typed.sql(DIALECT) if typed is not None else UNKNOWN
