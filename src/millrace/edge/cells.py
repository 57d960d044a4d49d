"""Turns columns of texts, the fields of CSV records, into the columns of a schema, in DuckDB.

The rules for a text are those for a string in JSON (`edge.decode`); a column that the texts do not have is NULL.
"""

import pyarrow as pa

from millrace.edge.connection import Prepared
from millrace.edge.decode import MISFIT, Misfit
from millrace.edge.hints import hint_for_value
from millrace.formats.sql import quoted
from millrace.formats.typed import is_none, value_of
from millrace.formats.written import without_exponent
from millrace.model.errors import unknown
from millrace.model.schema import Column, Schema, missing
from millrace.model.types import digits_of


class CellDecoder:
    """Decodes columns of texts into the columns of one schema."""

    def __init__(self, schema: Schema, strict: bool = False) -> None:
        """Write the statement. Refuses types that have no text."""
        self._schema, self._strict, self._prepared = schema, strict, Prepared()
        chosen = [f"{value_of(column, quoted(column.name))} AS v{n}" for n, column in enumerate(schema)]
        misfits = [
            f"WHEN {is_none(column, f'v{n}', quoted(column.name))} THEN {n}"
            for n, column in enumerate(schema)
            if column.type != "STRING"
        ]
        misfits += [
            f"WHEN {quoted(column.name)} IS NULL THEN {n}" for n, column in enumerate(schema) if column.required
        ]
        misfit = f"CASE {' '.join(misfits)} END" if misfits else "NULL"
        named = [f"v{n} AS {quoted(column.name)}" for n, column in enumerate(schema)]
        rows = f"(SELECT *, {', '.join(chosen)} FROM __rows)"
        self._statement = f"SELECT {', '.join(named)}, {misfit} AS {MISFIT} FROM {rows}"

    def decode(self, cells: pa.Table) -> tuple[pa.Table, list[Misfit]]:
        """The rows that fit, in their order, and the misfits."""
        extra = [name for name in cells.column_names if name not in self._schema]
        texts = pa.table(
            {
                column.name: _plain(cells[column.name], column)
                if column.name in cells.column_names
                else pa.nulls(len(cells), pa.string())
                for column in self._schema
            }
        )
        with self._prepared.over(texts) as ask:
            read = ask(self._statement).to_arrow_table()
        marks, rows = read[MISFIT], read.drop_columns([MISFIT])
        if self._strict and extra:
            reason = unknown("field", extra[0], self._schema.names)
            return rows.slice(0, 0), [Misfit(row, reason) for row in range(len(rows))]
        if marks.null_count == len(marks):
            return rows, []
        misfits = [
            self._misfit(row, self._schema.columns[mark], texts)
            for row, mark in enumerate(marks.to_pylist())
            if mark is not None
        ]
        return rows.filter(marks.is_null()), misfits

    def _misfit(self, row: int, column: Column, texts: pa.Table) -> Misfit:
        text = texts[column.name][row].as_py()
        if text is None:
            return Misfit(row, missing(column.name))
        return Misfit(row, f"{column.name} is not {column.type}", f"{text!r:.80}", hint_for_value(column, text))


def _plain(texts: pa.ChunkedArray, column: Column) -> pa.ChunkedArray | pa.Array:
    if digits_of(column.type) is None:
        return texts
    return pa.array([without_exponent(text) if text else text for text in texts.to_pylist()], pa.string())
