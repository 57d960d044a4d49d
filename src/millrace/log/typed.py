"""The fields of JSON records as typed values, in DuckDB's SQL: the same wherever a record is read."""

from millrace.model.errors import refuse
from millrace.model.schema import Column, is_integer


def value_of(column: Column, text: str) -> str:
    """The value of a field that is there as text, NULL if it does not fit."""
    if is_integer(column.type):
        return f"CASE WHEN regexp_full_match({text}, '-?[0-9]+') THEN try_cast({text} AS {column.type}) END"
    if column.type in ("DOUBLE", "FLOAT"):
        return f"try_cast({text} AS {column.type})"
    if column.type == "BOOLEAN":
        return f"CASE {text} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"
    if column.type == "TIMESTAMP":
        return f"try_cast({text} AS TIMESTAMPTZ)"
    if column.type == "STRING":
        return text
    raise refuse(f"column {column.name!r} of type {column.type} is not decoded from JSON; read it as STRING")


def pointer(name: str) -> str:
    """Where a field of a record is, as a JSON pointer."""
    return "/" + name.replace("~", "~0").replace("/", "~1")
