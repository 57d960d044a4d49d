"""A second reading of the rules of docs/transcripts.md, written without sight of the engines. It imports none of them.

It keeps every element and computes every answer anew, so that it can be compared with the text. Where the text leaves
room, it follows decision 002. Instants and durations are whole microseconds; `INF` is the end of time. `judge_stages`
has graphs and joins.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

INF = 10**18
SECOND = 10**6

Spec = tuple[Any, ...]
Row = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Change:
    row: Row
    at: int
    diff: int = 1


# --- triggers -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Look:
    """What a trigger sees of its pane."""

    new: int
    first: int
    now: int
    closed: bool
    closing: bool


class Trigger:
    """A trigger with its state. `ready` asks; `fire` tells it that the pane went out."""

    def __init__(self, spec: Spec) -> None:
        name, *args = spec
        if name == "default":
            name, args = "repeat", [("watermark", None, None)]
        elif name == "each":
            name, args = "repeat", [("elements", 1)]
        self.spec, self.name, self.args = spec, name, args
        self.done = False
        self.past = False  # of a watermark: its on-time firing, or the one that stands in for it, is over
        self.kids = [Trigger(a or ("never",)) for a in args] if args and not isinstance(args[0], int) else []

    def reset(self) -> None:
        self.__init__(self.spec)  # type: ignore[misc]

    def ready(self, look: Look) -> bool:
        if self.done:
            return False
        kids = self.kids
        match self.name:
            case "elements":
                return look.new >= int(self.args[0])
            case "after":
                return look.new > 0 and look.now >= look.first + self.args[0]
            case "every":
                return look.new > 0 and look.now // self.args[0] * self.args[0] > look.first
            case "watermark":
                if self.past:
                    return kids[1].ready(look)
                if look.closed:
                    return look.closing or look.new > 0
                return kids[0].ready(look)
            case "repeat":
                return kids[0].ready(look)
            case "any_of":
                return any(kid.ready(look) for kid in kids)
            case "all_of":
                return all(kid.ready(look) for kid in kids)
            case "in_order":
                return next(kid for kid in kids if not kid.done).ready(look)
            case "until":
                return kids[0].ready(look) or kids[1].ready(look)
            case "never":
                return False
        raise AssertionError(self.name)

    def fire(self, look: Look) -> None:
        kids = self.kids
        match self.name:
            case "elements" | "after":
                self.done = True
            case "watermark":
                if look.closed and not self.past:
                    self.past = True
                    self.done = self.args[1] is None
                else:
                    kids[self.past].again(look)
            case "repeat":
                kids[0].again(look)
            case "any_of":
                ready = [kid for kid in kids if kid.ready(look)]
                for kid in ready:
                    kid.fire(look)
                self.done = any(kid.done for kid in ready)
            case "all_of":
                for kid in kids:
                    kid.fire(look)
                self.done = all(kid.done for kid in kids)
                for kid in kids:
                    if kid.done and not self.done:
                        kid.reset()  # "all": the others wait for it again
            case "in_order":
                next(kid for kid in kids if not kid.done).fire(look)
                self.done = all(kid.done for kid in kids)
            case "until":
                if kids[1].ready(look):
                    self.done = True
                else:
                    kids[0].fire(look)

    def again(self, look: Look) -> None:
        self.fire(look)
        if self.done:
            self.reset()

    def merge(self, parts: list[Trigger], closed: bool) -> None:
        """Rule 13. The span of the new element is a part that nothing has fired for: so every part starts again, except
        that a closed session stays in the phase after its on-time firing."""
        if self.name == "watermark" and closed and self.args[1] is not None:
            self.past = any(part.past for part in parts)
        for i, kid in enumerate(self.kids[: 1 if self.name == "in_order" else None]):
            kid.merge([part.kids[i] for part in parts], closed)


# --- aggregates ---------------------------------------------------------------------------------------------------


def _net(counted: Iterable[tuple[Any, int]]) -> Counter[Any]:
    net: Counter[Any] = Counter()
    for item, n in counted:
        net[item] += n
    return net


def value(aggregate: Spec, rows: Counter[tuple[Row, int]]) -> Any:
    """The answer of an aggregate, `(name, column, ...)`, for rows with times; an increment may have counts below 0."""
    name, *args = aggregate
    if name == "count":
        return sum(rows.values())
    items = [(dict(row)[args[0]], at, n) for (row, at), n in rows.items()]
    items = [(v, at, n) for v, at, n in items if v is not None and n]
    if not items:
        return [] if name in ("collect", "collect_set", "top_k") else None
    if name in ("sum", "mean"):
        if not any(_net((v, n) for v, _, n in items).values()):
            return None
        total = sum((Fraction(v) * n for v, _, n in items), Fraction(0))
        if name == "sum":
            return int(total) if total.denominator == 1 else float(total)
        return float(total / sum(n for _, _, n in items))
    values = sorted(v for v, _, n in items for _ in range(n))
    match name:
        case "min":
            return values[0]
        case "max":
            return values[-1]
        case "collect":
            return values
        case "collect_set":
            return sorted(set(values))
        case "top_k":
            return values[::-1][: args[1]]
        case "first":
            return min((at, v) for v, at, _ in items)[1]
        case "last":
            return max((at, v) for v, at, _ in items)[1]
    raise AssertionError(name)


# --- one query ----------------------------------------------------------------------------------------------------


class Window:
    """One (key, window) with all that was ever put into it."""

    def __init__(self, key: Row, start: int, end: int, trigger: Spec, closed: bool) -> None:
        self.key, self.start, self.end, self.closed = key, start, end, closed
        self.trigger = Trigger(trigger)
        self.rows: Counter[tuple[Row, int]] = Counter()
        self.fresh: Counter[tuple[Row, int]] = Counter()
        self.new = self.index = 0
        self.first = INF
        self.said: list[dict[str, Any]] = []

    def take(self, change: Change, now: int) -> None:
        for counts in (self.rows, self.fresh):
            counts[change.row, change.at] += change.diff
        self.new += 1
        self.first = min(self.first, now)

    def absorb(self, parts: list[Window]) -> None:
        for part in parts:
            self.rows.update(part.rows)
            self.said += part.said
            if not part.trigger.done:
                self.fresh.update(part.fresh)
                self.new += part.new
                self.first = min(self.first, part.first)
        self.trigger.merge([part.trigger for part in parts], self.closed)


@dataclasses.dataclass
class Query:
    window: Spec = ("global",)
    trigger: Spec = ("default",)
    mode: str = "accumulating"
    lateness: int = 0
    aggregate: dict[str, Spec] = dataclasses.field(default_factory=lambda: {"values": ("collect", "v")})
    by: tuple[str, ...] = ("k",)

    def __post_init__(self) -> None:
        self.watermark, self.clock, self.dropped = -INF, 0, 0
        self.windows: list[Window] = []
        self.arrived: Counter[Row] = Counter()

    def step(self, changes: Iterable[Change] = (), watermark: int = -INF, clock: int = 0) -> list[dict[str, Any]]:
        """A micro-batch: input, then the watermark, then the clock."""
        panes: list[dict[str, Any]] = []
        touched = self._assign(list(changes), panes)
        for w in self.windows:
            if w in touched:
                self._look(w, False, panes)
        if watermark > self.watermark:
            self.watermark = watermark
            for w in [] if self.window[0] == "count" and watermark < INF else list(self.windows):
                closing = not w.closed and watermark >= w.end
                w.closed = w.closed or closing
                self._look(w, closing, panes)
                if self._expired(w.end):
                    if not w.trigger.done and w.new:
                        self._emit(w, "on-time" if closing else "late", panes)
                    self.windows.remove(w)
        if clock > self.clock:
            self.clock = clock
            for w in self.windows:
                self._look(w, False, panes)
        return panes

    def _expired(self, end: int) -> bool:
        return self.watermark > end + self.lateness or self.watermark >= INF

    def _look(self, w: Window, closing: bool, panes: list[dict[str, Any]]) -> None:
        look = Look(w.new, w.first, self.clock, w.closed, closing)
        if w.trigger.ready(look):
            w.trigger.fire(look)
            timing = "on-time" if closing else "late" if w.closed else "early"
            self._emit(w, timing, panes)

    def _emit(self, w: Window, timing: str, panes: list[dict[str, Any]]) -> None:
        last = w.trigger.done or self._expired(w.end)
        rows = w.fresh if self.mode == "discarding" else w.rows
        rows = Counter({row: n for row, n in rows.items() if n})
        empty = w.rows and not any(w.rows.values())
        w.new, w.first = 0, INF
        if self.mode == "retracting":
            panes += [{**pane, "diff": -1} for pane in w.said]
            w.said = []
        elif empty and self.mode == "accumulating" and w.said:
            panes.append(dict(w.key) | {"window": (w.start, w.end), "diff": -1, "at": w.end - 1})
            w.said = []
        if empty:
            return
        w.fresh = Counter()
        at = w.end - 1
        if self.window[0] in ("global", "count"):
            at = max(at for _, at in rows or w.rows)  # a pane that holds nothing has the time of what it follows
        pane = dict(w.key) | {name: value(a, rows) for name, a in self.aggregate.items()}
        pane |= {"window": (w.start, w.end), "timing": timing, "index": w.index, "last": last, "diff": 1, "at": at}
        w.index += 1
        panes.append(pane)
        w.said = [pane]

    def _assign(self, changes: list[Change], panes: list[dict[str, Any]]) -> list[Window]:
        keyed: dict[Row, list[Change]] = {}
        for change in changes:
            row = dict(change.row)
            keyed.setdefault(tuple((name, row[name]) for name in self.by), []).append(change)
        touched: list[Window] = []
        for key, own in keyed.items():
            if self.window[0] == "count":
                self._count(key, own, panes)
                continue
            if self.window[0] == "session":
                touched += self._sessions(key, own)
                continue
            for change in own:
                taken = False
                for start, end in self._spans(change.at):
                    if self._expired(end):
                        continue
                    w = next((w for w in self.windows if (w.key, w.start) == (key, start)), None)
                    if w is None:
                        w = Window(key, start, end, self.trigger, self.watermark >= end)
                        self.windows.append(w)
                    if not w.trigger.done:
                        w.take(change, self.clock)
                        touched.append(w)
                        taken = True
                self.dropped += not taken
        return touched

    def _count(self, key: Row, changes: list[Change], panes: list[dict[str, Any]]) -> None:
        for change in changes:
            w = next((w for w in self.windows if w.key == key), None)
            if w is None:
                n = self.arrived[key] // self.window[1]
                w = Window(key, n, n + 1, ("never",), False)
                self.windows.append(w)
            self.arrived[key] += 1
            w.take(change, self.clock)
            if w.new == self.window[1]:
                w.trigger.done = True
                self._emit(w, "on-time", panes)
                self.windows.remove(w)

    def _spans(self, at: int) -> list[tuple[int, int]]:
        match self.window:
            case ("global",):
                return [(-INF, INF)]
            case ("fixed", size):
                return [(at // size * size, at // size * size + size)]
            case ("sliding", size, every):
                last = at // every * every
                return [(s, s + size) for s in range(last, at - size, -every)]
        raise AssertionError(self.window)

    def _sessions(self, key: Row, changes: list[Change]) -> list[Window]:
        gap = self.window[1]
        live = [c for c in changes if not self._expired(c.at + gap)]
        self.dropped += len(changes) - len(live)
        spans: list[tuple[int, int, Any]] = [(c.at, c.at + gap, c) for c in live]
        spans += [(w.start, w.end, w) for w in self.windows if w.key == key]
        spans.sort(key=lambda span: span[:2])
        groups: list[list[tuple[int, int, Any]]] = []
        reach = -INF
        for span in spans:
            if not groups or span[0] >= reach:
                groups.append([])
            groups[-1].append(span)
            reach = max(reach, span[1]) if len(groups[-1]) > 1 else span[1]
        touched = []
        for group in groups:
            new = [x for _, _, x in group if isinstance(x, Change)]
            old = [x for _, _, x in group if isinstance(x, Window)]
            if not new:
                continue
            start, end = group[0][0], max(end for _, end, _ in group)
            if len(old) == 1 and (old[0].start, old[0].end) == (start, end):
                merged = old[0]
                if merged.trigger.done:
                    self.dropped += len(new)
                    continue
            else:
                merged = Window(key, start, end, self.trigger, self.watermark >= end)
                if old:
                    merged.absorb(old)
                self.windows = [w for w in self.windows if w not in old] + [merged]
            for change in new:
                merged.take(change, self.clock)
            touched.append(merged)
        return touched

    def changes(self, panes: list[dict[str, Any]]) -> list[Change]:
        """Panes as the input of another stage (rules 1 and 2 of stages)."""
        return [Change(self._row(pane), pane["at"], pane["diff"]) for pane in panes]

    def _row(self, pane: dict[str, Any]) -> Row:
        columns = [(name, pane[name]) for name in (*self.by, *self.aggregate)]
        return (*columns, ("window_start", pane["window"][0]), ("window_end", pane["window"][1]))
