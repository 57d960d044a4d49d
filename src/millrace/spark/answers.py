"""Panes as output rows: the columns of the query, then the diff, timing, index and last flag of the pane."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from millrace.model.arrow import arrow_schema
from millrace.model.errors import refuse
from millrace.model.plain import to_json
from millrace.model.query import Query
from millrace.model.schema import UNKNOWN, Column, Schema
from millrace.model.stream import AnswerStream, Stream, derived_in, own_sources, reads_changes
from millrace.model.window import CountWindow, Global
from millrace.panes.advance import TIMINGS

_PANE = (Column("diff", "INT"), Column("timing", "STRING"), Column("index", "BIGINT"), Column("last", "BOOLEAN"))


def schema_of(of: Query | Stream) -> Schema:
    """The columns of an output's rows. Refuses a column of unknown type."""
    for column in of.schema:
        if column.type == UNKNOWN:
            message = f"the type of {column.name!r} is not known; cast its argument, or give the fold type="
            raise refuse(message, of.place)
    if not isinstance(of, Query) and not reads_changes(of):
        return of.schema
    added = _PANE if isinstance(of, Query) or has_panes(of) else _PANE[:1]
    names = free_names(of.schema.names, [column.name for column in added])
    return Schema((*of.schema, *(Column(name, column.type) for name, column in zip(names, added, strict=True))))


def has_panes(stream: Stream) -> bool:
    """Whether each row of a stream comes from a pane; those of a join come from two rows."""
    return not own_sources(stream) and all(isinstance(root, AnswerStream) for root in derived_in(stream))


def as_answers(of: Query | Stream, rows: pa.Table) -> pa.Table:
    """Rows of a source as the output rows of a stream; if it has answers, too, they are rows that are added."""
    schema = arrow_schema(schema_of(of))
    added = [pa.array(np.ones(len(rows), np.int32)) for _ in schema.names[len(rows.column_names) :]]
    return pa.table([*rows.columns, *added], names=schema.names) if added else rows


def free_names(taken: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Names for the columns that Millrace adds; a name that the user already has gets the prefix `pane_`."""
    known = {name.lower() for name in taken}
    return [name if name not in known else f"pane_{name}" for name in wanted]


def answers(query: Query, said: pa.Table) -> pa.Table:
    """The panes that `advance` returned, as output rows."""
    columns: list[pa.Array] = [said[key] for key in query.key_columns]
    for bound in ("start", "end"):
        kind = pa.timestamp("us", "UTC")
        bounds = said[bound]
        if isinstance(query.windowing, Global):
            bounds = pa.nulls(len(said), kind)
        columns.append(bounds if isinstance(query.windowing, CountWindow) else bounds.cast(kind))
    columns += [said[f"value{number}"] for number in range(len(query.computed))]
    timings = pa.array(map(str, TIMINGS)).take(said["timing"].combine_chunks())
    columns += [said["diff"], timings, said["index"], said["last"]]
    schema = arrow_schema(schema_of(query))
    return pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


def json_lines(answers: pa.Table) -> list[str]:
    """Each row as a JSON object."""
    return [to_json(row) for row in answers.to_pylist()]
