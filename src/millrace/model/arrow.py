"""SQL types as Arrow types."""

import pyarrow as pa
from sqlglot import exp

from millrace.model.errors import refuse
from millrace.model.schema import DIALECT, Schema
from millrace.model.types import normal

_PLAIN = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}


def arrow_type(type: str) -> pa.DataType | None:
    """The Arrow type of an SQL type; None if it depends on the values.

    >>> arrow_type("ARRAY<BIGINT>")
    ListType(list<item: int64>)
    """
    return None if type in ("UNKNOWN", "NULL", "VOID") else _convert(exp.DataType.build(normal(type), dialect=DIALECT))


def arrow_schema(schema: Schema) -> pa.Schema:
    """A schema as an Arrow schema; a column whose type depends on the values has none."""
    return pa.schema([(column.name, arrow_type(column.type) or pa.null()) for column in schema])


def _convert(type: exp.DataType) -> pa.DataType:
    name = type.sql(DIALECT)
    if name in _PLAIN:
        return _PLAIN[name]
    if type.this == exp.DataType.Type.DECIMAL:
        precision, scale = [int(each.name) for each in type.expressions] or (10, 0)
        return pa.decimal128(precision, scale)
    if type.this == exp.DataType.Type.ARRAY:
        return pa.list_(_convert(type.expressions[0]))
    if type.this == exp.DataType.Type.MAP:
        return pa.map_(*map(_convert, type.expressions))
    if type.this == exp.DataType.Type.STRUCT:
        return pa.struct([pa.field(each.name, _convert(each.kind)) for each in type.expressions])
    raise refuse(f"Millrace cannot compute with columns of type {name}")
