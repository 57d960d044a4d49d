"""Applies answers to a generation of a view, in a few SQL statements."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.model.errors import PipelineError
from millrace.views.catalog import ViewGeneration
from millrace.views.consolidate import NULLS, consolidate
from millrace.views.dialect import StoreConnection
from millrace.views.shape import kind_of


@dataclass(frozen=True, slots=True)
class Changed:
    """The number of changed rows, by kind of change."""

    inserted: int
    updated: int
    deleted: int

    def __bool__(self) -> bool:
        return bool(self.inserted or self.updated or self.deleted)


def change(
    connection: StoreConnection, kept: ViewGeneration, answers: pa.Table, version: int, whole: bool, newer: bool = False
) -> Changed:
    """Upsert and delete rows of a view by answers, and log changes if it is served; `whole` deletes all other rows.

    With `newer`, an answer whose index is not greater than that of the stored row does nothing.
    """
    new = _net(connection, kept, answers, whole)
    if not len(new) and not whole:
        return Changed(0, 0, 0)
    tables = kept.tables(connection.dialect)
    for statement in tables.prepare():
        connection.execute(statement)
    json = {place for place, column in enumerate(kept.shape.columns) if types.is_nested(kind_of(column.type))}
    connection.load(tables.stage, new, json)
    all_nulls = np.unique(np.asarray(new[NULLS])).tolist()
    all_rows = whole or kept.shape.merges
    statements = [tables.leave_older(nulls) for nulls in all_nulls] if newer else []
    statements += [tables.pair(nulls, all_rows) for nulls in all_nulls]
    if kept.shape.merges and not whole:
        statements += [tables.pair_overlapping(nulls) for nulls in all_nulls]
    if whole:
        statements.append(tables.pair_rest())
    if all_rows:
        statements.append(tables.leave_same())
    for statement in statements:
        connection.execute(statement)
    if kept.changes is not None:
        for statement in tables.log(kept.changes):
            connection.execute(statement, (version,))
    updated = connection.execute(tables.update(), (version,)).rowcount
    deleted = connection.execute(tables.delete()).rowcount
    inserted = connection.execute(tables.insert(), (version,)).rowcount
    return Changed(inserted, updated, deleted)


def _net(connection: StoreConnection, kept: ViewGeneration, answers: pa.Table, whole: bool) -> pa.Table:
    """The last answer of each key."""
    shape = kept.shape
    place = len(shape.columns.names) - 3
    expected = [*shape.columns.names[:place], shape.diff.name, *shape.columns.names[place:]]
    if answers.column_names != expected:
        raise PipelineError(
            f"answers for view {shape.name!r} have the columns {', '.join(answers.column_names)}, "
            f"not {', '.join(expected)}"
        )
    if whole:
        answers = answers.filter(pc.greater(answers.column(place), 0))
    columns = []
    for column, given in zip(shape.columns, answers.remove_column(place).columns, strict=True):
        kind = kind_of(column.type)
        columns.append(connection.dialect.plain(given if given.type == kind else given.cast(kind)))
    return consolidate(shape, columns, answers.column(place).combine_chunks())
