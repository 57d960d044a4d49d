"""Random graphs of up to four stages over two sources, and micro-batches for them.

Every stage has a column `v`, so that any stage can read any other; most have a key `k`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from millrace import agg, on, window
from millrace.model.aggregate import Aggregate
from millrace.model.duration import SECOND, to_datetime
from millrace.model.errors import PipelineError
from millrace.model.inputs import memory
from millrace.model.query import Query
from millrace.model.stream import Stream, own_sources, reads_changes
from millrace.model.trigger import Trigger
from millrace.model.window import CountWindow, Global, Session, Windowing
from strategies import KEYS, SCHEMA, all_windows, lasting_triggers, latenesses, modes, time_windows, triggers

SOURCES = ("plays", "skips")

_VALUES: tuple[Aggregate, ...] = (agg.count(), agg.sum("v"), agg.min("v"), agg.max("v"), agg.last("v"))
_OTHERS: tuple[Aggregate, ...] = (
    agg.collect("v"), agg.collect_set("v"), agg.top_k("v", 2), agg.mean("v"), agg.first("v"), agg.count_if("v > 3"),
    agg.second_moment("v"), agg.variance("v"), agg.stddev("v"),
)  # fmt: skip
_ROWS: tuple[Any, ...] = (
    lambda stream: stream,
    lambda stream: stream,
    lambda stream: stream.where("v > 2"),
    lambda stream: stream.where("v % 3 <> 0"),
    lambda stream: stream.where("v < 9").with_columns(v="v * 2 - 5"),
)
_often: st.SearchStrategy[Trigger] = st.sampled_from([on.each(), on.default(), on.watermark(on.each(), on.each())])
"""Triggers whose answers are corrected often."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Bundles by source, watermarks by source, and the clock."""

    rows: Mapping[str, list[dict[str, Any]]]
    watermarks: Mapping[str, int]
    now: int


def source(name: str, prefix: str = "", idle: str | None = None) -> Stream:
    """A source; with a prefix, its columns have other names than those of the other side of a join."""
    timed: Stream = memory(name, SCHEMA).event_time("at", delay="0s", idle=idle)
    return timed.select("k", **{f"{prefix}v": "v", f"{prefix}at": "at"}) if prefix else timed


def _aggregated(
    stream: Stream, keys: tuple[str, ...], windowing: Windowing, when: Trigger, mode: str, lateness: str,
    aggregates: Mapping[str, Aggregate],
) -> Query:  # fmt: skip
    if isinstance(windowing, Global | CountWindow):
        lateness = "0s"
    rows = stream.group_by(*keys) if keys else stream
    query: Query = getattr(rows.window(windowing, lateness).trigger(when), mode)().aggregate(**aggregates)
    return query


@st.composite
def _queries(draw: st.DrawFn, stream: Stream, lasting: bool) -> Query:
    keys = ("k",) if "k" in stream.schema and draw(st.integers(0, 3)) else ()
    aggregates = {"v": draw(st.sampled_from(_VALUES)), "w": draw(st.sampled_from(_OTHERS))}
    when = draw(lasting_triggers if lasting else draw(st.sampled_from([triggers, _often])))
    lateness = "1h" if lasting else draw(latenesses)
    # The answers of a micro-batch and the rows of two sources have no order, which windows of elements need.
    windows = time_windows if lasting or reads_changes(stream) or len(own_sources(stream)) > 1 else all_windows
    if lasting and reads_changes(stream):
        # A session keeps the bounds that answers gave it which are taken back, so bundles make a difference.
        windows = windows.filter(lambda each: not isinstance(each, Session))
    windowing, mode = draw(windows), "retracting" if lasting else draw(modes | st.just("retracting"))
    stream = draw(st.sampled_from(_ROWS))(stream)
    try:
        return _aggregated(stream, keys, windowing, when, mode, lateness, aggregates)
    except PipelineError:  # discarding with most aggregates does not read answers that are taken back
        return _aggregated(stream, keys, window.fixed("10s"), when, "retracting", lateness, aggregates)


@st.composite
def _joins(draw: st.DrawFn, earlier: list[Stream], lasting: bool) -> Stream:
    # The time of a row of a semi join is that of the partner that came first, so bundles make a difference.
    how = draw(st.sampled_from(["inner", "left", "right", "full", "anti", *([] if lasting else ["semi"])]))
    sides: list[Stream] = []
    keyed = [each for each in earlier if "k" in each.schema]
    for number, prefix in enumerate(("l", "r")):
        reads_stage = bool(keyed) and draw(st.booleans())
        if reads_stage:
            sides.append(draw(st.sampled_from(keyed)).select("k", **{f"{prefix}v": "v"}))
        else:
            sides.append(source(SOURCES[number], prefix))
    bounds = draw(st.sampled_from([("-4s", "4s"), ("0s", "6s"), ("-8s", "0s")]))
    apart: Any = {"within": bounds} if draw(st.booleans()) else {"window": window.fixed("10s")}
    early = how not in ("inner", "semi") and draw(st.booleans())
    joined = sides[0].join(
        sides[1], "k", how, lateness=draw(latenesses), unmatched="early" if early else "final", **apart
    )
    value = "lv" if how in ("semi", "anti") else "coalesce(lv, 0) + 2 * coalesce(rv, 0)"
    return joined.select("k", v=value)


def _readable(of: Query | Stream) -> Stream | None:
    """The stage as the input of others; None for an accumulating query that answers more than once."""
    stream = of.changes() if isinstance(of, Query) else of
    try:
        stream.window(window.all_time()).aggregate(n=agg.count())
    except PipelineError:
        return None
    return stream


@st.composite
def graphs(draw: st.DrawFn, lasting: bool = False) -> dict[str, Query | Stream]:
    """Two to four stages by name, each over sources or over stages before it; the last ones read others if they can.

    `lasting` ones lose nothing: their triggers do not finish, their lateness is great and their panes retract.
    """
    stages: dict[str, Query | Stream] = {}
    idle = None if lasting else draw(st.sampled_from([None, None, "4s"]))
    own = [source(name, idle=idle) for name in SOURCES]
    inputs: list[Stream] = [own[0], own[0].union(own[1])]
    columns = set(own[0].schema.typed)
    for number in range(draw(st.integers(2, 4))):
        earlier = [read for of in stages.values() if (read := _readable(of)) is not None]
        kind = draw(st.sampled_from(["query", "query", "query", "rows", "union", "mixed", "join"]))
        reads_stage = bool(earlier) and draw(st.integers(0, 5)) > 0
        read = draw(st.sampled_from(earlier if reads_stage else inputs))
        if kind == "union":
            others = [each for each in earlier if set(each.schema.typed) == set(read.schema.typed) and read in earlier]
            read = read.union(draw(st.sampled_from(others))) if others else read
        elif kind == "mixed":
            rows = [each.select("k", "v", at="CAST(NULL AS TIMESTAMP)") for each in earlier if "k" in each.schema]
            rows = [each for each in rows if set(each.schema.typed) == columns]
            read = draw(st.sampled_from(rows)).union(draw(st.sampled_from(inputs))) if rows else read
        if kind == "rows" and earlier:
            stages[f"stage{number}"] = draw(st.sampled_from(_ROWS[2:]))(draw(st.sampled_from(earlier)))
        elif kind == "join":
            stages[f"stage{number}"] = draw(_joins(earlier, lasting))
        else:
            stages[f"stage{number}"] = draw(_queries(read, lasting))
    return stages


@st.composite
def graph_rows(draw: st.DrawFn, most: int = 10) -> list[tuple[str, dict[str, Any]]]:
    """Rows with their source."""
    given = draw(
        st.lists(
            st.tuples(st.sampled_from(SOURCES), st.sampled_from(KEYS), st.integers(0, 50)), min_size=1, max_size=most
        )
    )
    return [
        (name, {"k": key, "v": number, "at": to_datetime(at * SECOND // 2)})
        for number, (name, key, at) in enumerate(given)
    ]


def bundled(rows: list[tuple[str, dict[str, Any]]], sizes: list[int]) -> list[dict[str, list[dict[str, Any]]]]:
    """The rows, in order, cut into bundles of these sizes; the last one holds the rest."""
    made, left = [], rows
    for size in [*sizes, len(rows)]:
        bundle: dict[str, list[dict[str, Any]]] = {}
        for name, row in left[:size]:
            bundle.setdefault(name, []).append(row)
        made.append(bundle)
        left = left[size:]
    return made


@st.composite
def micro_batches_of_graphs(draw: st.DrawFn) -> list[MicroBatch]:
    """Bundles with watermarks and a clock that go on, now and then with nothing new."""
    now, batches = 0, []
    for rows in bundled(draw(graph_rows()), draw(st.lists(st.integers(1, 4), max_size=4))):
        now += draw(st.sampled_from([0, 0, 2, 5])) * SECOND
        marks = {name: draw(st.integers(0, 25)) * SECOND for name in SOURCES if draw(st.booleans())}
        batches.append(MicroBatch(rows, marks, now))
        if draw(st.booleans()):
            now += draw(st.sampled_from([0, 3, 5])) * SECOND
            batches.append(MicroBatch({}, {name: draw(st.integers(0, 40)) * SECOND for name in SOURCES}, now))
    return batches
