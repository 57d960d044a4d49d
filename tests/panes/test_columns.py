"""Aggregates, slices, hashes and stores in columns, each against its plain meaning."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregates import VALUES
from comparison import said, same
from examples import examples
from millrace import PipelineError, agg, memory, on, window
from millrace.model.aggregate import Aggregate
from millrace.model.arrow import arrow_type
from millrace.model.duration import END_OF_TIME, SECOND, to_datetime
from millrace.model.reference import Reference
from millrace.model.window import Calendar
from millrace.panes import advance
from millrace.panes.arms import compile_trigger
from millrace.panes.columns import columnar
from millrace.panes.grouping import group, identify
from millrace.panes.hashing import hash_keys
from millrace.panes.slices import slice_of, windows_of
from millrace.panes.store import HASH, Located, RowStore
from millrace.testing.engines import PaneEngine
from strategies import steps


def typed(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    return pa.array([float(v) if v is not None and kinds == {int, float} else v for v in values])


@pytest.mark.parametrize("aggregate", VALUES, ids=str)
@examples(200)
@given(data=st.data())
def test_an_aggregate_in_columns_is_what_the_model_says(aggregate: Aggregate, data: st.DataObject) -> None:
    one_type = VALUES[aggregate].filter(
        lambda row: not row or not isinstance(row[0], int) or "distinct" not in str(aggregate)
    )
    elements = data.draw(st.lists(st.tuples(one_type, st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=14))
    rows, groups, times = (list(each) for each in zip(*elements, strict=True))
    numbers = sorted(set(groups))
    ids = np.array([numbers.index(number) for number in groups])
    fast = columnar(aggregate)
    arguments = [typed([row[place] for row in rows]) for place in range(len(aggregate.arguments))]
    lifted = fast.lift(arguments, np.array(times))
    merged = fast.merge(lifted, group(ids, len(numbers)))
    # What was cleared adds nothing.
    cleared = fast.merge(
        [
            pa.concat_arrays([part, whole])
            for part, whole in zip(fast.clear(merged, np.ones(len(numbers), bool)), lifted, strict=True)
        ],
        group(np.concatenate([np.arange(len(numbers)), ids]), len(numbers)),
    )
    for columns in (merged, cleared):
        for number, answer in zip(numbers, fast.result(columns).to_pylist(), strict=True):
            mine = [aggregate.partial(row, at) for row, own, at in elements if own == number]
            assert same(aggregate.result(aggregate.combine(mine)), answer)


@pytest.mark.parametrize(
    "values",
    [
        [Decimal("1.10"), None, Decimal("2.25")],
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)],
        ["b", "a", None, "ü"],
        [True, False, None],
        [math.nan, 1.5, -math.inf, None],
    ],
)
def test_the_greatest_of_any_type(values: list[Any]) -> None:
    fast = columnar(agg.max("v"))
    found = fast.result(
        fast.merge(fast.lift([pa.array(values)], np.zeros(len(values), int)), group(np.zeros(len(values), int), 1))
    )
    model = agg.max("v")
    assert same(found.to_pylist()[0], model.result(model.combine([model.partial((value,), 0) for value in values])))


def test_sums_are_exact_and_one_that_overflows_is_an_error_of_its_group() -> None:
    fast = columnar(agg.sum("v"))
    values = pa.array([Decimal("0.10"), Decimal("0.20"), None])
    merged = fast.merge(fast.lift([values], np.zeros(3, int)), group(np.zeros(3, int), 1))
    assert fast.result(merged).to_pylist() == [Decimal("0.30")]
    numbers = pa.array([2**63 - 1, 5, 2**62, 2**62 - 1, -(2**63), -1, None])
    found = fast.answers(fast.merge(fast.lift([numbers], np.zeros(7, int)), group(np.array([0, 0, 1, 1, 2, 2, 3]), 4)))
    assert found.values.to_pylist() == [None, 2**63 - 1, None, None]
    assert sorted(found.failed) == [0, 2]
    assert found.failed[0].startswith("sum(v) is 9223372036854775812, which BIGINT cannot hold")


def micro(number: int) -> timedelta:
    return timedelta(microseconds=number)


some_windows: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        lambda size, offset: window.fixed(micro(size), micro(offset)), st.integers(1, 10**9), st.integers(0, 10**9)
    ),
    st.builds(
        lambda every, times, more: window.sliding(micro(every * times + more % every), micro(every), micro(more)),
        st.integers(1, 10**9),
        st.integers(1, 20),
        st.integers(0, 10**10),
    ),
    st.builds(
        window.calendar, st.sampled_from(["day", "month"]), st.sampled_from(["Europe/Berlin", "America/Sao_Paulo"])
    ),
)


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=20), some_windows)
def test_the_windows_of_a_slice_are_those_of_its_elements(times: list[int], windowing: Any) -> None:
    if isinstance(windowing, Calendar):
        times = [at // 100 for at in times]  # a span of years, not of centuries
    at = np.array(times)
    owners, starts, ends = windows_of(windowing, slice_of(windowing, at))
    for number, time in enumerate(times):
        found = sorted(zip(starts[owners == number].tolist(), ends[owners == number].tolist(), strict=True))
        assert found == sorted((each.start, each.end) for each in windowing.assign(time, {}))


def test_rows_are_identified_exactly() -> None:
    columns = [pa.array(["a", None, "a", None, "b"]), np.array([1, 1, 1, 1, 2])]
    assert identify(columns, 5).ids.tolist() in ([0, 1, 0, 1, 2], [1, 0, 1, 0, 2], [0, 2, 0, 2, 1])
    assert identify([], 3).count == 1
    assert identify([pa.array([math.nan, math.nan, 1.0])], 3).count == 2


def test_hashes_are_part_of_the_format_and_do_not_change() -> None:
    columns = [
        pa.array(["", "a", "campaign-0001", "ü" * 20, None]),
        pa.array([0, 1, -1, 2**62, None]),
        pa.array([0.0, -0.0, math.pi, math.inf, None]),
        pa.array([True, False, True, False, None]),
    ]
    assert [hex(number) for number in hash_keys(columns, 5)] == HASHES
    # A slice of an array hashes as the values it shows.
    assert hash_keys([columns[0].slice(2, 2)], 2).tolist() == hash_keys([columns[0]], 5)[2:4].tolist()
    long = pa.array(["x" * 1000, "x" * 999 + "y"])
    assert len(set(hash_keys([long], 2).tolist())) == 2


def test_a_long_key_hashes_the_same_alone_and_among_others() -> None:
    texts = ["x" * 1000, "key " * 15_000, "x" * 65_535, "x" * 65_536, "x" * 65_537, "x" * 65_537 + "y", "x" * 65_538]
    alone = [int(hash_keys([pa.array([text])], 1)[0]) for text in texts]
    assert [hex(number) for number in alone[:2]] == LONG_HASHES
    assert len(set(alone)) == len(texts)
    for copies in (2, 20):  # few strings are hashed one by one, many at once
        column = pa.array(texts * copies)
        assert hash_keys([column], len(column)).tolist() == alone * copies


def test_one_very_long_key_among_short_ones_is_cheap() -> None:
    column = pa.array([*(f"user-{number}" for number in range(1000)), "x" * 2_000_000])
    began = process_time()
    hash_keys([column], len(column))
    assert process_time() - began < 0.5


LONG_HASHES = ["0xf5f88498f91ebf7f", "0x3107fea56de3025a"]
HASHES = [
    "0xa5e8246edb817c11",
    "0x26f87ef2ec0b6bed",
    "0x3679e7774502e12d",
    "0x12ccbe7bc3008877",
    "0xfbe988335f36c931",
]


def test_hashes_spread() -> None:
    hashes = hash_keys([pa.array([f"user-{number}" for number in range(100_000)])], 100_000)
    assert len(set(hashes.tolist())) == 100_000
    shares = np.bincount((hashes % np.uint64(16)).astype(int), minlength=16) / 100_000
    assert shares.min() > 0.055
    assert shares.max() < 0.07


@pytest.mark.no_cover
@examples(200)
@given(steps())
def test_equal_hashes_of_different_keys_do_no_harm(happening: list[tuple[str, Any]]) -> None:
    source = memory("input", "k STRING, v BIGINT, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
    for windowing in (window.fixed("5s"), window.session("4s"), window.count(2)):
        asked = (
            source.window(windowing).trigger(on.watermark(early=on.each())).retracting().aggregate(v=agg.collect("v"))
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(advance, "hash_keys", lambda columns, rows: np.zeros(rows, np.uint64))
            patch.setattr(advance, "with_number", lambda hashes, numbers: hashes)
            slow, fast = Reference(asked), PaneEngine(asked)
            for kind, value in [*happening, ("watermark", END_OF_TIME)]:
                assert said(getattr(fast, kind)(value)) == said(getattr(slow, kind)(value))


def test_a_store_keeps_few_segments_and_the_one_before_a_change() -> None:
    store = RowStore()
    nowhere = Located(np.zeros(0, np.intp), np.zeros(0, np.intp))
    for number in range(200):
        keys = np.arange(number * 10, number * 10 + 10).astype(np.uint64)
        store = store.put(nowhere, pa.table({HASH: keys, "key": keys}))
    assert len(store) == 2000
    assert len(store.segments) < 10
    wanted = pa.table({HASH: np.array([5, 777, 5000], np.uint64), "key": np.array([5, 777, 5000], np.uint64)})
    asked, places = store.find(wanted, ["key"])
    assert sorted(asked.tolist()) == [0, 1]
    after = store.put(places, pa.table({HASH: pa.array([], pa.uint64()), "key": pa.array([], pa.uint64())}))
    assert (len(after), len(store)) == (1998, 2000)
    assert len(after.find(wanted, ["key"])[0]) == 0
    assert [table["key"].to_pylist() for table in store.take(places)] == [[[5, 777][number] for number in asked]]


def test_a_query_over_many_kinds_of_columns() -> None:
    def halves(at: datetime, row: Any) -> list[tuple[datetime, datetime]]:
        start = at.replace(minute=at.minute // 30 * 30, second=0, microsecond=0)
        return [(start, start + timedelta(minutes=30))] if row["d"] is not None else []

    source = memory("m", "d DOUBLE, s STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("d", "s")
    asked = (
        source.window(window.custom(halves), lateness="1h")
        .trigger(on.each())
        .accumulating()
        .aggregate(n=agg.count(), path=agg.fold("s", "", lambda path, s: path + s))
    )
    rows = [
        {"d": number, "s": text, "at": to_datetime(second * SECOND)}
        for second, (number, text) in enumerate(
            [(1.5, "a"), (math.nan, "b"), (-0.0, "c"), (0.0, "c"), (None, "d"), (math.nan, "b"), (1.5, None)]
        )
    ]
    slow, fast = Reference(asked), PaneEngine(asked)
    for bundle in (rows, rows[::-1]):
        assert said(fast.input(bundle)) == said(slow.input(bundle))
    assert fast.dropped == slow.dropped == 0


def test_types_of_columns() -> None:
    assert arrow_type("DECIMAL(10, 2)") == pa.decimal128(10, 2)
    assert arrow_type("MAP<STRING, INT>") == pa.map_(pa.string(), pa.int32())
    assert arrow_type("STRUCT<a: INT, b: ARRAY<DOUBLE>>") == pa.struct({"a": pa.int32(), "b": pa.list_(pa.float64())})
    assert arrow_type("UNKNOWN") is None
    with pytest.raises(PipelineError, match="cannot compute with columns of type"):
        arrow_type("VARIANT")


def test_a_trigger_may_not_have_more_parts_than_bits() -> None:
    with pytest.raises(PipelineError, match="more than the maximum of 63 parts"):
        compile_trigger(on.any_of(*[on.elements(number) for number in range(1, 70)]))
