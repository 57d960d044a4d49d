"""The records that a micro-batch reads of a source: how many, and when they were appended to the log."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.sources.bundle import Bundle

_SAMPLES = 32
"""The number of records of a bundle whose log times are reported; each stands for those before it."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Records of a source."""

    records: int = 0
    logged: tuple[tuple[int, float], ...] = ()
    """Log times of some records in microseconds, each with the number of records that it stands for."""

    def __add__(self, other: "Arrived") -> "Arrived":
        return Arrived(self.records + other.records, self.logged + other.logged)

    def to_json(self) -> list[Any]:
        """The records as a JSON value."""
        return [self.records, self.logged]


def arrived_from_json(value: list[Any]) -> Arrived:
    """Records, from the output of `to_json`."""
    records, logged = value
    return Arrived(records, tuple((at, weight) for at, weight in logged))


def arrived_in(bundle: Bundle) -> Arrived:
    """The records of a bundle. Sources other than topics know no log times."""
    many, logged = len(bundle), bundle.logged
    if not many or not isinstance(logged, np.ndarray):
        return Arrived(many)
    # The last of each of equal parts; appends are in the order of their times.
    last = np.arange(1, min(many, _SAMPLES) + 1) * many // min(many, _SAMPLES) - 1
    return Arrived(many, tuple((int(at), many / len(last)) for at in logged[last]))


def arrivals(of: Iterable[Mapping[str, Arrived]]) -> dict[str, Arrived]:
    """Several records by source, as one."""
    found: dict[str, Arrived] = {}
    for each in of:
        for source, arrived in each.items():
            found[source] = found.get(source, Arrived()) + arrived
    return found


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from the append of a record to the commit of its micro-batch.

    Half of the records took at most `p50`, and all but one percent at most `p99`.
    """

    p50: float
    p99: float


def latency_of(arrived: Iterable[Arrived], committed: int) -> Latency | None:
    """The latency of records whose micro-batch was committed at that time; None if no log time is known.

    >>> latency_of([Arrived(3, ((1_000_000, 2), (3_000_000, 1)))], 4_000_000)
    Latency(p50=3.0, p99=3.0)
    """
    waited = sorted((committed - at, weight) for each in arrived for at, weight in each.logged)
    if not waited:
        return None
    reached = np.cumsum([weight for _, weight in waited])
    found = (waited[int(np.searchsorted(reached, share * reached[-1]))][0] / 1e6 for share in (0.5, 0.99))
    return Latency(*(max(0.0, round(seconds, 4)) for seconds in found))
