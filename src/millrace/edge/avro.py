"""Records of one schema of Avro as rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.edge.decode import Misfit
from millrace.edge.held import Columns, Made, Rows, together
from millrace.formats.avro import AvroReader, has_uuid, plain
from millrace.formats.avro_columns import read_flat
from millrace.formats.fitted import dates, instants
from millrace.model.plain import to_json


class AvroRows:
    """Reads the records of one writer's schema, as it is or by a reader's schema."""

    def __init__(
        self, columns: Columns, text: str, used: Sequence[str], by: str | None, used_by: Sequence[str]
    ) -> None:
        """`used` has the schemas that the writer's refers to, `by` is the reader's, and `used_by` those of that one."""
        self._columns = columns
        types = {column.name: column.type for column in columns.schema}
        self._reader = AvroReader(text, used, types, by, used_by)
        self._whole = AvroReader(text, used, None, by, used_by)
        """Leaves no times as numbers: for people."""
        self._has_uuid = any(map(has_uuid, (text, *used)))
        self._strange = columns.unknown(self._reader.names)
        self._flat = None if self._strange is not None else self._reader.flat(types)
        """The fields, if they can be read in columns."""

    def read(self, bodies: pa.Array) -> Rows:
        """The rows of the records that fit, in their order, and the misfits."""
        if self._flat is None:
            return self.parse(bodies.to_pylist())
        values, good = read_flat(bodies, self._flat)
        chosen, left = np.flatnonzero(good), np.flatnonzero(~good)
        known = {name: self._made(name, values[name]) for name in self._columns.schema.names if name in values}
        parts = [(chosen, self._columns.rows(len(chosen), known, {}))] if len(chosen) else []
        if len(left):
            parts.append((left, self.parse(bodies.take(pa.array(left)).to_pylist())))
        return together(parts, self._columns.schema)

    def parse(self, bodies: Sequence[bytes]) -> Rows:
        """The same as `read`, by fastavro alone."""
        records, failed = self._reader.read(bodies)
        wrong = {row: self._columns.undecoded(row, reason) for row, reason in failed.items()}
        if self._strange is not None:
            wrong = {row: Misfit(row, self._strange) for row in range(len(bodies))} | wrong
        names = {*self._reader.names}
        values = {name: self._values(name, records) for name in self._columns.schema.names if name in names}
        return self._columns.rows(len(bodies), values, wrong)

    def names(self, body: bytes) -> tuple[str, ...]:
        """The fields of all records."""
        return self._reader.names

    def text(self, body: bytes) -> str | None:
        """A record as JSON; None if it does not decode."""
        ((record,), _) = self._whole.read([body])
        return None if record is None else to_json(plain(record))

    def _values(self, name: str, records: Sequence[dict[str, Any] | None]) -> Sequence[Any] | Made:
        found = [None if record is None else record[name] for record in records]
        if name in self._reader.numbered:
            return self._made(name, pa.array(found, pa.int64()))
        return list(map(plain, found)) if self._has_uuid else found

    def _made(self, name: str, found: pa.Array) -> Made:
        """A column, of numbers if the field is read as such."""
        numbered = self._reader.numbered.get(name)
        if numbered is None:
            return found, {}
        return dates(found) if numbered.per_second is None else instants(found, numbered.per_second)
