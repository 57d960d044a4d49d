"""How the values of a column are decoded by shape, and where they are stored."""

from dataclasses import dataclass

from millrace.model.schema import Column
from millrace.model.types import digits_of

SKIP, STRING, INTEGER, DOUBLE, DECIMAL, BOOLEAN, TIMESTAMP, DATE = range(8)
"""What is made of a value."""
_BITS = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}
_KINDS = {"STRING": STRING, "DOUBLE": DOUBLE, "BOOLEAN": BOOLEAN, "TIMESTAMP": TIMESTAMP, "DATE": DATE}
_MOST_DIGITS = 18
"""The most digits of a decimal number that is decoded by shape; 64 bits hold them."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a column are decoded."""

    kind: int
    low: int = 0
    high: int = 0
    scale: int = 0


def form_of(column: Column) -> Form | None:
    """The form of a column; None if values of its type are not decoded by shape."""
    if column.type in _BITS:
        limit = 1 << _BITS[column.type]
        return Form(INTEGER, -limit, limit - 1)
    digits = digits_of(column.type)
    if digits is not None:
        precision, scale = digits
        limit = 10 ** min(precision, _MOST_DIGITS)
        return Form(DECIMAL, 1 - limit, limit - 1, scale)
    return Form(_KINDS[column.type]) if column.type in _KINDS else None
