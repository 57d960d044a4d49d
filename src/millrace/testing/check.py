"""Runs transcripts: drives an engine through the steps and compares its panes."""

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from millrace.model.clock import after_step
from millrace.model.duration import SECOND, to_instant
from millrace.model.errors import MillraceError
from millrace.model.pane import Pane
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.model.window import GLOBAL_WINDOW, CountWindow
from millrace.testing.engines import ENGINES, Engine
from millrace.testing.transcript import (
    PANE,
    ClockStep,
    Document,
    Dropped,
    Expect,
    InputStep,
    Transcript,
    WatermarkIs,
    WatermarkStep,
    parse_transcript,
)

BATCH = "spark-batch"
"""The engine that reads all input at once; it is compared with the reference's batch."""
STREAM = "spark-stream"
"""The engine that runs every step as a micro-batch; all documents run together, as one pipeline."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a document: passed, or the failure."""

    document: Document
    failure: str | None
    line: int = 1
    """The line of the failing step, or of the document."""

    @property
    def passed(self) -> bool:
        """Whether the document has no failure."""
        return self.failure is None


class _DifferenceError(Exception):
    """The output of an engine differs from the transcript."""

    def __init__(self, step: int, what: str, found: list[str]) -> None:
        """`what` is the part of the step that differs; `found` is a line with the gist, then the details."""
        super().__init__("\n    ".join([f"step {step}, {what}: {found[0]}", *found[1:]]))
        self.step = step


def check_all(documents: Sequence[Document], engine: str) -> Iterator[Verdict]:
    """Check several documents."""
    ran = _on_spark(documents, engine) if engine in (BATCH, STREAM) else {}
    for number, document in enumerate(documents):
        yield _verdict(document, *_failure(document, engine, ran.get(number)))


def check(document: Document, engine: str = "reference") -> Verdict:
    """Check one document. A document with `error:` passes if it fails with that message."""
    return next(check_all([document], engine))


def _on_spark(documents: Sequence[Document], engine: str) -> dict[int, Engine | list[str] | Exception]:
    """Spark's results for each document that parses, all run together: an engine, the differences, or an error."""
    from millrace.testing.spark_batch import differences  # these start Spark, which the other engines do not need
    from millrace.testing.stream import record

    transcripts = {}
    for number, document in enumerate(documents):
        # A document that must fail is not run on Spark; the reference checks that it fails.
        if document.error is None:
            with suppress(MillraceError):  # the check of the document reports the error
                transcripts[number] = parse_transcript(document)
    run: Callable[..., Sequence[Any]] = record if engine == STREAM else differences
    return dict(zip(transcripts, run(list(transcripts.values())) if transcripts else (), strict=True))


def _verdict(document: Document, failure: str | None, line: int) -> Verdict:
    if document.error is None:
        return Verdict(document, failure, line)
    if failure is None:
        return Verdict(document, f"it must fail with {document.error!r}, but it passes", document.line)
    try:
        match = re.search(document.error, failure)
    except (re.error, OverflowError, RecursionError):
        return Verdict(document, failure, line)
    difference = f"it must fail with {document.error!r}, but it fails with: {failure}"
    return Verdict(document, None if match else difference, line)


def _failure(document: Document, engine: str, ran: Engine | list[str] | Exception | None) -> tuple[str | None, int]:
    """The failure, if any, and its line."""
    try:
        transcript = parse_transcript(document)
        if isinstance(ran, Exception):
            raise ran
        if isinstance(ran, list):
            _compare_batch(transcript, ran)
        else:
            _run(transcript, ran or ENGINES.get(engine, Reference)(transcript.query))
    except MillraceError as error:
        return error.message, document.line
    except _DifferenceError as difference:
        return str(difference), document.step_line(difference.step)
    except Exception as error:
        # A document that crashes an engine must not stop the check of the others.
        return f"the {engine} engine fails with {type(error).__name__}: {str(error) or 'no message'}", document.line
    return None, document.line


def _compare_batch(transcript: Transcript, differing: list[str]) -> None:
    if differing:
        lines = ["the answers differ from those of the reference", *differing]
        raise _DifferenceError(len(transcript.steps), "the batch of all input", lines)


def _run(transcript: Transcript, engine: Engine) -> None:
    panes: list[Pane] = []
    now = 0
    for number, step in enumerate(transcript.steps, 1):
        match step:
            case InputStep(rows):
                panes += engine.input(rows)
                if transcript.derived:
                    panes += engine.advance(now)
            case WatermarkStep(at):
                panes += engine.watermark(at)
            case ClockStep(at):
                now = after_step(now, at)
                panes += engine.advance(now) if transcript.derived else engine.clock(now)
            case Expect(expected):
                _compare(number, "expect", transcript.query, expected, panes, engine)
                panes = []
            case Dropped(count):
                if engine.dropped != count:
                    raise _DifferenceError(number, "dropped", [f"expected {count}, got {engine.dropped}"])
            case WatermarkIs(at):
                if engine.event_time != at:
                    difference = f"expected {_seconds(at)}, got {_seconds(engine.event_time)}"
                    raise _DifferenceError(number, "watermark_is", [difference])
    _compare(len(transcript.steps), "the end", transcript.query, (), panes, engine)


def _compare(
    step: int, what: str, query: Query, expected: tuple[Mapping[str, Any], ...], panes: list[Pane], engine: Engine
) -> None:
    actual = [_attributes(pane, query) for pane in panes]
    matched = _match(expected, actual)
    missing = [pane for number, pane in enumerate(expected) if number not in matched]
    extra = [pane for number, pane in enumerate(actual) if number not in matched.values()]
    if not missing and not extra:
        return
    counts = ((len(missing), "missing"), (len(extra), "unexpected"))
    lines = [", ".join(f"{many} {how}" for many, how in counts if many)]
    for wanted in missing:
        lines.append(f"missing pane    {_written(wanted)}")
        near = min(extra, key=lambda pane: len(_differing(wanted, pane)), default=None)
        differing = [] if near is None else _differing(wanted, near)
        if near is not None and len(differing) <= 2:
            lines += [f"  expected {key}: {_text(wanted[key])}, got {_text(near[key])}" for key in differing]
    lines += [f"unexpected pane {_written(pane)}" for pane in extra]
    if engine.dropped and missing:
        lines.append(f"{engine.dropped} elements were dropped: they were too late, or the trigger had finished")
    if engine.dead:
        lines.append(
            f"{len(engine.dead)} elements became dead letters; the reason of the first: {engine.dead[0].reason}"
        )
    raise _DifferenceError(step, what, lines)


def _match(expected: tuple[Mapping[str, Any], ...], actual: list[dict[str, Any]]) -> dict[int, int]:
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


def _attributes(pane: Pane, query: Query) -> dict[str, Any]:
    """The attributes of a pane in the notation of transcripts."""
    if isinstance(query.windowing, CountWindow):
        bounds: list[float] = [pane.window.start, pane.window.end]
    else:
        bounds = [_seconds(pane.window.start), _seconds(pane.window.end)]
    (key,) = pane.key
    return {
        "k": key,
        "window": bounds,
        "diff": pane.diff,
        "timing": str(pane.timing),
        "index": pane.index,
        "last": pane.last,
        **pane.values,
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
