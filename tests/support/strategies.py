"""Random queries and inputs, small enough that windows collide and sessions merge."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millrace import agg, on, window
from millrace.model.duration import SECOND, to_datetime
from millrace.model.inputs import memory, table
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.model.trigger import Trigger, may_finish
from millrace.model.watermark import percentile, punctuated
from millrace.model.window import CountWindow, Global, Windowing
from millrace.sources.memory import Happening

SCHEMA = "k STRING, v BIGINT, at TIMESTAMP"
KEYS = ("a", "a", "b")

time_windows: st.SearchStrategy[Windowing] = st.one_of(
    st.builds(window.fixed, st.sampled_from(["5s", "10s"]), st.sampled_from(["0s", "3s"])),
    st.builds(window.sliding, st.sampled_from(["10s", "7s"]), st.sampled_from(["5s", "3s"])),
    st.builds(window.session, st.sampled_from(["3s", "6s"])),
    st.builds(window.session, st.sampled_from(["4s", "8s"])),
    st.just(window.all_time()),
)
all_windows: st.SearchStrategy[Windowing] = st.one_of(time_windows, st.builds(window.count, st.integers(1, 4)))

_once: st.SearchStrategy[Trigger] = st.one_of(
    st.builds(on.elements, st.integers(1, 4)),
    st.builds(on.after, st.sampled_from(["0s", "2s", "5s"])),
    st.builds(on.every, st.sampled_from(["3s", "5s"])),
    st.just(on.never()),
    st.just(on.watermark()),
    st.just(on.each()),
    st.just(on.default()),
)


def _combined(part: st.SearchStrategy[Trigger]) -> st.SearchStrategy[Trigger]:
    some = st.lists(part, min_size=1, max_size=3)
    return st.one_of(
        st.builds(on.watermark, st.none() | part, st.none() | part),
        st.builds(on.repeat, part),
        st.builds(lambda parts: on.any_of(*parts), some),
        st.builds(lambda parts: on.all_of(*parts), some),
        st.builds(lambda parts: on.in_order(*parts), some),
        st.builds(on.until, part, part),
    )


triggers: st.SearchStrategy[Trigger] = st.recursive(_once, _combined, max_leaves=5)
"""Any trigger of the algebra."""

lasting_triggers: st.SearchStrategy[Trigger] = st.one_of(
    st.builds(on.repeat, triggers),
    st.builds(on.watermark, st.none() | triggers, triggers),
    st.builds(on.every, st.sampled_from(["3s", "5s"])),
    st.just(on.never()),
)
"""Triggers that do not finish before their window expires."""

latenesses = st.sampled_from(["0s", "4s", "20s"])
modes = st.sampled_from(["discarding", "accumulating", "retracting"])


def query(
    windowing: Windowing, trigger: Trigger, mode: str, lateness: str = "0s", stream: Stream | None = None
) -> Query:
    """A query that collects, so that nothing can hide in a sum. It keeps what is late, if it may."""
    if isinstance(windowing, Global | CountWindow):
        lateness = "0s"
    timed = stream or memory("input", SCHEMA).event_time("at", delay="0s")
    keeps = not isinstance(windowing, Global | CountWindow) and not may_finish(trigger)
    source = timed.group_by("k").window(windowing, lateness, "keep" if keeps else "drop")
    built: Query = getattr(source.trigger(trigger), mode)().aggregate(
        values=agg.collect("v"), total=agg.sum("v"), n=agg.count()
    )
    return built


@st.composite
def rows(draw: st.DrawFn, most: int = 12) -> list[dict[str, Any]]:
    """Rows whose values are all different, so that each can be followed."""
    times = draw(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 60)), max_size=most))
    return [{"k": key, "v": number, "at": to_datetime(at * SECOND // 2)} for number, (key, at) in enumerate(times)]


@st.composite
def bundles(draw: st.DrawFn, given: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The same rows, in order, cut into bundles."""
    cuts = sorted(draw(st.lists(st.integers(0, len(given)), max_size=4)))
    edges = [0, *cuts, len(given)]
    return [list(given[start:end]) for start, end in pairwise(edges) if end > start]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Bundles with watermarks and clock ticks between them."""
    happening: list[tuple[str, Any]] = []
    for bundle in draw(bundles(draw(rows()))):
        happening.append(("input", bundle))
        for kind in draw(st.lists(st.sampled_from(["watermark", "clock"]), max_size=2)):
            happening.append((kind, draw(st.integers(0, 40)) * SECOND))
    return happening


def drawn(strategy: st.SearchStrategy[Any], many: int) -> list[Any]:
    """So many examples of a strategy, for a test that is best run with all of them at once."""
    found: list[Any] = []

    @settings(max_examples=many, phases=[Phase.generate])
    @given(strategy)
    def collect_(example: Any) -> None:
        found.append(example)

    collect_()
    return found


NAMES = table("names", "k STRING, name STRING", rows=[{"k": "a", "name": "Ann"}, {"k": "c", "name": "Cal"}])
_steps_on_rows: st.SearchStrategy[Any] = st.sampled_from(
    [
        lambda stream: stream.where("v % 3 <> 0"),
        lambda stream: stream.where("v > 2 OR k = 'b'"),
        lambda stream: stream.with_columns(v="v * 2 + 1"),
        lambda stream: stream.select("k", "at", "closes", v="CASE WHEN v > 5 THEN v ELSE NULL END"),
        lambda stream: stream.union(stream.where("v = 4")),
    ]
)
HELD = table(
    "held",
    "k STRING, since TIMESTAMP, plan STRING",
    rows=[
        {"k": k, "since": to_datetime(second * SECOND), "plan": plan}
        for k, second, plan in [
            ("a", 12, "paid"), ("a", 3, "free"), ("b", 0, "free"), ("a", 12, "gone"), ("b", 20, "paid")
        ]
    ],
)  # fmt: skip
_joins: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        lambda stream: stream.join(NAMES, on="k", how="left"),
        lambda stream: stream.join(NAMES, on="k"),
        lambda stream: stream.join(HELD, on="k", as_of="since").where("plan <> 'gone'"),
        lambda stream: stream.join(HELD, on="k", how="left", as_of="since").where("plan IS NULL OR plan = 'paid'"),
    ]
)
_policies: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{"delay": "0s"}, {"delay": "3s"}, {"watermark": percentile(0.8)}, {"watermark": punctuated("closes")}]
)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """A stream with random steps before and after its event time."""
    stream: Any = memory("input", f"{SCHEMA}, closes TIMESTAMP")
    for step in draw(st.lists(_steps_on_rows, max_size=2)):
        stream = step(stream)
    stream = stream.event_time("at", **draw(_policies), idle=draw(st.sampled_from([None, None, "4s"])))
    join = draw(_joins)
    if join is not None:
        stream = join(stream)
    if draw(st.booleans()):
        stream = stream.where("v <> 7 OR v IS NULL")
    return cast(Stream, stream)


@st.composite
def deduped_streams(draw: st.DrawFn) -> Stream:
    """A stream with a dedup somewhere, before or after its event time, and steps around it."""
    stream: Any = memory("input", f"{SCHEMA}, closes TIMESTAMP")
    if draw(st.booleans()):
        stream = draw(_steps_on_rows)(stream)
    by = draw(st.sampled_from([("k",), ("v",), ("k", "v"), ("at", "k")]))
    timed = draw(st.booleans())
    if not timed:
        stream = stream.dedup(*by)
    stream = stream.event_time("at", **draw(_policies))
    if timed:
        stream = stream.dedup(*by, within=draw(st.sampled_from([None, "2s", "10s"])))
    if draw(st.booleans()):
        stream = stream.join(NAMES, on="k", how="left")
    if draw(st.booleans()):
        stream = stream.where("v <> 7 OR v IS NULL")
    return cast(Stream, stream)


@st.composite
def micro_batches(draw: st.DrawFn) -> list[Happening]:
    """Bundles as a stream brings them, the clock going on or set back, now and then with nothing new."""
    now, happenings = 0, []
    for bundle in draw(bundles(draw(rows(most=20)))):
        for row in bundle:
            row["closes"] = draw(st.sampled_from([None, None, row["at"]]))
            row["at"] = row["at"] if draw(st.integers(0, 9)) else None
        now += draw(st.sampled_from([0, 1, 4, 4, -7, -16])) * SECOND
        happenings.append(Happening(bundle, now))
        if draw(st.booleans()):
            now += draw(st.sampled_from([1, 5, 5, -11])) * SECOND
            happenings.append(Happening((), now))
    return happenings
