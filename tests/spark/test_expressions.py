"""Row expressions mean what Spark means: on the reference, on the fused edge, and on the native one, row by row."""

import os
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from judging import MORE, NO_VALUE, REFUSED, ROWS, SCHEMA, Judge, Maker, by_reference, from_tables, fused, parsed, plain
from millrace.formats.sql import _CALLS as FUSED
from millrace.formats.sql import CannotFuseError, to_duckdb
from millrace.model import computed
from millrace.model.coercion import UnresolvedError
from millrace.model.errors import PipelineError
from millrace.model.expression import parse_expression
from millrace.model.functions import COUNTS, SPARK_FUNCTIONS
from millrace.model.reading import unescaped
from millrace.model.resolve import _KINDS as KINDS
from millrace.model.resolve import Resolver
from millrace.model.schema import DIALECT, UNKNOWN, parse_schema
from millrace.model.typed import OPERATIONS

SEED = int.from_bytes(os.urandom(4)) if os.environ.get("CI_SEEDS") == "random" else 11


@pytest.fixture(scope="module")
def judge(spark: SparkSession) -> Judge:
    return Judge(spark)


def differences(judge: Judge, texts: list[str], compiled: bool) -> tuple[list[Any], dict[str, int]]:
    """Where an engine of ours does not say what Spark says; and how many checks were made."""
    truth = judge.answers(texts, compiled)
    ours = parsed(texts)
    known = [expression for expression in ours.values() if expression is not None and expression.node is not None]
    quick = fused(known)
    wrong: list[Any] = []
    made = {"reference": 0, "fused": 0}
    for expression in known:
        spark_says = truth[expression.sql]
        if spark_says is None:  # which Millrace tells when it runs, as it asks Spark for all types
            continue
        type, expected = spark_says
        if expression.type != type:
            wrong.append((expression.sql, "type", expression.type, type))
            continue
        for engine, got in (("reference", by_reference(expression)), ("fused", quick[expression.sql])):
            if got == REFUSED:
                continue
            made[engine] += len(ROWS)
            wrong += [
                (expression.sql, engine, place, value, said)
                for place, (value, said) in enumerate(zip(got, expected, strict=True))
                if plain(value) != plain(said)
            ]
    return wrong, made


@pytest.mark.spark
def test_every_operation_on_every_type_is_what_spark_says(judge: Judge) -> None:
    """One in five of them each time, as each takes a while; all, if other seeds are asked for."""
    texts = from_tables() if os.environ.get("CI_SEEDS") == "random" else [*from_tables()[::5], *MORE]
    wrong, made = differences(judge, list(dict.fromkeys(texts)), compiled=False)
    assert wrong == []
    assert made["fused"] > 15_000
    assert made["reference"] > 15_000


@pytest.mark.spark
@pytest.mark.no_cover
def test_nested_expressions_are_what_spark_says(judge: Judge) -> None:
    many = 5_000 if os.environ.get("CI_SEEDS") == "random" else 2_500
    wrong, made = differences(judge, list(Maker(SEED).texts(many)), compiled=False)
    assert wrong == [], f"seed {SEED}"
    assert made["fused"] > 10 * many


@pytest.mark.spark
def test_spark_compiled_says_what_spark_interpreted_says(judge: Judge) -> None:
    """The native edge runs compiled code; the judge of the two tests above is quicker."""
    texts = [*from_tables()[::23], *Maker(SEED + 1).texts(200)]
    wrong, made = differences(judge, texts, compiled=True)
    assert wrong == [], f"seed {SEED + 1}"
    assert made["fused"] > 3_000


def test_every_argument_of_every_node_is_looked_at_or_refused() -> None:
    """Nothing that the parser tells is dropped in silence, `NOT LIKE` for one."""
    resolver = Resolver(SCHEMA)
    for kind, (used, _) in KINDS.items():
        assert set(used) <= set(kind.arg_types) | {"this"}, kind
        for name in set(kind.arg_types) - set(used):
            tree = kind()
            tree.args[name] = exp.Literal.number(1)
            with pytest.raises(UnresolvedError, match=f"with {name} runs only in Spark"):
                resolver.node(tree)


def test_every_operation_is_evaluated() -> None:
    assert set(computed._LAZY) | set(computed._STRICT) | set(computed._ARITHMETIC) == OPERATIONS
    assert set(FUSED) <= OPERATIONS


@pytest.mark.parametrize(
    "text",
    [
        "a = b = b",
        "j = k < n",
        "s LIKE 'x' = b",
        "j BETWEEN k AND k = k",
        "b = a IN (true)",
        "s || j + 1",
        "NOT b = a > b",
    ],
)
def test_what_spark_and_the_parser_group_in_other_ways_is_left_to_spark(text: str) -> None:
    assert parse_expression(text, SCHEMA).node is None


@pytest.mark.parametrize(
    "text", ["hash(s)", "pmod(j, 3)", "try_add(n, 1)", "elt(1, s, u)", "at - at", "CAST(s AS CHAR(3))"]
)
def test_what_only_spark_can_type_is_accepted_and_typed_later(text: str) -> None:
    expression = parse_expression(text, SCHEMA)
    assert (expression.type, expression.node) == (UNKNOWN, None)
    assert expression.unresolved is not None
    with pytest.raises(CannotFuseError):
        to_duckdb(expression)


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("'it''s'", "it's"), (r"'it\'s'", "it's"), ('"a""b"', 'a"b'), ("'a\"\"b'", 'a""b'), (r"'\n\t\\'", "\n\t\\"),
        (r"'\u0041\U0001f600'", "A\U0001f600"), (r"'\ud83d\ude00'", "\U0001f600"), (r"'\101'", "A"), (r"'\%'", r"\%"),
    ],
)  # fmt: skip
def test_strings_are_read_as_spark_reads_them(literal: str, text: str) -> None:
    assert unescaped(literal) == text


@pytest.mark.parametrize("text", ["explode(split(s, '-'))", "posexplode(array(1))", "json_tuple(s, 'a')"])
def test_what_makes_several_rows_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="a row expression must return one value"):
        parse_expression(text, SCHEMA)


def test_columns_of_any_type_are_passed_on_and_decimals_have_all_their_digits() -> None:
    schema = parse_schema("tags ARRAY<STRING>, d DECIMAL(5), p STRUCT<a: DECIMAL>")
    assert [column.type for column in schema][1:] == ["DECIMAL(5, 0)", "STRUCT<a: DECIMAL(10, 0)>"]
    assert to_duckdb(parse_expression("tags", schema)) == '"tags"'
    assert to_duckdb(parse_expression("tags IS NULL", schema)) == '("tags" IS NULL)'
    assert parse_expression("d + p.a", schema).type == "DECIMAL(11, 0)"


def test_a_constant_that_is_no_value_is_refused_as_it_is_built() -> None:
    with pytest.raises(PipelineError, match="compares BIGINT with 'abc', which is not BIGINT"):
        parse_expression("n > 'abc'", SCHEMA)
    with pytest.raises(PipelineError, match="'j \\+ 1 div 0' has no value for any row: division by zero"):
        parse_expression("j + 1 div 0", SCHEMA)
    assert parse_expression("if(j = 0, 1 div 0, j)", SCHEMA).node is not None
    with pytest.raises(PipelineError, match="different on every replay"):
        parse_expression("at > 'today'", SCHEMA)


def test_no_value_is_no_null() -> None:
    found = by_reference(parse_expression("10 / k", SCHEMA))
    assert (found[1], found[5]) == (NO_VALUE, None)


@pytest.mark.spark
def test_the_names_of_functions_are_spark_s(spark: SparkSession) -> None:
    listed = {row[0].split(".")[-1] for row in spark.sql("SHOW ALL FUNCTIONS").collect()}
    assert {name for name in listed if name.replace("_", "").isalnum() and name[0].isalpha()} == SPARK_FUNCTIONS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("length(s, 3)", "length() takes 1 argument, not 2"),
        ("upper(length())", "length() takes 1 argument, not 0"),
        ("round(1, 2, 3)", "round() takes 1 to 2 arguments, not 3"),
        ("j + greatest(1)", "greatest() takes at least 2 arguments, not 1"),
        ("concat(s, LENGTH(s, u))", "length() takes 1 argument, not 2"),
        ("if(s IN ('a', 'b,'), length(s, ','), 0)", "length() takes 1 argument, not 2"),
        ("mod(1, 2, 3)", "mod() takes 2 arguments, not 3"),
        ("map(s)", "expression 'map(s)' does not parse: a function has a wrong number of arguments"),
        ("upper(regexp_replace(s, 'a'))", "regexp_replace() takes 3 to 4 arguments, not 2"),
    ],
)
def test_a_wrong_number_of_arguments_is_refused_when_built(text: str, said: str) -> None:
    with pytest.raises(PipelineError) as refused:
        parse_expression(text, SCHEMA)
    assert refused.value.problem == said


@pytest.mark.parametrize(
    "text",
    [
        "trim(BOTH 'x' FROM s)", "extract(YEAR FROM at)", "substring(s FROM 2 FOR 1)", "position('a' IN s)",
        "CAST(s AS DECIMAL(10, 2))", "j IN (1, 2, 3)", "NOT (b)", "concat(s)", "length(concat(s, ',(', u))",
        "size(filter(array(1, 2), x -> x IN (1, 2)))", "aggregate(array(1, 2), 0, (total, x) -> total + x)",
        "CASE WHEN (b) THEN length(s) ELSE (j) END", "round(d)", "round(d, 1)", "coalesce(s, u, 'x')",
        "nvl(s::MAP<STRING, INT>, u)",
    ],
)  # fmt: skip
def test_the_forms_of_calls_are_told_from_wrong_ones(text: str) -> None:
    parse_expression(text, SCHEMA)


def test_every_function_that_is_computed_here_has_a_number_of_arguments() -> None:
    computed_here = set()
    for name, count in product(SPARK_FUNCTIONS, range(5)):
        with suppress(SqlglotError, LookupError, ValueError):  # the parser fails in all these ways
            tree = parse_one(f"{name}({', '.join(['j'] * count)})", dialect=DIALECT)
            if type(tree) in KINDS and not isinstance(tree, exp.Anonymous | exp.Column):
                computed_here.add(name)
    assert computed_here - COUNTS.keys() == {"and", "concat", "like", "not", "or", "timestamp"}, (
        "any number, or Spark's"
    )


@pytest.mark.spark
def test_spark_refuses_the_numbers_of_arguments_that_are_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "a INT")
    for name, (least, most) in COUNTS.items():
        for count in (*range(least), *(() if most is None else (most + 1,))):
            with pytest.raises(PySparkException):
                frame.selectExpr(f"{name}({', '.join(['NULL'] * count)})")


def test_an_expression_names_the_columns_it_reads_once() -> None:
    schema = parse_schema("i BIGINT, j BIGINT, place STRUCT<city: STRING>")
    assert parse_expression("i + i * j + length(place.city)", schema).columns == ("i", "j", "place")


def test_names_and_texts_are_quoted() -> None:
    schema = parse_schema({'a "b"': "STRING", "select": "BIGINT"})
    assert to_duckdb(parse_expression("`select` > 1", schema)) == "(\"select\" > CAST('1' AS BIGINT))"
    assert to_duckdb(parse_expression("`a \"b\"` = 'it\\'s'", schema)) == '("a ""b""" = \'it\'\'s\')'
