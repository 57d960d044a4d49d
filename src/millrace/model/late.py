"""The dead letters of what is too late, with `late="keep"`: for all windows of a query, rule 2, or for a join."""

from dataclasses import dataclass

from millrace.model.duration import format_duration, to_datetime
from millrace.model.joining import JoinSpec
from millrace.model.query import Query
from millrace.model.stream import sources

_HOW = "a record that is sent again is too late again"
_REPLAY = "raise lateness= of window() and run millrace replay"


@dataclass(frozen=True, slots=True)
class TooLate:
    """Why an element was dropped, and what to do about its record."""

    problem: str
    """The reason without the times of the record."""
    reason: str
    hint: str


def too_late(query: Query, end: int, watermark: int, output: str | None = None) -> TooLate:
    """The dead letter of an element whose last window ended at `end`, for a watermark of which it expired.

    The output is named if it is known.
    """
    problem = f"too late for every window{'' if output is None else f' of {output}'}"
    by = format_duration(watermark - end - query.lateness)
    times = f"its last window ended {_written(end)}, and the watermark was {_written(watermark)}"
    lateness = f", with a lateness of {format_duration(query.lateness)}" if query.lateness else ""
    return TooLate(problem, f"{problem}, by {by}: {times}{lateness}", _hint(query))


def late_for_join(spec: JoinSpec, side: int, at: int, watermark: int) -> TooLate:
    """The dead letter of a row of a side of a join that was late by the watermark of its side: rule 14 of stages."""
    problem = f"too late for the {('left', 'right')[side]} side of the join on {', '.join(spec.on)}"
    by = format_duration(watermark - at - spec.lateness[side])
    times = f"its event time is {_written(at)}, and the watermark of the side was {_written(watermark)}"
    lateness = f", with a lateness of {format_duration(spec.lateness[side])}" if spec.lateness[side] else ""
    hint = f"{_HOW}: raise lateness= of join() and run millrace replay"
    return TooLate(problem, f"{problem}, by {by}: {times}{lateness}", hint)


def _hint(query: Query) -> str:
    column = "" if query.timed_by is None else query.timed_by.column
    if any(column in source.schema for source in sources(query.stream)):
        return f"{_HOW}: correct its time first (millrace dead fix --set {column}=...), or {_REPLAY}"
    return f"{_HOW}: {_REPLAY}"


def _written(instant: int) -> str:
    try:
        return f"{to_datetime(instant):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return "the end of time"
