"""Sums of floats are exact: in the model, in columns and on the edge, in any order and division, also taken back."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles import answers, anything, bits, finite, ordinary
from examples import examples
from millrace import agg, memory, window
from millrace.edge.fused import Fused
from millrace.model.aggregate import Aggregate, Sum, Variance
from millrace.model.duration import END_OF_TIME, to_datetime
from millrace.model.exact import Exact, square, variance
from millrace.model.reference import Reference
from millrace.panes import exact
from millrace.panes.advance import Panes, PaneState
from millrace.panes.columns import Columns, Numbers, columnar
from millrace.panes.grouping import group
from millrace.testing.engines import as_panes

ALL: list[Aggregate] = [
    made("v").over(["DOUBLE"]) for made in (agg.sum, agg.mean, agg.variance, agg.stddev)
]  # fmt: skip
INVERTIBLE: list[Sum | Variance] = [each for each in ALL if isinstance(each, Sum | Variance)]
lists = st.lists(anything, max_size=12) | st.lists(finite, max_size=12) | st.lists(ordinary, max_size=12)


def fast_of(aggregate: Aggregate) -> Numbers:
    made = columnar(aggregate)
    assert isinstance(made, Numbers)
    return made


def lifted(fast: Numbers, values: Sequence[float | None]) -> Columns:
    return fast.lift([pa.array(values, pa.float64())], np.zeros(len(values), np.int64))


def whole(fast: Numbers, columns: Columns) -> Columns:
    """All rows merged into one; it exists even if there are no rows."""
    stacked = [pa.concat_arrays(pair) for pair in zip(columns, lifted(fast, [None]), strict=True)]
    return fast.merge(stacked, group(np.zeros(len(stacked[0]), np.int64), 1))


def joined(parts: list[Columns]) -> Columns:
    return [pa.concat_arrays(list(columns)) for columns in zip(*parts, strict=True)]


@given(lists)
def test_the_model_rounds_once(values: list[float]) -> None:
    for aggregate in ALL:
        found = aggregate.result(aggregate.combine([aggregate.partial((value,), 0) for value in values]))
        assert bits(found) == bits(answers(values)[aggregate.name])


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=20))
def test_a_sum_is_that_of_fsum(values: list[float]) -> None:
    fast = fast_of(ALL[0])
    assert fast.result(whole(fast, lifted(fast, values))).to_pylist() == [math.fsum(values)]


@pytest.mark.parametrize("aggregate", ALL, ids=str)
@examples(200)
@given(data=st.data())
def test_columns_round_once_in_any_order_and_division(aggregate: Aggregate, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.tuples(anything | st.none(), st.integers(0, 3), st.integers(0, 2)), min_size=1))
    mixed = data.draw(st.permutations(drawn))
    fast = fast_of(aggregate)
    parts, owners = [], []
    for bundle in range(3):
        rows = [(value, own) for value, own, part in mixed if part == bundle]
        if rows:
            numbers = sorted({own for _, own in rows})
            ids = np.array([numbers.index(own) for _, own in rows])
            parts.append(fast.merge(lifted(fast, [value for value, _ in rows]), group(ids, len(numbers))))
            owners += numbers
    numbers = sorted(set(owners))
    merged = fast.merge(joined(parts), group(np.array([numbers.index(own) for own in owners]), len(numbers)))
    for own, found in zip(numbers, fast.result(merged).to_pylist(), strict=True):
        values = [value for value, of, _ in drawn if of == own and value is not None]
        assert bits(found) == bits(answers(values)[aggregate.name])


@pytest.mark.parametrize("aggregate", INVERTIBLE, ids=str)
@examples(100)
@given(kept=lists, taken=lists)
def test_what_is_taken_back_leaves_no_trace(aggregate: Sum | Variance, kept: list[float], taken: list[float]) -> None:
    fast = fast_of(aggregate)
    before, part = whole(fast, lifted(fast, kept)), lifted(fast, taken)
    after = whole(fast, joined([before, part]))
    back = whole(fast, joined([after, fast.signed(part, np.full(len(taken), -1))]))
    assert [column.to_pylist() for column in back] == [column.to_pylist() for column in before]
    mixed = fast.signed(joined([part, part]), np.repeat([1, -1], len(taken)))
    assert whole(fast, mixed)[0].to_pylist() == whole(fast, lifted(fast, []))[0].to_pylist()

    model = [aggregate.combine([aggregate.partial((value,), 0) for value in values]) for values in (kept, taken)]
    total = aggregate.combine(model)
    if total is not None and model[1] is not None:
        assert aggregate.inverse(total, model[1]) == model[0]


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT"])
@examples(60)
@given(data=st.data())
def test_the_edge_the_panes_and_the_reference_agree_to_the_last_bit(kind: str, data: st.DataObject) -> None:
    source = memory("input", f"g INT, v {kind}, at TIMESTAMP")
    query = source.event_time("at", delay="0s").group_by("g").window(window.all_time()).aggregate(
        sum=agg.sum("v"), mean=agg.mean("v"), variance=agg.variance("v"), stddev=agg.stddev("v"), twice=agg.sum("v + v")
    )  # fmt: skip
    value = anything if kind == "DOUBLE" else st.floats(width=32)
    rows: list[dict[str, Any]] = [
        {"g": own, "v": each, "at": to_datetime(0)}
        for own, each in data.draw(st.lists(st.tuples(st.integers(0, 2), value | st.none()), min_size=1))
    ]
    cut = data.draw(st.integers(1, len(rows)))
    reference, fused, panes, state = Reference(query), Fused(query, source), Panes(query), PaneState()
    for bundle in (rows[:cut], rows[cut:]):
        reference.input(bundle)
        held = pa.float64() if kind == "DOUBLE" else pa.float32()
        types = {"g": pa.int32(), "v": held, "at": pa.timestamp("us", "UTC")}
        table = pa.table({name: pa.array([row[name] for row in bundle], type) for name, type in types.items()})
        state, _ = panes.advance(state, fused.take(table).rows, state.watermark, 0)
    state, tables = panes.advance(state, None, END_OF_TIME, 0)
    found = {pane.key[0]: pane.values for each in tables for pane in as_panes(each, query)}
    for pane in reference.end():
        given = [row["v"] for row in rows if row["g"] == pane.key[0] and row["v"] is not None]
        expected = answers(given)
        for name, answer in pane.values.items():
            assert bits(found[pane.key[0]][name]) == bits(answer)
            assert name == "twice" or bits(answer) == bits(expected[name])


def test_rows_are_lifted_if_another_aggregate_has_no_sql() -> None:
    source = memory("input", "v DOUBLE")
    query = source.window(window.all_time()).aggregate(sum=agg.sum("v"), median=agg.approx_quantile("v", 0.5))
    fused = Fused(query, source)
    assert fused.lifts
    assert fused.take(pa.table({"v": [0.1, 1e-30]})).rows["a0_0"].to_pylist() == [0.1, 1e-30]


@pytest.mark.parametrize("aggregate", ALL, ids=str)
def test_values_at_the_limits_of_what_is_near(aggregate: Aggregate) -> None:
    fast = fast_of(aggregate)
    for exponent in (-1074, -1022, -73, -72, -21, -20, 0, 43, 52, 53, 54, 60, 61, 75, 76, 77, 500, 1023):
        for value in (2.0**exponent, math.nextafter(2.0**exponent, 0), math.nextafter(2.0**exponent, math.inf) * -1):
            for values in ([value], [value, 0.0], [value, value, 1.5]):
                found = fast.result(whole(fast, lifted(fast, values))).to_pylist()[0]
                assert bits(found) == bits(answers(values)[aggregate.name]), values


def test_a_sum_that_passes_the_greatest_number_on_its_way_has_an_answer() -> None:
    for aggregate, expected in ((ALL[0], 1e308), (ALL[1], 1e308 / 3)):
        fast = fast_of(aggregate)
        assert fast.result(whole(fast, lifted(fast, [1e308, 1e308, -1e308]))).to_pylist() == [expected]
    sums = fast_of(ALL[0])
    assert sums.result(whole(sums, lifted(sums, [1e308, 1e308]))).to_pylist() == [math.inf]


def test_counts_that_need_more_than_31_bits() -> None:
    count, values = 2**31 + 12345, [0.1 * 2.0**40, 1e-30]
    sums = exact.lift(exact.SUMS, pa.array(values))
    assert exact.quotients(sums, np.full(2, count)).tolist() == [Exact.of(value).over(count) for value in values]
    squares = exact.lift(exact.SQUARES, pa.array([2.0**50, 1e-20]))
    expected = [
        variance(count, Exact.of(value), square(large)) for value, large in zip(values, (2.0**50, 1e-20), strict=True)
    ]
    assert exact.variances(sums, squares, np.full(2, count)).tolist() == expected


def test_a_near_sum_that_grows_too_large_becomes_far_and_comes_back() -> None:
    fast = fast_of(ALL[0])
    large = lifted(fast, [2.0**53] * 8)
    grown = whole(fast, large)
    assert grown[0].field("near").to_pylist() == [0]
    assert fast.result(grown).to_pylist() == [2.0**56]
    back = whole(fast, joined([grown, fast.signed(lifted(fast, [2.0**53] * 7), np.full(7, -1))]))
    assert back[0].to_pylist() == large[0].slice(0, 1).to_pylist()


def test_parts_of_sums_that_are_larger_than_one_word() -> None:
    high, low = [2**75, -(2**75), 2**59, 0], [2**80, -(2**80), -(2**90), -1]
    upper, lower = (pa.array(each, pa.decimal128(38, 0)) for each in (high, low))
    found = exact.from_parts(upper, lower, pa.nulls(4, pa.list_(pa.float64())))
    expected = [(one * 2**exact.LOW + other) / 2**72 for one, other in zip(high, low, strict=True)]
    assert exact.quotients(found, np.ones(4, np.int64)).tolist() == expected
