"""Columns as a schema for a registry: Avro, or JSON Schema. Every column may be NULL."""

import re
from typing import Any

import pyarrow as pa

from millrace.model.errors import PipelineError, refuse

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DRAFT = "http://json-schema.org/draft-07/schema#"


def avro_schema(columns: pa.Schema, name: str) -> dict[str, Any]:
    """The schema of Avro for rows of these columns. Refuses what Avro has no name or no type for."""
    return _record(list(columns), re.sub(r"\W", "_", name, flags=re.ASCII) or "_")


def json_schema(columns: pa.Schema, name: str) -> dict[str, Any]:
    """The JSON Schema for rows of these columns, as `to_json` writes them."""
    properties = {each.name: _json(each.type) for each in columns}
    return {"$schema": _DRAFT, "title": name, "type": "object", "properties": properties}


def _record(fields: list[pa.Field], name: str) -> dict[str, Any]:
    for each in fields:
        if not _NAME.fullmatch(each.name):
            advice = "give it another name with select(), or write another format"
            raise refuse(f"Avro has no field with the name {each.name!r}", advice=advice)
    name = name if _NAME.fullmatch(name) else f"_{name}"
    made = [{"name": each.name, "type": _avro(each.type, f"{name}_{each.name}"), "default": None} for each in fields]
    return {"type": "record", "name": name, "fields": made}


def _avro(type: pa.DataType, name: str) -> list[Any]:
    return ["null", _single(type, name)]


def _single(type: pa.DataType, name: str) -> Any:
    kinds = pa.types
    if kinds.is_boolean(type):
        return "boolean"
    if kinds.is_integer(type):
        return "long" if type.bit_width == 64 else "int"
    if kinds.is_float32(type):
        return "float"
    if kinds.is_float64(type):
        return "double"
    if kinds.is_string(type) or kinds.is_large_string(type):
        return "string"
    if kinds.is_binary(type) or kinds.is_large_binary(type):
        return "bytes"
    if kinds.is_date32(type):
        return {"type": "int", "logicalType": "date"}
    if kinds.is_timestamp(type):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if kinds.is_decimal(type):
        return {"type": "bytes", "logicalType": "decimal", "precision": type.precision, "scale": type.scale}
    if kinds.is_list(type) or kinds.is_large_list(type):
        return {"type": "array", "items": _avro(type.value_type, f"{name}_item")}
    if kinds.is_map(type) and kinds.is_string(type.key_type):
        return {"type": "map", "values": _avro(type.item_type, f"{name}_value")}
    if kinds.is_struct(type):
        return _record(list(type), name)
    raise PipelineError(f"Avro has no type for {name!r}, which is {type}", "leave it out, or write another format")


def _json(type: pa.DataType) -> dict[str, Any]:
    kinds = pa.types
    if kinds.is_boolean(type):
        return {"type": ["boolean", "null"]}
    if kinds.is_integer(type):
        return {"type": ["integer", "null"]}
    if kinds.is_floating(type):  # NaN and the infinities are texts
        return {"type": ["number", "string", "null"]}
    if kinds.is_timestamp(type):
        return {"type": ["string", "null"], "format": "date-time"}
    if kinds.is_date32(type):
        return {"type": ["string", "null"], "format": "date"}
    if kinds.is_map(type):  # a list of pairs, as in the other outputs
        return {"type": ["array", "null"]}
    if kinds.is_list(type) or kinds.is_large_list(type):
        return {"type": ["array", "null"], "items": _json(type.value_type)}
    if kinds.is_struct(type):
        return {"type": ["object", "null"], "properties": {each.name: _json(each.type) for each in type}}
    return {"type": ["string", "null"]}
