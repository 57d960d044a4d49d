"""The event times of panes, rule 2 of stages: the input of another query needs one for each of its rows.

A window that is a span of event time gives its last instant. For the global window and for count windows, groups store
the greatest event time of their elements:

- `latest`, of all elements;
- `since`, in discarding mode: of the elements since the previous pane;
- over changes in the other modes: the event times of the rows that remain, with counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.aggregate import Max
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.pane import Mode
from millrace.model.query import Query
from millrace.model.window import CountWindow, Global
from millrace.panes.arms import Ints
from millrace.panes.changes import OverChanges, over_changes
from millrace.panes.columns import Columnar
from millrace.panes.grouping import pick

_REMAINING = ("at_0", "at_1")
_NONE = np.int64(BEGINNING_OF_TIME)
"""The value of `since` in a group without elements since the previous pane."""


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The columns that groups and partials store for the event times of panes."""

    of_elements: bool
    """Whether panes have the event time of an element. Otherwise it is the last instant of the window."""
    is_discarding: bool
    remaining: OverChanges | None

    @staticmethod
    def of(query: Query, changes: bool) -> "EventTimes":
        """The event times of the panes of a query."""
        of_elements = isinstance(query.windowing, Global | CountWindow)
        is_discarding = query.mode is Mode.DISCARDING
        counts = of_elements and changes and not is_discarding
        return EventTimes(of_elements, is_discarding, over_changes(Max("at")) if counts else None)

    @property
    def counted(self) -> Mapping[str, str]:
        """The columns of groups, and the column of partials that each comes from. Groups merge to the greatest."""
        if not self.of_elements:
            return {}
        return {"latest": "latest", "since": "latest"} if self.is_discarding else {"latest": "latest"}

    @property
    def parts(self) -> list[tuple[Columnar, tuple[str, ...]]]:
        """The aggregate over event times and the columns of its partials; empty if there is none."""
        return [] if self.remaining is None else [(self.remaining, _REMAINING)]

    def lift(self, at: Ints, diffs: Ints | None) -> dict[str, pa.Array]:
        """The columns of the partials of single elements."""
        columns = {"latest": pa.array(at)} if self.of_elements else {}
        if self.remaining is not None:
            assert diffs is not None
            columns.update(
                zip(_REMAINING, self.remaining.lift_changes([pa.array(at)], at, diffs), strict=True),
            )
        return columns

    def of_panes(self, rows: pa.Table, control: Mapping[str, Ints], fired: npt.NDArray[np.intp]) -> Ints:
        """The event times of the panes of these groups; of all elements of a group, if the pane holds none."""
        latest = control["latest"][fired]
        if self.is_discarding:
            since = control["since"][fired]
            return np.where(since == _NONE, latest, since)
        if self.remaining is None:
            return latest
        times = self.remaining.answers([pick(rows[name].combine_chunks(), fired) for name in _REMAINING]).values
        found: Ints = pc.coalesce(times, pa.array(latest)).to_numpy()
        return found

    def clear(self, control: Mapping[str, Ints], fired: npt.NDArray[np.intp]) -> None:
        """Forget the elements that panes of a discarding query have held."""
        if self.of_elements and self.is_discarding:
            control["since"][fired] = _NONE
