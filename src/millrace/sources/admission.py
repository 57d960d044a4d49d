"""Limits the records of a micro-batch to as many as it processes in about the target latency.

A micro-batch has a fixed cost and a cost for each record. A line through the last few micro-batches estimates both. If
the fixed cost is about as long as the target, reading fewer records would only increase the lag: then a micro-batch
reads as many records as cost as much again.
"""

from dataclasses import dataclass, replace

_FIRST, _LEAST = 100_000, 1_000
_STEP = 2
"""The maximum factor by which the limit changes after a micro-batch, because one may be slow by chance."""
_FADE = 0.7
"""The factor by which each micro-batch reduces the weight of those before it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the last micro-batches: weighted sums of records and seconds, for a line through them."""

    weight: float = 0.0
    records: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def and_one(self, records: int, seconds: float) -> "Cost":
        """The cost with one more micro-batch."""
        return Cost(
            self.weight * _FADE + 1,
            self.records * _FADE + records,
            self.seconds * _FADE + seconds,
            self.squares * _FADE + records**2,
            self.products * _FADE + records * seconds,
        )

    def line(self) -> tuple[float, float]:
        """Seconds for each micro-batch, and for each record; only for each record while the two cannot be separated."""
        records, seconds = self.records / self.weight, self.seconds / self.weight
        spread = self.squares / self.weight - records**2
        most = seconds / records
        if spread < (records / 100) ** 2:
            return 0.0, most
        each = min(max((self.products / self.weight - records * seconds) / spread, most / 100), most)
        return seconds - each * records, each


@dataclass(frozen=True, slots=True)
class Admission:
    """A limit that follows the speed at which records were processed."""

    target: float
    """The target duration of a micro-batch, in seconds."""
    limit: int = _FIRST
    cost: Cost = Cost()

    def after(self, taken: int, seconds: float) -> "Admission":
        """The limit after a micro-batch that processed `taken` records in `seconds`."""
        if not taken:
            return self
        cost = self.cost.and_one(taken, max(seconds, 0.001))
        fixed, each = cost.line()
        fitting = int(max(self.target - fixed, fixed) / each)
        if taken < self.limit and fitting > self.limit:  # the limit did not restrict this micro-batch
            return replace(self, cost=cost)
        limit = min(max(fitting, self.limit // _STEP, _LEAST), self.limit * _STEP)
        return replace(self, limit=limit, cost=cost)


def share(waiting: list[int], limit: int) -> list[int]:
    """The number of records to read from each partition, so that none exceeds its share while others wait."""
    taken = [0] * len(waiting)
    left = limit
    order = sorted(range(len(waiting)), key=lambda partition: waiting[partition])
    for place, partition in enumerate(order):
        taken[partition] = min(waiting[partition], left // (len(order) - place))
        left -= taken[partition]
    return taken
