"""Decodes the bundles of a source, in whatever form they are: JSON, CSV, columns, or with schemas of a registry."""

from collections import Counter
from collections.abc import Container
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from millrace.edge.cells import CellDecoder
from millrace.edge.decode import JsonDecoder, Misfit
from millrace.edge.registered import RegisteredDecoder
from millrace.edge.registered import text_of as encoded_text
from millrace.model.schema import missing
from millrace.model.stream import Source
from millrace.sources.bundle import Bundle
from millrace.sources.looked import LOOKED_AT, Looked, compared, look


class RecordDecoder:
    """Decodes bundles into rows with the columns of their source."""

    def __init__(self, source: Source, wanted: Container[str] | None = None) -> None:
        """Decode all columns, or at least the wanted ones."""
        self._source, self._wanted = source, wanted
        self.by_shape = 0
        """How many records of JSON have been decoded by shape."""

    @cached_property
    def json(self) -> JsonDecoder:
        """The decoder of JSON, created when it is first needed, because not every schema has one."""
        return JsonDecoder(self._source.value_schema, self._wanted, self._source.is_strict)

    @cached_property
    def _cells(self) -> CellDecoder:
        return CellDecoder(self._source.schema, self._source.is_strict)

    @cached_property
    def _registered(self) -> RegisteredDecoder:
        return RegisteredDecoder(self._source.value_schema, self._source.is_strict)

    def look(self, bundle: Bundle) -> Looked:
        """Look at the fields of the first records of a bundle."""
        if bundle.encoded is None:
            return look(bundle, self._source.value_schema)
        names = self._registered.names(bundle.encoded, range(min(LOOKED_AT, len(bundle))))
        return compared(Counter(names), self._source.value_schema)

    def decode(self, bundle: Bundle) -> tuple[pa.Table, list[Misfit]]:
        """The rows of the records that fit, in their order, and the misfits."""
        if bundle.rows is not None:
            return self._present(bundle.rows)
        if bundle.encoded is not None:
            return _beside(*self._registered.decode(bundle.encoded), bundle)
        if bundle.cells is None:
            decoded = _beside(*self.json.decode(bundle.texts), bundle)
            self.by_shape = self.json.by_shape.matched
            return decoded
        rows, misfits = self._cells.decode(bundle.cells)
        places = np.delete(np.arange(len(bundle)), list(bundle.wrong))
        moved = [replace(each, row=int(places[each.row])) for each in misfits]
        return rows, [*(Misfit(row, reason) for row, reason in bundle.wrong.items()), *moved]

    def _present(self, rows: pa.Table) -> tuple[pa.Table, list[Misfit]]:
        """The rows that have values in all columns that are NOT NULL, and the others."""
        absent: dict[int, str] = {}
        for name in self._source.schema.required:
            if rows[name].null_count:
                places = np.flatnonzero(rows[name].is_null().to_numpy())
                absent = dict.fromkeys(places.tolist(), missing(name)) | absent
        if not absent:
            return rows, []
        left = np.delete(np.arange(len(rows)), list(absent))
        return rows.take(pa.array(left)), [Misfit(row, absent[row]) for row in sorted(absent)]


def _beside(rows: pa.Table, misfits: list[Misfit], bundle: Bundle) -> tuple[pa.Table, list[Misfit]]:
    """Decoded rows with those columns that are not in the texts of the records, and the misfits."""
    if bundle.metadata is None:
        return rows, misfits
    left = np.delete(np.arange(len(bundle)), [misfit.row for misfit in misfits])
    more = bundle.metadata.take(pa.array(left)) if misfits else bundle.metadata
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    return pa.table(columns | dict(zip(more.column_names, more.columns, strict=True))), misfits


def text_of(bundle: Bundle, row: int) -> str | None:
    """The text of a record for people, that of an encoded one as JSON; None if it has none."""
    if bundle.encoded is not None:
        return encoded_text(bundle.encoded, row)
    text: str | None = None if bundle.texts is None else bundle.texts[row].as_py()
    return text
