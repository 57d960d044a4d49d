"""Row expressions: SQL over the columns of one row, checked when a pipeline is built.

An expression holds the user's text and a typed tree of it. The reference engine evaluates the tree, and the fused edge
translates it to DuckDB's SQL; Spark gets the text. An expression that only Spark can resolve has no tree.
"""

import re
from dataclasses import dataclass, field
from inspect import isfunction
from typing import TYPE_CHECKING, TypeAlias

from sqlglot import exp

from millrace.model.coercion import UnresolvedError
from millrace.model.computed import value_of
from millrace.model.errors import NoValueError, refuse, refuse_unknown, shown
from millrace.model.functions import SPARK_FUNCTIONS
from millrace.model.reading import has_plus_sign, read_expression
from millrace.model.resolve import resolve
from millrace.model.schema import DIALECT, UNKNOWN, Column, Schema
from millrace.model.typed import Call, Case, ColumnOf, Node, children, is_constant

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

RowSql: TypeAlias = "str | SparkColumn"
"""A row expression as users write it: SQL, or a `Column` of Spark's."""
_REFUSED: tuple[tuple[type[exp.Expr], str, str], ...] = (
    (exp.AggFunc, "aggregates rows", "pass it to .aggregate(...)"),
    (exp.Window, "reads other rows", "use only columns of the same row"),
    (exp.Query, "is a query", "join a table instead"),
    (exp.Star, "stands for all columns", "name the columns that you need"),
    (exp.Rand, "is different on every replay", "compute it in the producer"),
    (exp.Uuid, "is different on every replay", "compute it in the producer"),
    (exp.CurrentTimestamp, "is different on every replay", "use the event time instead"),
    (exp.CurrentDate, "is different on every replay", "use the event time instead"),
)
_TAKEN_FOR_OTHERS = re.compile(r"\bchar\s*\(\s*\d|\bvarchar\b|\btime\b|\btimestamp\s*\(", re.IGNORECASE)
"""Types that the parser confuses with others: text of a fixed length, times of day."""
_GENERATORS = re.compile(r"\b(explode|posexplode|inline|stack|json_tuple|variant_explode)(_outer)?\s*\(", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Expression:
    """One SQL expression and the type of its value."""

    sql: str
    type: str
    columns: tuple[str, ...]
    """The columns it reads, each once."""
    node: Node | None = field(compare=False, repr=False)
    """The typed tree; None if only Spark can resolve the expression."""
    unresolved: str | None = field(default=None, compare=False, repr=False)
    """The reason why only Spark can resolve it."""

    def __str__(self) -> str:
        return self.sql

    def is_column(self, name: str) -> bool:
        """Whether it is this column, unchanged."""
        return isinstance(self.node, ColumnOf) and self.node.path == (name,)


def parse_expression(sql: RowSql, schema: Schema) -> Expression:
    """Parse SQL, or a `Column` of Spark's, over these columns; an invalid expression is refused with the reason."""
    if not isinstance(sql, str):
        needed = "a row expression must be a string of SQL, such as 'ms >= 30000'"
        if isfunction(sql):
            raise refuse(
                f"{needed}, not the function {sql.__name__}",
                advice="pass a function to filter() or map(), or make a udf() of it",
            )
        if not (type(sql).__name__ == "Column" and type(sql).__module__.startswith("pyspark.")):
            raise refuse(f"{needed}, not {shown(sql)}")
        # The model does not depend on Spark; a user who has a Column has imported it.
        from millrace.spark.columns import sql_of

        sql = sql_of(sql, schema)
    tree = read_expression(sql)
    generator = _GENERATORS.search(sql)
    if generator is not None:
        advice = "compute the array with with_columns(), then call .explode(...)" if "explode" in generator[1] else None
        raise refuse(
            f"{sql!r} returns several rows or columns, but a row expression must return one value", None, advice
        )
    for kind, problem, advice in _REFUSED:
        part = tree.find(kind)
        if part is not None:
            raise refuse(f"{part.sql(DIALECT)} in {sql!r} {problem}", advice=advice)
    if isinstance(tree, exp.Alias):
        raise refuse(f"{sql!r} names its result", advice=f"write {tree.alias}={tree.this.sql(DIALECT)!r} instead")
    for call in tree.find_all(exp.Anonymous):
        if call.name.lower() not in SPARK_FUNCTIONS:
            unknown = refuse_unknown("function", call.name, SPARK_FUNCTIONS, listed=False)
            advice = "use a function of Spark SQL, or pass a Python function to map() or filter()"
            raise refuse(unknown.problem, advice=unknown.advice or advice)
    spelled = {name.lower(): name for name in schema.names}
    for column in tree.find_all(exp.Column):
        if root(column).lower() not in spelled:
            raise refuse_unknown("column", root(column), schema.names)
        column.parts[0].set("this", spelled[root(column).lower()])
    columns = tuple(dict.fromkeys(map(root, tree.find_all(exp.Column, bfs=False))))
    try:
        if _TAKEN_FOR_OTHERS.search(sql) or has_plus_sign(sql):
            raise UnresolvedError(f"{sql} contains a type or a sign that only Spark supports")
        node = resolve(tree, schema)
    except UnresolvedError as error:
        return Expression(sql, UNKNOWN, columns, None, str(error))
    _check_constants(node, sql)
    return Expression(sql, node.type, columns, node)


def _check_constants(node: Node, sql: str) -> None:
    """Refuse a constant part that has no value; Spark would not even plan it."""
    if is_constant(node):
        try:
            value_of(node, {})
        except NoValueError as error:
            raise refuse(f"{sql!r} has no value for any row: {error}") from None
        return
    match node:
        case Case(branches=((condition, _), *_)):
            always: tuple[Node, ...] = (condition,)
        case Call(name="and" | "or" | "coalesce", arguments=(first, *_)):
            always = (first,)
        case _:
            always = children(node)
    for part in always:
        _check_constants(part, sql)


def root(column: exp.Column) -> str:
    """The name of the column; `place.city` is a field of the column `place`."""
    return column.parts[0].name


def named(name: str, expression: Expression) -> Column:
    """The column that holds an expression's values."""
    return Column(name, expression.type)
