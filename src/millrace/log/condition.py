"""Conditions over the fields of JSON objects, computed in DuckDB for many records at once.

Fields are read by the rules of the edge's decoder. Only such conditions are taken that no record can make fail, and
that mean the same in Spark: comparisons, put together with AND, OR and NOT.
"""

from functools import lru_cache

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from millrace.log.bundle import as_texts
from millrace.log.duck import asked
from millrace.log.typed import pointer, value_of
from millrace.model.errors import refuse
from millrace.model.expression import parse_expression
from millrace.model.schema import DIALECT, UNKNOWN, parse_schema

Bools = npt.NDArray[np.bool_]

_TAKEN = (
    exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Neg, exp.Cast, exp.DataType,
    exp.Not, exp.And, exp.Or, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.Is, exp.In,
    exp.Between, exp.Like,
)  # fmt: skip
_OBJECT = "json_valid(value) AND starts_with(ltrim(value, ' \t\r\n'), '{')"


def are_objects(values: pa.Array) -> Bools:
    """Which values are JSON objects."""
    return _asked(f"SELECT coalesce({_OBJECT}, FALSE) FROM given", values)


def holds(statement: str, objects: pa.Array) -> Bools:
    """For which records a condition holds, or cannot be told; all are JSON objects."""
    return _asked(statement, objects)


@lru_cache(256)
def statement(condition: str, schema: str) -> str:
    """The query that answers a condition over fields of these types. Refuses one that could fail."""
    columns = parse_schema(schema)
    expression = parse_expression(condition, columns)
    if expression.type not in ("BOOLEAN", UNKNOWN):
        raise refuse(f"keep({condition!r}) needs a condition, but this is {expression.type}")
    for node in expression.tree.walk():
        _check(node, condition)
    read = [column for column in columns if column.name in expression.columns]
    if not read:
        raise refuse(f"keep({condition!r}) names no field")
    paths = ", ".join(_string(pointer(column.name)) for column in read)
    fields = ", ".join(f"{value_of(column, f'j[{n}]')} AS {_quoted(column.name)}" for n, column in enumerate(read, 1))
    # What does not fit its type was there as text, but is no value.
    misfit = " OR ".join(f"({_quoted(column.name)} IS NULL AND j[{n}] IS NOT NULL)" for n, column in enumerate(read, 1))
    query = (
        f"SELECT coalesce({_duckdb(expression.tree)}, FALSE) OR {misfit} FROM (SELECT j, {fields} FROM "
        f"(SELECT json_extract_string(value, [{paths}]) AS j FROM given))"
    )
    try:
        _asked(query, pa.array([], pa.string()))
    except duckdb.Error as error:
        raise refuse(f"keep({condition!r}) cannot be computed: {str(error).splitlines()[0]}") from None
    return query


def _check(node: exp.Expr, condition: str) -> None:
    """Refuse a part that may fail for some record, or is not known to mean the same in DuckDB and in Spark."""
    shown = node.sql(DIALECT)
    if not isinstance(node, _TAKEN):
        raise refuse(f"keep({condition!r}) takes comparisons with AND, OR and NOT; leave {shown} to the pipeline")
    if isinstance(node, exp.Cast) and not isinstance(node.this, exp.Literal):
        raise refuse(f"keep({condition!r}) compares {node.this.sql(DIALECT)} with another type; mend its schema")
    if isinstance(node, exp.Column) and len(node.parts) > 1:
        raise refuse(f"keep({condition!r}) looks at outermost fields only, not into {shown}")
    if isinstance(node, exp.Like) and (not isinstance(node.expression, exp.Literal) or "\\" in node.expression.name):
        raise refuse(f"keep({condition!r}) takes LIKE with a pattern that is written as text without backslashes")


def _duckdb(tree: exp.Expr) -> str:
    """The condition as DuckDB writes it; numbers with a point are DOUBLE, which compares with anything."""

    def written(node: exp.Expr) -> exp.Expr:
        plain = isinstance(node, exp.Literal) and not node.is_string and not node.is_int
        return exp.cast(node, "DOUBLE") if plain and not isinstance(node.parent, exp.Cast) else node

    return tree.copy().transform(written).sql("duckdb", identify=True)


def _asked(query: str, values: pa.Array) -> Bools:
    """The answers of a query to `given`, a table of texts."""
    found: Bools = asked(query, {"given": pa.table({"value": as_texts(values)})}).column(0).to_numpy()
    return found


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
