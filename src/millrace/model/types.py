"""SQL types by name, and the common type of two types under Spark 4's ANSI rules.

A type is Spark's name for it: `BIGINT`, `DECIMAL(10, 2)`. `VOID` is the type of NULL itself.
"""

import re
from collections.abc import Iterable

INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
NUMBERS = (*INTEGERS, "FLOAT", "DOUBLE")
"""The numeric types from narrow to wide, without decimals."""
_FOR_INTEGER = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
_MOST_DIGITS, _LEAST_SCALE = 38, 6
_DECIMAL = re.compile(r"DECIMAL\((\d+), (\d+)\)")


def is_integer(type: str) -> bool:
    """Whether values of this type are whole numbers."""
    return type in INTEGERS


def is_decimal(type: str) -> bool:
    """Whether values of this type are decimals of a fixed scale."""
    return type.startswith("DECIMAL(")


def is_float(type: str) -> bool:
    """Whether values of this type are binary floating point numbers."""
    return type in ("FLOAT", "DOUBLE")


def is_number(type: str) -> bool:
    """Whether values of this type can be added up."""
    return type in NUMBERS or is_decimal(type)


def decimal(precision: int, scale: int) -> str:
    """The name of a decimal type."""
    return f"DECIMAL({precision}, {scale})"


def decimal_of(type: str) -> tuple[int, int]:
    """Precision and scale of a decimal type, or of the decimal that holds every value of an integer type."""
    if type in _FOR_INTEGER:
        return _FOR_INTEGER[type], 0
    found = _DECIMAL.fullmatch(type)
    if found is None:
        raise ValueError(f"{type} is not a decimal")
    return int(found[1]), int(found[2])


def normal(type: str) -> str:
    """A type with explicit precision and scale for its decimals; the defaults are 10 and 0.

    >>> normal("STRUCT<a: DECIMAL, b: DECIMAL(5)>")
    'STRUCT<a: DECIMAL(10, 0), b: DECIMAL(5, 0)>'
    """
    return re.sub(r"\bDECIMAL\b(?!\()", "DECIMAL(10, 0)", re.sub(r"\bDECIMAL\((\d+)\)", r"DECIMAL(\1, 0)", type))


def digits_of(type: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for another type.

    >>> digits_of("DECIMAL(10, 2)"), digits_of("INT")
    ((10, 2), None)
    """
    return decimal_of(type) if is_decimal(type) else None


def adjusted(precision: int, scale: int) -> str:
    """A decimal type of at most 38 digits; beyond that the scale is reduced, but not below six."""
    if precision <= _MOST_DIGITS:
        return decimal(precision, scale)
    whole = precision - scale
    return decimal(_MOST_DIGITS, max(_MOST_DIGITS - whole, min(scale, _LEAST_SCALE)))


def arithmetic(operation: str, left: str, right: str) -> str:
    """The type of add, sub, mul, div or mod of two decimals."""
    (p1, s1), (p2, s2) = decimal_of(left), decimal_of(right)
    match operation:
        case "add" | "sub":
            scale = max(s1, s2)
            return adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)
        case "mul":
            return adjusted(p1 + p2 + 1, s1 + s2)
        case "div":
            scale = max(_LEAST_SCALE, s1 + p2 + 1)
            return adjusted(p1 - s1 + s2 + scale, scale)
        case "mod":
            scale = max(s1, s2)
            return adjusted(min(p1 - s1, p2 - s2) + scale, scale)
    raise ValueError(f"{operation} is not an arithmetic operation on decimals")


def wider_decimal(left: str, right: str) -> str:
    """A decimal type that holds both, within 38 digits; digits before the point have priority."""
    (p1, s1), (p2, s2) = decimal_of(left), decimal_of(right)
    scale = max(s1, s2)
    precision = max(p1 - s1, p2 - s2) + scale
    if precision > _MOST_DIGITS:
        return decimal(_MOST_DIGITS, max(0, scale - (precision - _MOST_DIGITS)))
    return decimal(precision, scale)


def tightest(left: str, right: str) -> str | None:
    """The common type of two operands of an operator, if neither is text and at most one is a decimal; else None."""
    if left == right or right == "VOID":
        return left
    if left == "VOID":
        return right
    if left in NUMBERS and right in NUMBERS:
        wide = NUMBERS[max(NUMBERS.index(left), NUMBERS.index(right))]
        return "DOUBLE" if wide == "FLOAT" else wide
    if {left, right} == {"DATE", "TIMESTAMP"}:
        return "TIMESTAMP"
    return None


def beside_text(other: str) -> str | None:
    """The common type of text and a value of this type as operands; None if only Spark knows it."""
    if is_integer(other):
        return "BIGINT"
    if is_number(other):
        return "DOUBLE"
    return other if other in ("STRING", "VOID", "BOOLEAN", "DATE", "TIMESTAMP") else None


def wider(left: str, right: str) -> str | None:
    """The common type of two branches of a CASE, arguments of COALESCE and the like; None if there is none."""
    found = tightest(left, right)
    if found is not None:
        return found
    if is_number(left) and is_number(right):  # one is a decimal
        return "DOUBLE" if is_float(left) or is_float(right) else wider_decimal(left, right)
    if left == "STRING":
        return beside_text(right)
    return beside_text(left) if right == "STRING" else None


def widest(types: Iterable[str]) -> str | None:
    """The common type of several types; None if there is none."""
    found: str | None = "VOID"
    for each in types:
        found = None if found is None else wider(found, each)
    return found
