"""The input of a test: rows of sources, contents of tables, watermarks and the clock, in order.

    script = (
        Script()
        .rows("plays", {"user": "ann", "track": "A", "at": "2026-01-01T12:00:05Z"})
        .clock("10s")
        .watermark("2026-01-01T13:00:00Z")
        .end()
    )

A script is a value: each method returns a longer one. Every step stores its place in the test.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from millrace.model.duration import (
    BEGINNING_OF_TIME,
    END_OF_TIME,
    Duration,
    parse_positive,
    to_datetime,
    to_instant,
)
from millrace.model.errors import Place, caller, refuse, shown
from millrace.model.window import Row

Time: TypeAlias = datetime | str
"""A point in time: a datetime or an ISO 8601 string. Without a zone, it is in UTC."""

Record: TypeAlias = Row | str
"""A row of a source. For a source of JSON records, it may also be the text of a record."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Records of one source arrive, together, as one bundle."""

    source: str
    records: tuple[Record, ...]
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Contents:
    """From now on a table holds these rows."""

    table: str
    rows: tuple[Row, ...]
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ScriptMark:
    """The watermark advances to an instant; END_OF_TIME ends the input."""

    at: int
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Tick:
    """The clock advances to an instant."""

    now: int
    place: Place = field(compare=False, repr=False)


Step: TypeAlias = Arrival | Contents | ScriptMark | Tick


@dataclass(frozen=True, slots=True)
class Script:
    """The steps of a test. The clock starts at `start`; the default is 1970-01-01T00:00:00Z."""

    start: Time | None = None
    steps: tuple[Step, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a start that is not a time."""
        if self.start is not None:
            object.__setattr__(self, "start", to_datetime(_instant(self.start, "start=")))

    def rows(self, source: str, /, *rows: Record) -> "Script":
        """Rows arrive at a source, as one bundle: one micro-batch.

        The watermark then advances by the policy of the pipeline. Rows of JSON sources, `log(...)` and
        `files(...)`, are decoded as in a running pipeline, and may be given as text.
        """
        name = _name(source, "rows", "source")
        if not rows:
            raise refuse(f"rows({name!r}) has no rows")
        return self._with(Arrival(name, tuple(_record(row, f"rows({name!r}, ...)") for row in rows), caller()))

    def table(self, name: str, /, *rows: Row) -> "Script":
        """From now on a table that is read from a file or from a view holds these rows, and no others."""
        _name(name, "table", "table")
        for row in rows:
            if isinstance(row, str):
                raise refuse(f"table({name!r}, ...) takes rows, each a dict of columns, not {shown(row)}")
        return self._with(Contents(name, tuple(_copied(row, f"table({name!r}, ...)") for row in rows), caller()))

    def watermark(self, at: Time) -> "Script":
        """The watermark advances to `at` in every view and sink that is not past it."""
        instant = _instant(at, "watermark()")
        if instant < self._mark:
            raise refuse(f"the watermark cannot go back from {_iso(self._mark)} to {_iso(instant)}")
        return self._with(ScriptMark(instant, caller()))

    def clock(self, time: Time | Duration) -> "Script":
        """Processing time advances: by a duration such as `"10s"`, or to a point in time."""
        now = self.now
        if isinstance(time, timedelta) or (isinstance(time, str) and parsed_time(time) is None):
            then = now + parse_positive(time, "clock()")  # refuses text that is neither
        else:
            then = _instant(time, "clock()")
        if then <= now:
            raise refuse(f"the clock must advance: it is at {_iso(now)}, and clock() sets it to {_iso(then)}")
        return self._with(Tick(then, caller()))

    def end(self) -> "Script":
        """The input is over: every window closes and expires."""
        return self._with(ScriptMark(END_OF_TIME, caller()))

    @property
    def now(self) -> int:
        """The clock after all steps, in microseconds."""
        return next((step.now for step in reversed(self.steps) if isinstance(step, Tick)), self.started)

    @property
    def started(self) -> int:
        """The clock at the start, in microseconds."""
        return 0 if self.start is None else to_instant(self.start)

    @property
    def _mark(self) -> int:
        return next((step.at for step in reversed(self.steps) if isinstance(step, ScriptMark)), BEGINNING_OF_TIME)

    def _with(self, step: Step) -> "Script":
        if self._mark == END_OF_TIME:
            raise refuse("no step can follow end()")
        return replace(self, steps=(*self.steps, step))


def _record(row: object, where: str) -> Record:
    return row if isinstance(row, str) else _copied(row, where)


def _copied(row: object, where: str) -> Row:
    """A copy, so that the test may reuse its dict."""
    if not isinstance(row, Mapping):
        advice = "pass each row as an argument of its own, as with *rows" if isinstance(row, list | tuple) else None
        raise refuse(f"{where}: a row must be a dict of columns, not {shown(row)}", advice=advice)
    return dict(row)


def _name(name: object, method: str, what: str) -> str:
    if not isinstance(name, str):
        raise refuse(f"the first argument of {method}() must be the name of a {what}, not {shown(name)}")
    return name


def _instant(value: object, where: str) -> int:
    """Microseconds of a point in time."""
    instant = value if isinstance(value, datetime) else parsed_time(value)
    if instant is None:
        raise refuse(f"{where} takes a datetime or a time like '2026-01-01T13:00:00Z', not {shown(value)}")
    return to_instant(instant)


def parsed_time(value: object) -> datetime | None:
    """An ISO 8601 string as a datetime in UTC; None if the value is not such a string."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _iso(instant: int) -> str:
    return to_datetime(instant).isoformat()
