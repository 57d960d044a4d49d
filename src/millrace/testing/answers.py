"""The answers of a pipeline to a script, as plain rows.

Within a step, engines answer in different orders, so answers are sorted: by key; within a key, first retractions of
answers of earlier steps, then by window. Rows of a plain stream are sorted by their columns.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isnan
from typing import Any, TypeAlias

from millrace.model.errors import refuse_unknown
from millrace.model.query import WINDOW_COLUMNS, Query
from millrace.model.rows import as_key
from millrace.model.stream import Stream
from millrace.testing.script import Record
from millrace.views.shape import ViewShape, free_names, shape_of

Answer: TypeAlias = dict[str, Any]
"""A row of a view's panes or of a stream, by column."""

PANE_COLUMNS = ("diff", "timing", "index", "last")
START, END = (column.name for column in WINDOW_COLUMNS)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be processed, or an answer that has no value."""

    source: str | None
    """The source of the record; None for an answer."""
    row: Record
    """The record as the script gives it; for an answer, the key and the window."""
    reason: str
    """Text for people; its wording differs between engines."""
    output: str | None = None
    """The view or sink whose answer has no value; None for a record."""


@dataclass(frozen=True, slots=True)
class StepAnswers:
    """The answers of a pipeline to one step of a script."""

    outputs: Mapping[str, list[Answer]]
    dead_letters: list[DeadLetter]

    def __getitem__(self, output: str) -> list[Answer]:
        """The answers of a view or of a sink in this step."""
        return self.outputs[_known(output, self.outputs)]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a pipeline to a script.

    A view is selected by its name, a sink by its text in `explain()`: `answers["topic alerts"]`.
    """

    steps: list[StepAnswers]
    """One for each step of the script."""
    dropped: Mapping[str, int]
    """How many elements were dropped because they came too late, by view or sink."""
    _outputs: Mapping[str, Query | Stream] = field(repr=False)
    _views: Mapping[str, Query | Stream] = field(repr=False)

    def __getitem__(self, output: str) -> list[Answer]:
        """All answers of a view, with the columns of its panes, or all rows of a sink, in order."""
        _known(output, self._outputs)
        return [row for step in self.steps for row in step.outputs[output]]

    def view(self, name: str) -> list[Answer]:
        """The rows of a view at the end: keys, window and aggregates, sorted by key."""
        if name not in self._views:
            raise refuse_unknown("view", name, self._views)
        shape = shape_of(name, self._views[name])
        return _content(shape, free_names(self._views[name].schema.names, PANE_COLUMNS)[0], self[name])

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """The records that could not be processed and the answers that have no value, in order."""
        return [letter for step in self.steps for letter in step.dead_letters]


def in_order(of: Query | Stream, rows: Iterable[Mapping[str, Any]]) -> list[Answer]:
    """The answers of one step as plain values, sorted."""
    plain = [{name: plain_value(value) for name, value in row.items()} for row in rows]
    if not isinstance(of, Query):
        return sorted(plain, key=lambda row: [_rank(value) for value in row.values()])
    diff, _, index, _ = free_names(of.schema.names, PANE_COLUMNS)

    def pane(row: Answer) -> tuple[Any, ...]:
        return (*(as_key(row[name]) for name in of.keys), row[START], row[END], row[index])

    asserted = {pane(row) for row in plain if row[diff] > 0}

    def place(row: Answer) -> tuple[Any, ...]:
        key = [_rank(row[name]) for name in of.keys]
        is_later = row[diff] > 0 or pane(row) in asserted
        return (key, is_later, _rank(row[START]), _rank(row[END]), row[index], -row[diff])

    return sorted(plain, key=place)


def _content(shape: ViewShape, diff: str, answers: Iterable[Answer]) -> list[Answer]:
    """The rows of a view after answers: the last answer of each key, without retracted ones."""
    held: dict[tuple[Any, ...], Answer] = {}
    for row in answers:
        if shape.merges:
            held = {key: other for key, other in held.items() if not _is_replaced(shape, other, row)}
        key = tuple(as_key(row[name]) for name in shape.key)
        if row[diff] > 0:
            held[key] = row
        else:
            held.pop(key, None)
    names = shape.columns.names[:-3]
    ordered = sorted(held.values(), key=lambda row: [_rank(row[name]) for name in shape.key])
    return [{name: row[name] for name in names} for row in ordered]


def _is_replaced(shape: ViewShape, old: Answer, new: Answer) -> bool:
    """Whether two sessions of a key overlap, so that the newer replaces the older."""
    names = [shape.columns.names[place] for place in shape.group_places]
    same = all(as_key(old[name]) == as_key(new[name]) or old[name] is new[name] for name in names)
    return same and bool(old[START] < new[END] and new[START] < old[END])


def _known(output: str, outputs: Mapping[str, object]) -> str:
    if output not in outputs:
        raise refuse_unknown("view or sink", output, outputs)
    return output


def _rank(value: Any) -> tuple[int, Any]:
    """The sort key of a value: NULL first, NaN last; lists and dicts by their text."""
    if value is None:
        return 0, 0
    if isinstance(value, float) and isnan(value):
        return 2, 0
    return 1, repr(value) if isinstance(value, list | dict) else value


def plain_value(value: Any) -> Any:
    """A value with all times in UTC and all sequences as lists."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) if value.tzinfo is None else value).astimezone(UTC)
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    if isinstance(value, Mapping):
        return {name: plain_value(each) for name, each in value.items()}
    return value
