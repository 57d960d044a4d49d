"""Triggers over many windows at once: the columnar form of the reference's `ready` and `fire`.

The state of a trigger in a window is a bit set, its arm: each node of the trigger has a bit for "finished", and each
`watermark` another for "has fired on time". In the initial state all bits are 0, so a part is reset by clearing its
bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from millrace.model.errors import refuse
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

Bools: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]
Arms: TypeAlias = npt.NDArray[np.uint64]

_NONE = np.uint64(0)
STANDS = np.uint64(1) << np.uint64(63)
"""The bit of an arm that is not the trigger's: whether an answer of the window stands, which the next one replaces."""


@dataclass(frozen=True, slots=True)
class TriggerInputs:
    """The input of triggers, one row for each window; `model.reference.TriggerInput` defines the fields."""

    new: Ints
    first: Ints
    clock: int
    closed: Bools
    closing: Bools
    expired: Bools


@dataclass(frozen=True, slots=True)
class Armed:
    """A trigger whose nodes have bits assigned."""

    trigger: Trigger
    finished: np.uint64
    on_time: np.uint64
    parts: tuple["Armed", ...]

    @property
    def bits(self) -> np.uint64:
        """All bits of this trigger and of its parts."""
        mine = self.finished | self.on_time
        for part in self.parts:
            mine |= part.bits
        return mine

    @property
    def on_time_bits(self) -> np.uint64:
        """The on-time bits of this trigger and of its parts."""
        mine = self.on_time
        for part in self.parts:
            mine |= part.on_time_bits
        return mine

    @property
    def uses_clock(self) -> bool:
        """Whether the advance of processing time alone can make it ready."""
        return isinstance(self.trigger, After | Every) or any(part.uses_clock for part in self.parts)

    def due(self, first: Ints) -> list[Ints]:
        """The instants at which parts of it may become ready by the clock; `first` holds the first new arrivals."""
        match self.trigger:
            case After(delay):
                return [first + delay]
            case Every(period):
                return [(first // period + 1) * period]
            case _:
                return [instants for part in self.parts for instants in part.due(first)]

    def is_finished(self, arms: Arms) -> Bools:
        """The mask of the windows in which it is finished."""
        finished: Bools = (arms & self.finished) != _NONE
        return finished

    def ready(self, arms: Arms, look: TriggerInputs) -> Bools:
        """The mask of the windows in which it fires."""
        return self._ready(arms, look) & ~self.is_finished(arms)

    def fire(self, arms: Arms, look: TriggerInputs, where: Bools) -> Arms:
        """The arms after it fires in the windows `where`, in each of which it must be ready."""
        if not where.any():
            return arms
        parts = self.parts
        match self.trigger:
            case Elements() | After():
                return _with(arms, self.finished, where)
            case Watermark(_, late):
                fired = parts[0]._again(arms, look, where & ~look.closed)
                after = where & look.closed & ((arms & self.on_time) != _NONE)
                if late is None:
                    return _with(fired, self.on_time | self.finished, where & look.closed)
                fired = parts[1]._again(fired, look, after)
                return _with(fired, self.on_time, where & look.closed & ~after)
            case Repeat():
                return parts[0]._again(arms, look, where)
            case AnyOf() | AllOf():
                fired = arms
                for part in parts:
                    fired = part.fire(fired, look, where & part.ready(arms, look))
                if isinstance(self.trigger, AnyOf):
                    return _with(fired, self.finished, where & _some([part.is_finished(fired) for part in parts]))
                is_over = where & ~_some([~part.is_finished(fired) for part in parts])
                for part in parts:  # all_of() continues while a part does; finished parts must be ready again
                    fired = part._rearmed(fired, where & ~is_over)
                return _with(fired, self.finished, is_over)
            case InOrder():
                place = self._place(arms)
                fired = arms
                for number, part in enumerate(parts):
                    fired = part.fire(fired, look, where & (place == number))
                return _with(fired, self.finished, where & parts[-1].is_finished(fired))
            case Until():
                ends = where & parts[1].ready(arms, look)
                fired = parts[0].fire(arms, look, where & ~ends)
                return _with(fired, self.finished, ends)
            case Every() | Never():
                return arms  # every() has no state to change; never() never fires
            case never:
                assert_never(never)

    def _ready(self, arms: Arms, look: TriggerInputs) -> Bools:
        parts = self.parts
        match self.trigger:
            case Elements(count):
                return look.new >= count
            case After(delay):
                return (look.new > 0) & (look.clock >= look.first + delay)
            case Every(period):
                return (look.new > 0) & (look.clock // period > look.first // period)
            case Watermark(early, late):
                before = parts[0].ready(arms, look) if early is not None else _never(arms)
                at_close = look.closing | (look.new > 0)
                if late is not None:
                    after = (arms & self.on_time) != _NONE
                    at_close = np.where(after, parts[1].ready(arms, look), at_close)
                return np.where(look.closed, at_close, before)
            case Repeat():
                return parts[0].ready(arms, look)
            case AnyOf():
                return _some([part.ready(arms, look) for part in parts])
            case AllOf():
                return ~_some([~part.ready(arms, look) for part in parts])
            case InOrder():
                place = self._place(arms)
                turns = [(place == number) & part.ready(arms, look) for number, part in enumerate(parts)]
                return _some(turns)
            case Until():
                return parts[1].ready(arms, look) | parts[0].ready(arms, look)
            case Never():
                return _never(arms)
            case never:
                assert_never(never)

    def _place(self, arms: Arms) -> npt.NDArray[np.intp]:
        """The index of the current part of `in_order`: the first that is not finished."""
        going = ~np.stack([part.is_finished(arms) for part in self.parts])
        return np.where(going.any(axis=0), going.argmax(axis=0), len(self.parts))

    def _again(self, arms: Arms, look: TriggerInputs, where: Bools) -> Arms:
        """Fire, and reset the trigger where it is then finished."""
        return self._rearmed(self.fire(arms, look, where), where)

    def _rearmed(self, arms: Arms, where: Bools) -> Arms:
        return np.where(where & self.is_finished(arms), arms & ~self.bits, arms)


def compile_trigger(trigger: Trigger) -> Armed:
    """Assign bits to each node of a trigger."""
    return _compile(trigger, _bits())


def _compile(trigger: Trigger, bits: Iterator[np.uint64]) -> Armed:
    finished = next(bits)
    on_time = next(bits) if isinstance(trigger, Watermark) else _NONE
    return Armed(trigger, finished, on_time, tuple(_compile(part, bits) for part in parts_of(trigger)))


def _bits() -> Iterator[np.uint64]:
    bit = np.uint64(1)
    while bit != STANDS:
        yield bit
        bit <<= np.uint64(1)
    raise refuse("the trigger has more than the maximum of 63 parts")


def _with(arms: Arms, bits: np.uint64, where: Bools) -> Arms:
    return np.where(where, arms | bits, arms)


def _some(masks: list[Bools]) -> Bools:
    """The union of the masks."""
    some: Bools = np.logical_or.reduce(masks)
    return some


def _never(arms: Arms) -> Bools:
    return np.zeros(len(arms), dtype=np.bool_)
