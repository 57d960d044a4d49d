"""Running transcripts: drive an engine through the steps and compare what it says."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from millrace.model.duration import SECOND, to_instant
from millrace.model.errors import ModelError
from millrace.model.pane import Pane
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.model.window import GLOBAL_WINDOW, Count
from millrace.testing.transcript import (
    PANE,
    Clock,
    Document,
    Dropped,
    Expect,
    Input,
    Transcript,
    Watermark,
    WatermarkIs,
    parse_transcript,
)


class Engine(Protocol):
    """What a transcript can be run against; `Reference` says what the members mean."""

    dropped: int

    def input(self, rows: Iterable[Mapping[str, Any]]) -> list[Pane]: ...  # noqa: D102
    def watermark(self, at: int) -> list[Pane]: ...  # noqa: D102
    def clock(self, now: int) -> list[Pane]: ...  # noqa: D102
    def advance(self, now: int) -> list[Pane]: ...  # noqa: D102
    @property
    def event_time(self) -> int: ...  # noqa: D102


ENGINES: dict[str, Callable[[Query], Engine]] = {"reference": Reference}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a document says what is true, and what is wrong if it does not."""

    document: Document
    failure: str | None

    @property
    def passed(self) -> bool:
        """Whether all went as the document says."""
        return self.failure is None


class _DifferenceError(Exception):
    """What an engine said is not what the transcript says."""


def check(document: Document, engine: str = "reference") -> Verdict:
    """Run one document. A document with `error:` passes if it fails with that message."""
    try:
        _run(parse_transcript(document), ENGINES[engine])
        failure = None
    except ModelError as error:
        failure = error.message
    except _DifferenceError as difference:
        failure = str(difference)
    if document.error is None:
        return Verdict(document, failure)
    if failure is None:
        return Verdict(document, f"it should fail with {document.error!r}, but passes")
    try:
        found = re.search(document.error, failure)
    except re.error:
        return Verdict(document, failure)
    return Verdict(document, None if found else f"it should fail with {document.error!r}, but fails with: {failure}")


def _run(transcript: Transcript, start: Callable[[Query], Engine]) -> None:
    engine = start(transcript.query)
    panes: list[Pane] = []
    now = 0
    for number, step in enumerate(transcript.steps, 1):
        match step:
            case Input(rows):
                panes += engine.input(rows)
                if transcript.derived:
                    panes += engine.advance(now)
            case Watermark(at):
                panes += engine.watermark(at)
            case Clock(at):
                now = max(now, at)
                panes += engine.advance(now) if transcript.derived else engine.clock(now)
            case Expect(expected):
                _compare(number, "expect", transcript.query, expected, panes)
                panes = []
            case Dropped(count):
                if engine.dropped != count:
                    raise _DifferenceError(f"step {number}, dropped: expected {count}, got {engine.dropped}")
            case WatermarkIs(at):
                if engine.event_time != at:
                    got = _seconds(engine.event_time)
                    raise _DifferenceError(f"step {number}, watermark_is: expected {_seconds(at)}, got {got}")
    _compare(len(transcript.steps), "the end", transcript.query, (), panes)


def _compare(step: int, what: str, query: Query, expected: tuple[Mapping[str, Any], ...], panes: list[Pane]) -> None:
    said = [_attributes(pane, query) for pane in panes]
    matched = _match(expected, said)
    missing = [pane for number, pane in enumerate(expected) if number not in matched]
    extra = [pane for number, pane in enumerate(said) if number not in matched.values()]
    if not missing and not extra:
        return
    lines = [f"step {step}, {what}: {len(missing)} missing, {len(extra)} unexpected"]
    for wanted in missing:
        near = min(extra, key=lambda pane: len(_differing(wanted, pane)), default=None)
        lines.append(f"missing pane    {_written(wanted)}")
        if near is not None and len(_differing(wanted, near)) <= 2:
            lines += [
                f"  expected {key}: {_text(wanted[key])}, got {_text(near[key])}" for key in _differing(wanted, near)
            ]
    lines += [f"unexpected pane {_written(pane)}" for pane in extra]
    raise _DifferenceError("\n    ".join(lines))


def _match(expected: tuple[Mapping[str, Any], ...], said: list[dict[str, Any]]) -> dict[int, int]:
    """Give as many expectations as possible a pane of their own.

    An expectation that leaves attributes out may fit several panes, so one that is in the way of
    another is moved to another of its panes, as in any matching of two sides.
    """
    holder: dict[int, int] = {}

    def settle(wanted: int, tried: set[int]) -> bool:
        for pane in range(len(said)):
            if pane not in tried and not _differing(expected[wanted], said[pane]):
                tried.add(pane)
                if pane not in holder or settle(holder[pane], tried):
                    holder[pane] = wanted
                    return True
        return False

    for number in range(len(expected)):
        settle(number, set())
    return {wanted: pane for pane, wanted in holder.items()}


def _differing(wanted: Mapping[str, Any], said: Mapping[str, Any]) -> list[str]:
    return [key for key, value in wanted.items() if not _equal(value, said[key])]


def _equal(wanted: Any, said: Any) -> bool:
    if isinstance(said, datetime):
        said = to_instant(said) / SECOND
    if isinstance(wanted, bool) or isinstance(said, bool):
        return wanted is said
    if isinstance(wanted, int | float) and isinstance(said, int | float):
        return wanted == said or math.isclose(wanted, said, rel_tol=1e-9) or (math.isnan(wanted) and math.isnan(said))
    if isinstance(wanted, list) and isinstance(said, list):
        return len(wanted) == len(said) and all(map(_equal, wanted, said))
    if isinstance(wanted, Mapping) and isinstance(said, Mapping):
        return wanted.keys() == said.keys() and all(_equal(wanted[key], said[key]) for key in wanted)
    return bool(wanted == said)


def _attributes(pane: Pane, query: Query) -> dict[str, Any]:
    """A pane as transcripts write it."""
    if isinstance(query.windowing, Count):
        bounds: list[float] = [pane.window.start, pane.window.end]
    else:
        bounds = [_seconds(pane.window.start), _seconds(pane.window.end)]
    (key,) = pane.key
    return {
        "k": key,
        "window": bounds,
        **pane.values,
        "diff": pane.diff,
        "timing": str(pane.timing),
        "index": pane.index,
        "last": pane.last,
    }


def _seconds(instant: int) -> float:
    if instant <= GLOBAL_WINDOW.start:
        return -math.inf
    if instant >= GLOBAL_WINDOW.end:
        return math.inf
    return instant // SECOND if instant % SECOND == 0 else instant / SECOND


def _written(pane: Mapping[str, Any]) -> str:
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
