"""Random joins and their inputs, and a join in columns step by step, as the reference takes them."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millrace.model.arrow import arrow_schema
from millrace.model.changes import Change
from millrace.model.duration import to_instant
from millrace.model.joining import HOWS, JoinReference, JoinSpec
from millrace.model.schema import Schema, parse_schema
from millrace.model.window import Fixed, Sliding, Windowing
from millrace.panes.joining import Joining, JoinState

LEFT = parse_schema("k STRING, x DOUBLE, a BIGINT")
RIGHT = parse_schema("b STRING, x DOUBLE, k STRING")
HOUR = 3_600_000_000

Step = tuple[list[Change], list[Change], tuple[int, int]]
"""The changes of both sides in a micro-batch, and how far the watermarks then advance."""

_keys = st.sampled_from(["a", "a", "b", None])
_numbers = st.sampled_from([0.0, 0.0, -0.0, math.nan, None])
_windows: st.SearchStrategy[Windowing] = st.sampled_from([Fixed(5), Fixed(7, 3), Sliding(7, 3)])
_diffs = st.sampled_from([1, 1, 1, -1])


def _changes(values: st.SearchStrategy[Any], name: str, unit: int) -> st.SearchStrategy[list[Change]]:
    rows = st.fixed_dictionaries({"k": _keys, "x": _numbers, name: values})
    at = st.integers(0, 24).map(lambda number: number * unit)
    return st.lists(st.builds(Change, rows, at, _diffs), max_size=5)


def steps(unit: int = 1, most: int = 6) -> st.SearchStrategy[list[Step]]:
    """Micro-batches of few different rows, so that many are equal and many are taken back."""
    advances = st.sampled_from([0, 0, 1, 3, 9]).map(lambda number: number * unit)
    left = _changes(st.sampled_from([1, 2]), "a", unit)
    right = _changes(st.sampled_from(["u", "v", None]), "b", unit)
    return st.lists(st.tuples(left, right, st.tuples(advances, advances)), max_size=most)


@st.composite
def specs(draw: st.DrawFn, hows: Sequence[str] = HOWS, unmatched: Sequence[str] = ("final", "early")) -> JoinSpec:
    """Joins of one key and of two, within bounds of either sign, or by windows."""
    how = draw(st.sampled_from(hows))
    when = "final" if how in ("inner", "semi") else draw(st.sampled_from(unmatched))
    low = draw(st.integers(-8, 8))
    within: tuple[int, int] | None = (low, low + draw(st.integers(0, 8)))
    windowing: Windowing | None = None
    if draw(st.integers(0, 2)) == 0:
        within, windowing = None, draw(_windows)
    lateness = draw(st.tuples(st.sampled_from([0, 4]), st.sampled_from([0, 6])))
    on = draw(st.sampled_from([("k", "x"), ("k",), ("x",)]))
    left, right = (Schema(tuple(column for column in each if is_kept(column.name, on))) for each in (LEFT, RIGHT))
    return JoinSpec(on, how, within, windowing, lateness, when, left, right)


def is_kept(name: str, on: Sequence[str]) -> bool:
    """Whether a column is a part of a join on these; both sides have k and x."""
    return name in ("a", "b") or name in on


def table(changes: Iterable[Change], schema: Schema) -> pa.Table:
    """Changes in columns."""
    changes = list(changes)
    fields = arrow_schema(schema)
    columns = {each.name: pa.array([change.row[each.name] for change in changes], each.type) for each in fields}
    at, diff = pa.array([each.at for each in changes], pa.int64()), pa.array([each.diff for each in changes], pa.int8())
    return pa.table({**columns, "__at": at, "__diff": diff})


def plain(row: Any, at: int | None = None, diff: int = 1) -> tuple[Any, ...]:
    """A row in a form in which equal rows are equal."""
    values = [(name, to_instant(each) if isinstance(each, datetime) else repr(each)) for name, each in row.items()]
    return (*sorted(values), at, diff)


def said(changes: Iterable[Change]) -> Counter[tuple[Any, ...]]:
    """Changes as a multiset."""
    return Counter(plain(each.row, each.at, each.diff) for each in changes)


def net(changes: Iterable[Change]) -> dict[tuple[Any, ...], int]:
    """What remains of changes."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for each in changes:
        counts[plain(each.row, each.at)] += each.diff
    return {row: count for row, count in counts.items() if count}


class ColumnarJoin:
    """A join in columns, with the state that it leaves."""

    def __init__(self, spec: JoinSpec) -> None:
        """Start with nothing kept."""
        self.joining, self.state = Joining(spec), JoinState()

    @property
    def dropped(self) -> tuple[int, int]:
        """How many changes of each side came too late."""
        return self.state.dropped

    def step(self, left: Sequence[Change], right: Sequence[Change], watermarks: tuple[int, int]) -> list[Change]:
        """One micro-batch."""
        spec = self.joining.spec
        tables = table(left, spec.left) if left else None, table(right, spec.right)
        self.state, answers = self.joining.advance(self.state, *tables, watermarks)
        names = spec.schema.names
        assert answers.column_names == [*names, "__at", "__diff"]
        return [Change({name: row[name] for name in names}, row["__at"], row["__diff"]) for row in answers.to_pylist()]


class PlainJoin:
    """The reference, step by step."""

    def __init__(self, spec: JoinSpec) -> None:
        """Start with nothing kept."""
        self.reference = JoinReference(spec)

    @property
    def dropped(self) -> tuple[int, int]:
        """How many changes of each side came too late."""
        return self.reference.dropped

    def step(self, left: Sequence[Change], right: Sequence[Change], watermarks: tuple[int, int]) -> list[Change]:
        """One micro-batch."""
        return self.reference.input(left, right) + self.reference.watermark(*watermarks)
