"""Constants of live queries: literals and parameters, and their values in the type of what is beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from sqlglot import exp

from millrace.live.condition import Constant, Value
from millrace.model.errors import PipelineError, shown
from millrace.model.types import decimal_of, is_decimal

_LONGEST_PATTERN, _MOST_SIGNS = 1_000, 8


@dataclass(frozen=True, slots=True)
class Given:
    """A constant as it is written: a literal, or the number of a parameter."""

    literal: Any
    kind: str
    """`int`, `float`, `str`, `bool` or `none`."""
    parameter: int | None = None
    negative: bool = False

    def value(self, params: Sequence[Any]) -> Any:
        """Its value, with these parameters. A number with a decimal point is a Decimal."""
        value = self.literal if self.parameter is None else params[self.parameter - 1]
        if self.kind == "float" and isinstance(value, float):
            value = Decimal(repr(value))
        return -value if self.negative else value


@dataclass(frozen=True, slots=True)
class Source:
    """Where the value of a slot comes from, and the type that it has there."""

    given: Given | tuple[Given, ...]
    type: str

    def constant(self, params: Sequence[Any]) -> Constant:
        """The value of the slot."""
        if isinstance(self.given, tuple):
            return tuple(dict.fromkeys(converted(each.value(params), self.type) for each in self.given))
        return converted(self.given.value(params), self.type)


def source_of(tree: exp.Expr, kinds: tuple[str, ...]) -> Given | None:
    """A constant; None if the node is something else."""
    match tree:
        case exp.Neg(this=exp.Literal(is_string=False) as literal):
            given = source_of(literal, kinds)
            return None if given is None else Given(given.literal, given.kind, None, True)
        case exp.Paren(this=inner) if isinstance(inner, exp.Literal | exp.Neg):
            return source_of(inner, kinds)
        case exp.Literal(is_string=True):
            return Given(tree.this, "str")
        case exp.Literal():
            return _number(tree)
        case exp.Boolean():
            return Given(bool(tree.this), "bool")
        case exp.Null():
            return Given(None, "none")
        case exp.Cast(this=exp.Literal(is_string=True) as literal) if tree.args["to"].sql() in ("DATE", "TIMESTAMP"):
            used(tree, "this", "to")
            return Given(literal.this, tree.args["to"].sql().lower())
        case exp.Column(this=exp.Identifier(this=str(name))) if name.startswith("$") and name[1:].isdecimal():
            if tree.this.args.get("quoted"):
                return None
            number = int(name[1:])
            if not 1 <= number <= len(kinds):
                raise PipelineError(f"the query uses {name}, and has {len(kinds)} parameters", "pass its value")
            return Given(None, kinds[number - 1], number)
    return None


def _number(tree: exp.Literal) -> Given:
    text = tree.this
    if text.isdecimal():
        return Given(int(text), "int")
    try:
        return Given(Decimal(text), "float")
    except InvalidOperation:
        raise unsupported(tree, "write a decimal number") from None


def kind_of_parameter(number: int, value: object) -> str:
    """The kind of a parameter."""
    if isinstance(value, float) and value - value != 0:
        raise PipelineError(f"parameter ${number} is {value}, which is not a number to compare with")
    kinds = {bool: "bool", int: "int", float: "float", str: "str", type(None): "none"}
    if type(value) not in kinds:
        raise PipelineError(f"parameter ${number} must be text, a number, a boolean or null, not {shown(value)}")
    return kinds[type(value)]


def used(tree: exp.Expr, *names: str) -> None:
    """Refuse a node that has other arguments than these."""
    for name, value in tree.args.items():
        if name not in names and value not in (None, False, []):
            raise unsupported(tree, f"{name.strip('_').upper()} of {type(tree).__name__.upper()} is not known here")


def unsupported(tree: exp.Expr, advice: str | None = None) -> PipelineError:
    """The error for a part of a query."""
    known = "use comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL and + - * / % over columns and constants"
    return PipelineError(f"{as_sql(tree)} is not supported in a live query", advice or known)


def as_sql(tree: exp.Expr) -> str:
    """A part as it is shown in an error."""
    text = tree.sql()
    return text if len(text) <= 80 else f"{text[:77]}..."


ALONE = {
    "int": "BIGINT", "float": "DOUBLE", "str": "STRING", "bool": "BOOLEAN", "none": "VOID", "date": "DATE",
    "timestamp": "TIMESTAMP",
}  # fmt: skip
"""The type of a constant beside another one."""
ACCEPTED = {
    "BIGINT": ("int", "none"),
    "DOUBLE": ("int", "float", "none"),
    "DECIMAL": ("int", "float", "none"),
    "STRING": ("str", "none"),
    "PATTERN": ("str", "none"),
    "BOOLEAN": ("bool", "none"),
    "DATE": ("str", "date", "none"),
    "TIMESTAMP": ("str", "timestamp", "none"),
}
"""The kinds of constants beside a value of a type."""
SHOWN = {"int": "a number", "float": "a number", "str": "text", "bool": "a boolean", "none": "NULL"} | {
    kind: f"a {kind}" for kind in ("date", "timestamp")
}


def wider(left: str, right: str) -> str | None:
    """The type of two constants beside each other; None if both are NULL."""
    if "VOID" in (left, right):
        return right if left == "VOID" and right != "VOID" else left if left != "VOID" else None
    return "DOUBLE" if {left, right} == {"BIGINT", "DOUBLE"} else left


def converted(value: Any, type: str) -> Value:
    """A constant as a value of a type."""
    if value is None or type in ("STRING", "BOOLEAN"):
        return value  # type: ignore[no-any-return]
    if type == "BIGINT":
        if not -(2**63) <= value < 2**63:
            raise PipelineError(f"{value} is beyond BIGINT")
        return int(value)
    if type == "DOUBLE":
        try:
            double = float(value) + 0.0
        except OverflowError:
            double = float("inf")
        if double - double != 0:
            raise PipelineError(f"{shown(value)} is beyond DOUBLE")
        return double
    if is_decimal(type):
        return _decimal(Decimal(value), type)
    if type == "PATTERN":
        if "\\" in value:
            raise PipelineError(f"the pattern {value!r} contains a backslash, which databases read in two ways")
        if len(value) > _LONGEST_PATTERN or value.count("%") > _MOST_SIGNS:  # databases take very long for these
            raise PipelineError(
                f"the pattern {shown(value)} has more than {_LONGEST_PATTERN} characters, or {_MOST_SIGNS} signs %"
            )
        return str(value)
    return _date(value) if type == "DATE" else _timestamp(value)


def _decimal(value: Decimal, type: str) -> Decimal:
    precision, scale = decimal_of(type)
    rounded = value.quantize(Decimal(1).scaleb(-scale)) if abs(value) < 10**20 else Decimal(10) ** 20
    if rounded != value:
        raise PipelineError(f"{value} is not of type {type}", f"write it with at most {scale} decimals")
    if abs(value) >= 10 ** (precision - scale):  # beyond every value of the column, but comparable
        return (Decimal(10) ** (precision - scale)).copy_sign(value)
    return rounded


def _date(text: str) -> int:
    try:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError:
        raise PipelineError(f"{text!r} is not a date", "write it like '2024-01-31'") from None


def _timestamp(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise PipelineError(f"{text!r} is not a time", "write it like '2024-01-31 09:00:00'") from None
