"""Conditions over the fields of JSON objects, computed in DuckDB for many records at once.

Fields are read by the rules of the edge's decoder. Only such conditions are taken that no record can make fail, and
that mean the same in Spark.
"""

from functools import lru_cache

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.log.bundle import as_texts
from millrace.log.duck import asked
from millrace.log.sql import CannotFuseError, quoted, to_duckdb
from millrace.log.typed import pointer, value_of
from millrace.model.errors import refuse
from millrace.model.expression import parse_expression
from millrace.model.schema import UNKNOWN, parse_schema
from millrace.model.typed import ColumnOf, is_fallible, walk

Bools = npt.NDArray[np.bool_]

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
    parts = [] if expression.node is None else walk(expression.node)
    if any(isinstance(part, ColumnOf) and len(part.path) > 1 for part in parts):
        raise refuse(f"keep({condition!r}) looks at outermost fields only, not into those")
    read = [column for column in columns if column.name in expression.columns]
    if not read:
        raise refuse(f"keep({condition!r}) names no field")
    paths = ", ".join(_string(pointer(column.name)) for column in read)
    fields = ", ".join(f"{value_of(column, f'j[{n}]')} AS {quoted(column.name)}" for n, column in enumerate(read, 1))
    try:
        asked_for = to_duckdb(expression)
    except CannotFuseError as error:
        raise refuse(f"keep({condition!r}) cannot be computed here: {error}; leave it to the pipeline") from None
    if expression.node is not None and is_fallible(expression.node):
        raise refuse(f"keep({condition!r}) has no value for some records; leave it to the pipeline")
    # What does not fit its type was there as text, but is no value.
    misfit = " OR ".join(f"({quoted(column.name)} IS NULL AND j[{n}] IS NOT NULL)" for n, column in enumerate(read, 1))
    query = (
        f"SELECT coalesce({asked_for}, FALSE) OR {misfit} FROM (SELECT j, {fields} FROM "
        f"(SELECT json_extract_string(value, [{paths}]) AS j FROM given))"
    )
    try:
        _asked(query, pa.array([], pa.string()))
    except duckdb.Error as error:
        raise refuse(f"keep({condition!r}) cannot be computed: {str(error).splitlines()[0]}") from None
    return query


def _asked(query: str, values: pa.Array) -> Bools:
    """The answers of a query to `given`, a table of texts."""
    found: Bools = asked(query, {"given": pa.table({"value": as_texts(values)})}).column(0).to_numpy()
    return found


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
