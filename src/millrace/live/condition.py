"""Conditions over the rows of a view, as a small typed tree in which every constant is a numbered slot.

Queries that differ only in their constants have equal trees, so they can share an index of constants. The tree makes
each conversion explicit. Its meaning is chosen so that SQLite, PostgreSQL and Arrow can all compute it exactly
([decision 025](../../../docs/decisions/025-live-queries.md)).

A value has one of these types: BIGINT (every whole number), DOUBLE (FLOAT too), DECIMAL(p, s), STRING, BOOLEAN, DATE,
TIMESTAMP. Constants are Python values: dates and times are days and microseconds since 1970.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias

from millrace.model.types import is_decimal, is_float, is_integer

Value: TypeAlias = int | float | Decimal | str | bool | None
Constant: TypeAlias = Value | tuple[Value, ...]
"""The value of a slot; several values for the list of an IN."""
Operation: TypeAlias = Literal[
    "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "is_null", "is_true", "in", "like",
    "add", "sub", "mul", "div", "mod", "neg", "double",
]  # fmt: skip
"""`is_true` is never NULL. `double` turns a BIGINT into a DOUBLE."""
COMPARISONS: tuple[Operation, ...] = ("eq", "ne", "lt", "le", "gt", "ge")
ARITHMETIC: tuple[Operation, ...] = ("add", "sub", "mul", "div", "mod", "neg")
FLIPPED: dict[Operation, Operation] = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""The comparison with its sides exchanged."""
LEAST, MOST = 1e-150, 1e150
"""The magnitudes of a DOUBLE that arithmetic takes, beside 0; no result of two such operands overflows."""


@dataclass(frozen=True, slots=True)
class ColumnOf:
    """A column of the row."""

    name: str
    type: str
    stored: str
    """Its type in the view."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A constant, by its number."""

    number: int
    type: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operation on values."""

    name: Operation
    arguments: tuple["Condition", ...]
    type: str


Condition: TypeAlias = ColumnOf | Slot | Call


def walk(node: Condition) -> Iterator[Condition]:
    """A node and all nodes below it."""
    yield node
    if isinstance(node, Call):
        for argument in node.arguments:
            yield from walk(argument)


def conjuncts(node: Condition | None) -> tuple[Condition, ...]:
    """The parts of a chain of ANDs."""
    if isinstance(node, Call) and node.name == "and":
        return tuple(part for argument in node.arguments for part in conjuncts(argument))
    return () if node is None else (node,)


def columns_of(node: Condition | None) -> tuple[str, ...]:
    """The columns that a condition reads, each once."""
    found = () if node is None else walk(node)
    return tuple(dict.fromkeys(part.name for part in found if isinstance(part, ColumnOf)))


def has_slot(node: Condition) -> bool:
    """Whether a node contains a constant."""
    return any(isinstance(part, Slot) for part in walk(node))


def both(
    first: Condition | None, constants: tuple[Constant, ...], second: Condition, more: tuple[Constant, ...]
) -> tuple[Condition, tuple[Constant, ...]]:
    """Two conditions with their constants as one condition."""
    moved = _moved(second, len(constants))
    joined = moved if first is None else Call("and", (first, moved), "BOOLEAN")
    return joined, (*constants, *more)


def _moved(node: Condition, by: int) -> Condition:
    match node:
        case Slot(number=number, type=type):
            return Slot(number + by, type)
        case Call(name=name, arguments=arguments, type=type):
            return Call(name, tuple(_moved(argument, by) for argument in arguments), type)
        case ColumnOf():
            return node


def type_in_condition(type: str) -> str | None:
    """The type in a condition of a column of this type; None for a column that conditions can only test for NULL.

    SQLite keeps decimals of more than 15 digits as text, which it cannot compare as numbers.
    """
    if is_integer(type):
        return "BIGINT"
    if is_float(type):
        return "DOUBLE"
    if is_decimal(type):
        return type if int(type[len("DECIMAL(") :].split(",")[0]) <= 15 else None
    return type if type in ("STRING", "BOOLEAN", "DATE", "TIMESTAMP") else None
