"""Lifts rows to partials, for edges that are not fused and for tests of `advance`."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.model.errors import NoValueError
from millrace.model.window import CountWindow, Custom, Row, Window, Windowing
from millrace.panes.advance import Panes
from millrace.panes.arms import Ints
from millrace.panes.changes import OverChanges
from millrace.panes.columns import Columnar, Columns, RowsFailedError
from millrace.panes.floats import as_compared
from millrace.panes.grouping import identify
from millrace.panes.slices import slice_of


def assigned(windowing: Custom, at: Sequence[int], rows: Sequence[Row]) -> tuple[pa.Array, pa.Array]:
    """The starts and ends of the windows that a user's function assigns to rows. Raises RowsFailedError."""
    found: list[tuple[Window, ...]] = []
    failed: dict[int, str] = {}
    for number, (when, row) in enumerate(zip(at, rows, strict=True)):
        try:
            found.append(windowing.try_assign(when, row))
        except NoValueError as error:
            failed[number] = str(error)
    if failed:
        raise RowsFailedError(failed)
    kind = pa.list_(pa.int64())
    return (
        pa.array([[window.start for window in each] for each in found], kind),
        pa.array([[window.end for window in each] for each in found], kind),
    )


def lift(
    panes: Panes,
    keys: Sequence[pa.Array],
    at: Ints,
    arguments: Sequence[Sequence[pa.Array]],
    windows: tuple[pa.Array, pa.Array] | None = None,
    diffs: Ints | None = None,
) -> pa.Table:
    """Aggregate rows to partials of (key, slice), or of single elements where the order of arrival matters.

    `arguments` holds the argument values of each aggregate. `windows` holds, for custom windows, the starts and ends
    of the windows of each row. `diffs` holds the diff of each row, if the rows are changes. Raises RowsFailedError if
    an aggregate has no partial for some rows.
    """
    assert panes.changes == (diffs is not None)
    columns = {name: as_compared(column) for name, column in zip(panes.keys, keys, strict=True)}
    columns["elements"] = pa.array(np.ones(len(at), np.int64))
    for aggregate, names, values in zip(panes.aggregates, panes.partials, arguments, strict=True):
        columns.update(zip(names, _lifted(aggregate, values, at, diffs), strict=True))
    if diffs is not None:
        columns["held"] = pa.array(diffs)
    if panes.times is not None:
        columns.update(panes.times.lift(at, diffs))
    windowing: Windowing = panes.query.windowing
    if isinstance(windowing, Custom):
        assert windows is not None
        columns["starts"], columns["ends"] = windows
        return pa.table(columns)
    if isinstance(windowing, CountWindow) or not all(each.aggregate.mergeable for each in panes.aggregates):
        # The answers depend on the order of arrival, so each element is a partial of its own.
        if not isinstance(windowing, CountWindow):
            columns["slice"] = pa.array(slice_of(windowing, at))
        return pa.table(columns)
    slices = slice_of(windowing, at)
    same = identify([*(columns[name] for name in panes.keys), slices], len(at))
    first = pa.array(same.firsts)
    merged = {name: columns[name].take(first) for name in panes.keys}
    merged["slice"] = pa.array(slices[same.firsts])
    merged["elements"] = pa.array(same.sum(columns["elements"].to_numpy()))
    if diffs is not None:
        merged["held"] = pa.array(same.sum(diffs))
    if "latest" in columns:
        merged["latest"] = pa.array(same.max(at))
    for aggregate, names in panes.parts:
        merged.update(zip(names, aggregate.merge([columns[name] for name in names], same), strict=True))
    return pa.table(merged)


def _lifted(aggregate: Columnar, values: Sequence[pa.Array], at: Ints, diffs: Ints | None) -> Columns:
    if diffs is None:
        return aggregate.lift(values, at)
    assert isinstance(aggregate, OverChanges)
    return aggregate.lift_changes(values, at, diffs)
