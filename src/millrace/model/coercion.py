"""Implicit casts: how Spark's ANSI rules bring operands to a common type.

A case that is not covered raises `UnresolvedError`; the expression is then left to Spark.
"""

import re
from collections.abc import Sequence

from sqlglot import exp

from millrace.model.computed import value_of
from millrace.model.errors import NoValueError, refuse
from millrace.model.schema import DIALECT
from millrace.model.typed import Call, Cast, Literal, Node, is_constant, is_fallible
from millrace.model.types import (
    INTEGERS,
    NUMBERS,
    beside_text,
    decimal,
    decimal_of,
    is_decimal,
    is_float,
    is_integer,
    tightest,
    widest,
)
from millrace.model.values import cast_value


class UnresolvedError(Exception):
    """The reason why only Spark can resolve an expression."""


def as_sql(tree: exp.Expr) -> str:
    """A part of an expression as SQL text, for a message."""
    return tree.sql(DIALECT)


def cast(node: Node, type: str, safe: bool = False) -> Node:
    """A node cast to another type; a literal is converted at once."""
    if node.type == type:
        return node
    if safe and type == "TIMESTAMP" and is_integer(node.type):
        raise UnresolvedError("a time beyond the year 9999 runs only in Spark")
    if (node.type, type) not in _CASTS and _kind(node.type, type) not in _CASTS:
        raise UnresolvedError(f"a cast from {node.type} to {type} runs only in Spark")
    if isinstance(node, Literal):
        if node.type == "STRING" and type in ("DATE", "TIMESTAMP"):
            _check_moment(node.value)
        try:
            return Literal(cast_value(node.value, node.type, type), type)
        except NoValueError:
            if node.type == "STRING" and type in ("DATE", "TIMESTAMP") and _LIKE_A_TIME.match(node.value):
                raise UnresolvedError(f"only Spark reads {node.value!r} as {type}") from None
            if safe:
                return Literal(None, type)
    return Cast(node, type, safe)


_LIKE_A_TIME = re.compile(r"\s*[+-]?\d{4,}(-\d{1,2}(-\d{1,2}([T ].*)?)?)?\s*$", re.DOTALL)
"""Text that Spark may read as a time although `cast_value` does not: other zones, other years."""


def _check_moment(text: str | None) -> None:
    """Refuse Spark's words for moments such as `now`, whose value differs in every run; leave `epoch` to Spark."""
    word = (text or "").strip().lower().partition(" ")[0]
    if word in ("now", "today", "tomorrow", "yesterday"):
        raise refuse(f"{text!r} is different on every replay", advice="use the event time instead")
    if word == "epoch":
        raise UnresolvedError(f"only Spark reads {text!r} as a time")


def _kind(source: str, target: str) -> tuple[str, str]:
    return ("DECIMAL" if is_decimal(source) else source), ("DECIMAL" if is_decimal(target) else target)


_CASTS = frozenset(
    (source, target)
    for sources, targets in (
        (("VOID",), (*NUMBERS, "DECIMAL", "BOOLEAN", "STRING", "DATE", "TIMESTAMP")),
        ((*INTEGERS, "BOOLEAN"), (*NUMBERS, "DECIMAL", "BOOLEAN", "STRING")),
        (("DOUBLE", "FLOAT"), (*NUMBERS, "BOOLEAN")),
        (("DECIMAL",), (*NUMBERS, "DECIMAL", "BOOLEAN", "STRING")),
        (("STRING",), (*INTEGERS, "DOUBLE", "DECIMAL", "BOOLEAN", "DATE", "TIMESTAMP")),
        (("DATE",), ("STRING", "TIMESTAMP")),
        (("TIMESTAMP",), ("STRING", "DATE", "BIGINT")),
        (("BIGINT", "INT"), ("TIMESTAMP",)),
    )
    for source in sources
    for target in targets
)
"""The supported casts; `DECIMAL` stands for every precision and scale."""


def balanced(left: Node, right: Node, tree: exp.Expr) -> tuple[Node, Node]:
    """Both operands cast to a common type; two decimals keep their own types."""
    if "STRING" in (left.type, right.type):
        common = beside_text(right.type if left.type == "STRING" else left.type)
        if common is None:
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        return _read_text(left, common, tree), _read_text(right, common, tree)
    if is_decimal(left.type) or is_decimal(right.type):
        left, right = _beside_decimal(left, right.type), _beside_decimal(right, left.type)
        if is_decimal(left.type) and is_decimal(right.type):
            return left, right
    common = tightest(left.type, right.type)
    if common is None:
        raise UnresolvedError(f"{as_sql(tree)} combines {left.type} and {right.type}, which only Spark supports")
    return cast(left, common), cast(right, common)


def _read_text(node: Node, type: str, tree: exp.Expr) -> Node:
    """Cast text to the type of the other operand; refuse a literal that is not of that type."""
    made = cast(node, type)
    if isinstance(node, Literal) and not isinstance(made, Literal):
        raise refuse(f"{as_sql(tree)!r} compares {type} with {node.value!r}, which is not {type}")
    return made


def _beside_decimal(node: Node, other: str) -> Node:
    """An operand cast for an operation in which it or the other operand is a decimal."""
    if is_decimal(node.type):
        return cast(node, "DOUBLE") if is_float(other) else node
    if is_integer(node.type):
        if isinstance(node, Cast) and isinstance(node.child, Literal) and node.type != "TINYINT":
            raise UnresolvedError(f"only Spark combines {node.child.value} as {node.type} with a decimal")
        digits = len(str(abs(node.value))) if isinstance(node, Literal) and node.value is not None else None
        return cast(node, decimal(*decimal_of(node.type)) if digits is None else decimal(digits, 0))
    return cast(node, other) if node.type == "VOID" else node


def as_one(nodes: Sequence[Node], tree: exp.Expr) -> tuple[list[Node], str]:
    """The branches of a CASE, arguments of COALESCE and the like, cast to their common type."""
    common = widest(node.type for node in nodes)
    if common is None or common == "VOID":
        raise UnresolvedError(f"only Spark knows the type of {as_sql(tree)}")
    return [cast(node, common) for node in nodes], common


def call(name: str, arguments: tuple[Node, ...], type: str, tree: exp.Expr) -> Node:
    """A call. Raises UnresolvedError if Spark's optimizer may skip an argument that has no value."""
    failing = any(is_fallible(each) and not is_constant(each) for each in arguments)
    if failing and (any(map(_is_null, arguments)) or (name == "same" and len(set(arguments)) == 1)):
        raise UnresolvedError(f"{as_sql(tree)} contains NULL, and Spark may skip its other arguments")
    return Call(name, arguments, type)


def _is_null(node: Node) -> bool:
    """Whether Spark knows at planning time that the node is NULL."""
    if is_constant(node):
        try:
            return value_of(node, {}) is None
        except NoValueError:
            return False
    if isinstance(node, Cast):
        return _is_null(node.child)
    return isinstance(node, Call) and node.name not in _NOT_STRICT and any(map(_is_null, node.arguments))


_NOT_STRICT = ("and", "or", "coalesce", "in", "same", "is_null", "greatest", "least")


def check_grouped(tree: exp.Expr, side: exp.Expr) -> None:
    """Raise UnresolvedError for an operand that Spark and the parser may group differently, as in `a = b < c`."""
    loose = isinstance(side, exp.Predicate | exp.Connector | exp.Not) and not isinstance(side, exp.Paren)
    pipes = isinstance(tree, exp.DPipe) and isinstance(side, exp.Add | exp.Sub)
    if (loose and not isinstance(tree, exp.Connector)) or pipes:
        raise UnresolvedError(f"only Spark knows how {as_sql(tree)} is grouped; put parentheses around {as_sql(side)}")
