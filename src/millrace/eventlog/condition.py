"""Conditions over the fields of JSON objects, computed in DuckDB for many records at once.

The edge's decoder defines how fields are read. A condition is accepted only if no record can make it fail and it has
the same result in Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.formats.duck import asked
from millrace.formats.sql import CannotFuseError, quoted, to_duckdb
from millrace.formats.texts import as_texts
from millrace.formats.typed import OBJECT, as_written, is_none, is_unsure, pointer, value_of
from millrace.formats.written import written
from millrace.model.errors import refuse
from millrace.model.expression import parse_expression
from millrace.model.schema import UNKNOWN, Column, parse_schema
from millrace.model.typed import ColumnOf, is_fallible, walk
from millrace.model.types import digits_of

Bools = npt.NDArray[np.bool_]


def are_objects(values: pa.Array) -> Bools:
    """Flags the values that are JSON objects."""
    found, _ = _answers(f"SELECT coalesce({OBJECT}, FALSE), FALSE FROM given", {"value": values})
    return found


@dataclass(frozen=True, slots=True)
class Statement:
    """The SQL of a condition: a quick query on fields as DuckDB decodes them, an exact one on their original text."""

    quick: str
    exact: str
    unsure: tuple[Column, ...]
    """The columns whose decoded value may differ from the original text."""


def holds(statement: Statement, objects: pa.Array) -> Bools:
    """Flags the JSON objects for which a condition holds, or of which a field does not fit its type."""
    found, unsure = _answers(statement.quick, {"value": objects})
    places = np.flatnonzero(unsure)
    if len(places):
        texts = as_texts(objects.take(pa.array(places)))
        raw = {f"w{n}": text for n, text in enumerate(written(texts, statement.unsure))}
        found[places], _ = _answers(statement.exact, {"value": texts, **raw})
    return found


@lru_cache(256)
def statement(condition: str, schema: str) -> Statement:
    """Compile a condition over fields of these types. Refuses one that could fail for a record."""
    columns = parse_schema(schema)
    expression = parse_expression(condition, columns)
    if expression.type not in ("BOOLEAN", UNKNOWN):
        raise refuse(f"keep({condition!r}) needs a condition, but this is {expression.type}")
    parts = [] if expression.node is None else walk(expression.node)
    if any(isinstance(part, ColumnOf) and len(part.path) > 1 for part in parts):
        raise refuse(f"keep({condition!r}) reads top-level fields only")
    read = [column for column in columns if column.name in expression.columns]
    if not read:
        raise refuse(f"keep({condition!r}) names no field")
    for column in read:
        if digits_of(column.type) is not None:
            raise refuse(f"keep({condition!r}) cannot compare {column}; filter in the pipeline instead")
    texts = {column: f"j[{n}]" for n, column in enumerate(read, 1)}
    checks = {column: check for column in read if (check := is_unsure(column, texts[column])) is not None}
    exact = {column: as_written(f"w{n}", texts[column]) for n, column in enumerate(checks)}
    try:
        answer = to_duckdb(expression)
    except CannotFuseError as error:
        raise refuse(
            f"keep({condition!r}) cannot be computed in the log: {error}; filter in the pipeline instead"
        ) from None
    if expression.node is not None and is_fallible(expression.node):
        raise refuse(f"keep({condition!r}) has no value for some records; filter in the pipeline instead")
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
    fields = ", ".join(f"{value_of(column, text)} AS {quoted(column.name)}" for column, text in texts.items())
    # A field that does not fit its type has text but no value.
    misfit = " OR ".join(is_none(column, quoted(column.name), text) for column, text in texts.items())
    return (
        f"SELECT coalesce({answer}, FALSE) OR {misfit}, {unsure} FROM (SELECT *, {fields} FROM "
        f"(SELECT *, json_extract_string(value, [{paths}]) AS j FROM given))"
    )


def _answers(query: str, given: Mapping[str, pa.Array]) -> tuple[Bools, Bools]:
    """The two boolean columns that a query returns for `given`, a table of texts."""
    texts = pa.table({name: as_texts(column) for name, column in given.items()})
    first, second = asked(query, {"given": texts}).columns
    return first.to_numpy().copy(), second.to_numpy()


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
