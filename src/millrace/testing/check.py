"""Runs transcripts: drives an engine through the steps and compares its panes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from millrace.model.clock import after_step
from millrace.model.errors import MillraceError
from millrace.model.pane import Pane
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.testing.engines import ENGINES, Engine
from millrace.testing.matching import DifferenceError, attributes, differences, seconds
from millrace.testing.stage_run import STAGES_ENGINES, run_stages
from millrace.testing.stage_steps import StagesTranscript, has_stages, parse_stages_transcript
from millrace.testing.transcript import (
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


def check_all(documents: Sequence[Document], engine: str) -> Iterator[Verdict]:
    """Check several documents."""
    ran = _on_spark(documents, engine) if engine in (BATCH, STREAM) else {}
    for number, document in enumerate(documents):
        yield _verdict(document, *_failure(document, engine, ran.get(number)))


def check(document: Document, engine: str = "reference") -> Verdict:
    """Check one document. A document with `error:` passes if it fails with that message."""
    return next(check_all([document], engine))


def _on_spark(documents: Sequence[Document], engine: str) -> dict[int, Any]:
    """Spark's results for each document that parses, all run together: an engine, the differences, or an error."""
    # These start Spark, which the other engines do not need.
    from millrace.testing.spark_batch import differences
    from millrace.testing.stages_on_spark import batch_differences, record_stages
    from millrace.testing.stream import record

    queries: dict[int, Transcript] = {}
    graphs: dict[int, StagesTranscript] = {}
    for number, document in enumerate(documents):
        # A document that must fail is not run on Spark; the reference checks that it fails.
        if document.error is None:
            with suppress(MillraceError):  # the check of the document reports the error
                if has_stages(document):
                    graphs[number] = parse_stages_transcript(document)
                else:
                    queries[number] = parse_transcript(document)
    is_stream = engine == STREAM
    ran: dict[int, Any] = {}
    if queries:
        results: Sequence[Any] = (record if is_stream else differences)(list(queries.values()))
        ran |= zip(queries, results, strict=True)
    if graphs:
        results = (record_stages if is_stream else batch_differences)(list(graphs.values()))
        ran |= zip(graphs, results, strict=True)
    return ran


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


def _failure(document: Document, engine: str, ran: Any) -> tuple[str | None, int]:
    """The failure, if any, and its line."""
    try:
        if has_stages(document):
            _run_stages(document, engine, ran)
            return None, document.line
        transcript = parse_transcript(document)
        if isinstance(ran, Exception):
            raise ran
        if isinstance(ran, list):
            _compare_batch(transcript, ran)
        else:
            _run(transcript, ran or ENGINES.get(engine, Reference)(transcript.query))
    except MillraceError as error:
        return error.message, document.line
    except DifferenceError as difference:
        return str(difference), document.step_line(difference.step)
    except Exception as error:
        # A document that crashes an engine must not stop the check of the others.
        return f"the {engine} engine fails with {type(error).__name__}: {str(error) or 'no message'}", document.line
    return None, document.line


def _run_stages(document: Document, engine: str, ran: Any) -> None:
    """Run a document with stages; one that must fail runs on the reference if the engine is Spark."""
    transcript = parse_stages_transcript(document)
    if isinstance(ran, Exception):
        raise ran
    if isinstance(ran, list):
        _compare_batch(transcript, ran)
    else:
        run_stages(transcript, ran or STAGES_ENGINES.get(engine, STAGES_ENGINES["reference"])(transcript))


def _compare_batch(transcript: Transcript | StagesTranscript, differing: list[str]) -> None:
    if differing:
        lines = ["the answers differ from those of the reference", *differing]
        raise DifferenceError(len(transcript.steps), "the batch of all input", lines)


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
                    raise DifferenceError(number, "dropped", [f"expected {count}, got {engine.dropped}"])
            case WatermarkIs(at):
                if engine.event_time != at:
                    difference = f"expected {seconds(at)}, got {seconds(engine.event_time)}"
                    raise DifferenceError(number, "watermark_is", [difference])
    _compare(len(transcript.steps), "the end", transcript.query, (), panes, engine)


def _compare(
    step: int, what: str, query: Query, expected: tuple[Mapping[str, Any], ...], panes: list[Pane], engine: Engine
) -> None:
    found = differences(expected, [attributes(pane, query) for pane in panes], engine.dropped, engine.dead)
    if found:
        raise DifferenceError(step, what, found)
