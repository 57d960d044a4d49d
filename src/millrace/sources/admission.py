"""How many records a micro-batch takes: as many as it finishes in about the time that answers may be late.

A micro-batch costs something whatever it takes, and something for each record. Both are told from the last few, by a
line through them. Where the first is already about as long as the target, taking less would only fall behind: then a
micro-batch takes as many records as cost as much again.
"""

from dataclasses import dataclass, replace

_FIRST, _LEAST = 100_000, 1_000
_STEP = 2
"""By how much the limit moves in a micro-batch at most: one that was slow by chance does not tell much."""
_FADE = 0.7
"""How much what was learned before a micro-batch still counts after it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What micro-batches cost, as sums over the last of them: of records and seconds, for a line through them."""

    weight: float = 0.0
    records: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def and_one(self, records: int, seconds: float) -> "Cost":
        """With one more."""
        return Cost(
            self.weight * _FADE + 1,
            self.records * _FADE + records,
            self.seconds * _FADE + seconds,
            self.squares * _FADE + records**2,
            self.products * _FADE + records * seconds,
        )

    def line(self) -> tuple[float, float]:
        """Seconds a micro-batch, and a record; all of it by the record while nothing tells them apart."""
        records, seconds = self.records / self.weight, self.seconds / self.weight
        spread = self.squares / self.weight - records**2
        most = seconds / records
        if spread < (records / 100) ** 2:
            return 0.0, most
        each = min(max((self.products / self.weight - records * seconds) / spread, most / 100), most)
        return seconds - each * records, each


@dataclass(frozen=True, slots=True)
class Admission:
    """A limit that follows how fast records were taken in."""

    target: float
    """How many seconds a micro-batch should last."""
    limit: int = _FIRST
    cost: Cost = Cost()

    def after(self, taken: int, seconds: float) -> "Admission":
        """The limit after a micro-batch took so many records in so many seconds."""
        if not taken:
            return self
        cost = self.cost.and_one(taken, max(seconds, 0.001))
        fixed, each = cost.line()
        fitting = int(max(self.target - fixed, fixed) / each)
        if taken < self.limit and fitting > self.limit:  # it was not the limit that made it so small
            return replace(self, cost=cost)
        limit = min(max(fitting, self.limit // _STEP, _LEAST), self.limit * _STEP)
        return replace(self, limit=limit, cost=cost)


def share(waiting: list[int], limit: int) -> list[int]:
    """How many of each partition's records to take, so that none takes more than its part while others wait."""
    taken = [0] * len(waiting)
    left = limit
    order = sorted(range(len(waiting)), key=lambda partition: waiting[partition])
    for place, partition in enumerate(order):
        taken[partition] = min(waiting[partition], left // (len(order) - place))
        left -= taken[partition]
    return taken
