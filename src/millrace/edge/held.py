"""Decoded values as the columns of a schema, and the records whose values do not fit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.edge.decode import Misfit
from millrace.edge.hints import hint_for_value
from millrace.formats.fitted import fitted, hint_for
from millrace.model.arrow import arrow_type
from millrace.model.errors import unknown
from millrace.model.plain import as_text, to_json
from millrace.model.schema import Column, Schema, missing

Rows: TypeAlias = tuple[pa.Table, list[Misfit]]
"""The records that fit, as columns in their order, and the others."""
Made: TypeAlias = tuple[pa.Array, Mapping[int, Any]]
"""A column, and the values that do not fit by their rows."""


def together(parts: Sequence[tuple[npt.NDArray[np.intp], Rows]], schema: Schema) -> Rows:
    """Several decoded parts of a bundle as one, each with the rows of the bundle that it holds."""
    tables, places, misfits = [], [], list[Misfit]()
    for rows, (table, wrong) in parts:
        misfits += [replace(each, row=int(rows[each.row])) for each in wrong]
        tables.append(table)
        places.append(np.delete(rows, [each.row for each in wrong]))
    misfits.sort(key=lambda each: each.row)
    if not tables:
        return pa.table({each.name: pa.array([], arrow_type(each.type)) for each in schema}), misfits
    if len(tables) == 1:
        return tables[0], misfits
    whole = pa.concat_tables(tables).combine_chunks()
    return whole.take(pa.array(np.argsort(np.concatenate(places), kind="stable"))), misfits


@dataclass(frozen=True, slots=True)
class Columns:
    """Makes the columns of a schema from decoded values."""

    schema: Schema
    strict: bool
    problem: str
    """The problem of a record that does not decode."""

    def unknown(self, names: Iterable[str]) -> str | None:
        """Why records with these fields do not fit; None if they may."""
        extra = [name for name in names if name not in self.schema] if self.strict else []
        return unknown("field", extra[0], self.schema.names) if extra else None

    def undecoded(self, row: int, reason: str) -> Misfit:
        """A record that does not decode."""
        return Misfit(row, self.problem, f"{reason:.200}")

    def rows(self, many: int, values: Mapping[str, Sequence[Any] | Made], wrong: Mapping[int, Misfit]) -> Rows:
        """The rows of so many records, from the values of the columns that they have. Those in `wrong` do not count."""
        misfits = dict(wrong)
        columns: dict[str, pa.Array] = {}
        for column in self.schema:
            given = values.get(column.name)
            if given is None:
                made: Made = pa.nulls(many, arrow_type(column.type)), {}
            else:
                made = given if isinstance(given, tuple) else fitted(given, column.type)
            columns[column.name], others = made
            for row, found in others.items():
                misfits.setdefault(row, _misfit(row, column, found))
            if column.required and columns[column.name].null_count:
                for row in np.flatnonzero(columns[column.name].is_null().to_numpy(zero_copy_only=False)).tolist():
                    misfits.setdefault(row, Misfit(row, missing(column.name)))
        table = pa.table(columns)
        if misfits:
            table = table.take(pa.array(np.delete(np.arange(many), list(misfits))))
        return table, list(misfits.values())


def _misfit(row: int, column: Column, found: Any) -> Misfit:
    shown = to_json(found) if isinstance(found, dict | list) else found
    shown = as_text(shown) if isinstance(shown, date | Decimal) else repr(shown)
    hint = hint_for(column, found) or hint_for_value(column, found)
    return Misfit(row, f"{column.name} is not {column.type}", f"{shown:.80}", hint)
