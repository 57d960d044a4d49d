"""The fields of JSON records as typed values in DuckDB's SQL, the same for every reader of records.

DuckDB's own casts accept more than JSON and Spark do (`1_0`, ` 5 `, `epoch`, `24:00:00`, `+99:00`), and round, so this
module defines which texts are accepted. `docs/values.md` has the rules as a table.
"""

from millrace.model.errors import refuse
from millrace.model.schema import Column, is_integer
from millrace.model.types import digits_of

OBJECT = (
    "json_valid(value) AND starts_with(ltrim(value, ' \t\r\n'), '{') "
    "AND NOT regexp_matches(value, ',[ \t\r\n]*}[ \t\r\n]*$')"
)
"""Whether a value is a JSON object. DuckDB alone would accept a comma before the last brace."""

_FIRST, _LAST = "TIMESTAMPTZ '0001-01-01 00:00:00+00'", "TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"
"""The first and the last time that Python, and so the reference, supports."""
_CERTAIN = "TIMESTAMPTZ '1900-01-02 00:00:00+00'"
"""A time that DuckDB reads is valid from here on; an earlier one may not be: it reads `epoch` as 1900, 26 as 0026."""
_NUMBER = "-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?"
_NOT_WHOLE = "-?[0-9]+([.][0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
_NO_NUMBERS = "('NaN', 'Infinity', '-Infinity')"
"""The values of DOUBLE that are not finite, as Millrace's JSON and Spark write them."""
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ZONE = "(Z|[-+](0[0-9]|1[0-7]):[0-5][0-9]|[-+]18:00)"
_CLOCK = "([01]?[0-9]|2[0-3]):[0-9]{1,2}(:[0-9]{1,2}([.][0-9]+)?)?"
_TIME = f"[ \t\r\n]*[0-9]{{4}}-[0-9]{{1,2}}-[0-9]{{1,2}}([T ]{_CLOCK}{_ZONE}?)?[ \t\r\n]*"
_USUAL = {27: "%Y-%m-%dT%H:%M:%S.%fZ", 24: "%Y-%m-%dT%H:%M:%S.%gZ", 20: "%Y-%m-%dT%H:%M:%SZ"}
"""The forms of most times, by length: a failed attempt takes DuckDB ten times as long."""


def value_of(column: Column, text: str) -> str:
    """The typed value of a field's text, which is invalid if `is_none` holds. Refuses types that have no text."""
    decimal = digits_of(column.type)
    if is_integer(column.type):
        return f"CASE WHEN regexp_full_match({text}, '-?[0-9]+') THEN try_cast({text} AS {column.type}) END"
    if decimal is not None:
        precision, scale = decimal
        fraction = f"[.][0-9]{{1,{scale}}}0*" if scale else "[.]0+"
        cast = f"try_cast({text} AS DECIMAL({precision}, {scale}))"
        return f"CASE WHEN regexp_full_match({text}, '-?[0-9]+({fraction})?') THEN {cast} END"
    if column.type in ("DOUBLE", "FLOAT"):
        known = f"regexp_full_match({text}, '{_NUMBER}') OR {text} IN {_NO_NUMBERS}"
        return f"CASE WHEN {known} THEN try_cast({text} AS {column.type}) END"
    if column.type == "BOOLEAN":
        return f"CASE {text} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"
    if column.type == "TIMESTAMP":
        return _time(text)
    if column.type == "DATE":
        return f"CASE WHEN regexp_full_match({text}, '{_DAY}') AND {text} >= '0001' THEN try_cast({text} AS DATE) END"
    if column.type == "STRING":
        return text
    problem = f"column {column.name!r} of type {column.type} cannot be decoded from JSON"
    raise refuse(problem, advice="declare it as STRING")


def is_none(column: Column, value: str, text: str) -> str:
    """Whether a field has a text that is not a value of the column's type."""
    outside = ""
    if column.type == "TIMESTAMP":
        early = f"{value} < {_FIRST} OR NOT regexp_full_match({text}, '{_TIME}')"
        outside = f" OR CASE WHEN {value} < {_CERTAIN} THEN {early} ELSE {value} > {_LAST} END"
    if column.type in ("DOUBLE", "FLOAT"):
        outside = f" OR (isinf({value}) AND {text} NOT IN {_NO_NUMBERS})"
    return f"(({value} IS NULL{outside}) AND {text} IS NOT NULL)"


def is_unsure(column: Column, text: str) -> str | None:
    """Whether DuckDB may have changed a text that it extracted from JSON; None if that does not matter.

    DuckDB reads a number with a point or an exponent as a DOUBLE and writes it again, also in nested values. A text
    that only looks like one may have been quoted, so the original text must be checked (`formats.written`).
    """
    if column.type == "STRING":
        low = f"CASE WHEN {text} < ':' THEN regexp_full_match({text}, '{_NOT_WHOLE}') ELSE {text} >= '[' END"
        return f"CASE WHEN {text} < '\\' THEN {low} ELSE {text} >= '{{' AND {text} < '|' END"
    if digits_of(column.type) is not None:
        return f"regexp_matches({text}, '[.eE]')"
    return None


def is_doubtful(column: Column, value: str, text: str) -> str:
    """A fast check that holds whenever `is_none` or `is_unsure` does."""
    if column.type == "STRING":
        return f"{text} NOT BETWEEN '\\' AND '{{'"  # texts that start with a lowercase letter are not doubtful
    if column.type == "TIMESTAMP":
        return f"(({value} IS NULL OR {value} NOT BETWEEN {_CERTAIN} AND {_LAST}) AND {text} IS NOT NULL)"
    return f"{text} IS NOT NULL" if digits_of(column.type) is not None else is_none(column, value, text)


def as_written(raw: str, text: str) -> str:
    """The exact text of a field: as written, or, if it is quoted, as DuckDB unquoted it."""
    return f"CASE WHEN starts_with({raw}, '\"') THEN {text} ELSE nullif({raw}, 'null') END"


def pointer(name: str) -> str:
    """The JSON pointer to a field of a record."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _time(text: str) -> str:
    """A time. A usual form is parsed by `try_strptime`, which takes a third of the time of a pattern."""
    usual = " ".join(f"WHEN {length} THEN try_strptime({text}, '{form}')" for length, form in _USUAL.items())
    other = f"CASE WHEN regexp_full_match({text}, '{_TIME}') THEN try_cast(trim({text}, ' \t\r\n') AS TIMESTAMPTZ) END"
    return f"coalesce(make_timestamptz(epoch_us(CASE strlen({text}) {usual} END)), {other})"
