"""Row expressions: SQL over the columns of one row, checked when a pipeline is built.

An expression is kept as the text the user wrote and as sqlglot's tree of it. The reference engine
evaluates the tree (`evaluate.py`); the fused edge writes it out as DuckDB's SQL; Spark gets the text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types

from millrace.model.errors import refuse, shown, unknown
from millrace.model.functions import SPARK_FUNCTIONS
from millrace.model.schema import DIALECT, UNKNOWN, Column, Schema, is_integer, is_numeric

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

_ROWS = "__rows"
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
        raise refuse(f"a row expression is SQL in a string, such as 'ms >= 30000', not {shown(sql)}")
    tree = _parsed(sql)
    for kind, why in _REFUSED:
        found = tree.find(kind)
        if found is not None:
            raise refuse(f"{found.sql(DIALECT)} in {sql!r} {why}")
    if isinstance(tree, exp.Alias):
        raise refuse(f"{sql!r} names its result; write {tree.alias}={tree.this.sql(DIALECT)!r} instead")
    for call in tree.find_all(exp.Anonymous):
        if call.name.lower() not in SPARK_FUNCTIONS:
            raise refuse(unknown("function", call.name, SPARK_FUNCTIONS).partition(" (known")[0])
    spelled = {name.lower(): name for name in schema.names}
    for column in tree.find_all(exp.Column):
        if root(column).lower() not in spelled:
            raise refuse(unknown("column", root(column), schema.names))
        column.parts[0].set("this", spelled[root(column).lower()])
    typed = _annotated(tree, schema)
    for comparison in list(typed.find_all(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In)):
        _coerce(comparison, sql)
    return Expression(sql, _type_of(typed), typed)


def _parsed(sql: str) -> exp.Expr:
    try:
        trees = sqlglot.parse(sql, dialect=DIALECT)
    except SqlglotError as error:
        reason = str(error).splitlines()[0].replace("\x1b[4m", "").replace("\x1b[0m", "")
        if reason.startswith("Required keyword"):  # of sqlglot's own classes
            reason = "something is missing"
        hint = "; write AND" if "&&" in sql else ""
        raise refuse(f"expression {sql!r} does not parse: {reason}{hint}") from None
    if len(trees) != 1 or trees[0] is None:
        raise refuse(f"{sql!r} is not one expression")
    return trees[0]


def _coerce(comparison: exp.Expr, sql: str) -> None:
    """Compare text with numbers and times as Spark does: the text is cast, and must be one."""
    operands = [node for node in comparison.iter_expressions() if isinstance(node, exp.Expr)]
    others = {type_of(node) for node in operands} - {"STRING", UNKNOWN, "NULL", "VOID"}
    if len(others) != 1:
        return
    (other,) = others
    wanted = (
        "TIMESTAMP"
        if other == "TIMESTAMP"
        else "BIGINT"
        if is_integer(other)
        else "DOUBLE"
        if is_numeric(other)
        else ""
    )
    for node in operands if wanted else []:
        if type_of(node) != "STRING":
            continue
        cast = exp.cast(node.copy(), wanted, dialect=DIALECT)
        if isinstance(node, exp.Literal) and not is_literal(node.name, wanted):
            raise refuse(f"{sql!r} compares {other} with {node.sql(DIALECT)}, which is not one")
        cast.type = cast.to
        node.replace(cast)


def is_literal(text: str, type: str) -> bool:
    """Whether text can be read as a value of a type."""
    readers: dict[str, Callable[[str], object]] = {
        "BIGINT": int,
        "DOUBLE": float,
        "TIMESTAMP": datetime.fromisoformat,
    }
    try:
        readers[type](text.strip())
    except ValueError:
        return False
    return True


def root(column: exp.Column) -> str:
    """The column itself; `place.city` is a field of the column `place`."""
    return column.parts[0].name


def named(name: str, expression: Expression) -> Column:
    """The column that holds an expression's values."""
    return Column(name, expression.type)


def type_of(node: exp.Expr) -> str:
    """The type of a part of an annotated expression."""
    return UNKNOWN if node.type is None else node.type.sql(DIALECT)


def _type_of(tree: exp.Expr) -> str:
    if isinstance(tree, exp.Anonymous):
        return _TYPED.get(tree.name.lower(), UNKNOWN)
    return "TIMESTAMP" if isinstance(tree, exp.TimestampTrunc) else type_of(tree)


def _annotated(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """The tree with the type of each part, as far as sqlglot can tell."""
    plain = [column for column in tree.find_all(exp.Column) if not column.table]
    for column in plain:
        column.set("table", exp.to_identifier(_ROWS))
    known = {column.name: column.type for column in schema if column.type != UNKNOWN}
    typed: exp.Expr = annotate_types(exp.select(tree).from_(_ROWS), schema={_ROWS: known}, dialect=DIALECT).selects[0]
    typed = typed.pop()
    for column in typed.find_all(exp.Column):
        if column.table == _ROWS:
            column.set("table", None)
    return typed
