"""Aggregates over edge values of every type, on every engine and in several divisions, judged by Spark's own SQL."""

import math
import random
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from comparison import same
from doubles import answers
from examples import examples
from millrace import agg, memory, window
from millrace.edge.fused import Fused
from millrace.model.aggregate import Aggregate
from millrace.model.arrow import arrow_type
from millrace.model.duration import END_OF_TIME, SECOND, to_datetime
from millrace.model.errors import NoValueError
from millrace.model.query import Query
from millrace.model.schema import is_numeric, parse_schema
from millrace.panes.advance import Panes, PaneState
from millrace.panes.columns import columnar
from millrace.panes.grouping import group
from millrace.testing import Reference
from millrace.testing.engines import PaneEngine, as_panes

BIGGEST, SMALLEST = 2**63 - 1, -(2**63)
NINES = Decimal("9" * 38)
EDGES: dict[str, list[Any]] = {
    "TINYINT": [127, -128, 0, 1],
    "INT": [2**31 - 1, -(2**31), 0, -1],
    "BIGINT": [BIGGEST, SMALLEST, 2**53 + 1, 0, 5, -10],
    "FLOAT": [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.5, 2.0**-149, 2.0**127],
    "DOUBLE": [math.inf, math.nan, -math.inf, 0.0, -0.0, 5e-324, 1.5, -2.25, 1.7e308],
    "DECIMAL(5, 5)": [Decimal("0.99999"), Decimal("-0.99999"), Decimal("0.00001")],
    "DECIMAL(10, 2)": [Decimal("99999999.99"), Decimal("-99999999.99"), Decimal("0.01"), Decimal("-0.04")],
    "DECIMAL(38, 0)": [NINES, Decimal(f"-{NINES}"), Decimal(1), Decimal(0)],
    "DECIMAL(38, 10)": [Decimal(f"{'9' * 28}.{'9' * 10}"), Decimal(f"-{'9' * 28}.{'9' * 10}"), Decimal("1e-10")],
    "STRING": ["", "a", "a\0b", "a\0", "ü", "\uffff", "\U0001f600", "B"],
    "DATE": [date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), date(2024, 2, 29)],
    "TIMESTAMP": [datetime(2024, 2, 29, 23, 59, 59, 999999, UTC), datetime(1969, 12, 31, tzinfo=UTC)],
    "BOOLEAN": [True, False],
    "STRUCT<b: DOUBLE, a: STRING>": [
        {"b": 1.5, "a": "x"}, {"b": 1.5, "a": None}, {"b": None, "a": "y"}, {"b": math.nan, "a": ""},
        {"b": -0.0, "a": "x"}, {"b": 0.0, "a": "x"}, {"b": None, "a": None},
    ],
    "ARRAY<INT>": [[], [1], [1, 2], [None], [1, None], [2**31 - 1], [-1, 5]],
    "ARRAY<STRUCT<n: INT, at: DATE>>": [
        [], [None], [{"n": 1, "at": None}], [{"n": 1, "at": date(2024, 1, 1)}, {"n": None, "at": None}],
        [{"n": 1, "at": date(2024, 1, 1)}],
    ],
}  # fmt: skip
OF_NUMBERS: dict[str, tuple[Any, str]] = {
    "sum": (agg.sum, "try_sum(v)"),
    "mean": (agg.mean, "try_avg(v)"),
    "variance": (agg.variance, "var_samp(v)"),
    "stddev": (agg.stddev, "stddev_samp(v)"),
}
OF_ANYTHING: dict[str, tuple[Any, str]] = {
    "count": (agg.count, "count(v)"),
    "min": (agg.min, "min(v)"),
    "max": (agg.max, "max(v)"),
    "collect": (agg.collect, "sort_array(collect_list(v))"),
    "collect_set": (agg.collect_set, "sort_array(collect_set(v))"),
    "top": (lambda v: agg.top_k(v, 2), "slice(sort_array(collect_list(v), false), 1, 2)"),
    "first": (agg.first, "min_by(v, struct(at, v)) FILTER (WHERE v IS NOT NULL)"),
    "last": (agg.last, "max_by(v, struct(at, v)) FILTER (WHERE v IS NOT NULL)"),
    "different": (agg.approx_distinct, "count(DISTINCT v)"),
}
CASES = [
    (kind, name)
    for kind in EDGES
    for name in (*OF_ANYTHING, *(OF_NUMBERS if is_numeric(kind) else ()))
]  # fmt: skip
SQL = {name: sql for name, (_, sql) in (OF_NUMBERS | OF_ANYTHING).items()}


def asked(kind: str, name: str) -> Query:
    source = memory("input", f"g INT, v {kind}, at TIMESTAMP").event_time("at", delay="0s")
    made: Aggregate = (OF_NUMBERS | OF_ANYTHING)[name][0]("v")
    return source.group_by("g").window(window.all_time()).aggregate(answer=made)


def rows_of(kind: str) -> list[dict[str, Any]]:
    """Groups of edge values: each alone, each with each, and some at random."""
    chance, values = random.Random(7), EDGES[kind]
    groups: list[list[Any]] = [[], [None], *([value] for value in values), *([a, b] for a in values for b in values)]
    groups += [[chance.choice([*values, None]) for _ in range(chance.randrange(3, 9))] for _ in range(40)]
    groups.append([BIGGEST, 5, -10] if kind == "BIGINT" else list(values))
    return [
        {"g": number, "v": value, "at": to_datetime(chance.randrange(4) * SECOND)}
        for number, values in enumerate(groups)
        for value in values
    ]


def as_table(rows: list[dict[str, Any]], kind: str) -> pa.Table:
    types = {"g": "INT", "v": kind, "at": "TIMESTAMP"}
    return pa.table({name: pa.array([row[name] for row in rows], arrow_type(type)) for name, type in types.items()})


def divided(rows: list[Any], seed: int) -> list[list[Any]]:
    """The same rows in another order and in bundles."""
    chance = random.Random(seed)
    if not seed:
        return [rows]
    mixed = chance.sample(rows, len(rows))
    return [part for part in (mixed[0::3], mixed[1::3], mixed[2::3]) if part]


def of_engines(query: Query, kind: str, rows: list[dict[str, Any]]) -> dict[str, dict[int, Any]]:
    """What each engine answers by group; a group without an answer is not there."""
    found: dict[str, dict[int, Any]] = {}
    for seed in range(3):
        for name, engine in (("reference", Reference(query)), ("panes", PaneEngine(query))):
            panes = [pane for bundle in divided(rows, seed) for pane in engine.input(bundle)] + engine.end()
            found[f"{name}, division {seed}"] = {pane.key[0]: pane.values["answer"] for pane in panes}
        fused, fast, state, said = Fused(query, query.stream.parent), Panes(query), PaneState(), []  # type: ignore[attr-defined]
        for bundle in divided(rows, seed):
            if fused.lifts:
                break
            state, tables = fast.advance(state, fused.take(as_table(bundle, kind)).rows, state.watermark, 0)
            said += tables
        state, tables = fast.advance(state, None, END_OF_TIME, 0)
        if not fused.lifts:
            panes = [pane for table in [*said, *tables] for pane in as_panes(table, query)]
            found[f"fused, division {seed}"] = {pane.key[0]: pane.values["answer"] for pane in panes}
    return found


def exactly(values: list[Any], name: str) -> Decimal:
    """The sum or the mean of decimals, with digits enough."""
    given = [value for value in values if value is not None]
    total = sum(map(Fraction, given), Fraction(0)) / (len(given) if name == "mean" else 1)
    return Context(prec=60).divide(Decimal(total.numerator), Decimal(total.denominator))


def adds_up(values: list[Any]) -> bool:
    """Whether Spark's sum of doubles is finite in any order, or a value is not finite."""
    sizes = [abs(value) for value in values if value is not None]
    return math.isfinite(sum(sizes)) or not all(map(math.isfinite, sizes))


def agrees(ours: Any, theirs: Any, name: str) -> bool:
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(
            agrees(one, other, name) for one, other in zip(ours, theirs, strict=True)
        )
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return list(ours) == list(theirs) and agrees([*ours.values()], [*theirs.values()], name)
    if isinstance(ours, Decimal) and isinstance(theirs, Decimal):
        return abs(Fraction(ours) - Fraction(theirs)) <= Fraction(1, 2 * 10 ** -int(ours.as_tuple().exponent))
    if not isinstance(ours, float) or not isinstance(theirs, float):
        return bool(ours == theirs)
    if math.isnan(ours) or math.isnan(theirs):
        # Spark's own depends on the order of values where squares are beyond DOUBLE.
        return math.isnan(ours) == math.isnan(theirs) or (name in ("variance", "stddev") and ours == math.inf)
    near = name in ("sum", "mean", "variance", "stddev")
    return math.isclose(ours, theirs, rel_tol=1e-9) if near else ours == theirs


@pytest.mark.spark
@pytest.mark.parametrize("kind", EDGES)
def test_answers_are_those_of_spark(spark: SparkSession, kind: str) -> None:
    rows = rows_of(kind)
    names = [name for of, name in CASES if of == kind]
    spark.createDataFrame(as_table(rows, kind)).createOrReplaceTempView("edges")
    # On the way a sum of BIGINT overflows in Spark, and a mean loses digits; so these are judged by a type with room.
    total = "sum(CAST(v AS DECIMAL(38, 0)))"
    fits = f"{total} BETWEEN -9223372036854775808 AND 9223372036854775807"
    exact = {
        "sum": f"CASE WHEN {fits} THEN CAST({total} AS BIGINT) END",
        "mean": f"try_divide(double({total}), count(v))",
    }
    exact = exact if kind == "BIGINT" else {}
    chosen = ", ".join(f"{exact.get(name, SQL[name])} AS {name}" for name in names)
    judged = spark.sql(f"SELECT g, {chosen} FROM edges GROUP BY g").toArrow().to_pylist()
    wrong = []
    for name in names:
        query = asked(kind, name)
        of_values = {row["g"] for row in rows if row["v"] is not None}
        for engine, found in of_engines(query, kind, rows).items():
            for row in judged:
                # Where Spark has no sum of values, there is no answer; NULL of nothing is one. But Spark also has none
                # where a sum of decimals passes 38 digits on its way.
                no_answer = row[name] is None and name in ("sum", "mean") and row["g"] in of_values
                ours = found.get(row["g"], "no answer")
                values = [each["v"] for each in rows if each["g"] == row["g"]]
                theirs = exactly(values, name) if no_answer and ours != "no answer" else row[name]
                if name in ("sum", "mean") and kind in ("FLOAT", "DOUBLE") and not adds_up(values):
                    theirs = answers([value for value in values if value is not None])[name]  # Spark's overflows
                if (ours != "no answer" or not no_answer) and not agrees(ours, theirs, name):
                    wrong.append(f"{name} of {values} on {engine}: {ours}, in Spark {row[name]}")
    assert wrong == []


@pytest.mark.spark
def test_types_are_those_of_spark(spark: SparkSession) -> None:
    for kind, name in CASES:
        sql = {"sum": "sum(v)", "mean": "avg(v)"}.get(name, SQL[name])
        typed = spark.sql(f"SELECT {sql} AS x FROM (SELECT CAST(NULL AS {kind}) AS v, current_timestamp() AS at)")
        theirs = parse_schema(f"x {typed.schema['x'].dataType.simpleString()}").type_of("x")
        assert asked(kind, name).computed[0].column.type == theirs, (kind, name)


def answered(aggregate: Aggregate, bundles: list[list[Any]], kind: str) -> list[Any]:
    """The answer of the model, then in columns; None where there is none."""
    parts = [aggregate.combine([aggregate.partial((value,), 0) for value in bundle]) for bundle in bundles]
    try:
        model = aggregate.result(aggregate.combine(parts))
    except NoValueError as error:
        model = str(error)
    fast = columnar(aggregate)
    pieces = []
    for bundle in bundles:
        lifted = fast.lift([pa.array(bundle, arrow_type(kind))], np.zeros(len(bundle), np.int64))
        pieces.append(fast.merge(lifted, group(np.zeros(len(bundle), np.int64), 1)))
    stacked = [pa.concat_arrays(columns) for columns in zip(*pieces, strict=True)]
    found = fast.answers(fast.merge(stacked, group(np.zeros(len(bundles), np.int64), 1)))
    return [model, found.failed.get(0, found.values.to_pylist()[0])]


@pytest.mark.parametrize(("kind", "name"), [case for case in CASES if case[1] not in ("first", "last")])
@examples(25)
@given(data=st.data())
def test_an_answer_does_not_depend_on_bundles(kind: str, name: str, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.sampled_from([*EDGES[kind], None]), min_size=1, max_size=8))
    aggregate = (OF_NUMBERS | OF_ANYTHING)[name][0]("v").over([kind])
    cut = data.draw(st.integers(1, len(drawn)))
    mixed = data.draw(st.permutations(drawn))
    once = answered(aggregate, [drawn], kind)
    for found in (*once, *answered(aggregate, [part for part in (mixed[:cut], mixed[cut:]) if part], kind)):
        assert same(found, once[0]), (found, once[0])


@pytest.mark.parametrize("values", [[1e308, -1e308], [1.7e308] * 3, [1.7e308, -1.7e308, 1.0, -1.7e308]])
def test_a_variance_beyond_double_is_infinite_and_of_what_is_not_finite_nan(values: list[float]) -> None:
    expected = 0.0 if len(set(values)) == 1 else math.inf
    query = asked("DOUBLE", "variance")
    for more, answer in (([], expected), ([math.inf], math.nan), ([math.nan], math.nan)):
        rows = [{"g": 1, "v": value, "at": to_datetime(0)} for value in [*values, *more]]
        for engine, found in of_engines(query, "DOUBLE", rows).items():
            assert found[1] == answer or (math.isnan(found[1]) and math.isnan(answer)), engine


def test_equal_values_are_one_to_sketches() -> None:
    def of(aggregate: Aggregate, values: list[Any]) -> Any:
        return aggregate.result(aggregate.combine([aggregate.partial((value,), 0) for value in values]))

    other_nan = float(np.array([-math.nan])[0])
    assert of(agg.approx_distinct("v"), ["", "", "a"]) == 2
    assert of(agg.approx_distinct("v"), [0.0, -0.0, math.nan, other_nan]) == 2
    assert of(agg.approx_top_k("v", 1), [0.0, -0.0, 1.0]) == [{"item": 0.0, "count": 2}]
    assert of(agg.second_moment("v"), [0.0, -0.0]) == of(agg.second_moment("v"), ["a", "a"])
    zone = datetime.fromisoformat("2024-01-01T12:00:00+02:00")
    assert of(agg.approx_distinct("v"), [zone, zone.astimezone(UTC)]) == 1
    for value in (Decimal("1.10"), date(2024, 2, 29), datetime(2024, 1, 1, tzinfo=UTC), b"x", "", True, None):
        assert of(agg.approx_top_k("v", 1), [value]) == ([] if value is None else [{"item": value, "count": 1}])
