"""Conditions over the fields of JSON objects, computed in DuckDB for many records at once.

Fields are read by the rules of the edge's decoder. Only such conditions are taken that no record can make fail, and
that mean the same in Spark: comparisons, put together with AND, OR and NOT.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from millrace.log.bundle import as_texts
from millrace.log.duck import asked
from millrace.log.typed import OBJECT, as_written, digits, is_none, is_unsure, pointer, value_of
from millrace.log.written import written
from millrace.model.errors import refuse
from millrace.model.expression import parse_expression
from millrace.model.schema import DIALECT, UNKNOWN, Column, parse_schema

Bools = npt.NDArray[np.bool_]

_TAKEN = (
    exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Neg, exp.Cast, exp.DataType,
    exp.Not, exp.And, exp.Or, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.Is, exp.In,
    exp.Between, exp.Like,
)  # fmt: skip


def are_objects(values: pa.Array) -> Bools:
    """Which values are JSON objects."""
    found, _ = _answers(f"SELECT coalesce({OBJECT}, FALSE), FALSE FROM given", {"value": values})
    return found


@dataclass(frozen=True, slots=True)
class Statement:
    """The queries that answer a condition: over what DuckDB reads, and over what was written where that may differ."""

    quick: str
    exact: str
    unsure: tuple[Column, ...]
    """The columns for which it may."""


def holds(statement: Statement, objects: pa.Array) -> Bools:
    """For which records a condition holds, or cannot be told; all are JSON objects."""
    found, unsure = _answers(statement.quick, {"value": objects})
    places = np.flatnonzero(unsure)
    if len(places):
        texts = as_texts(objects.take(pa.array(places)))
        raw = {f"w{n}": text for n, text in enumerate(written(texts, statement.unsure))}
        found[places], _ = _answers(statement.exact, {"value": texts, **raw})
    return found


@lru_cache(256)
def statement(condition: str, schema: str) -> Statement:
    """The queries that answer a condition over fields of these types. Refuses one that could fail."""
    columns = parse_schema(schema)
    expression = parse_expression(condition, columns)
    if expression.type not in ("BOOLEAN", UNKNOWN):
        raise refuse(f"keep({condition!r}) needs a condition, but this is {expression.type}")
    for node in expression.tree.walk():
        _check(node, condition)
    read = [column for column in columns if column.name in expression.columns]
    if not read:
        raise refuse(f"keep({condition!r}) names no field")
    for column in read:
        if digits(column.type) is not None:
            raise refuse(f"keep({condition!r}) does not compare {column}; leave it to the pipeline")
    texts = {column: f"j[{n}]" for n, column in enumerate(read, 1)}
    checks = {column: check for column in read if (check := is_unsure(column, texts[column])) is not None}
    exact = {column: as_written(f"w{n}", texts[column]) for n, column in enumerate(checks)}
    answer = _duckdb(expression.tree)
    made = Statement(
        _query(answer, texts, " OR ".join(f"coalesce({check}, FALSE)" for check in checks.values()) or "FALSE"),
        _query(answer, texts | exact, "FALSE"),
        tuple(checks),
    )
    try:
        _answers(made.quick, {"value": pa.array([], pa.string())})
    except duckdb.Error as error:
        raise refuse(f"keep({condition!r}) cannot be computed: {str(error).splitlines()[0]}") from None
    return made


def _query(answer: str, texts: Mapping[Column, str], unsure: str) -> str:
    paths = ", ".join(_string(pointer(column.name)) for column in texts)
    fields = ", ".join(f"{value_of(column, text)} AS {_quoted(column.name)}" for column, text in texts.items())
    # What does not fit its type was there as text, but is no value.
    misfit = " OR ".join(is_none(column, _quoted(column.name), text) for column, text in texts.items())
    return (
        f"SELECT coalesce({answer}, FALSE) OR {misfit}, {unsure} FROM (SELECT *, {fields} FROM "
        f"(SELECT *, json_extract_string(value, [{paths}]) AS j FROM given))"
    )


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


def _answers(query: str, given: Mapping[str, pa.Array]) -> tuple[Bools, Bools]:
    """The two answers of a query to `given`, a table of texts."""
    texts = pa.table({name: as_texts(column) for name, column in given.items()})
    first, second = asked(query, {"given": texts}).columns
    return first.to_numpy().copy(), second.to_numpy()


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
