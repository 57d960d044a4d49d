"""Row expressions as a small typed tree that makes Spark's computation explicit.

`resolve` makes these trees from SQL. Every operand has the type that its operation takes: each implicit cast of Spark
is a `Cast`. The reference engine evaluates the tree, and the fused edge translates it to DuckDB's SQL; neither uses the
text or the parser's tree.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from millrace.model.types import INTEGERS, decimal_of, is_decimal, is_integer, is_number


@dataclass(frozen=True, slots=True)
class ColumnOf:
    """A column of the row, or a field of a struct column."""

    path: tuple[str, ...]
    type: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant in the expression; None is NULL."""

    value: Any
    type: str


@dataclass(frozen=True, slots=True)
class Cast:
    """A value cast to another type; a value that does not fit has no result, or NULL if the cast is `safe`."""

    child: "Node"
    type: str
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """An operation on values; `OPERATIONS` lists the names."""

    name: str
    arguments: tuple["Node", ...]
    type: str


@dataclass(frozen=True, slots=True)
class Case:
    """The value of the first branch whose condition is true; later conditions and other values are not evaluated."""

    branches: tuple[tuple["Node", "Node"], ...]
    otherwise: "Node"
    type: str


Node: TypeAlias = ColumnOf | Literal | Cast | Call | Case

OPERATIONS = frozenset(
    {
        "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "same", "is_null", "in", "coalesce", "greatest",
        "least", "add", "sub", "mul", "div", "intdiv", "mod", "neg", "abs", "floor", "ceil", "round",
        "concat", "length", "lower", "upper", "trim", "ltrim", "rtrim", "substring", "like", "starts_with", "ends_with",
        "contains", "index", "date_trunc", "year", "quarter", "month", "day", "dayofyear", "dayofweek", "weekday",
        "weekofyear", "hour", "minute", "second", "timestamp_seconds", "timestamp_millis", "timestamp_micros",
        "unix_seconds", "unix_millis", "unix_micros",
    }
)  # fmt: skip
"""The names of all calls. `same` is `<=>`."""

LOGIC = ("and", "or", "not")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "same")


def children(node: Node) -> tuple[Node, ...]:
    """The parts of a node, in the order in which they are written."""
    match node:
        case ColumnOf() | Literal():
            return ()
        case Cast(child=child):
            return (child,)
        case Call(arguments=arguments):
            return arguments
        case Case(branches=branches, otherwise=otherwise):
            return (*(part for branch in branches for part in branch), otherwise)


def walk(node: Node) -> Iterator[Node]:
    """A node and all nodes below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def is_constant(node: Node) -> bool:
    """Whether the node reads no column, so that its value is the same for all rows."""
    return not any(isinstance(part, ColumnOf) for part in walk(node))


def flat(node: Node, name: str) -> list[Node]:
    """The operands of a chain of ANDs, or of ORs."""
    if isinstance(node, Call) and node.name == name:
        return [part for argument in node.arguments for part in flat(argument, name)]
    return [node]


def is_fallible(node: Node) -> bool:
    """Whether the node may have no value for a row: an overflow, a division by zero, a failing cast."""
    return any(map(_may_fail, walk(node)))


def _may_fail(node: Node) -> bool:
    match node:
        case Cast(child=child, type=type, safe=safe):
            return not safe and not _is_widening(child.type, type)
        case Call(name="add" | "sub" | "mul" | "neg" | "abs", type=type):
            return type not in ("DOUBLE", "FLOAT")
        case Call(name="floor" | "ceil", arguments=(argument,)):
            return argument.type != "BIGINT"
        case Call(name=name):
            return name in (
                "div",
                "intdiv",
                "mod",
                "index",
                "timestamp_seconds",
                "timestamp_millis",
                "timestamp_micros",
            )
    return False


def _is_widening(source: str, target: str) -> bool:
    """Whether a cast of any value of one type to the other succeeds."""
    if source == target or target == "STRING" or source == "VOID":
        return True
    if is_integer(source) and is_integer(target):
        return INTEGERS.index(source) <= INTEGERS.index(target)
    if target in ("DOUBLE", "FLOAT", "BOOLEAN"):
        return is_number(source) or source == "BOOLEAN"
    if is_decimal(target):
        precision, scale = decimal_of(target)
        if is_decimal(source):
            before, kept = decimal_of(source)
            return before - kept <= precision - scale and kept <= scale
        return source in _DIGITS and _DIGITS[source] <= precision - scale
    return (source, target) in (("DATE", "TIMESTAMP"), ("TIMESTAMP", "DATE"), ("TIMESTAMP", "BIGINT")) or (
        source == "BOOLEAN" and is_integer(target)
    )


_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19, "BOOLEAN": 1}
