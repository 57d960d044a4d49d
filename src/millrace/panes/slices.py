"""Slices: the longest spans of event time whose elements share all their windows.

The edge aggregates each element once, into its slice; `windows_of` maps a slice to its windows.
For fixed and calendar windows a slice is the window itself. For sessions it is a single instant.
"""

from typing import TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from millrace.model.window import GLOBAL_WINDOW, Calendar, Fixed, Global, Session, Sliding
from millrace.panes.arms import Ints

Sliced: TypeAlias = Fixed | Sliding | Session | Global | Calendar
"""The windowings that depend on event time alone."""


def slice_of(windowing: Sliced, at: Ints) -> Ints:
    """The start of the slice of each event time."""
    match windowing:
        case Fixed(size, offset):
            return at - (at - offset) % size
        case Sliding(size, every, offset):
            period = at - (at - offset) % every
            # A window may end between the starts of two others; its end cuts the period into two slices.
            return np.where(at - period < size % every, period, period + size % every)
        case Session():
            return at
        case Global():
            return np.zeros_like(at)
        case Calendar():
            starts, _ = _calendar(windowing, at)
            return starts
        case never:
            assert_never(never)


def windows_of(windowing: Sliced, slices: Ints) -> tuple[npt.NDArray[np.intp], Ints, Ints]:
    """The windows of all slices: for each window, the row of its slice, its start and its end."""
    rows = np.arange(len(slices))
    match windowing:
        case Fixed(size):
            return rows, slices, slices + size
        case Sliding(size, every, offset):
            last = slices - (slices - offset) % every
            starts = (last[:, None] - every * np.arange(-(-size // every))[None, :]).ravel()
            owners = np.repeat(rows, -(-size // every))
            covering = starts + size > slices[owners]
            return owners[covering], starts[covering], starts[covering] + size
        case Session(gap):
            return rows, slices, slices + gap
        case Global():
            return rows, np.full_like(slices, GLOBAL_WINDOW.start), np.full_like(slices, GLOBAL_WINDOW.end)
        case Calendar():
            starts, ends = _calendar(windowing, slices)
            return rows, starts, ends
        case never:
            assert_never(never)


def _calendar(windowing: Calendar, at: Ints) -> tuple[Ints, Ints]:
    """The calendar window of each event time, by a search in the bounds between the earliest and the latest."""
    if not len(at):
        return at, at
    bounds = [windowing.assign(int(at.min()), {})[0].start]
    while bounds[-1] <= at.max():
        bounds.append(windowing.assign(bounds[-1], {})[0].end)
    edges = np.array(bounds, np.int64)
    place = np.searchsorted(edges, at, side="right") - 1
    return edges[place], edges[place + 1]
