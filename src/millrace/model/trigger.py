"""Triggers: the conditions under which a window answers.

The public names are in `millrace.on`: `on.watermark(early=on.every("10s"), late=on.each())`. A trigger holds
configuration only; the engine holds its state in each window. The table in docs/transcripts.md defines each trigger,
and `reference.py` implements it.
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from millrace.model.duration import END_OF_TIME, Duration, format_duration, parse_duration, parse_positive
from millrace.model.errors import refuse, shown


@dataclass(frozen=True, slots=True)
class Elements:
    """Ready when the pane holds at least `count` new elements."""

    count: int

    def __str__(self) -> str:
        return f"elements({self.count})"


@dataclass(frozen=True, slots=True)
class After:
    """Ready when `delay` has passed since the pane's first new element arrived."""

    delay: int

    def __str__(self) -> str:
        return f"after({format_duration(self.delay)})"


@dataclass(frozen=True, slots=True)
class Every:
    """Ready when the clock reaches a multiple of `period` with new elements; never finishes."""

    period: int

    def __str__(self) -> str:
        return f"every({format_duration(self.period)})"


@dataclass(frozen=True, slots=True)
class Watermark:
    """`early`, repeated, until the window closes; once on time; then `late`, repeated."""

    early: "Trigger | None" = None
    late: "Trigger | None" = None

    def __str__(self) -> str:
        parts = [f"{name}={part}" for name, part in (("early", self.early), ("late", self.late)) if part]
        return f"watermark({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`part`, reset each time it finishes."""

    part: "Trigger"

    def __str__(self) -> str:
        if self.part == Watermark():
            return "default()"
        return "each()" if self.part == Elements(1) else f"repeat({self.part})"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Ready when one of the parts is; finished when one of them is."""

    parts: tuple["Trigger", ...]

    def __str__(self) -> str:
        return f"any_of({', '.join(map(str, self.parts))})"


@dataclass(frozen=True, slots=True)
class AllOf:
    """Ready when all parts are; finished when all of them are, else the finished parts are reset."""

    parts: tuple["Trigger", ...]

    def __str__(self) -> str:
        return f"all_of({', '.join(map(str, self.parts))})"


@dataclass(frozen=True, slots=True)
class InOrder:
    """The parts one after the other, each until it finishes."""

    parts: tuple["Trigger", ...]

    def __str__(self) -> str:
        return f"in_order({', '.join(map(str, self.parts))})"


@dataclass(frozen=True, slots=True)
class Until:
    """`part`, until `end` is ready; the trigger then fires once more and finishes."""

    part: "Trigger"
    end: "Trigger"

    def __str__(self) -> str:
        return f"until({self.part}, {self.end})"


@dataclass(frozen=True, slots=True)
class Never:
    """Never ready; the window answers only when it expires."""

    def __str__(self) -> str:
        return "never()"


Trigger: TypeAlias = Elements | After | Every | Watermark | Repeat | AnyOf | AllOf | InOrder | Until | Never


def elements(n: int) -> Elements:
    """Fire once, when the pane holds at least `n` new elements; it is evaluated once for each bundle."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= END_OF_TIME:
        raise refuse(f"elements() takes a whole number of at least 1, not {n!r:.40}")
    return Elements(n)


def after(delay: Duration) -> After:
    """Fire once, when `delay` of processing time has passed since the first new element."""
    return After(parse_duration(delay, "delay of after()"))


def every(period: Duration) -> Every:
    """Fire when the clock reaches a multiple of `period`, if there are new elements."""
    return Every(parse_positive(period, "period of every()"))


def watermark(early: Trigger | None = None, late: Trigger | None = None) -> Watermark:
    """Fire on time, when the watermark passes the end of the window; before it by `early`, after it by `late`."""
    for name, part in (("early", early), ("late", late)):
        if part is not None:
            _check(part, f"{name}= of watermark()")
    return Watermark(early, late)


def default() -> Repeat:
    """Fire on time, then at each late bundle."""
    return Repeat(Watermark())


def each() -> Repeat:
    """Fire at each bundle with new elements."""
    return Repeat(Elements(1))


def repeat(part: Trigger) -> Repeat:
    """Fire as `part` does, and reset it each time it finishes."""
    return Repeat(_check(part, "repeat()"))


def any_of(*parts: Trigger) -> AnyOf:
    """Fire when the first of the parts is ready."""
    return AnyOf(_check_all(parts, "any_of()"))


def all_of(*parts: Trigger) -> AllOf:
    """Fire when all of the parts are ready."""
    return AllOf(_check_all(parts, "all_of()"))


def in_order(*parts: Trigger) -> InOrder:
    """Fire as the first part does until it finishes, then as the next does."""
    return InOrder(_check_all(parts, "in_order()"))


def until(part: Trigger, end: Trigger) -> Until:
    """Fire as `part` does, until `end` is ready; then fire once more and finish."""
    return Until(_check(part, "until()"), _check(end, "until()"))


def never() -> Never:
    """Do not fire before the window expires."""
    return Never()


def parts_of(trigger: Trigger) -> tuple[Trigger, ...]:
    """The parts of a trigger; `watermark` always has an early and a late one."""
    match trigger:
        case Watermark(early, late):
            return (early or Never(), late or Never())
        case Repeat(part):
            return (part,)
        case AnyOf(parts) | AllOf(parts) | InOrder(parts):
            return parts
        case Until(part, end):
            return (part, end)
        case Elements() | After() | Every() | Never():
            return ()
        case never:
            assert_never(never)


def waits(trigger: Trigger) -> tuple[int, ...]:
    """The spans of processing time that a trigger measures, in microseconds; it needs the clock if there are any."""
    match trigger:
        case After(span) | Every(span):
            return (span,)
        case Elements() | Never() | Watermark() | Repeat() | AnyOf() | AllOf() | InOrder() | Until():
            return tuple(wait for part in parts_of(trigger) for wait in waits(part))
        case never:
            assert_never(never)


def may_finish(trigger: Trigger) -> bool:
    """Whether it can finish before its window expires; elements after that are dropped."""
    match trigger:
        case Elements() | After() | Until():
            return True
        case Watermark(_, late):
            return late is None
        case AnyOf(parts):
            return any(map(may_finish, parts))
        case AllOf(parts) | InOrder(parts):
            return all(map(may_finish, parts))
        case Every() | Repeat() | Never():
            return False
        case never:
            assert_never(never)


def fires_once(trigger: Trigger) -> bool:
    """Whether its first firing finishes it, so that a window has one answer."""
    match trigger:
        case Elements() | After() | Never():
            return True
        case Watermark(early, late):
            return late is None and (early is None or isinstance(early, Never))
        case AnyOf(parts) | AllOf(parts):
            return all(map(fires_once, parts))
        case InOrder(parts):
            return len(parts) == 1 and fires_once(parts[0])
        case Until(part, end):
            return isinstance(part, Never) and fires_once(end)
        case Every() | Repeat():
            return False
        case never:
            assert_never(never)


def waits_for_the_end(trigger: Trigger) -> bool:
    """Whether it fires only when its window closes or expires."""
    match trigger:
        case Elements() | After() | Every():
            return False
        case Never():
            return True
        case Watermark(early, _):
            return early is None or waits_for_the_end(early)
        case Repeat(part):
            return waits_for_the_end(part)
        case InOrder(parts):
            return waits_for_the_end(parts[0])
        case AnyOf(parts):
            return all(map(waits_for_the_end, parts))
        case AllOf(parts):
            return any(map(waits_for_the_end, parts))
        case Until(part, end):
            return waits_for_the_end(part) and waits_for_the_end(end)
        case never:
            assert_never(never)


def is_trigger(value: object) -> bool:
    """Whether the value is one of the triggers of this module."""
    return isinstance(value, Trigger)


def _check(part: Trigger, where: str) -> Trigger:
    if not is_trigger(part):
        raise refuse(f"{where} takes a trigger such as elements(10) or every(10s), not {shown(part)}")
    return part


def _check_all(parts: tuple[Trigger, ...], where: str) -> tuple[Trigger, ...]:
    if not parts:
        raise refuse(f"{where} needs at least one trigger")
    for part in parts:
        _check(part, where)
    return parts
