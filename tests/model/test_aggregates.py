import math
import random
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregates import VALUES
from comparison import same
from millrace import agg, memory, window
from millrace.model.aggregate import Aggregate
from millrace.testing.notation import parse_trigger
from strategies import triggers


@pytest.mark.parametrize("aggregate", VALUES, ids=str)
@given(data=st.data())
def test_merge_is_associative_and_commutative(aggregate: Aggregate, data: st.DataObject) -> None:
    elements = data.draw(st.lists(st.tuples(VALUES[aggregate], st.integers(0, 5)), max_size=12))
    partials = [aggregate.partial(values, at) for values, at in elements]
    answer = aggregate.result(aggregate.combine(partials))
    shuffled = data.draw(st.permutations(partials))
    cut = data.draw(st.integers(0, len(partials)))
    grouped = [aggregate.combine(shuffled[:cut]), aggregate.combine(shuffled[cut:])]
    assert same(aggregate.result(aggregate.combine(grouped)), answer)


@pytest.mark.parametrize("aggregate", [aggregate for aggregate in VALUES if aggregate.invertible], ids=str)
@given(data=st.data())
def test_the_inverse_takes_back_what_was_merged(aggregate: Aggregate, data: st.DataObject) -> None:
    elements = data.draw(st.lists(VALUES[aggregate], min_size=1, max_size=12))
    cut = data.draw(st.integers(0, len(elements)))
    kept = aggregate.combine([aggregate.partial(values, 0) for values in elements[:cut]])
    taken = aggregate.combine([aggregate.partial(values, 0) for values in elements[cut:]])
    total = aggregate.combine([kept, taken])
    if taken is not None:
        assert same(aggregate.result(aggregate.inverse(total, taken)), aggregate.result(kept))


def answer(aggregate: Aggregate, values: list[Any]) -> Any:
    return aggregate.result(aggregate.combine([aggregate.partial((value,), 0) for value in values]))


def test_numbers_are_as_in_a_textbook() -> None:
    values = [2, 4, 4, 4, 5, 5, 7, 9]
    assert answer(agg.mean("v"), values) == 5.0
    assert answer(agg.variance("v"), values) == 32 / 7
    assert answer(agg.stddev("v"), values) == math.sqrt(32 / 7)


def test_variance_keeps_small_differences_of_large_values() -> None:
    assert answer(agg.variance("v"), [1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16]) == 30


def test_nan_is_the_greatest_number() -> None:
    assert answer(agg.min("v"), [math.nan, 1.0]) == 1.0
    assert math.isnan(answer(agg.max("v"), [math.nan, 1.0]))
    assert math.isnan(answer(agg.collect("v"), [math.nan, 1.0, math.inf])[-1])


def test_a_fold_goes_in_order_of_arrival_and_does_not_share_its_start() -> None:
    path = agg.fold("v", [], lambda seen, v: [*seen, v], result=lambda seen: ">".join(seen))
    assert answer(path, ["b", "a", "c"]) == "b>a>c"
    assert not path.mergeable
    grown: list[int] = []
    into = agg.fold("v", grown, lambda seen, v: seen.append(v) or seen)
    assert answer(into, [1, 2]) == [1, 2]
    assert grown == []
    assert answer(into, []) == []
    assert answer(agg.fold("v", 7, lambda a, b: a + b, merge=lambda a, b: a + b), []) == 7


def test_sketches_of_many_values_are_close() -> None:
    chance = random.Random(7)
    values = [int(chance.paretovariate(1)) for _ in range(20_000)]
    true = {value: len(list(same)) for value, same in groupby(sorted(values))}
    assert answer(agg.approx_distinct("v"), values) == pytest.approx(len(true), rel=0.05)
    assert answer(agg.second_moment("v"), values[:4000]) == pytest.approx(
        sum(values[:4000].count(value) ** 2 for value in set(values[:4000])), rel=0.2
    )
    spread = [chance.random() for _ in range(4000)]
    assert answer(agg.approx_quantile("v", 0.9), spread) == pytest.approx(0.9, abs=0.02)
    frequent = answer(agg.approx_top_k("v", 3), values)
    assert [item["item"] for item in frequent] == [1, 2, 3]
    assert frequent[0]["count"] == pytest.approx(true[1], abs=0.0035 * len(values))


def test_sketches_do_not_draw_random_numbers() -> None:
    values = list(range(3000))
    for aggregate in (
        agg.approx_distinct("v"),
        agg.approx_quantile("v", 0.3),
        agg.approx_top_k("v", 3),
        agg.second_moment("v"),
    ):
        partials = [aggregate.partial((value,), 0) for value in values]
        assert aggregate.combine(partials) == aggregate.combine(partials)


@pytest.mark.parametrize("many", [100, 3000, 30_000])
def test_the_count_of_different_values_does_not_depend_on_their_order(many: int) -> None:
    values = list(range(many))
    once = answer(agg.approx_distinct("v"), values)
    for seed in range(3):
        random.Random(seed).shuffle(values)
        assert answer(agg.approx_distinct("v"), values) == once
    assert once == pytest.approx(many, rel=0.05)


def test_result_types() -> None:
    source = memory("m", "i INT, d DOUBLE, c DECIMAL(10, 2), s STRING, at TIMESTAMP").event_time("at", delay="0s")
    asked = source.window(window.fixed("1h")).aggregate(
        n=agg.count(),
        ints=agg.sum("i"),
        doubles=agg.sum("d"),
        decimals=agg.sum("c"),
        text=agg.max("s"),
        all=agg.collect("s"),
        best=agg.top_k("s", 3, by="d"),
        mean=agg.mean("i"),
        spread=agg.stddev("d"),
        distinct=agg.approx_distinct("s"),
        median=agg.approx_quantile("d", 0.5),
        frequent=agg.approx_top_k("s", 2),
        uneven=agg.second_moment("s"),
        own=agg.fold("i", 0, max, type="INT"),
    )
    assert str(asked.schema) == (
        "window_start TIMESTAMP, window_end TIMESTAMP, n BIGINT, ints BIGINT, doubles DOUBLE, "
        "decimals DECIMAL(20, 2), text STRING, all ARRAY<STRING>, best ARRAY<STRING>, mean DOUBLE, spread DOUBLE, "
        "distinct BIGINT, median DOUBLE, frequent ARRAY<STRUCT<item: STRING, count: BIGINT>>, uneven DOUBLE, own INT"
    )


@given(triggers)
def test_triggers_are_read_as_they_are_written(trigger: Any) -> None:
    assert parse_trigger(str(trigger)) == trigger
