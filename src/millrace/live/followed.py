"""What the hub holds of a view that is followed: its results, and the reads and changes that they wait for."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from millrace.live.events import Read
from millrace.live.grid import Grid
from millrace.live.index import Pairs
from millrace.live.matcher import Matcher
from millrace.live.query import LiveQuery
from millrace.live.result import SortedState, State
from millrace.live.rowset import Rowset, Step
from millrace.live.subscriber import Phase, Subscriber

TOGETHER = 16
"""So many queries are read each by itself; more of them share one read."""


@dataclass(slots=True, eq=False)
class Result:
    """The result of a query, shared by its subscriptions."""

    query: LiveQuery
    handle: int
    state: State
    subs: dict[Subscriber, None] = field(default_factory=dict)
    is_started: bool = False
    since: int = 0
    """The version at which it was read; changes up to it are part of it."""

    @property
    def is_stale(self) -> bool:
        """Whether too few rows are held, so that it must be read again."""
        return isinstance(self.state, SortedState) and self.state.is_stale


@dataclass(slots=True, eq=False)
class Followed:
    """A view with live queries."""

    name: str
    grid: Grid
    generation: int | None = None
    """The generation that is served; None until it is known."""
    is_followed: bool = False
    """Whether the shell was told to report its changes."""
    version: int = 0
    """All changes up to this version were taken."""
    began: int = 0
    """All changes after this version are told."""
    watermark: str | None = None
    results: dict[LiveQuery, Result] = field(default_factory=dict)
    by_handle: dict[int, Result] = field(default_factory=dict)
    wanted: dict[LiveQuery, Result] = field(default_factory=dict)
    """Results to read next."""
    reading: int | None = None
    """The number of the read that is under way."""
    reads: tuple[Read, ...] = ()
    resuming: dict[int, Subscriber] = field(default_factory=dict)
    """Subscriptions whose changes are being read, by the number of the read."""
    caught: dict[Subscriber, None] = field(default_factory=dict)
    """Subscriptions whose changes were read, and whose result is not known yet."""
    ending: dict[Subscriber, None] = field(default_factory=dict)
    """Subscriptions that end at some version."""
    recent: list[Rowset] = field(default_factory=list)
    """Changes taken while something is being read, whose version may be earlier."""

    def version_of(self, result: Result) -> int:
        """The version of a result that is known."""
        return max(self.version, result.since)

    def forget(self, sub: Subscriber) -> None:
        """Wait no longer for the changes that a subscription has missed; one that is gone ends no more."""
        sub.missed = None
        self.caught.pop(sub, None)
        self.resuming = {number: each for number, each in self.resuming.items() if each is not sub}
        if sub.phase is Phase.GONE:
            self.ending.pop(sub, None)

    def remember(self, changes: Rowset) -> None:
        """Keep changes while something is being read."""
        if self.reading is not None or self.resuming or self.caught:
            self.recent.append(changes)
        else:
            self.recent.clear()

    def missed(self, results: Sequence[Result], since: int) -> dict[int, Step]:
        """For each of these results, by handle, what recent changes after a version did to it."""
        steps: dict[int, Step] = defaultdict(dict)
        changes = [found for each in self.recent if len(found := each.after(since))]
        if not changes:
            return steps
        matcher = Matcher()
        for result in results:
            matcher.add(result.handle, result.query)
        for each in changes:
            for handle, places in by_query(matcher.match(each.rows)):
                each.step(places, self.by_handle[handle].query.shape, steps[handle])
        return steps


def by_query(pairs: Pairs) -> Iterable[tuple[int, list[int]]]:
    """The places of the rows of each query, in order."""
    places, handles = pairs
    order = np.lexsort((places, handles))
    places, handles = places[order], handles[order]
    ends = [*np.flatnonzero(np.diff(handles, prepend=-1)).tolist(), len(handles)]
    for start, end in pairwise(ends):
        yield int(handles[start]), places[start:end].tolist()


def reads_of(results: Iterable[Result]) -> tuple[Read, ...]:
    """How to read results: many together, few each by itself."""
    found = list(results)
    if len(found) > TOGETHER:
        return (Read(tuple(each.query for each in found)),)
    return tuple(
        Read((each.query,), each.state.most if isinstance(each.state, SortedState) else None) for each in found
    )


def distributed(read: Read, rows: Rowset) -> Iterable[tuple[LiveQuery, list[int]]]:
    """The places of the rows of each query of a read."""
    if len(read.queries) == 1:
        yield read.queries[0], list(range(len(rows)))
        return
    matcher = Matcher()
    for handle, query in enumerate(read.queries):
        matcher.add(handle, query)
    found = dict(by_query(matcher.match(rows.rows)))
    for handle, query in enumerate(read.queries):
        yield query, found.get(handle, [])
