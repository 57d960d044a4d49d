"""Rows as the values of records: JSON, or Avro and JSON with the id of a schema in a registry."""

import json
import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from io import BytesIO
from typing import Any

import pyarrow as pa

from millrace.formats.schemas import avro_schema, json_schema
from millrace.model.extra import extra
from millrace.model.kafka_sink import KafkaSink
from millrace.model.registry import AVRO, JSON, divided
from millrace.sources.kafka_cluster import properties_in, registry_at
from millrace.sources.registry import Registry
from millrace.spark.answers import json_lines


class Values:
    """Encodes the rows of one sink."""

    def __init__(self, sink: KafkaSink, columns: pa.Schema) -> None:
        """Refuses columns that the format has no type for."""
        self._sink, self._columns = sink, columns
        if sink.format == AVRO:
            avro_schema(columns, sink.topic)

    def of(self, rows: pa.Table) -> Sequence[str | bytes]:
        """The value of each row. The schema is registered before the first."""
        if self._sink.format == JSON:
            return json_lines(rows)
        if not len(rows):
            return []
        is_avro, topic = self._sink.format == AVRO, self._sink.topic
        known = {field.name: field for field in self._columns}
        columns = pa.schema([known.get(field.name, field) for field in rows.schema])  # a changelog has two more
        schema = avro_schema(columns, topic) if is_avro else json_schema(columns, topic)
        id = self._registry.register(f"{topic}-value", "AVRO" if is_avro else "JSON", json.dumps(schema))
        head = struct.pack(">bI", 0, id)
        if not is_avro:
            return [head + line.encode() for line in json_lines(rows)]
        encode = _encoder(schema)
        maps = {field.name: _plainly(field.type) for field in columns if _has_map(field.type)}
        return [head + encode(_mapped(row, maps)) for row in rows.to_pylist()]

    @cached_property
    def _registry(self) -> Registry:
        sink = self._sink
        assert sink.registry is not None
        _, properties = divided(properties_in(sink.properties) | dict(sink.secrets))
        return registry_at(sink.registry, sink.format, properties)


def _encoder(schema: dict[str, Any]) -> Callable[[Any], bytes]:
    with extra("kafka", "Avro"):
        from fastavro import parse_schema, schemaless_writer
    parsed = parse_schema(schema)

    def encode(row: Any) -> bytes:
        file = BytesIO()
        schemaless_writer(file, parsed, row)
        return file.getvalue()

    return encode


def _mapped(row: dict[str, Any], maps: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return row if not maps else {**row, **{name: plainly(row[name]) for name, plainly in maps.items()}}


def _has_map(type: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_map(type):
        return True
    if kinds.is_list(type) or kinds.is_large_list(type):
        return _has_map(type.value_type)
    return kinds.is_struct(type) and any(_has_map(each.type) for each in type)


def _plainly(type: pa.DataType) -> Callable[[Any], Any]:
    """What makes dictionaries of the maps in a value, which Arrow gives as lists of pairs."""
    if not _has_map(type):
        return lambda value: value
    if pa.types.is_map(type):
        item = _plainly(type.item_type)
        return lambda value: None if value is None else {name: item(each) for name, each in value}
    if pa.types.is_struct(type):
        fields = {each.name: _plainly(each.type) for each in type}
        return lambda value: None if value is None else {name: make(value[name]) for name, make in fields.items()}
    each = _plainly(type.value_type)
    return lambda value: None if value is None else [each(one) for one in value]
