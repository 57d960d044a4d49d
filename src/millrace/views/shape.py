"""The shape of a view: its columns and its key."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.model.errors import MillraceError, PipelineError, refuse
from millrace.model.pane import Mode
from millrace.model.query import WINDOW_COLUMNS, Query
from millrace.model.refined import query_of
from millrace.model.schema import Column, Schema
from millrace.model.stream import Stream
from millrace.model.window import Global, Session

_PANE = (Column("diff", "INT"), Column("timing", "STRING"), Column("index", "BIGINT"), Column("last", "BOOLEAN"))
_VERSION = Column("version", "BIGINT")
_BOUNDS = tuple(column.name for column in WINDOW_COLUMNS)
_OURS = re.compile(r"(millrace|sqlite|pg)_.*|.*__\d+(_[a-z]+)?", re.IGNORECASE)
_LONGEST = 63
"""The maximum length of an identifier in PostgreSQL, in bytes."""
_LONGEST_VIEW = 40
"""The maximum length of the name of a view; the names of its tables and indexes add a suffix to it."""


@dataclass(frozen=True, slots=True)
class ViewShape:
    """The metadata of a view that a store needs.

    Answers have these columns, and a diff before the last three.
    """

    name: str
    columns: Schema
    """The columns of the query, then the timing, index and last of a row's pane."""
    key: tuple[str, ...]
    """The columns that identify a row; empty if the view has at most one row."""
    merges: bool = False
    """Whether a row replaces all rows of its group with overlapping windows, because no retraction removes them."""
    began: int | None = field(default=None, compare=False)
    """When the view was added, in microseconds since 1970, if it has missed the records before that."""

    @property
    def version(self) -> Column:
        """The column with the version of the commit that wrote a row."""
        return Column(free_names(self.columns.names, [_VERSION.name])[0], _VERSION.type)

    @property
    def diff(self) -> Column:
        """The diff column of answers and of changes."""
        return Column(free_names(self.columns.names, [_PANE[0].name])[0], _PANE[0].type)

    @property
    def change_columns(self) -> Schema:
        """The columns of the changes of the view: its own columns, the version and the diff."""
        return Schema((*self.columns, self.version, self.diff))

    @property
    def key_places(self) -> tuple[int, ...]:
        """The indexes of the key columns."""
        return tuple(self.columns.names.index(name) for name in self.key)

    @property
    def group_places(self) -> tuple[int, ...]:
        """The indexes of the group columns: the key without the bounds of the window."""
        return tuple(place for place, name in zip(self.key_places, self.key, strict=True) if name not in _BOUNDS)

    @property
    def bound_places(self) -> tuple[int, int]:
        """The indexes of the columns with the bounds of the window."""
        start, end = (self.columns.names.index(name) for name in _BOUNDS)
        return start, end

    def to_json(self) -> str:
        """The shape as JSON, which `shape_from_json` reads."""
        columns = [[column.name, column.type] for column in self.columns]
        about = {"name": self.name, "columns": columns, "key": self.key, "merges": self.merges}
        return json.dumps(about if self.began is None else {**about, "began": self.began})


def shape_from_json(text: str) -> ViewShape:
    """A shape, from the output of `to_json`."""
    said = json.loads(text)
    columns = Schema(tuple(Column(name, type) for name, type in said["columns"]))
    return ViewShape(said["name"], columns, tuple(said["key"]), said["merges"], said.get("began"))


def shape_of(name: str, of: Query | Stream) -> ViewShape:
    """The shape of the view of a query, or of its answers with conditions. Refuses columns of unknown type."""
    for column in of.schema:
        if kind_of(column.type) is None:
            message = f"the type of {column.name!r} is not known; cast its argument, or give the fold type="
            raise refuse(message, of.place)
    query = query_of(of)
    pane = free_names(of.schema.names, [column.name for column in _PANE])[1:]
    about = (Column(free, column.type) for free, column in zip(pane, _PANE[1:], strict=True))
    bounds = () if isinstance(query.windowing, Global) else _BOUNDS
    index = (pane[1],) if query.mode is Mode.DISCARDING else ()  # each pane is a separate row
    merges = isinstance(query.windowing, Session) and query.mode is Mode.ACCUMULATING
    shape = ViewShape(name, Schema((*of.schema, *about)), (*query.keys, *bounds, *index), merges)
    try:
        shape.change_columns  # noqa: B018 - it refuses duplicate names
    except MillraceError as error:
        raise refuse(f"view {name!r}: {error.message}", of.place, "rename it in the query") from None
    return shape


@lru_cache(1_000)
def kind_of(type: str) -> pa.DataType:
    """The Arrow type of an SQL type, None if it is unknown; cached, as parsing is slow."""
    return arrow_type(type)


def free_names(taken: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Names for Millrace's own columns, prefixed with `pane_` where the user has a column of that name."""
    known = {name.lower() for name in taken}
    return [name if name not in known else f"pane_{name}" for name in wanted]


def differences(old: ViewShape, new: ViewShape) -> str:
    """The differences between two shapes of a view, in words; empty if there are none."""
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
    """Refuse names that a database would confuse with others, or that Millrace's own tables use."""
    seen: set[str] = set()
    for shape in shapes:
        if _OURS.fullmatch(shape.name):
            raise PipelineError(f"a view cannot be named {shape.name!r}: the store uses this name", "rename it")
        if len(shape.name.encode()) > _LONGEST_VIEW:
            raise PipelineError(f"view {shape.name!r:.60} has a name longer than {_LONGEST_VIEW} characters")
        if shape.name.lower() in seen:
            raise PipelineError(f"there are two views {shape.name!r}, which differ only in case", "rename one")
        seen.add(shape.name.lower())
        for name in shape.columns.names:
            if len(name.encode()) > _LONGEST:
                raise PipelineError(
                    f"column {name!r:.60} of view {shape.name!r} has a name longer than {_LONGEST} bytes"
                )
