"""Back pressure: producers wait while the pipelines that read a topic are too far behind."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Marks:
    """Limits of the lag in records: above the high mark a topic closes, below the low mark it opens again."""

    high: int = 5_000_000
    low: int = 2_500_000


@dataclass(slots=True)
class Gate:
    """Closes topics whose consumers lag too far behind."""

    marks: Marks
    _closed: set[str] = field(default_factory=set)

    def admits(self, topic: str, lag: int) -> bool:
        """Whether a topic accepts records, given the lag of its slowest consumer group."""
        if lag > self.marks.high:
            self._closed.add(topic)
        elif lag < self.marks.low:
            self._closed.discard(topic)
        return topic not in self._closed
