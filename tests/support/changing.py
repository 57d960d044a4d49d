"""Random scripts of changes: rows that are added and taken back, with watermarks and clocks between the bundles."""

from collections import Counter
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from millrace import agg, memory
from millrace.model.aggregate import Aggregate
from millrace.model.changes import Change
from millrace.model.duration import SECOND
from millrace.model.query import Query
from millrace.model.trigger import Trigger, may_finish
from millrace.model.window import CountWindow, Global, Windowing
from strategies import KEYS

SCHEMA = "k STRING, v BIGINT, f DOUBLE, c DECIMAL(10, 2), s STRING, p STRUCT<f: DOUBLE, s: STRING>, at TIMESTAMP"

FLOATS = (None, 0.0, -0.0, 0.1, 0.5, -1.25, 1e16, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"))
INVERTIBLE: dict[str, Aggregate] = {
    "n": agg.count(),
    "nv": agg.count("v"),
    "big": agg.count_if("v > 1"),
    "total": agg.sum("v"),
    "mean": agg.mean("v"),
    "money": agg.sum("c"),
    "price": agg.mean("c"),
    "floats": agg.sum("f"),
    "float_mean": agg.mean("f"),
    "spread": agg.variance("v"),
    "deviation": agg.stddev("f"),
    "skew": agg.second_moment("s"),
}
KEPT: dict[str, Aggregate] = {
    "least": agg.min("f"),
    "greatest": agg.max("s"),
    "first": agg.first("v"),
    "last": agg.last("s"),
    "all": agg.collect("v"),
    "every_float": agg.collect("f"),
    "set": agg.collect_set("c"),
    "top": agg.top_k("v", 2),
    "top_by": agg.top_k("s", 2, by="v"),
    "least_pair": agg.min("p"),
    "last_pair": agg.last("p"),
    "pairs": agg.collect_set("p"),
    "top_pairs": agg.top_k("p", 2),
}


def query(windowing: Windowing, trigger: Trigger, mode: str, lateness: str = "0s", /, **more: Aggregate) -> Query:
    """A query over changes with every aggregate that its mode allows, or with those named."""
    if isinstance(windowing, Global | CountWindow):
        lateness = "0s"
    keeps = not isinstance(windowing, Global | CountWindow) and not may_finish(trigger)
    stream = memory("input", SCHEMA).event_time("at", delay="0s").group_by("k")
    windowed = stream.window(windowing, lateness, "keep" if keeps else "drop").trigger(trigger)
    built: Query = getattr(windowed, mode)().aggregate(**(more or INVERTIBLE | ({} if mode == "discarding" else KEPT)))
    return built


def _pair(f: float | None, s: str | None) -> dict[str, Any]:
    return {"f": f, "s": s}


@st.composite
def changes(draw: st.DrawFn, most: int = 5, latest: int = 40) -> list[list[Change]]:
    """Bundles of changes. A row that is taken back was added before, or is added in the same bundle."""
    some = st.fixed_dictionaries(
        {
            "k": st.sampled_from(KEYS),
            "v": st.none() | st.integers(-2, 3),
            "f": st.sampled_from(FLOATS),
            "c": st.sampled_from([None, Decimal("0.10"), Decimal("-2.25"), Decimal("99999999.99")]),
            "s": st.sampled_from([None, "", "a", "b"]),
            "p": st.none() | st.builds(_pair, st.sampled_from(FLOATS), st.sampled_from([None, "a"])),
        }
    )
    standing: list[Change] = []
    bundles = []
    for _ in range(draw(st.integers(1, most))):
        bundle = [
            Change(draw(some), draw(st.integers(0, latest)) * SECOND // 2) for _ in range(draw(st.integers(0, 4)))
        ]
        standing += bundle
        for _ in range(draw(st.integers(0, min(4, len(standing))))):
            gone = standing.pop(draw(st.integers(0, len(standing) - 1)))
            bundle.append(Change(dict(gone.row), gone.at, -1))
        bundles.append(draw(st.permutations(bundle)))
    return bundles


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Bundles of changes with watermarks and clocks between them."""
    happening: list[tuple[str, Any]] = []
    for bundle in draw(changes()):
        happening.append(("change", bundle))
        for kind in draw(st.lists(st.sampled_from(["watermark", "clock"]), max_size=2)):
            happening.append((kind, draw(st.integers(0, 40)) * SECOND))
    return happening


def remaining(bundles: list[list[Change]]) -> list[Change]:
    """The rows that remain of all changes, each added once."""
    left: Counter[str] = Counter()
    rows: dict[str, Change] = {}
    for change in (change for bundle in bundles for change in bundle):
        name = repr((change.row, change.at))
        left[name] += change.diff
        rows[name] = Change(change.row, change.at)
    return [rows[name] for name, count in left.items() for _ in range(count)]
