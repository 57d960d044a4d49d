"""Which elements are too late for all their windows, by the watermark before their micro-batch: rule 2.

The shards drop them. The edges, which still know the record of each element, judge by the same functions which of them
become dead letters.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.late import TooLate, too_late
from millrace.model.query import Query
from millrace.model.window import CountWindow, Custom
from millrace.panes.arms import Bools, Ints
from millrace.panes.grouping import lengths
from millrace.panes.slices import slice_of, windows_of


def is_expired(query: Query, ends: Ints, watermark: int) -> Bools:
    """Which windows are expired, by their ends."""
    if isinstance(query.windowing, CountWindow):
        return np.zeros(len(ends), np.bool_)
    return watermark > ends + query.lateness


def listed(partials: pa.Table) -> tuple[npt.NDArray[np.intp], Ints, Ints]:
    """The windows that a user's function assigned: for each window, the row of its partial, its start and its end."""
    starts, ends = partials["starts"].combine_chunks(), partials["ends"].combine_chunks()
    owners = np.repeat(np.arange(len(partials)), lengths(starts))
    return owners, starts.flatten().to_numpy(), ends.flatten().to_numpy()


@dataclass(frozen=True, slots=True)
class LateJudge:
    """Finds the elements of a query that are too late, in one micro-batch."""

    query: Query
    output: str
    watermark: int
    """The watermark before the micro-batch."""

    def slices(self, slices: Ints) -> Bools:
        """Which slices are too late."""
        return self._judged(self._last_ends(slices))

    def of_slices(self, slices: Ints) -> dict[int, TooLate]:
        """The dead letters of elements that are too late, by number, from the slices of all."""
        return self._letters(self._last_ends(slices))

    def of_elements(self, at: Ints, partials: pa.Table) -> dict[int, TooLate]:
        """The same from the event times of all elements. For custom windows, `partials` has one row for each."""
        windowing = self.query.windowing
        if isinstance(windowing, Custom):
            owners, _, ends = listed(partials)
            return self._letters(_last(owners, ends, len(at)))
        assert not isinstance(windowing, CountWindow)
        return self.of_slices(slice_of(windowing, at))

    def _last_ends(self, slices: Ints) -> npt.NDArray[np.int64]:
        windowing = self.query.windowing
        assert not isinstance(windowing, Custom | CountWindow)
        owners, _, ends = windows_of(windowing, slices)
        return _last(owners, ends, len(slices))

    def _judged(self, ends: Ints) -> Bools:
        return is_expired(self.query, ends, self.watermark) & (ends > BEGINNING_OF_TIME)

    def _letters(self, ends: Ints) -> dict[int, TooLate]:
        late = np.flatnonzero(self._judged(ends)).tolist()
        return {number: too_late(self.query, int(ends[number]), self.watermark, self.output) for number in late}


def _last(owners: npt.NDArray[np.intp], ends: Ints, many: int) -> npt.NDArray[np.int64]:
    """The end of the last window of each element; BEGINNING_OF_TIME for an element that is in no window."""
    last = np.full(many, BEGINNING_OF_TIME, np.int64)
    np.maximum.at(last, owners, ends)
    return last
