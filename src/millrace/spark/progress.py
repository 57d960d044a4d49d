"""The progress of a pipeline: one event for each micro-batch, with its input, answers, state and durations."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from millrace.model.duration import BEGINNING_OF_TIME, SECOND, format_duration
from millrace.sources.arrived import Latency
from millrace.sources.looked import Looked


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The status of one output in one shard after a micro-batch."""

    stage: int
    watermark: int
    now: int
    groups: int
    """The number of open (key, window) groups."""
    bytes: int
    dropped: int
    """Elements dropped because they were too late, since the start."""
    spent: float
    """The CPU seconds that the micro-batch took."""
    errors: int = 0
    """Answers that have no value, since the start."""
    back: int = 0
    """The microseconds by which the clock went back."""
    due: int | None = None
    """The next instant of processing time at which it may answer without input; None if there is none."""
    elements: int = 0
    """The elements of the micro-batch, with those that were too late."""
    late: int = 0
    """The elements of the micro-batch that were dropped because they were too late."""


@dataclass(frozen=True, slots=True)
class PartProgress:
    """The progress of one output after a micro-batch."""

    watermark: int | None
    """In microseconds; None until an event time is known."""
    lag: int | None
    """The microseconds by which the watermark is behind the clock."""
    groups: int
    """The number of open (key, window) groups, over all shards."""
    bytes: int
    """The size of the state in memory."""
    dropped: int
    """Elements dropped because they were too late, since the start."""
    answers: int
    """The rows that this micro-batch answered."""
    errors: int = 0
    """Answers that have no value, since the start: a sum that overflows its type, a user's function that raised."""
    reads: tuple[str, ...] = ()
    """The ids of the sources that it reads."""
    repeats: bool = False
    """Whether an output before it computes the same query, so that its figures are counted there."""
    elements: int = 0
    """The elements of this micro-batch, with those that were too late."""
    late: int = 0
    """The elements of this micro-batch that were dropped because they were too late."""
    is_output: bool = True
    """Whether it is a view or a sink, and not a stage that only other stages read."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of one micro-batch."""

    batch: int
    rows: int
    """Records read."""
    seconds: float
    """The duration of the micro-batch."""
    dead_letters: int
    parts: Mapping[str, PartProgress]
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase. `edge` and `panes` are CPU seconds, within `run`."""
    clock_moved: int = 0
    """The microseconds by which the clock jumped ahead, or, if negative, by which it was followed back; usually 0."""
    looked: Mapping[str, Looked] = field(default_factory=dict)
    """By source, the fields of some of the records, compared with its columns."""
    sources: Mapping[str, int] = field(default_factory=dict)
    """Records read, by source."""
    latency: Latency | None = None
    """From the append of its records to its commit; None if it has no records of a topic."""
    by_shape: Mapping[str, int] = field(default_factory=dict)
    """How many of the records were decoded by shape, by source, where some were."""

    @property
    def outputs(self) -> Mapping[str, PartProgress]:
        """The progress of views and sinks, without that of stages that only other stages read."""
        return {name: part for name, part in self.parts.items() if part.is_output}

    @property
    def rows_per_second(self) -> float:
        """Records read per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def late(self) -> int:
        """Elements that were too late, since the start.

        Of the outputs that read the same sources, the one that dropped the most counts: that is the number of records
        that were too late for any of them, if it drops all that the others drop; otherwise there are more.
        """
        dropped: dict[tuple[str, ...], int] = {}
        for name, part in self.parts.items():
            same = part.reads or (name,)
            dropped[same] = max(part.dropped, dropped.get(same, 0))
        return sum(dropped.values())

    @property
    def answers(self) -> int:
        """The rows that this micro-batch answered to all queries."""
        return sum(part.answers for part in self.parts.values() if not part.repeats)

    @property
    def open_windows(self) -> int:
        """The number of open (key, window) groups of all queries."""
        return sum(part.groups for part in self.parts.values() if not part.repeats)

    @property
    def errors(self) -> int:
        """Answers of all queries that have no value, since the start."""
        return sum(part.errors for part in self.parts.values() if not part.repeats)

    def to_json(self) -> str:
        """The event as a line of JSON."""
        parts = {name: {key: getattr(part, key) for key in part.__slots__} for name, part in self.parts.items()}
        return json.dumps(
            {
                "batch": self.batch,
                "rows": self.rows,
                "rows_per_second": round(self.rows_per_second, 1),
                "seconds": round(self.seconds, 4),
                "sources": dict(self.sources),
                "latency": None if self.latency is None else asdict(self.latency),
                "phases": {name: round(spent, 4) for name, spent in self.phases.items()},
                "dead_letters": self.dead_letters,
                "late": self.late,
                "open_windows": self.open_windows,
                "errors": self.errors,
                "clock_moved": self.clock_moved,
                "by_shape": dict(self.by_shape),
                "fields": {source: looked.to_json() for source, looked in self.looked.items() if looked.records},
                "parts": parts,
            }
        )


def clock_notice(moved: int) -> str | None:
    """The sentence for users about a clock that moved by so many microseconds; None if it did not jump.

    >>> clock_notice(-86_399_600_000)
    'the clock went back 1d: timers follow it'
    """
    if not moved:
        return None
    if moved < 0:
        return f"the clock went back {_roughly(-moved)}: timers follow it"
    return f"the clock jumped ahead {_roughly(moved)}; if that is wrong, timers follow it back when it is set right"


def _roughly(length: int) -> str:
    """A duration rounded to seconds, minutes or hours, whichever suits its size."""
    unit = SECOND if length < 3_600 * SECOND else 60 * SECOND if length < 86_400 * SECOND else 3_600 * SECOND
    return format_duration(round(length / unit) * unit)


def part_progress(
    statuses: Iterable[ShardStatus], answers: int, reads: tuple[str, ...] = (), repeats: bool = False,
    is_output: bool = True,
) -> PartProgress:  # fmt: skip
    """The progress of one output, from the status of its shards."""
    all_ = list(statuses)
    watermark = max((status.watermark for status in all_), default=BEGINNING_OF_TIME)
    now = max((status.now for status in all_), default=0)
    known = watermark > BEGINNING_OF_TIME
    return PartProgress(
        watermark if known else None,
        now - watermark if known else None,
        sum(status.groups for status in all_),
        sum(status.bytes for status in all_),
        sum(status.dropped for status in all_),
        answers,
        sum(status.errors for status in all_),
        reads,
        repeats,
        sum(status.elements for status in all_),
        sum(status.late for status in all_),
        is_output,
    )
