"""The shape of a view: its columns, and what tells one row from another."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.model.errors import MillraceError, PipelineError, refuse
from millrace.model.pane import Mode
from millrace.model.query import WINDOW_COLUMNS, Query
from millrace.model.schema import Column, Schema
from millrace.model.window import Global, Session

_PANE = (Column("diff", "INT"), Column("timing", "STRING"), Column("index", "BIGINT"), Column("last", "BOOLEAN"))
_VERSION = Column("version", "BIGINT")
_BOUNDS = tuple(column.name for column in WINDOW_COLUMNS)
_OURS = re.compile(r"(millrace|sqlite|pg)_.*|.*__\d+(_[a-z]+)?", re.IGNORECASE)
_LONGEST = 63
"""How many bytes of a name PostgreSQL tells apart."""
_LONGEST_VIEW = 40
"""What is left of that for the name of a view, as the names of its tables add to it."""


@dataclass(frozen=True, slots=True)
class ViewShape:
    """What a store needs to know of a view.

    Answers come with these columns, and with a diff before the last three.
    """

    name: str
    columns: Schema
    """The columns of the query; then timing, index and last, of the pane that a row is from."""
    key: tuple[str, ...]
    """The columns that no two rows agree in. There are none if there is one row at most."""
    merges: bool = False
    """Whether a row takes the place of every row of its group whose window overlaps, as no retraction says so."""

    @property
    def version(self) -> Column:
        """The column that says which commit wrote a row."""
        return Column(free_names(self.columns.names, [_VERSION.name])[0], _VERSION.type)

    @property
    def diff(self) -> Column:
        """The column of answers, and of changes, that says whether a row comes or goes."""
        return Column(free_names(self.columns.names, [_PANE[0].name])[0], _PANE[0].type)

    @property
    def change_columns(self) -> Schema:
        """The columns of the changes of the view: its own, then the version and the diff."""
        return Schema((*self.columns, self.version, self.diff))

    @property
    def key_places(self) -> tuple[int, ...]:
        """Where among the columns those of the key are."""
        return tuple(self.columns.names.index(name) for name in self.key)

    @property
    def group_places(self) -> tuple[int, ...]:
        """Where among the columns those of the group are: the key without the bounds of the window."""
        return tuple(place for place, name in zip(self.key_places, self.key, strict=True) if name not in _BOUNDS)

    @property
    def bound_places(self) -> tuple[int, int]:
        """Where among the columns the bounds of the window are."""
        start, end = (self.columns.names.index(name) for name in _BOUNDS)
        return start, end

    def to_json(self) -> str:
        """The shape as text, from which `shape_from_json` makes it again."""
        columns = [[column.name, column.type] for column in self.columns]
        return json.dumps({"name": self.name, "columns": columns, "key": self.key, "merges": self.merges})


def shape_from_json(text: str) -> ViewShape:
    """What `to_json` wrote."""
    said = json.loads(text)
    columns = Schema(tuple(Column(name, type) for name, type in said["columns"]))
    return ViewShape(said["name"], columns, tuple(said["key"]), said["merges"])


def shape_of(name: str, query: Query) -> ViewShape:
    """The shape of the view of a query. Refuses columns whose type is not known."""
    for column in query.schema:
        if kind_of(column.type) is None:
            message = f"the type of {column.name!r} is not known; cast its argument, or give the fold type="
            raise refuse(message, query.place)
    pane = free_names(query.schema.names, [column.name for column in _PANE])[1:]
    about = (Column(free, column.type) for free, column in zip(pane, _PANE[1:], strict=True))
    bounds = () if isinstance(query.windowing, Global) else _BOUNDS
    index = (pane[1],) if query.mode is Mode.DISCARDING else ()  # each pane is a row of its own
    merges = isinstance(query.windowing, Session) and query.mode is Mode.ACCUMULATING
    shape = ViewShape(name, Schema((*query.schema, *about)), (*query.keys, *bounds, *index), merges)
    try:
        shape.change_columns  # noqa: B018 - for what it refuses
    except MillraceError as error:
        raise refuse(f"view {name!r}: {error.message}; rename it in the query", query.place) from None
    return shape


@lru_cache(1_000)
def kind_of(type: str) -> pa.DataType:
    """The Arrow type of an SQL type, None if it is not known; parsing it takes long."""
    return arrow_type(type)


def free_names(taken: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Names for columns of our own: as they are, or with `pane_` before them where the user has such a column."""
    known = {name.lower() for name in taken}
    return [name if name not in known else f"pane_{name}" for name in wanted]


def differences(old: ViewShape, new: ViewShape) -> str:
    """What is different between two shapes of a view, in words; nothing if they are the same."""
    before, after = ({column.name: column.type for column in shape.columns} for shape in (old, new))
    said = [f"{name} is new" for name in after if name not in before]
    said += [f"{name} is gone" for name in before if name not in after]
    said += [
        f"{name} was {before[name]} and is {after[name]}"
        for name in after
        if before.get(name, after[name]) != after[name]
    ]
    if old.key != new.key:
        said.append(f"a row is told by ({', '.join(new.key)}) and was by ({', '.join(old.key)})")
    if old.merges != new.merges:
        said.append("windows of sessions are corrected in another way")
    if not said and old.columns != new.columns:
        said.append("the columns are in another order")
    return ", ".join(said)


def check_names(shapes: Sequence[ViewShape]) -> None:
    """Refuse names that a database would take for others, or that are those of tables of our own."""
    seen: set[str] = set()
    for shape in shapes:
        if _OURS.fullmatch(shape.name):
            raise PipelineError(f"a view cannot be called {shape.name!r}: tables of the store are called so; rename it")
        if len(shape.name.encode()) > _LONGEST_VIEW:
            raise PipelineError(f"view {shape.name!r:.60} has too long a name; {_LONGEST_VIEW} characters is the most")
        if shape.name.lower() in seen:
            raise PipelineError(f"there are two views {shape.name!r}, in capitals or not; rename one")
        seen.add(shape.name.lower())
        for name in shape.columns.names:
            if len(name.encode()) > _LONGEST:
                raise PipelineError(
                    f"column {name!r:.60} of view {shape.name!r} has too long a name; {_LONGEST} bytes is the most"
                )
