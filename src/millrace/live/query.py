"""A live query: what is selected from a view, in which order, and how much of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from millrace.live.condition import Condition, Constant, both, columns_of, type_in_condition
from millrace.model.errors import PipelineError
from millrace.model.schema import Schema
from millrace.views.store import ViewInfo

SORTABLE_KEYS = "BINARY"
"""The type, beside those of conditions, by which a store and Millrace sort alike."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """What a live query needs to know of a view: its columns without the version, and its key."""

    name: str
    columns: Schema
    key: tuple[str, ...]


def live_view(info: ViewInfo) -> LiveView:
    """The view of a store, for live queries.

    Its last column, the version, is left out: a change does not say which version the old row had.
    """
    return LiveView(info.name, Schema(info.columns.columns[:-1]), info.key)


@dataclass(frozen=True, slots=True)
class Ordering:
    """A column to sort by. NULL is the smallest value, text sorts by code point, NaN is the largest number."""

    column: str
    type: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class QueryShape:
    """All of a query but its constants and its limits. Shapes are equal if their texts are, which is quick to see."""

    text: str
    view: str = field(compare=False)
    columns: tuple[str, ...] = field(compare=False)
    condition: Condition | None = field(compare=False)
    order: tuple[Ordering, ...] = field(compare=False)
    """What the user sorts by, and then the key; empty for a query without ORDER BY, LIMIT and OFFSET."""
    key: tuple[str, ...] = field(compare=False)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that a snapshot needs: to show, to identify, to sort by and to decide by."""
        sorted_by = (each.column for each in self.order)
        return tuple(dict.fromkeys((*self.columns, *self.key, *sorted_by, *columns_of(self.condition))))


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """A query over a view. Equal queries have the same rows, in the same order."""

    shape: QueryShape
    constants: tuple[Constant, ...] = ()
    limit: int | None = None
    offset: int = 0

    @property
    def is_sorted(self) -> bool:
        """Whether its rows have positions."""
        return bool(self.shape.order)

    @property
    def end(self) -> int | None:
        """How many of the first rows it needs; None for all."""
        return None if self.limit is None else self.offset + self.limit


@lru_cache(10_000)
def query_shape(
    view: LiveView, columns: tuple[str, ...], condition: Condition | None, order: Sequence[Ordering], sorts: bool
) -> QueryShape:
    """A shape. Refuses to sort a view by a key that a store cannot sort."""
    if sorts:
        order = (*order, *(_by_key(view, name) for name in view.key if name not in {each.column for each in order}))
    if sorts and not order:
        order = (Ordering(view.columns.names[0], "NULL"),)  # a view without a key has at most one row
    text = repr((view.name, columns, condition, order, view.key))
    return QueryShape(text, view.name, columns, condition, tuple(order), view.key)


def restricted(query: LiveQuery, condition: Condition, constants: tuple[Constant, ...]) -> LiveQuery:
    """The query over only those rows for which a condition holds."""
    shape = query.shape
    joined, values = both(shape.condition, query.constants, condition, constants)
    return LiveQuery(_with_condition(shape, joined), values, query.limit, query.offset)


@lru_cache(10_000)
def _with_condition(shape: QueryShape, condition: Condition) -> QueryShape:
    text = repr((shape.view, shape.columns, condition, shape.order, shape.key))
    return QueryShape(text, shape.view, shape.columns, condition, shape.order, shape.key)


def _by_key(view: LiveView, name: str) -> Ordering:
    stored = view.columns.type_of(name)
    type = stored if stored == SORTABLE_KEYS else type_in_condition(stored)
    if type is None:
        raise PipelineError(
            f"rows of {view.name!r} cannot be sorted: {name!r}, a part of its key, is {stored}",
            "leave out ORDER BY, LIMIT and OFFSET, or cast the column in the pipeline",
        )
    return Ordering(name, type)
