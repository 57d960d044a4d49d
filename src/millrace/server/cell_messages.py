"""What the server says to the processes of the grid of live queries, and how."""

import struct
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

from millrace.live.condition import Constant
from millrace.live.query import QueryShape

LENGTH = struct.Struct("<Q")
"""The start of a message: the length of its content."""


@dataclass(frozen=True, slots=True)
class NewShape:
    """A shape of queries, by a number."""

    number: int
    shape: QueryShape


@dataclass(frozen=True, slots=True)
class NewQuery:
    """A query, by its handle."""

    grid: int
    handle: int
    shape: int
    constants: tuple[Constant, ...]
    limit: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class NoQuery:
    """A query is removed."""

    grid: int
    handle: int


@dataclass(frozen=True, slots=True)
class NoShape:
    """No query has this shape any more."""

    number: int


@dataclass(frozen=True, slots=True)
class NoGrid:
    """All queries of a grid are removed."""

    grid: int


@dataclass(frozen=True, slots=True)
class MatchRows:
    """Which queries want these rows, in Arrow's format of streams? The only message that has an answer."""

    grid: int
    rows: bytes


CellMessage: TypeAlias = NewShape | NewQuery | NoQuery | NoShape | NoGrid | MatchRows


def read_content(given: BinaryIO) -> bytes | None:
    """The content of the next message; None at the end."""
    start = given.read(LENGTH.size)
    if len(start) < LENGTH.size:
        return None
    (many,) = LENGTH.unpack(start)
    content = given.read(many)
    return content if len(content) == many else None
