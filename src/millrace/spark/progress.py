"""How a pipeline is doing: one event a micro-batch, with what was read, said and kept, and where the time went."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.model.duration import BEGINNING_OF_TIME


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """How one output of a shard is after a micro-batch."""

    stage: int
    watermark: int
    now: int
    groups: int
    """How many (key, window) are open."""
    bytes: int
    dropped: int
    """Elements that came too late, since the start."""
    spent: float
    """How many seconds of a core the micro-batch took."""
    errors: int = 0
    """Answers that have no value, since the start."""


@dataclass(frozen=True, slots=True)
class PartProgress:
    """One output after a micro-batch."""

    watermark: int | None
    """In microseconds; None while nothing is known of event time."""
    lag: int | None
    """How many microseconds the watermark is behind the clock."""
    groups: int
    """How many (key, window) are open, over all shards."""
    bytes: int
    """What they take in memory."""
    dropped: int
    """Elements that came too late, since the start."""
    answers: int
    """Rows that went out with this micro-batch."""
    errors: int = 0
    """Answers that have no value, since the start: a sum beyond its type, a function of the user's that raised."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One micro-batch."""

    batch: int
    rows: int
    """Records read."""
    seconds: float
    """From its start to its end."""
    dead_letters: int
    parts: Mapping[str, PartProgress]
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds by what they were spent on. `edge` and `panes` are seconds of a core, within `run`."""

    @property
    def rows_per_second(self) -> float:
        """How fast it went."""
        return self.rows / self.seconds if self.seconds else 0.0

    def to_json(self) -> str:
        """The event as a line of JSON."""
        parts = {name: {key: getattr(part, key) for key in part.__slots__} for name, part in self.parts.items()}
        return json.dumps(
            {
                "batch": self.batch,
                "rows": self.rows,
                "rows_per_second": round(self.rows_per_second, 1),
                "seconds": round(self.seconds, 4),
                "phases": {name: round(spent, 4) for name, spent in self.phases.items()},
                "dead_letters": self.dead_letters,
                "parts": parts,
            }
        )


def part_progress(statuses: Iterable[ShardStatus], answers: int) -> PartProgress:
    """One output, from what its shards say."""
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
    )
