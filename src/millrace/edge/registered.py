"""Decodes records of a schema registry: Avro, JSON with a schema, and Protobuf, each by the schema that wrote it.

A record names its schema. Those of one schema are decoded together; the columns of the source are read by name, from
each schema as it is. A field that a schema lacks is NULL.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.edge.decode import JsonDecoder, Misfit
from millrace.edge.held import Columns, Rows, together
from millrace.formats.fields import names_of as fields_of
from millrace.formats.texts import as_texts
from millrace.formats.wire import Wire, read_wire
from millrace.model.arrow import arrow_type
from millrace.model.errors import NotFoundError, PipelineError
from millrace.model.registry import AVRO, JSON_SCHEMA, PROTOBUF, version_of
from millrace.model.schema import Schema
from millrace.sources.bundle import Encoded

if TYPE_CHECKING:
    from millrace.sources.registry import Registered, Registry

_TYPES = {AVRO: "AVRO", JSON_SCHEMA: "JSON", PROTOBUF: "PROTOBUF"}
_FORMATS = {type: format for format, type in _TYPES.items()}
_WRONG = "check that the producers use the schema registry that registry= names"


class Reader(Protocol):
    """Reads the records of one schema."""

    def read(self, bodies: pa.Array) -> Rows:
        """The rows of the records that fit, in their order, and the misfits."""

    def names(self, body: bytes) -> tuple[str, ...] | None:
        """The fields of a record; None if it does not decode."""

    def text(self, body: bytes) -> str | None:
        """A record as JSON; None if it does not decode."""


class RegisteredDecoder:
    """Decodes values in the wire format of a schema registry into the columns of one schema."""

    def __init__(self, schema: Schema, strict: bool = False) -> None:
        """Ask for schemas when records name them."""
        self._schema, self._strict = schema, strict
        self._readers: dict[int, Reader] = {}

    def decode(self, encoded: Encoded) -> Rows:
        """The records that fit, as columns in their order, and the misfits."""
        wire, none = read_wire(encoded.values), _empty(self._schema)
        parts: list[tuple[npt.NDArray[np.intp], Rows]] = []
        for id in np.unique(wire.ids).tolist():
            rows = np.flatnonzero(wire.ids == id)
            reader = self.reader(encoded, id)
            if id < 0:
                found: Rows = (
                    none,
                    [Misfit(n, *wire.reason(row), _hint(wire, row)) for n, row in enumerate(rows.tolist())],
                )
            elif isinstance(reader, Misfit):
                found = none, [replace(reader, row=n) for n in range(len(rows))]
            else:
                found = reader.read(wire.bodies(rows))
            parts.append((rows, found))
        return together([part for part in parts if len(part[1][0]) or part[1][1]], self._schema)

    def names(self, encoded: Encoded, rows: Iterable[int]) -> list[tuple[str, ...]]:
        """The fields of some records, without those that do not decode."""
        wire = read_wire(encoded.values)
        found = []
        for row in rows:
            reader = self.reader(encoded, int(wire.ids[row]))
            names = None if isinstance(reader, Misfit) else reader.names(wire.body(row))
            found += [] if names is None else [names]
        return found

    def reader(self, encoded: Encoded, id: int) -> Reader | Misfit:
        """What reads the records of a schema, or why none of them can be read."""
        if id in self._readers:
            return self._readers[id]
        found = None if id < 0 else encoded.registry.schema(id)
        if found is None:
            return Misfit(0, f"the schema registry has no schema {id}", hint=_WRONG)
        if found.type != _TYPES[encoded.format]:
            other = _FORMATS.get(found.type)
            hint = None if other is None else f'read the topic with format="{other}"'
            return Misfit(0, f"its schema {id} is {found.type}, not {_TYPES[encoded.format]}", hint=hint)
        try:
            self._readers[id] = self._made(encoded, found, f"it does not decode by schema {id}")
        except (PipelineError, NotFoundError) as error:
            return Misfit(0, f"its schema {id} cannot be used", error.problem, error.advice)
        return self._readers[id]

    def _made(self, encoded: Encoded, found: "Registered", problem: str) -> Reader:
        registry = encoded.registry
        if encoded.format == JSON_SCHEMA:
            return _JsonReader(self._schema, self._strict)
        used = {name: each.text for name, each in registry.referenced(found).items()}
        columns = Columns(self._schema, self._strict, problem)
        if encoded.format == PROTOBUF:
            from millrace.edge.protobuf import ProtobufRows  # as few pipelines read it

            return ProtobufRows(columns, found.text, used)
        from millrace.edge.avro import AvroRows  # fastavro is of an extra

        by = None if encoded.reader is None else registry.version(*version_of(encoded.reader))
        by_used = () if by is None else [each.text for each in registry.referenced(by).values()]
        return AvroRows(columns, found.text, list(used.values()), None if by is None else by.text, by_used)


def text_of(encoded: Encoded, row: int) -> str | None:
    """A record as JSON, for people; None if it does not decode."""
    wire = read_wire(encoded.values.slice(row, 1))
    reader = _for_people(encoded.registry).reader(encoded, int(wire.ids[0]))
    return None if isinstance(reader, Misfit) else reader.text(wire.body(0))


@lru_cache(8)
def _for_people(registry: "Registry") -> RegisteredDecoder:
    return RegisteredDecoder(Schema(()))


class _JsonReader:
    """Reads JSON objects that have a schema in the registry; their producer has checked them against it."""

    def __init__(self, schema: Schema, strict: bool) -> None:
        self._schema, self._strict = schema, strict

    @cached_property
    def _decoder(self) -> JsonDecoder:
        return JsonDecoder(self._schema, strict=self._strict)

    def read(self, bodies: pa.Array) -> Rows:
        return self._decoder.decode(as_texts(bodies))

    def names(self, body: bytes) -> tuple[str, ...] | None:
        text = self.text(body)
        try:
            return None if text is None else tuple(fields_of(text))
        except ValueError:
            return None

    def text(self, body: bytes) -> str | None:
        try:
            return body.decode()
        except UnicodeDecodeError:
            return None


def _hint(wire: Wire, row: int) -> str | None:
    """What to do about a value that is not in the wire format."""
    value = wire.values[row].as_py() or b""
    return 'read plain JSON with format="json"' if value[:1] == b"{" else None


def _empty(schema: Schema) -> pa.Table:
    return pa.table({column.name: pa.array([], arrow_type(column.type)) for column in schema})
