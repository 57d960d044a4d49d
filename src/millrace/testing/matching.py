"""Compares the panes of an engine with those that a transcript expects."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from millrace.model.duration import SECOND, to_instant
from millrace.model.pane import Pane
from millrace.model.query import Query
from millrace.model.rows import RowDeadLetter
from millrace.model.window import GLOBAL_WINDOW, CountWindow
from millrace.testing.transcript import PANE


class DifferenceError(Exception):
    """The output of an engine differs from the transcript."""

    def __init__(self, step: int, what: str, found: list[str]) -> None:
        """`what` is the part of the step that differs; `found` is a line with the gist, then the details."""
        super().__init__("\n    ".join([f"step {step}, {what}: {found[0]}", *found[1:]]))
        self.step = step


def differences(
    expected: Sequence[Mapping[str, Any]], actual: Sequence[Mapping[str, Any]], dropped: int, dead: list[RowDeadLetter]
) -> list[str]:
    """The panes that are missing and those that nothing expects: a line with their numbers, then a line for each.

    It is empty if there are none. Elements that were dropped and those that became dead letters are then named too.
    """
    matched = match(expected, actual)
    missing = [pane for number, pane in enumerate(expected) if number not in matched]
    extra = [pane for number, pane in enumerate(actual) if number not in matched.values()]
    if not missing and not extra:
        return []
    counts = ((len(missing), "missing"), (len(extra), "unexpected"))
    lines = [", ".join(f"{many} {how}" for many, how in counts if many)]
    for wanted in missing:
        lines.append(f"missing pane    {written(wanted)}")
        near = min(extra, key=lambda pane: len(_differing(wanted, pane)), default=None)
        differing = [] if near is None else _differing(wanted, near)
        if near is not None and len(differing) <= 2:
            lines += [f"  expected {key}: {_text(wanted[key])}, got {_text(near[key])}" for key in differing]
    lines += [f"unexpected pane {written(pane)}" for pane in extra]
    if dropped and missing:
        lines.append(f"{dropped} elements were dropped: they were too late, or the trigger had finished")
    if dead:
        lines.append(f"{len(dead)} elements became dead letters; the reason of the first: {dead[0].reason}")
    return lines


def match(expected: Sequence[Mapping[str, Any]], actual: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """A maximum matching of expectations to panes: the pane of each expectation.

    An expectation that leaves attributes out may fit several panes, so the matching grows along shortest augmenting
    paths.
    """
    fits = [[pane for pane, got in enumerate(actual) if not _differing(wanted, got)] for wanted in expected]
    holder: dict[int, int] = {}
    held: dict[int, int] = {}
    for start in range(len(expected)):
        came_from: dict[int, int] = {}
        waiting, free = deque([start]), None
        while waiting and free is None:
            wanted = waiting.popleft()
            for pane in fits[wanted]:
                if pane not in came_from:
                    came_from[pane] = wanted
                    if pane not in holder:
                        free = pane
                        break
                    waiting.append(holder[pane])
        while free is not None:
            wanted = came_from[free]
            before = held.get(wanted)
            holder[free], held[wanted] = wanted, free
            free = before if wanted != start else None
    return held


def _differing(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    return [
        key for key, value in wanted.items() if not (value == got[key] if key == "window" else _equal(value, got[key]))
    ]


def _equal(wanted: Any, got: Any) -> bool:
    if isinstance(got, datetime):
        got = to_instant(got) / SECOND
    if isinstance(wanted, bool) or isinstance(got, bool):
        return wanted is got
    if isinstance(wanted, int) and isinstance(got, int):
        return wanted == got
    if isinstance(wanted, int | float) and isinstance(got, int | float):
        return wanted == got or math.isclose(wanted, got, rel_tol=1e-9) or (math.isnan(wanted) and math.isnan(got))
    if isinstance(wanted, list) and isinstance(got, list):
        return len(wanted) == len(got) and all(map(_equal, wanted, got))
    if isinstance(wanted, Mapping) and isinstance(got, Mapping):
        return wanted.keys() == got.keys() and all(_equal(wanted[key], got[key]) for key in wanted)
    return bool(wanted == got)


def attributes(pane: Pane, query: Query) -> dict[str, Any]:
    """The attributes of a pane in the notation of transcripts; the keys have the names of their columns."""
    if isinstance(query.windowing, CountWindow):
        bounds: list[float] = [pane.window.start, pane.window.end]
    else:
        bounds = [seconds(pane.window.start), seconds(pane.window.end)]
    return {
        "window": bounds,
        "diff": pane.diff,
        "timing": str(pane.timing),
        "index": pane.index,
        "last": pane.last,
        **dict(zip(query.keys, pane.key, strict=True)),
        **pane.values,
    }


def seconds(instant: int) -> float:
    """An instant in seconds; the bounds of the global window are infinite."""
    if instant <= GLOBAL_WINDOW.start:
        return -math.inf
    if instant >= GLOBAL_WINDOW.end:
        return math.inf
    return instant // SECOND if instant % SECOND == 0 else instant / SECOND


def written(pane: Mapping[str, Any]) -> str:
    """A pane in the notation of transcripts."""
    order = [key for key in PANE[:2] if key in pane]
    order += [key for key in pane if key not in PANE]
    order += [key for key in PANE[2:] if key in pane]
    return "{" + ", ".join(f"{key}: {_text(pane[key])}" for key in order) + "}"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return str(value)
