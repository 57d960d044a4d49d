"""Reads a user's `CustomSource`."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.model.accepted import as_type
from millrace.model.arrow import arrow_type
from millrace.model.connectors import CustomSource, Rows
from millrace.model.errors import PipelineError, unknown_option
from millrace.model.schema import Schema
from millrace.model.stream import Source
from millrace.sources.bundle import Bundle

_SIZE = 1 << 20
"""The assumed size of a split in bytes: tasks get about equal numbers of splits."""


@dataclass(frozen=True, slots=True)
class CustomFollower:
    """A user's source as the driver reads it, by position."""

    source: Source
    reader: CustomSource

    def start(self) -> Any:
        """The position before the first row."""
        return self.reader.start()

    def end(self) -> Any:
        """The position after the last row that exists now."""
        return self.reader.end()

    def latest(self, at: Any, until: Any = None) -> Any:
        """The end of a micro-batch that starts at `at`; not beyond `until`, if given."""
        return self.reader.limit(at, self.reader.end() if until is None else until)

    def stamp(self) -> None:
        """Not known."""

    def splits(self, start: Any, end: Any) -> Sequence["CustomSplit"]:
        """The splits between two positions."""
        pieces = self.reader.splits(start, end)
        return [
            CustomSplit(self.reader, self.source.name, self.source.schema, piece, f"{self.source.name} {piece}")
            for piece in pieces
        ]

    def identity(self, at: object) -> None:
        """Nothing: a user's source keeps its own contract."""


@dataclass(frozen=True, slots=True)
class CustomSplit:
    """A split of a user's source."""

    reader: CustomSource
    name: str
    schema: Schema
    piece: Any
    origin: str

    @property
    def size(self) -> int:
        """The assumed size in bytes."""
        return _SIZE

    def read(self, wanted: Container[str] | None = None) -> Bundle:
        """The rows as columns. Refuses rows that do not fit the schema that the source declared."""
        rows = columns_of(self.reader.read(self.piece), self.schema, f"source {self.name!r}")
        return Bundle(self.origin, np.arange(len(rows)), rows=rows)


def columns_of(rows: Rows, schema: Schema, what: str) -> pa.Table:
    """Rows as a table with the columns of a schema."""
    if not isinstance(rows, pa.Table):
        given = [dict(row) for row in rows]
        names = {name for row in given for name in row}
        _check_names(names, schema, what)
        columns = {}
        for column in schema:
            values = [row.get(column.name) for row in given]
            try:
                columns[column.name] = pa.array(values, arrow_type(column.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                problem = f"{what}: a value of column {column.name!r} is not {column.type}: {error}"
                raise PipelineError(problem, "convert it in read()") from None
        return pa.table(columns)
    _check_names(set(rows.column_names), schema, what)
    held = set(rows.column_names)
    return pa.table(
        {
            column.name: as_type(rows[column.name], column.type, f"{what}: column {column.name!r}")
            if column.name in held
            else pa.nulls(len(rows), arrow_type(column.type))
            for column in schema
        }
    )


def _check_names(names: set[str], schema: Schema, what: str) -> None:
    extra = sorted(names - set(schema.names))
    if extra:
        raise unknown_option("column", extra[0], schema.names).about(what)
