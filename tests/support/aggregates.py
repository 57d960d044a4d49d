"""Every aggregate, with the values that it may be given."""

from typing import Any

from hypothesis import strategies as st

from millrace import agg
from millrace.model.aggregate import Aggregate

numbers = st.integers(-1000, 1000)
VALUES: dict[Aggregate, st.SearchStrategy[tuple[Any, ...]]] = {
    agg.count(): st.just(()),
    agg.count("v"): st.tuples(numbers | st.none()),
    agg.count_if("v"): st.tuples(st.booleans() | st.none()),
    agg.sum("v"): st.tuples(numbers | st.none()),
    agg.mean("v"): st.tuples(numbers | st.none()),
    agg.variance("v"): st.tuples(st.floats() | st.none()),
    agg.stddev("v"): st.tuples(numbers | st.none()),
    agg.min("v"): st.tuples(st.floats() | st.none()),
    agg.max("v"): st.tuples(st.floats() | st.none()),
    agg.first("v"): st.tuples(numbers | st.none()),
    agg.last("v"): st.tuples(numbers | st.none()),
    agg.collect("v"): st.tuples(st.floats() | st.none()),
    agg.collect_set("v"): st.tuples(st.text(max_size=2) | st.none()),
    agg.top_k("v", 3): st.tuples(numbers | st.none()),
    agg.top_k("v", 2, by="w"): st.tuples(st.text(max_size=2), numbers | st.none()),
    agg.approx_distinct("v"): st.tuples(st.text(max_size=2) | numbers | st.none()),
    agg.approx_quantile("v", 0.5): st.tuples(numbers | st.none()),
    agg.approx_top_k("v", 3): st.tuples(st.text(max_size=2) | st.none()),
    agg.second_moment("v"): st.tuples(st.text(max_size=2) | st.none()),
    agg.fold("v", 0, lambda a, b: a + b, merge=lambda a, b: a + b): st.tuples(numbers),
}
