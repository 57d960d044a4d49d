"""The reference engine: the meaning of a query in plain Python, one key and window at a time, slow and simple.

Every other engine must agree with this file, and this file with docs/transcripts.md; comments cite its rules by
number. A caller drives the engine in steps: `input` adds a bundle of rows, `watermark` and `clock` advance event
time and processing time. Each step returns the panes it produced.

    engine = Reference(query)
    panes = engine.input(rows) + engine.watermark(12 * SECOND)

The triggers come first: their state (`Arm`), their input (`TriggerInput`), the test whether one is ready (`ready`)
and the state after a firing (`fire`). The windows follow, in `Reference`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, assert_never

from millrace.model.aggregate import Aggregate, Fold
from millrace.model.changes import Change, answer_over_changes
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME, Moment, to_instant, to_micros
from millrace.model.errors import NoValueError, at_place, refuse
from millrace.model.evaluate import check_known
from millrace.model.fitting import fits
from millrace.model.late import too_late
from millrace.model.pane import Failure, Mode, Pane, Timing
from millrace.model.query import Query
from millrace.model.rows import RowDeadLetter, RowEvaluator, as_key
from millrace.model.stream import reads_changes
from millrace.model.trigger import (
    After,
    AllOf,
    AnyOf,
    Elements,
    Every,
    InOrder,
    Never,
    Repeat,
    Trigger,
    Until,
    Watermark,
    parts_of,
)
from millrace.model.window import CountWindow, Custom, Global, Row, Session, Window

Key: TypeAlias = tuple[Any, ...]


# --- Triggers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arm:
    """The state of a trigger in one window."""

    finished: bool = False
    on_time: bool = False
    """For `watermark`: whether it has fired on time, at the close of the window."""
    parts: tuple["Arm", ...] = ()


@dataclass(frozen=True, slots=True)
class TriggerInput:
    """The state of a window that its trigger is evaluated on."""

    new: int
    """The number of elements that no pane has held yet."""
    first: int
    """The processing time at which the first of them arrived."""
    clock: int
    closed: bool
    closing: bool
    """Whether the current step closed the window."""
    expired: bool


def armed(trigger: Trigger) -> Arm:
    """The initial state of a trigger."""
    return Arm(parts=tuple(map(armed, parts_of(trigger))))


def ready(trigger: Trigger, arm: Arm, look: TriggerInput) -> bool:
    """Whether the trigger fires, by the table of docs/transcripts.md."""
    if arm.finished:
        return False
    match trigger:
        case Elements(count):
            return look.new >= count
        case After(delay):
            return look.new > 0 and look.clock >= look.first + delay
        case Every(period):
            return look.new > 0 and look.clock // period > look.first // period
        case Never():
            return False
        case Watermark(early, late):
            if not look.closed:
                return early is not None and ready(early, arm.parts[0], look)
            if arm.on_time and late is not None:
                return ready(late, arm.parts[1], look)
            # Rule 3: a window that was closed before its first element arrived has no firing on time to wait for.
            return look.closing or look.new > 0
        case Repeat(part):
            return ready(part, arm.parts[0], look)
        case AnyOf(parts):
            return any(ready(part, state, look) for part, state in zip(parts, arm.parts, strict=True))
        case AllOf(parts):
            return all(ready(part, state, look) for part, state in zip(parts, arm.parts, strict=True))
        case InOrder(parts):
            place = _place(arm)
            return ready(parts[place], arm.parts[place], look)
        case Until(part, end):
            return ready(end, arm.parts[1], look) or ready(part, arm.parts[0], look)
        case never:
            assert_never(never)


def fire(trigger: Trigger, arm: Arm, look: TriggerInput) -> Arm:
    """The state of a ready trigger after it fires."""
    match trigger:
        case Elements() | After():
            return Arm(finished=True)
        case Watermark(early, late):
            if not look.closed and early is not None:
                return replace(arm, parts=(_again(early, arm.parts[0], look), *arm.parts[1:]))
            if arm.on_time and late is not None:
                return replace(arm, parts=(*arm.parts[:1], _again(late, arm.parts[1], look)))
            return replace(arm, on_time=True, finished=late is None)
        case Repeat(part):
            return replace(arm, parts=(_again(part, arm.parts[0], look),))
        case AnyOf(parts):
            fired = _fire_ready(parts, arm, look)
            return Arm(finished=any(state.finished for state in fired), parts=fired)
        case AllOf(parts):
            fired = _fire_ready(parts, arm, look)
            if all(state.finished for state in fired):
                return Arm(finished=True, parts=fired)
            # A part continues, so the trigger does; finished parts are reset and must be ready again.
            return Arm(parts=tuple(map(_rearmed, parts, fired)))
        case InOrder(parts):
            place = _place(arm)
            after = fire(parts[place], arm.parts[place], look)
            states = (*arm.parts[:place], after, *arm.parts[place + 1 :])
            return Arm(finished=states[-1].finished, parts=states)
        case Until(part, end):
            if ready(end, arm.parts[1], look):
                return replace(arm, finished=True)
            return replace(arm, parts=(fire(part, arm.parts[0], look), arm.parts[1]))
        case Every() | Never():
            return arm  # every() has no state to change; never() never fires
        case never:
            assert_never(never)


def merged(arms: Sequence[Arm], closed: bool) -> Arm:
    """Rule 13: the trigger state of a merged session, from the states of its parts."""
    return Arm(
        finished=all(arm.finished for arm in arms),
        on_time=closed and any(arm.on_time for arm in arms),
        parts=tuple(merged(parts, closed) for parts in zip(*(arm.parts for arm in arms), strict=True)),
    )


def _place(arm: Arm) -> int:
    """The index of the current part of `in_order`: the first that is not finished."""
    return next(place for place, state in enumerate(arm.parts) if not state.finished)


def _again(trigger: Trigger, arm: Arm, look: TriggerInput) -> Arm:
    """Fire a repeated trigger, and reset it once it is finished."""
    return _rearmed(trigger, fire(trigger, arm, look))


def _rearmed(trigger: Trigger, arm: Arm) -> Arm:
    return armed(trigger) if arm.finished else arm


def _fire_ready(parts: tuple[Trigger, ...], arm: Arm, look: TriggerInput) -> tuple[Arm, ...]:
    states = zip(parts, arm.parts, strict=True)
    return tuple(fire(part, state, look) if ready(part, state, look) else state for part, state in states)


# --- Windows --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Element:
    """An accepted row or change: its event time, its arrival and the argument values of the aggregates."""

    at: int
    arrival: int
    values: tuple[tuple[Any, ...], ...]
    diff: int = 1
    windows: tuple[Window, ...] = ()
    """For custom windows: the windows that the user's function assigned."""


@dataclass(slots=True)
class Group:
    """The state of one (key, window)."""

    window: Window
    arm: Arm
    emitted: list[Element] = field(default_factory=list)
    new: list[Element] = field(default_factory=list)
    unsaid: list[Element] = field(default_factory=list)
    """In discarding mode: the elements of firings that said nothing, because no rows remained."""
    index: int = 0
    said: list[Pane] = field(default_factory=list)
    """The standing answers, which the next firing replaces: its own last one, and those of merged sessions."""


class Reference:
    """The engine of one query, driven step by step."""

    def __init__(self, query: Query, tables: Mapping[str, Iterable[Row]] | None = None, now: Moment = 0) -> None:
        """Start with no input. `tables` holds the rows of tables that the query reads from a file."""
        if not isinstance(query, Query):
            raise refuse(f"Reference() takes a query, the result of .aggregate(...), not a {type(query).__name__}")
        with at_place(query.place):
            for computed in query.computed:
                for argument in computed.arguments:
                    check_known(argument)
        now = to_micros(now)
        self.query = query
        self.dropped = 0
        """The number of elements that every one of their windows refused, rules 2 and 7."""
        self.failed: list[Failure] = []
        """The firings that had no answer."""
        self.rows = RowEvaluator(query.stream, tables or {}, now)
        self._now = now
        self._watermark = self._watermark_before = BEGINNING_OF_TIME
        self._groups: dict[Key, dict[Window, Group]] = {}
        self._arrived: dict[Key, int] = {}

    def input(self, rows: Iterable[Row], source: str | None = None) -> list[Pane]:
        """Add one bundle of a source, which must be named if the query reads several."""
        if reads_changes(self.query.stream):
            problem = "the query reads the answers of other queries, and Reference evaluates a single one"
            raise refuse(problem, self.query.place, "run its pipeline: run_script(pipeline, Script().rows(...))")
        event_time = self.query.timed_by
        taken = self.rows.take(rows, source, self._watermark, self._now)
        times = (0 if event_time is None else to_instant(row[event_time.column]) for row in taken)
        return self.change(map(Change, taken, times))

    def change(self, changes: Iterable[Change]) -> list[Pane]:
        """Add one bundle of changes. Their rows have passed the row operators of the query already."""
        elements: dict[Key, list[tuple[Element, Row]]] = {}
        for change in changes:
            key = tuple(as_key(change.row[name]) for name in self.query.keys)
            element = self._element(key, change)
            if element is not None:
                elements.setdefault(key, []).append((element, change.row))
        panes = []
        for key, arrived in elements.items():
            for group in self._assign(key, arrived):
                panes += self._evaluate(key, group)
        return panes

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace the rows of a table that the query reads from a file or a view."""
        self.rows.table(name, rows)

    def watermark(self, at: Moment) -> list[Pane]:
        """Advance event time; it never goes back."""
        self._watermark = max(self._watermark, to_micros(at))
        panes = self._evaluate_all()
        self._watermark_before = self._watermark
        return panes

    def clock(self, now: Moment) -> list[Pane]:
        """Advance processing time; it goes back only by more than jitter, and arrivals with it: rule 15."""
        after = self.rows.clock(to_micros(now))
        if after < self._now:
            self._move_arrivals_back(self._now - after)
        self._now = after
        return self._evaluate_all()

    def advance(self, now: Moment) -> list[Pane]:
        """Advance event time to the watermark of the query's own policy, then the clock."""
        after = self.rows.clock(to_micros(now))
        return self.watermark(self.rows.watermark(after)) + self.clock(after)

    def micro_batch(self, rows: Iterable[Row], now: Moment, source: str | None = None) -> list[Pane]:
        """Run one micro-batch as a pipeline does, rule 2: input, then watermark, then clock."""
        return self.input(rows, source) + self.advance(now)

    def end(self) -> list[Pane]:
        """End the input: advance event time to the end of time."""
        return self.watermark(END_OF_TIME)

    @property
    def event_time(self) -> int:
        """The current watermark."""
        return self._watermark

    @property
    def dead(self) -> list[RowDeadLetter]:
        """The rows that became dead letters."""
        return self.rows.dead

    # Assign elements to windows.

    def _assign(self, key: Key, elements: list[tuple[Element, Row]]) -> list[Group]:
        """Rule 2: add elements to the groups of their windows, or drop them. Returns the changed groups."""
        groups = self._groups.setdefault(key, {})
        if isinstance(self.query.windowing, Session):
            return self._merge_sessions(groups, elements)
        touched: dict[Window, Group] = {}
        for element, row in elements:
            windows = self._windows(key, element, row)
            open_ = [w for w in windows if not self._expired(w) and not (w in groups and groups[w].arm.finished)]
            if windows and not open_:
                self._drop(row, windows)
            for window in open_:
                group = groups.setdefault(window, Group(window, armed(self.query.when)))
                group.new.append(element)
                touched[window] = group
        return list(touched.values())

    def _windows(self, key: Key, element: Element, row: Row) -> tuple[Window, ...]:
        windowing = self.query.windowing
        if isinstance(windowing, Custom):
            return element.windows
        if not isinstance(windowing, CountWindow):
            return windowing.assign(element.at, row)
        # Rule 10: elements fill groups in order of arrival, so the ordinal identifies a group.
        ordinal = self._arrived.get(key, 0) // windowing.size
        self._arrived[key] = self._arrived.get(key, 0) + 1
        return (Window(ordinal, ordinal + 1),)

    def _drop(self, row: Row, windows: tuple[Window, ...]) -> None:
        """Drop an element that all its windows refuse. If the query keeps what is late, it is also a dead letter.

        Such a query has no trigger that finishes, so the windows are expired.
        """
        self.dropped += 1
        if self.query.keeps_late:
            end = max(window.end for window in windows)
            self.rows.dead.append(RowDeadLetter(row, too_late(self.query, end, self._watermark).reason))

    def _merge_sessions(self, groups: dict[Window, Group], elements: list[tuple[Element, Row]]) -> list[Group]:
        """Rules 9 and 13: each element opens a session of its own; overlapping sessions merge."""
        arrivals: list[tuple[Window, Element]] = []
        for element, row in elements:
            (window,) = self.query.windowing.assign(element.at, {})  # type: ignore[union-attr]
            if self._expired(window):
                self._drop(row, (window,))
            else:
                arrivals.append((window, element))
        touched = []
        for window in _overlapping([*groups, *(window for window, _ in arrivals)]):
            new = [element for span, element in arrivals if _covers(window, span)]
            if not new:
                continue
            if window not in groups:
                parts = [groups.pop(part) for part in list(groups) if _covers(window, part)]
                groups[window] = self._merge_groups(window, parts)
            elif groups[window].arm.finished:
                self.dropped += len(new)  # Rule 7: the bounds are unchanged, so this is the finished window.
                continue
            groups[window].new += new
            touched.append(groups[window])
        return touched

    def _merge_groups(self, window: Window, parts: list[Group]) -> Group:
        """Rules 4 and 13: merge sessions into a new window, whose first pane retracts the panes of its parts."""
        own = armed(self.query.when)
        return Group(
            window,
            merged([own, *(part.arm for part in parts)], closed=self._closed(window)),
            emitted=[element for part in parts for element in part.emitted],
            new=[element for part in parts for element in part.new],
            unsaid=[element for part in parts for element in part.unsaid],
            said=[pane for part in parts for pane in part.said],
        )

    # Evaluate triggers.

    def _closed(self, window: Window) -> bool:
        return self._watermark >= window.end

    def _expired(self, window: Window) -> bool:
        return not isinstance(self.query.windowing, CountWindow) and self._watermark > window.end + self.query.lateness

    def _look(self, key: Key, group: Group) -> TriggerInput:
        first = min((element.arrival for element in group.new), default=0)
        if isinstance(self.query.windowing, CountWindow):
            # Rule 10: a group closes when it is full; no element can be late for it.
            full = self._arrived[key] >= group.window.end * self.query.windowing.size
            over = full or self._watermark == END_OF_TIME
            return TriggerInput(len(group.new), first, self._now, closed=over, closing=over, expired=over)
        closed = self._closed(group.window)
        closing = closed and self._watermark_before < group.window.end
        return TriggerInput(len(group.new), first, self._now, closed, closing, self._expired(group.window))

    def _move_arrivals_back(self, by: int) -> None:
        """Rule 15: elements that no pane has held yet arrived as long ago by the new clock as by the old one."""
        for groups in self._groups.values():
            for group in groups.values():
                group.new = [replace(element, arrival=element.arrival - by) for element in group.new]

    def _evaluate_all(self) -> list[Pane]:
        open_ = [(key, group) for key, groups in self._groups.items() for group in list(groups.values())]
        return [pane for key, group in open_ for pane in self._evaluate(key, group)]

    def _evaluate(self, key: Key, group: Group) -> list[Pane]:
        """Evaluate the trigger of a group once; an expired group emits its remaining elements and is deleted."""
        look = self._look(key, group)
        panes = []
        if ready(self.query.when, group.arm, look):
            group.arm = fire(self.query.when, group.arm, look)
            panes += self._emit(key, group, look, last=group.arm.finished or look.expired)
        if look.expired:
            if group.new:  # Rule 8: no accepted element is lost.
                panes += self._emit(key, group, look, last=True)
            del self._groups[key][group.window]
        return panes

    def _emit(self, key: Key, group: Group, look: TriggerInput, last: bool) -> list[Pane]:
        """Rules 5 and 14: the panes of a firing, retractions first."""
        every = group.emitted + group.new
        held = group.unsaid + group.new if self.query.mode is Mode.DISCARDING else every
        retracted = [said.retraction() for said in group.said] if self.query.mode is Mode.RETRACTING else []
        group.emitted, group.new, group.unsaid = every, [], []
        at = self._at(group.window, held, every)
        if sum(element.diff for element in every) == 0:  # every row was taken back
            group.unsaid = held
            return [*retracted, *self._without_answer(key, group, look, at)]
        try:
            pane = Pane(key, group.window, self._values(held), self._timing(look), group.index, last, at=at)
        except NoValueError as error:
            self.failed.append(Failure(key, group.window, str(error)))
            return [*retracted, *self._without_answer(key, group, look, at)]
        group.index, group.said = group.index + 1, [pane]
        return [*retracted, pane]

    def _without_answer(self, key: Key, group: Group, look: TriggerInput, at: int) -> list[Pane]:
        """Rule 14: in accumulating mode, a retraction without values that removes the standing answer, if any."""
        said, group.said = group.said, []
        if self.query.mode is not Mode.ACCUMULATING or not said:
            return []
        nothing = dict.fromkeys(computed.name for computed in self.query.computed)
        return [Pane(key, group.window, nothing, self._timing(look), max(0, group.index - 1), diff=-1, at=at)]

    def _at(self, window: Window, held: list[Element], every: list[Element]) -> int:
        """The event time of a pane; if it holds no element, that of the elements of all panes."""
        if not isinstance(self.query.windowing, Global | CountWindow):
            return window.end - 1
        if self.query.mode is Mode.DISCARDING:
            return max(element.at for element in held or every)
        counts: dict[int, int] = {}
        for element in held:
            counts[element.at] = counts.get(element.at, 0) + element.diff
        return max([at for at, count in counts.items() if count > 0] or counts)

    def _timing(self, look: TriggerInput) -> Timing:
        """The timing of a pane, rule 3."""
        if not look.closed:
            return Timing.EARLY
        return Timing.ON_TIME if look.closing else Timing.LATE

    def _values(self, elements: list[Element]) -> dict[str, Any]:
        values = {}
        for number, computed in enumerate(self.query.computed):
            try:
                answer = self._answer(number, computed.aggregate, elements)
                values[computed.name] = self._of_its_type(computed.aggregate, answer)
            except NoValueError as error:
                raise NoValueError(f"{computed.name}: {error}") from None
        return values

    def _answer(self, number: int, aggregate: Aggregate, elements: list[Element]) -> Any:
        if any(element.diff < 0 for element in elements):
            return answer_over_changes(aggregate, [(each.values[number], each.at, each.diff) for each in elements])
        partials = [aggregate.partial(element.values[number], element.at) for element in elements]
        return aggregate.result(aggregate.combine(partials))

    def _of_its_type(self, aggregate: Aggregate, answer: Any) -> Any:
        """Check the type of an answer, which a user's fold may get wrong; a whole number may be given as a float."""
        whole = isinstance(answer, float) and answer.is_integer()
        if isinstance(aggregate, Fold) and not whole and not fits(answer, aggregate.type):
            raise NoValueError(f"{aggregate}: {answer!r:.60} is not {aggregate.type}")
        return answer

    def _element(self, key: Key, change: Change) -> Element | None:
        """The element of a change; None if a value is missing, and the row is then a dead letter."""
        row, at = change.row, change.at
        values = self.rows.arguments(row, self.query.computed)
        if values is None:
            return None
        try:
            for computed, given in zip(self.query.computed, values, strict=True):
                if isinstance(computed.aggregate, Fold):
                    computed.aggregate.partial(given, at)
            return Element(at, self._now, values, change.diff, self._custom(at, row))
        except NoValueError as error:
            self.rows.dead.append(RowDeadLetter(row, f"{error}{self.query.of_key(key)}"))
            return None

    def _custom(self, at: int, row: Row) -> tuple[Window, ...]:
        windowing = self.query.windowing
        return windowing.try_assign(at, row) if isinstance(windowing, Custom) else ()


def batch(query: Query, rows: Iterable[Row], tables: Mapping[str, Iterable[Row]] | None = None) -> list[Pane]:
    """Rule 11: the answers over a bounded input, that is, the last pane of each (key, window)."""
    engine = Reference(query, tables)
    panes = engine.input(rows) + engine.end()
    last = {(pane.key, pane.window): pane for pane in panes}
    return [pane for pane in last.values() if pane.diff > 0]


def _overlapping(spans: list[Window]) -> list[Window]:
    """The spans, with overlapping ones merged; spans that only touch do not overlap."""
    whole: list[Window] = []
    for span in sorted(spans):
        if whole and span.start < whole[-1].end:
            whole[-1] = Window(whole[-1].start, max(whole[-1].end, span.end))
        else:
            whole.append(span)
    return whole


def _covers(whole: Window, part: Window) -> bool:
    return whole.start <= part.start and part.end <= whole.end
