"""Partners counted without listing the pairs: for each row, the rows with its key in a span of event time."""

from dataclasses import dataclass

import numpy as np

from millrace.model.duration import END_OF_TIME
from millrace.panes.arms import Bools, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """The partners of rows."""

    sums: Ints
    """The sum of the counts of the partners of each row."""
    firsts: Ints
    """The least event time of a partner with a positive count; END_OF_TIME if there is none."""
    some: Bools
    """Whether there is a partner, of any count."""


def tally(ids: Ints, low: Ints, high: Ints, others: Ints, at: Ints, counts: Ints) -> Tally:
    """Tally the partners of rows with these key ids, from `low` to `high`, both included.

    `others`, `at` and `counts` are the key ids, event times and counts of the rows that may be partners. Sums over
    spans are differences of running sums, so the cost does not depend on the number of pairs.
    """
    # A key id and the rank of an event time fit in one number; an id and an event time do not.
    times = np.unique(at)
    span = len(times) + 1
    places = others * span + np.searchsorted(times, at)
    order = np.argsort(places)
    places, at, counts = places[order], at[order], counts[order]
    starts = ids * span + np.searchsorted(times, low, "left")
    ends = ids * span + np.searchsorted(times, high, "right")
    begin, end = np.searchsorted(places, starts), np.searchsorted(places, ends)
    running = np.concatenate([[0], np.cumsum(counts)])
    first = np.full(len(ids), END_OF_TIME)
    positive = counts > 0
    found = np.searchsorted(places[positive], starts)
    has_first = np.flatnonzero(np.append(places[positive], END_OF_TIME)[found] < ends)
    first[has_first] = at[positive][found[has_first]]
    return Tally(running[end] - running[begin], first, end > begin)
