"""Joins of two streams: what they are, and what they mean; rules 12 to 18 of stages.

Each side of a join is a multiset of rows with their event times. With windows, a row counts once for each window that
it is in, and the window is a part of its key. A micro-batch adds the net of its changes to both sides. It then answers
with the net change of the pairs and the net change of the rows alone:

- A pair is in the result as often as the product of the counts of its two rows.
- A row *has a partner* if the sum of the diffs of all its partners so far is positive. So a row whose partners are all
  taken back has none.
- With `unmatched="early"`, a row without a partner is in the result, with NULLs.
- In a semi or anti join, a row of the right side counts by its `on` columns and its time alone.
- A row of a semi join is in the result while it has a partner. Its event time is the least of the pairs with the
  partners that came first; it does not change until the last partner is taken back.

When the watermarks advance, rows that can find no partner any more are let go. With `unmatched="final"`, those without
a partner are answered then, with NULLs; an answer is not taken back when its row is let go.

Within one step the order of the answers has no meaning: compare them as multisets of (row, event time, diff).
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias, assert_never

from millrace.model.aggregate import one_zero, sort_key
from millrace.model.changes import Change
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME, format_duration, to_datetime
from millrace.model.errors import refuse, refuse_unknown
from millrace.model.schema import UNKNOWN, Column, Schema
from millrace.model.window import (
    Calendar,
    CountWindow,
    Custom,
    Fixed,
    Global,
    Row,
    Session,
    Sliding,
    Window,
    Windowing,
)

HOWS = ("inner", "left", "right", "full", "semi", "anti")
LEFT, RIGHT = 0, 1
_WINDOW_COLUMNS = (Column("window_start", "TIMESTAMP"), Column("window_end", "TIMESTAMP"))
_RENAME = "leave it out or rename it on one side with select()"
_NESTED = ("ARRAY", "MAP", "STRUCT")

JoinWindowing: TypeAlias = Fixed | Sliding | Calendar
"""The windowings of joins: those in which event time alone assigns windows, and each window has an end."""


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """A join of two streams. Either `within` or `windowing` says which rows with equal `on` columns are partners."""

    on: tuple[str, ...]
    how: str
    within: tuple[int, int] | None
    """The least and the greatest time of the right row less that of the left row, in microseconds, both included."""
    windowing: Windowing | None
    lateness: tuple[int, int]
    """How far a row of the left and of the right side may be behind the watermark of its side, in microseconds."""
    unmatched: str
    """When a row without a partner is answered: `final`, when it can find none any more, or `early`, at once."""
    left: Schema
    right: Schema
    keeps_late: bool = False
    """Whether rows that are too late become dead letters."""

    def __post_init__(self) -> None:
        """Refuse a join that has no meaning or cannot run."""
        if self.how not in HOWS:
            raise refuse_unknown("kind of join", self.how, HOWS)
        if self.unmatched not in ("final", "early"):
            raise refuse_unknown("unmatched=", self.unmatched, ("final", "early"))
        if self.unmatched == "early" and self.how in ("inner", "semi"):
            problem = f'unmatched="early" has no effect: {self.how} joins do not answer rows without a partner'
            raise refuse(problem, advice='leave it out, or use how="left"')
        if any(late < 0 for late in self.lateness):
            raise refuse("the lateness of a join must not be negative")
        self._check_on()
        self._check_partners()
        self._check_names()

    def __str__(self) -> str:
        if self.within is not None:
            low, high = (f"{'-' * (each < 0)}{format_duration(abs(each))}" for each in self.within)
            near = f"within {low} to {high}"
        else:
            near = f"in {self.windowing}"
        left, right = map(format_duration, self.lateness)
        late = "" if self.lateness == (0, 0) else f", lateness {left if left == right else f'{left} and {right}'}"
        early = ", unmatched early" if self.unmatched == "early" else ""
        kept = "; what is later becomes a dead letter" if self.keeps_late else ""
        return f"{self.how} of streams on {', '.join(self.on)} {near}{late}{early}{kept}"

    @property
    def schema(self) -> Schema:
        """The columns of the result: `on`, with windows their bounds, the other columns of the left, of the right."""
        keeps_left, keeps_right = self.is_outer(LEFT), self.is_outer(RIGHT)
        on = []
        for name in self.on:
            one, other = _column(self.left, name), _column(self.right, name)
            alone = [column.required for column, keeps in ((one, keeps_left), (other, keeps_right)) if keeps]
            required = all(alone) if alone else one.required or other.required
            on.append(Column(name, other.type if one.type == UNKNOWN else one.type, required))
        windows = () if self.windowing is None else _WINDOW_COLUMNS
        left = [Column(each.name, each.type, each.required and not keeps_right) for each in self.others(LEFT)]
        right = [Column(each.name, each.type, each.required and not keeps_left) for each in self.others(RIGHT)]
        return Schema((*on, *windows, *left, *([] if self.is_filter else right)))

    @property
    def is_filter(self) -> bool:
        """Whether the result consists of rows of the left side, without columns of the right."""
        return self.how in ("semi", "anti")

    def columns(self, side: int) -> Schema:
        """The columns of a side."""
        return (self.left, self.right)[side]

    def others(self, side: int) -> tuple[Column, ...]:
        """The columns of a side beside `on`."""
        return tuple(column for column in self.columns(side) if column.name not in self.on)

    def kept(self, side: int) -> tuple[str, ...]:
        """The columns of a side that the join keeps, `on` first."""
        others = () if self.is_filter and side == RIGHT else self.others(side)
        return (*self.on, *(column.name for column in others))

    def is_outer(self, side: int) -> bool:
        """Whether the result has the rows of a side that have no partner."""
        return self.how == "full" or self.how in (("left", "anti"), ("right",))[side]

    def reach(self, side: int) -> int:
        """How far past its time (with windows, past its window's last instant) a row finds partners, with lateness."""
        late = self.lateness[1 - side]
        if self.within is None:
            return late
        return self.within[1] + late if side == LEFT else late - self.within[0]

    def is_late(self, side: int, at: int, watermark: int) -> bool:
        """Rule 14: whether a row of a side comes too late, by the watermark of the side before its micro-batch."""
        return at < watermark - self.lateness[side]

    def _check_on(self) -> None:
        if not self.on:
            raise refuse("join() needs on=, the columns that both streams share")
        for name in self.on:
            for side, schema in (("left", self.left), ("right", self.right)):
                if name not in schema:
                    raise refuse_unknown(f"column on the {side} of the join", name, schema.names)
            left, right = self.left.type_of(name), self.right.type_of(name)
            if left != right and UNKNOWN not in (left, right):
                advice = f'convert one of them: with_columns({name}="CAST({name} AS {left})")'
                raise refuse(f"join on {name!r}: it is {left} on the left, but {right} on the right", advice=advice)
            if left.startswith(_NESTED) or right.startswith(_NESTED):
                raise refuse(f"join on {name!r}: {left} cannot be a key", advice="join on a part of it")
        if len(set(self.on)) < len(self.on):
            raise refuse("join(on=...) names a column twice")

    def _check_partners(self) -> None:
        if (self.within is None) == (self.windowing is None):
            advice = "give one of them: join(other, on='k', within=('0s', '1h'))"
            raise refuse("join() of two streams needs either within= or window=", advice=advice)
        if self.within is not None and self.within[0] > self.within[1]:
            low, high = (f"{'-' * (each < 0)}{format_duration(abs(each))}" for each in self.within)
            raise refuse(f"join(within=({low!r}, {high!r})) has no pairs", advice="give the lesser bound first")
        match self.windowing:
            case None | Fixed() | Sliding() | Calendar():
                pass
            case Session():
                why = "sessions of the two sides have different bounds"
                raise refuse(f"a join cannot have session windows: {why}", advice="use within=")
            case CountWindow():
                why = "count windows depend on the order of arrival"
                raise refuse(f"a join cannot have count windows: {why}", advice="use within=")
            case Global():
                why = "the window never closes, so the join would keep all rows for ever"
                raise refuse(f"a join cannot have the window of all time: {why}", advice="use within=")
            case Custom():
                why = "their function takes rows of one stream, and the two sides have different columns"
                raise refuse(f"a join cannot have custom windows: {why}", advice="use within=")
            case never:
                assert_never(never)

    def _check_names(self) -> None:
        windows = [] if self.windowing is None else [column.name for column in _WINDOW_COLUMNS]
        taken = {*windows, *(() if self.is_filter else (column.name.lower() for column in self.others(RIGHT)))}
        for column in self.others(LEFT):
            if column.name.lower() in taken:
                what = "the join adds" if column.name.lower() in windows else "both sides of the join have"
                raise refuse(f"{what} a column {column.name!r}", advice=_RENAME)
        for name in (*self.on, *(() if self.is_filter else (column.name for column in self.others(RIGHT)))):
            if name.lower() in windows:
                raise refuse(f"the join adds a column {name!r}", advice=_RENAME)


def out_watermark(spec: JoinSpec, left: int, right: int) -> int:
    """Rule 17: the watermark after a join, from those of its sides.

    With windows, an unmatched row may be as far behind as the start of the earliest window in which rows of the other
    side may still come.
    """
    least = min(left, right)
    if spec.unmatched == "early" or least in (BEGINNING_OF_TIME, END_OF_TIME):
        return least
    behind = [_earliest(spec, side, least) for side in (LEFT, RIGHT) if spec.is_outer(side)]
    return max(min([least, *behind]), BEGINNING_OF_TIME)


def _earliest(spec: JoinSpec, side: int, watermark: int) -> int:
    """The earliest time of a row of a side that is not late and not yet let go."""
    if spec.windowing is None:
        return watermark - max(spec.reach(side) - spec.lateness[1 - side], 0) - spec.lateness[1 - side]
    assert isinstance(spec.windowing, Fixed | Sliding | Calendar)
    try:
        return spec.windowing.assign(watermark - spec.reach(side), {})[0].start
    except OverflowError:  # before the first year of the calendar
        return BEGINNING_OF_TIME


@dataclass(slots=True)
class _Entry:
    """A row that is kept, in one of its windows."""

    row: Row
    at: int
    window: Window | None
    count: int = 0
    partners: int = 0
    """The sum of the diffs of its partners so far."""
    said: int = 0
    """In a semi join, if it has a partner: the event time of the answer."""


class _Net:
    """Changes added up: equal rows with equal times are one."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, tuple[Row, int]] = {}
        self._counts: dict[Hashable, int] = {}

    def add(self, row: Row, at: int, count: int) -> None:
        identity = _identity(row, at, None)
        self._rows.setdefault(identity, (row, at))
        self._counts[identity] = self._counts.get(identity, 0) + count

    def changes(self) -> list[Change]:
        return [
            Change(*self._rows[identity], 1 if count > 0 else -1)
            for identity, count in self._counts.items()
            for _ in range(abs(count))
        ]


Entries: TypeAlias = dict[Hashable, _Entry]


@dataclass(slots=True)
class JoinReference:
    """The meaning of a join, one row at a time."""

    spec: JoinSpec
    dropped: tuple[int, int] = (0, 0)
    """How many changes of each side came too late."""
    _kept: tuple[Entries, Entries] = field(default_factory=lambda: ({}, {}))
    _watermarks: tuple[int, int] = (BEGINNING_OF_TIME, BEGINNING_OF_TIME)

    def input(self, left: Iterable[Change], right: Iterable[Change]) -> list[Change]:
        """The answers to one bundle of both sides."""
        before = self._kept
        come = self._arrived(LEFT, left), self._arrived(RIGHT, right)
        after = _added(before[LEFT], come[LEFT]), _added(before[RIGHT], come[RIGHT])
        net, alone = _Net(), _Net()
        pairs = [] if self.spec.is_filter else product(after[LEFT].items(), after[RIGHT].items())
        for (one, first), (other, second) in pairs:
            if self._is_pair(first, second):
                was = _count(before[LEFT], one) * _count(before[RIGHT], other)
                net.add(self._paired(first, second), max(first.at, second.at), first.count * second.count - was)
        for side in (LEFT, RIGHT):
            for identity, entry in after[side].items():
                old = before[side].get(identity)
                self._meet(side, entry, old, after[1 - side] if old is None else come[1 - side])
                if old is not None and self._is_said(side, old):
                    alone.add(self._alone(side, old), self._said_at(old), -old.count)
                if self._is_said(side, entry):
                    alone.add(self._alone(side, entry), self._said_at(entry), entry.count)
        self._kept = _counted(after[LEFT]), _counted(after[RIGHT])
        return net.changes() + alone.changes()

    def watermark(self, left: int, right: int) -> list[Change]:
        """The answers to an advance of the watermarks. A watermark that is behind the one before stays as it was."""
        self._watermarks = max(left, self._watermarks[LEFT]), max(right, self._watermarks[RIGHT])
        net = _Net()
        for side in (LEFT, RIGHT):
            for identity, entry in [each for each in self._kept[side].items() if self._is_let_go(side, each[1])]:
                del self._kept[side][identity]
                if self.spec.unmatched == "final" and self.spec.is_outer(side) and entry.partners <= 0:
                    net.add(self._alone(side, entry), entry.at, entry.count)
        return net.changes()

    def _arrived(self, side: int, changes: Iterable[Change]) -> Entries:
        """The net of the changes that are in time, by row and window."""
        come: Entries = {}
        dropped = 0
        for change in changes:
            if self.spec.is_late(side, change.at, self._watermarks[side]):
                dropped += 1
                continue
            row = {name: change.row[name] for name in self.spec.kept(side)}
            for window in self._windows(change):
                identity = _identity(row, change.at, window)
                come.setdefault(identity, _Entry(row, change.at, window)).count += change.diff
        self.dropped = self.dropped[0] + dropped * (side == LEFT), self.dropped[1] + dropped * (side == RIGHT)
        return _counted(come)

    def _windows(self, change: Change) -> Iterable[Window | None]:
        if self.spec.windowing is None:
            return (None,)
        assert isinstance(self.spec.windowing, Fixed | Sliding | Calendar)
        return self.spec.windowing.assign(change.at, change.row)

    def _is_pair(self, left: _Entry, right: _Entry) -> bool:
        if any(left.row[name] is None or right.row[name] is None for name in self.spec.on):
            return False
        if any(_as_key(left.row[name]) != _as_key(right.row[name]) for name in self.spec.on):
            return False
        if self.spec.within is None:
            return left.window == right.window
        return self.spec.within[0] <= right.at - left.at <= self.spec.within[1]

    def _partners(self, side: int, entry: _Entry, others: Entries) -> Iterator[_Entry]:
        for other in others.values():
            if self._is_pair(entry, other) if side == LEFT else self._is_pair(other, entry):
                yield other

    def _meet(self, side: int, entry: _Entry, old: _Entry | None, others: Entries) -> None:
        """Count the partners that an entry meets: for a new one all that are kept, else those that have come."""
        met = list(self._partners(side, entry, others))
        entry.partners += sum(other.count for other in met)
        if entry.partners > 0 and (old is None or old.partners <= 0):
            entry.said = min(max(entry.at, other.at) for other in met if other.count > 0)

    def _is_said(self, side: int, entry: _Entry) -> bool:
        """Whether the result has this row alone, while it is kept."""
        if self.spec.how == "semi":
            return side == LEFT and entry.partners > 0
        return self.spec.unmatched == "early" and self.spec.is_outer(side) and entry.partners <= 0

    def _said_at(self, entry: _Entry) -> int:
        return entry.said if self.spec.how == "semi" else entry.at

    def _is_let_go(self, side: int, entry: _Entry) -> bool:
        """Rule 15. A row of a semi join is also kept while it may be taken back itself, as its answer has a time."""
        last = entry.at if entry.window is None else entry.window.end - 1
        if self.spec.how == "semi" and side == LEFT and self._watermarks[LEFT] <= entry.at + self.spec.lateness[LEFT]:
            return False
        return self._watermarks[1 - side] > last + self.spec.reach(side)

    def _paired(self, left: _Entry, right: _Entry) -> Row:
        return self._result({**right.row, **left.row}, left.window)

    def _alone(self, side: int, entry: _Entry) -> Row:
        return self._result(entry.row, entry.window)

    def _result(self, row: Row, window: Window | None) -> Row:
        bounds = {} if window is None else _bounds(window)
        return {name: bounds.get(name, row.get(name)) for name in self.spec.schema.names}


def _bounds(window: Window) -> dict[str, Any]:
    return {"window_start": to_datetime(window.start), "window_end": to_datetime(window.end)}


def _added(before: Entries, come: Entries) -> Entries:
    """Copies of the entries, after the counts of those that have come are added."""
    both = {**before, **come}
    after = {}
    for key, entry in both.items():
        count = _count(before, key) + _count(come, key)
        after[key] = _Entry(entry.row, entry.at, entry.window, count)
        if key in before:
            after[key].partners, after[key].said = before[key].partners, before[key].said
    return after


def _counted(entries: Entries) -> Entries:
    return {identity: entry for identity, entry in entries.items() if entry.count}


def _count(entries: Entries, identity: Hashable) -> int:
    return entries[identity].count if identity in entries else 0


def _column(schema: Schema, name: str) -> Column:
    return next(column for column in schema if column.name == name)


def _as_key(value: Any) -> Any:
    """A value in the form in which keys are compared: all NaNs are one key, and -0.0 is 0.0."""
    return sort_key(one_zero(value))


def _identity(row: Row, at: int, window: Window | None) -> Hashable:
    """What makes two rows of a multiset equal: their values, of which NaN equals NaN and -0.0 is not 0.0."""
    parts = [repr(value) if isinstance(value, float | list | dict) else value for _, value in sorted(row.items())]
    return (*parts, at, window)
