"""A stream with a `dedup()` in two parts: what the edge does before it, and what is left to do with rows that stay.

Rows with one key must meet in one place to be told apart, so the edge ends where the dedup is, and one shard does the
dedup and all that comes after it.
"""

from dataclasses import dataclass, replace

from millrace.formats.sql import CannotFuseError
from millrace.model.query import Query
from millrace.model.stream import (
    Dedup,
    EventTime,
    Join,
    Select,
    Source,
    Stream,
    Union,
    Where,
    WithColumns,
    find_event_time,
    parents,
)


@dataclass(frozen=True, slots=True)
class Deduped:
    """Both parts."""

    above: Stream
    """What comes before: the rows that are looked at."""
    dedup: Dedup
    below: Query | Stream
    """What comes after, of `source`."""
    source: Source

    @property
    def is_timed_above(self) -> bool:
        """Whether event time is told before; if so, also by rows that do not stay."""
        return find_event_time(self.above) is not None


def deduped(of: Query | Stream) -> Deduped | None:
    """The parts of a query or a stream; None if it has no dedup. Raises CannotFuseError if it cannot be parted."""
    stream = of.stream if isinstance(of, Query) else of
    many = _count(stream)
    if not many:
        return None
    if many > 1:
        raise CannotFuseError("only one dedup() can be done in a shard")
    dedup = _on_the_way(stream)
    source = Source("dedup", "rows after dedup", dedup.schema, place=dedup.place)
    timed = find_event_time(dedup.parent)
    base: Stream = source
    if timed is not None:
        base = EventTime(source, timed.column, timed.estimator, dedup.schema, timed.place)
    rest = _with(stream, base)
    return Deduped(dedup.parent, dedup, replace(of, stream=rest) if isinstance(of, Query) else rest, source)


def _count(stream: Stream) -> int:
    return isinstance(stream, Dedup) + sum(map(_count, parents(stream)))


def _on_the_way(stream: Stream) -> Dedup:
    if isinstance(stream, Dedup):
        return stream
    if isinstance(stream, Union):
        raise CannotFuseError("dedup() on one side of a union")
    if isinstance(stream, Join) and not stream.table.rows:
        raise CannotFuseError("a table that may change is joined after dedup(); join it before")
    return _on_the_way(*parents(stream))


def _with(stream: Stream, base: Stream) -> Stream:
    """The stream with the dedup, and all before it, replaced."""
    match stream:
        case Dedup():
            return base
        case Where() | Select() | WithColumns() | Join() | EventTime():
            return replace(stream, parent=_with(stream.parent, base))
    raise TypeError(f"{type(stream).__name__} does not come after a dedup")
