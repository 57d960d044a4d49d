"""Functions and explode in a fused edge give what the reference gives, in its order, with its dead letters."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from comparison import said
from examples import examples
from millrace import Pipeline, agg, memory, on, window
from millrace.edge.fused import Fused
from millrace.model.arrow import arrow_schema
from millrace.model.duration import END_OF_TIME, SECOND, to_datetime
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.model.stream import Stream
from millrace.panes.advance import Panes, PaneState
from millrace.plan.compile import stage_of
from millrace.plan.explain import explain
from millrace.plan.plan import FusedEdge
from millrace.spark.applying import after
from millrace.spark.task import lifted
from millrace.testing.engines import as_panes

SOURCE = memory("input", "k STRING, v BIGINT, at TIMESTAMP, tags ARRAY<STRING>")
Row = dict[str, Any]


def twice(row: Row) -> Iterator[Row]:
    """Two rows of each; fails for 3, before and after the first row."""
    for number in range(2):
        yield {**row, "v": 12 // (3 - row["v"]) + number}


def doubled(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "v", pc.multiply(rows["v"], 2))


def is_even(row: Row) -> bool:
    return bool(row["v"] % 2 == 0)


ALL = "k STRING, v BIGINT, at TIMESTAMP, tags ARRAY<STRING>"
BEFORE = SOURCE.where("10 / v > 0").flat_map(twice, ALL).explode("tags", outer=True).event_time("at", delay="0s")
AFTER = (
    SOURCE.event_time("at", delay="0s")
    .explode("tags")
    .with_columns(v="10 div v")
    .map(doubled, ALL.replace("ARRAY<STRING>", "STRING"), over="arrow")
    .filter(is_even)
    .where("v <> 4")
)
BOTH = SOURCE.flat_map(twice, ALL).union(SOURCE.filter(is_even), SOURCE).event_time("at", delay="0s")


def in_order(stream: Stream) -> Query:
    """A fold that cannot merge depends on the order of arrival."""
    path = agg.fold("v", "", lambda so_far, v: f"{so_far} {v}", type="STRING")
    return (
        stream.group_by("k")
        .window(window.fixed("4s"))
        .trigger(on.watermark(early=on.each()))
        .accumulating()
        .aggregate(path=path, n=agg.count())
    )


def summed(stream: Stream) -> Query:
    return stream.group_by("k").window(window.fixed("4s")).aggregate(n=agg.count(), total=agg.sum("v"))


rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "v": st.one_of(st.none(), st.integers(0, 4)),
        "at": st.one_of(st.none(), st.integers(0, 9).map(lambda second: to_datetime(second * SECOND))),
        "tags": st.one_of(st.none(), st.lists(st.sampled_from("xy"), max_size=2)),
    }
)


QUERIES = [make(stream) for make in (in_order, summed) for stream in (BEFORE, AFTER, BOTH)]


@examples(60)
@given(bundles=st.lists(st.lists(rows, max_size=6), max_size=3), query=st.sampled_from(QUERIES))
def test_a_fused_edge_with_functions_agrees_with_the_reference(bundles: list[list[Row]], query: Query) -> None:
    assert explain(Pipeline("p", {"v": query})).split("edge ")[1].strip().startswith("fused")
    fused, panes, state = Fused(query, SOURCE), Panes(query), PaneState()
    reference = Reference(query)
    for bundle in bundles:
        before = len(reference.dead)
        expected = reference.micro_batch(bundle, now=0)
        table = pa.Table.from_pylist(bundle, arrow_schema(SOURCE.schema))
        taken = fused.take(table)
        partials, failed = lifted(panes, taken.rows) if fused.lifts else (taken.rows, {})
        assert failed == {}
        state, made = panes.advance(
            state, partials if len(partials) else None, max(state.watermark, taken.seen.newest), 0
        )
        assert said([pane for each in made for pane in as_panes(each, query)]) == said(expected)
        reasons = {letter.reason for letter in reference.dead[before:]}
        timeless = {reason for reason in reasons if reason.startswith("event time")}
        assert {reason for _, reason in taken.bad} == reasons - timeless
        assert bool(taken.timeless) == bool(timeless)
    state, made = panes.advance(state, None, END_OF_TIME, 0)
    assert said([pane for each in made for pane in as_panes(each, query)]) == said(reference.end())


def test_dead_letters_are_told_by_the_record_that_they_come_from() -> None:
    stream = (
        SOURCE.explode("tags").filter(lambda row: 1 / row["v"]).map(lambda row: {"x": 1 / (2 - row["v"])}, "x DOUBLE")
    )
    given_rows = [{"v": 1, "tags": ["a", "b"]}, {"v": 0, "tags": ["c", "d"]}, {"v": 2, "tags": ["e"]}]
    table = pa.Table.from_pylist(given_rows, arrow_schema(SOURCE.schema))
    taken = Fused(stream, SOURCE).take(table)
    assert taken.rows["x"].to_pylist() == [1, 1]
    assert [place for place, _ in taken.bad] == [1, 1, 2]


def test_a_column_that_is_always_null_passes() -> None:
    stream = SOURCE.select("v", nothing="NULL").filter(lambda row: row["nothing"] is None).where("nothing IS NULL")
    table = pa.Table.from_pylist([{"v": 1}], arrow_schema(SOURCE.schema))
    assert Fused(stream, SOURCE).take(table).rows["v"].to_pylist() == [1]
    reference = Reference(stream.window(window.all_time()).aggregate(n=agg.sum("v")))
    reference.input([{"v": 1}])
    assert [pane.values["n"] for pane in reference.end()] == [1]


def test_a_plan_has_a_statement_before_and_after_each_step_in_python() -> None:
    ((_, edge),) = stage_of("v", summed(SOURCE.filter(is_even).explode("tags").event_time("at", delay="0s"))).edges
    assert isinstance(edge, FusedEdge)
    assert len(edge.statements) == 3
    assert "__applied1" in edge.statements[-1]


HIDDEN = [
    *((name, pa.string()) for name in ("__origin", "__control", "__bad")),
    *((name, pa.int64()) for name in ("__offset", "__logged", "__time", "__closed")),
    *((name, pa.bool_()) for name in ("__left_out", "__again", "__element")),
    ("__node", pa.int32()),
]


def test_rows_that_only_pass_a_step_of_a_native_edge_keep_what_they_carry() -> None:
    """A control, a row without an event time, an empty array, a row that fails: each still counts, once."""
    explode = SOURCE.event_time("at", delay="0s").explode("tags")
    step = explode.filter(lambda row: 6 // row["v"])
    passing = {"k": None, "v": None, "at": None, "tags": None, "__left_out": None, "__node": None, "__time": None}

    def carried(offset: int, **more: Any) -> Row:
        known = {"__origin": "p", "__offset": offset, "__control": None, "__bad": None}
        return {**passing, **known, "__element": "v" in more, **more}

    good = {"at": to_datetime(0), "__node": 0, "__time": 0}
    rows = [
        carried(0, __control="{}"),
        carried(1, v=3, tags=["a", "b"], **good),
        carried(2, __node=0),
        carried(3, v=3, tags=[], **good),
        carried(4, v=0, tags=["c"], **good),
        carried(5, v=7, tags=["d"], **good),
    ]
    exploded = after(
        explode,
        pa.Table.from_pylist(rows, pa.schema([*arrow_schema(SOURCE.schema), *HIDDEN])),
    )
    assert _kept(exploded) == [
        (0, None, False, False), (1, "a", False, False), (1, "b", False, True), (2, None, False, False),
        (3, None, True, False),
        (4, "c", False, False), (5, "d", False, False),
    ]  # fmt: skip
    elements = pc.and_(exploded["v"].is_valid(), pc.invert(exploded["__left_out"]))
    filtered = after(step, exploded.append_column("__element", elements))
    assert _kept(filtered)[-2:] == [(4, None, False, False), (5, None, True, False)]
    (reason,) = filtered["__bad"].drop_null().to_pylist()
    assert reason.endswith("filter(<lambda>): ZeroDivisionError: integer division or modulo by zero")


def _kept(rows: pa.Table) -> list[tuple[Any, ...]]:
    columns = [rows[name].to_pylist() for name in ("__offset", "tags", "__left_out", "__again")]
    return list(zip(*columns, strict=True))
