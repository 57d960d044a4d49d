"""The parts of nested types."""

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from sqlglot import exp

from millrace.model.schema import DIALECT, UNKNOWN
from millrace.model.types import normal


@dataclass(frozen=True, slots=True)
class ArrayType:
    """The type of arrays."""

    element: str


@dataclass(frozen=True, slots=True)
class MapType:
    """The type of maps."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class StructType:
    """The type of structs: the name and type of each field."""

    fields: tuple[tuple[str, str], ...]


Nested: TypeAlias = ArrayType | MapType | StructType


@cache
def nested(type: str) -> Nested | None:
    """A nested type by its parts; None for another type.

    >>> nested("MAP<STRING, ARRAY<INT>>")
    MapType(key='STRING', value='ARRAY<INT>')
    """
    if "<" not in type or UNKNOWN in type:
        return None
    tree = exp.DataType.build(type, dialect=DIALECT)
    if tree.this == exp.DataType.Type.STRUCT:
        return StructType(tuple((each.name, _text(each.kind)) for each in tree.expressions))
    parts = [_text(each) for each in tree.expressions]
    if tree.this == exp.DataType.Type.MAP:
        return MapType(*parts)
    return ArrayType(*parts) if tree.this == exp.DataType.Type.ARRAY else None


def _text(type: exp.Expr) -> str:
    return normal(type.sql(DIALECT))
