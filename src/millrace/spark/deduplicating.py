"""Dedup in a shard: drops repeated rows that the edge sent, and runs the later operators on the rows that it keeps."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.model.stream import find_event_time, sources
from millrace.model.watermark import Seen
from millrace.panes.advance import PaneState
from millrace.panes.seen import first_seen
from millrace.panes.store import stack
from millrace.plan.compile import stage_of
from millrace.plan.dedup import DedupSplit
from millrace.sources.bundle import LOGGED, Bundle
from millrace.spark.task import Reading, Sent


@dataclass(frozen=True, slots=True)
class Passed:
    """The result of a dedup over the rows of one micro-batch."""

    state: PaneState
    tables: list[pa.Table]
    """Partials; for a plain stream, its rows."""
    seen: Seen | None
    """The event times of the rows kept; None if event time was assigned before the dedup."""
    letters: list[dict[str, Any]]


class Deduplicating:
    """The dedup of an output and the operators after it, compiled."""

    def __init__(self, name: str, split: DedupSplit, is_read: bool = False) -> None:
        """Compile the operators after the dedup, of a stage that others read or do not."""
        self._split = split
        named = ", ".join(source.name for source in sources(split.above))
        self._reading = Reading([(0, stage_of(name, split.below, is_read=is_read))], split.source, {}, named)

    def take(self, state: PaneState, sent: Sequence[pa.Table]) -> Passed:
        """Process the rows that tasks sent, in order."""
        if not sent:
            return Passed(state, [], None if self._split.is_timed_above else Seen(), [])
        rows = stack(sent)
        dedup = self._split.dedup
        timed = find_event_time(self._split.above)
        at = np.zeros(len(rows), np.int64) if timed is None else rows[timed.column].cast(pa.int64()).to_numpy()
        keys = [rows[name].combine_chunks() for name in dedup.by]
        seen, first = first_seen(state.seen, keys, at, dedup.within, state.watermark)
        made = Sent()
        kept = _Kept(rows.take(pa.array(first)))
        # The rows have lost the offsets of their records.
        taken = self._reading.take(kept.read(), kept, {0: made}, state.now, {0: state.watermark})
        letters = [{**letter, "offset": None} for letter in taken]
        told = None if self._split.is_timed_above else made.seen.get(0, Seen())
        return Passed(replace(state, seen=seen), made.rows, told, letters)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The rows kept, as a split, so that rows that fail later become dead letters."""

    rows: pa.Table

    @property
    def size(self) -> int:
        return int(self.rows.nbytes)

    def read(self, wanted: Container[str] | None = None) -> Bundle:
        if LOGGED not in self.rows.column_names:
            return Bundle("rows after dedup", np.arange(len(self.rows)), rows=self.rows)
        rows, logged = self.rows.drop_columns([LOGGED]), self.rows[LOGGED].to_numpy()
        return Bundle("rows after dedup", np.arange(len(rows)), rows=rows, logged=logged)
