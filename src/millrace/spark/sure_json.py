"""JSON records of Kafka as columns of a Spark plan, as far as Spark surely reads them as Millrace does.

`edge/decode.py` defines which records fit a schema and which values they have. Spark's parser accepts and computes
other things in many corners: text after a record, of two fields with one name the last, times without a day. So a
record is *sure* only if it passes tests under which both agree; the tests of this module compare the two on random
records. A record that is not sure is marked, and Millrace's own decoder judges it.
"""

from collections.abc import Callable
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from millrace.model.schema import Column as SchemaColumn
from millrace.model.schema import backticked, is_integer
from millrace.model.stream import Source
from millrace.sources.bundle import LOGGED
from millrace.spark.marks import BAD, CONTROL, OFFSET, ORIGIN

UNSURE = "unsure"
"""The mark, in the column BAD, of a record that Millrace's own decoder must judge."""
VALUE = "__value"
"""The hidden column with the bytes of the record."""
_END = "__end"
_OPTIONS = {
    "mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false", "allowComments": "false",
    "allowUnquotedFieldNames": "false", "allowNumericLeadingZeros": "false", "allowUnquotedControlChars": "false",
    "allowBackslashEscapingAnyCharacter": "false",
}  # fmt: skip
_NUMBER = r"^-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?\z"
_DAY = r"(19[0-9][1-9]|19[1-9]0|[2-8][0-9]{3})-[0-9]{2}-[0-9]{2}"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?"
_ZONE = r"(Z|[-+](0[0-9]|1[0-7]):[0-5][0-9])?"
_NOT_WHOLE = r"^-?[0-9]+([.][0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)\z"
_LONE = r"\\u[dD][89aAbB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89aAbB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
"""An escaped half of a character that is written in two halves."""


def sure_rows(raw: DataFrame, source: Source, mark: str) -> DataFrame:
    """The rows of a source from Kafka's columns, with hidden columns as `NativePlan` reads them, and the bytes.

    `mark` is a text that no record contains: behind it, the record has ended.
    """
    columns = list(source.value_schema)
    text = f.col("value").cast("string")
    fields = ", ".join(f"{backticked(column.name)} STRING" for column in columns)
    kind = f"ARRAY<STRUCT<{fields}, `{_END}` STRING>>"
    whole = f.concat(f.lit("["), text, f.lit(f',{{"{_END}":"{mark}"}}]'))
    rows = raw.withColumns({"__text": text, "__parsed": f.from_json(whole, kind, _OPTIONS)})
    record, end = f.get("__parsed", f.lit(0)), f.get("__parsed", f.lit(1))
    texts = {column.name: record[column.name] for column in columns}
    rows = rows.withColumns({f"__f_{name}": each for name, each in texts.items()})
    typed = {f"__v_{each.name}": _value(each.type, f.col(backticked(f"__f_{each.name}"))) for each in columns}
    rows = rows.withColumns(typed)  # in columns of their own, they are computed once
    values = {column.name: f.col(backticked(f"__v_{column.name}")) for column in columns}
    tests = [
        f.col("value").isNotNull(), f.expr("is_valid_utf8(value)"),
        f.col("__text").startswith("{") | f.col("__text").rlike(r"^[ \t\r\n]*\{"),
        f.size("__parsed") == 2, end[_END] == mark, record[_END].isNull(), _has_no_double(columns, source.is_strict),
        *(_is_sure(column, f.col(backticked(f"__f_{column.name}")), values[column.name]) for column in columns),
    ]  # fmt: skip
    is_sure = f.coalesce(reduce(lambda one, other: one & other, tests), f.lit(False))
    rows = rows.withColumn(BAD, f.when(~is_sure, f.lit(UNSURE)))
    parts = source.metadata
    chosen = {
        column.name: values[column.name] if column.name in values else _part(parts[column.name])
        for column in source.schema
    }
    return rows.select(
        *(f.when(f.col(BAD).isNull(), value).alias(name) for name, value in chosen.items()),
        f.concat(f.col("topic"), f.lit("/"), f.col("partition").cast("string")).alias(ORIGIN),
        f.col("offset").alias(OFFSET),
        f.unix_micros("timestamp").alias(LOGGED),
        f.lit(None).cast("string").alias(CONTROL),
        f.col(BAD),
        f.col("value").alias(VALUE),
    )


def _value(type: str, text: Column) -> Column:
    """The value of a field's text; NULL if it has none."""
    return text if type == "STRING" else text.try_cast(type)


def _is_sure(column: SchemaColumn, text: Column, value: Column) -> Column:
    """Whether Millrace, too, reads a field's text as this value."""
    sure = _test_of(column.type)(text, value)
    if column.type == "STRING":
        sure = sure | _is_quoted(column)
    return text.isNotNull() & sure if column.required else text.isNull() | sure


def _is_quoted(column: SchemaColumn) -> Column:
    """Whether a field is text in quotes, which both read alike; False also if its name stands twice in the record."""
    text, quoted = f.col("__text"), f.lit(f'"{column.name}"')
    return ~_is_twice(text, quoted) & text.rlike(f'"\\Q{column.name}\\E"[ \\t\\r\\n]*:[ \\t\\r\\n]*"')


def _is_twice(text: Column, part: Column) -> Column:
    return f.length(text) - f.length(f.replace(text, part)) > f.length(part)


def _test_of(type: str) -> Callable[[Column, Column], Column]:
    if is_integer(type):
        return lambda text, value: text.rlike("^-?[0-9]{1,30}\\z") & value.isNotNull()
    match type:
        case "STRING":  # Spark may write numbers and nested values in another way than the record
            return lambda text, _: ~text.rlike(_NOT_WHOLE) & ~text.rlike(r'^[\[{"]')
        case "BOOLEAN":
            return lambda text, _: text.isin("true", "false")
        case "DOUBLE":
            return lambda text, value: text.rlike(_NUMBER) & (f.abs(value) < float("inf"))
        case "DATE":
            return lambda text, value: text.rlike(f"^{_DAY}\\z") & value.isNotNull()
        case "TIMESTAMP":
            return lambda text, value: text.rlike(f"^{_DAY}([T ]{_CLOCK}{_ZONE})?\\z") & value.isNotNull()
        case _:
            raise AssertionError(f"{type} is refused in real-time mode")


def _has_no_double(columns: list[SchemaColumn], strict: bool) -> Column:
    """Whether no column has two fields; with `strict`, also whether each field is a column.

    Names are compared one by one only if a name stands twice in the text, perhaps in a nested value, or the text has
    escapes.
    """
    text, keys = f.col("__text"), f.json_object_keys("__text")
    names = [column.name for column in columns]
    known = f.array(*map(f.lit, names))
    once = [f.size(keys) - f.size(f.array_remove(keys, name)) <= 1 for name in names]
    exact = reduce(lambda one, other: one & other, once)
    if strict:
        return exact & (f.size(f.array_except(keys, known)) == 0) & ~text.rlike(_LONE)
    any_name = "|".join(f"\\Q{name}\\E" for name in names)
    twice = f'"({any_name})"(?s:.*)"\\1"'
    doubtful = text.contains("\\") | text.rlike(twice)
    return f.when(doubtful, exact & ~text.rlike(_LONE)).otherwise(f.lit(True))


def _part(part: str) -> Column:
    match part:
        case "key":
            return f.when(f.expr("is_valid_utf8(key)"), f.col("key").cast("string"))
        case "topic" | "partition" | "offset" | "timestamp":
            return f.col(part)
        case _:
            raise AssertionError(f"{part} is refused in real-time mode")
