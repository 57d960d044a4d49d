"""A stream split at its `dedup()`: the part that edges run, and the part that one shard runs.

Rows with equal keys must meet in one place to be told apart. So the edge ends at the dedup, and one shard runs the
dedup and everything after it. `panes.seen` holds the keys that were seen.
"""

from dataclasses import dataclass, replace

from millrace.formats.sql import CannotFuseError
from millrace.model.query import Query
from millrace.model.stream import (
    Dedup,
    EventTime,
    Join,
    Source,
    Stream,
    Union,
    find_event_time,
    is_guarded,
    parents,
    with_parents,
)


@dataclass(frozen=True, slots=True)
class DedupSplit:
    """Both parts of a stream."""

    above: Stream
    """The stream before the dedup."""
    dedup: Dedup
    below: Query | Stream
    """The computation after the dedup; it reads `source`."""
    source: Source

    @property
    def is_timed_above(self) -> bool:
        """Whether event time is assigned before the dedup, so that duplicates advance the watermark too."""
        return find_event_time(self.above) is not None

    @property
    def needs_log_times(self) -> bool:
        """Whether the rows need the log times of their records after the dedup."""
        return is_guarded(self.below.stream if isinstance(self.below, Query) else self.below)


def split_at_dedup(of: Query | Stream) -> DedupSplit | None:
    """Split a query or a stream; None if it has no dedup. Raises CannotFuseError if it cannot be split."""
    stream = of.stream if isinstance(of, Query) else of
    many = _count(stream)
    if not many:
        return None
    if many > 1:
        raise CannotFuseError("a shard can run only one dedup()")
    dedup = _find(stream)
    source = Source("dedup", "rows after dedup", dedup.schema, place=dedup.place)
    timed = find_event_time(dedup.parent)
    base: Stream = source
    if isinstance(timed, EventTime):  # a source of rows has no other
        base = EventTime(source, timed.column, timed.estimator, None, dedup.schema, timed.place)
    rest = _replaced(stream, dedup, base)
    return DedupSplit(dedup.parent, dedup, replace(of, stream=rest) if isinstance(of, Query) else rest, source)


def has_dedup(stream: Stream) -> bool:
    """Whether a stream drops duplicates."""
    return _count(stream) > 0


def _count(stream: Stream) -> int:
    return isinstance(stream, Dedup) + sum(map(_count, parents(stream)))


def _find(stream: Stream) -> Dedup:
    if isinstance(stream, Dedup):
        return stream
    if isinstance(stream, Union):
        raise CannotFuseError("only one side of a union has a dedup()")
    if isinstance(stream, Join) and not stream.table.rows:
        raise CannotFuseError("a table that may change is joined after dedup(); join it before dedup()")
    return _find(*parents(stream))


def _replaced(stream: Stream, dedup: Dedup, base: Stream) -> Stream:
    """The stream with the dedup, and everything before it, replaced by another."""
    if stream is dedup:
        return base
    return with_parents(stream, [_replaced(parent, dedup, base) for parent in parents(stream)])
