"""Back pressure: producers wait while the pipelines that read a topic are too far behind."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Marks:
    """How many records a reader may be behind: above the high mark a topic closes, below the low one it opens."""

    high: int = 5_000_000
    low: int = 2_500_000


@dataclass(slots=True)
class Gate:
    """Which topics are closed."""

    marks: Marks
    _closed: set[str] = field(default_factory=set)

    def admits(self, topic: str, lag: int) -> bool:
        """Whether records may come in, as far as its slowest reader is behind."""
        if lag > self.marks.high:
            self._closed.add(topic)
        elif lag < self.marks.low:
            self._closed.discard(topic)
        return topic not in self._closed
