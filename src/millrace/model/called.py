"""Resolves functions of numbers, text and times from the parser's tree to typed calls; `resolve` does operators."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from millrace.model.coercion import UnresolvedError, as_sql, call, cast, check_grouped
from millrace.model.schema import DIALECT
from millrace.model.typed import Call, Literal, Node, is_fallible
from millrace.model.types import decimal_of, is_decimal, is_integer, is_number

if TYPE_CHECKING:
    from millrace.model.resolve import Resolver


Reading = Callable[["Resolver", Any], Node]
"""The resolver of one kind of parser node."""


def signed(name: str, node: Node, tree: exp.Expr) -> Node:
    """`abs` or `neg` of a number; the result has the type of the number."""
    if not is_number(node.type) or (is_decimal(node.type) and decimal_of(node.type)[0] > 18):
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    return Call(name, (node,), node.type)


def absolute(resolver: "Resolver", tree: exp.Abs) -> Node:
    """`abs(x)`."""
    return signed("abs", resolver.node(tree.this), tree)


def whole(name: str) -> Reading:
    """`floor(x)` and `ceil(x)`."""

    def read(resolver: "Resolver", tree: exp.Expr) -> Node:
        node = resolver.node(tree.this)
        if is_integer(node.type) and node.type != "BIGINT":
            node = cast(node, "DOUBLE")  # as Spark does; the cast is exact
        if node.type == "FLOAT":
            node = cast(node, "DOUBLE")
        if node.type not in ("DOUBLE", "BIGINT"):
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        return Call(name, (node,), "BIGINT")

    return read


def rounded(resolver: "Resolver", tree: exp.Round) -> Node:
    """`round(x, n)` of doubles."""
    node, given = resolver.node(tree.this), tree.args.get("decimals")
    digits = Literal(0, "INT") if given is None else resolver.node(given)
    if node.type != "DOUBLE" or not isinstance(digits, Literal) or digits.value not in range(-30, 31):
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    return Call("round", (node, digits), "DOUBLE")


# Text.


def _text(node: Node, tree: exp.Expr) -> Node:
    """An argument of a text function; whole numbers, decimals, booleans and dates are cast to text."""
    if node.type == "STRING":
        return node
    if not is_integer(node.type) and node.type not in ("BOOLEAN", "DATE") and not is_decimal(node.type):
        raise UnresolvedError(f"{as_sql(tree)} uses {node.type} as text, which only Spark supports")
    return cast(node, "STRING")


def concatenated(resolver: "Resolver", tree: exp.Concat | exp.DPipe) -> Node:
    """`concat(...)` and `||`."""
    if tree.args.get("coalesce"):
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    if isinstance(tree, exp.DPipe):
        parts: Sequence[exp.Expr] = [tree.this, tree.expression]
        for part in parts:
            check_grouped(tree, part)
    else:
        parts = tree.expressions
    nodes = [_text(node, tree) for node in resolver.nodes(parts)]
    if any(map(is_fallible, nodes)) or any(isinstance(node, Literal) and node.value is None for node in nodes):
        raise UnresolvedError(f"{as_sql(tree)} may have no value, and Spark may skip it")
    return Call("concat", tuple(nodes), "STRING")


def of_text(name: str, type: str) -> Reading:
    """A function of one string."""
    return lambda resolver, tree: Call(name, (_text(resolver.node(tree.this), tree),), type)


def two_texts(name: str) -> Reading:
    """A condition on two strings."""

    def read(resolver: "Resolver", tree: exp.Expr) -> Node:
        left, right = (resolver.node(side) for side in (tree.this, tree.expression))
        if (left.type, right.type) != ("STRING", "STRING"):
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        return call(name, (left, right), "BOOLEAN", tree)

    return read


def trimmed(resolver: "Resolver", tree: exp.Trim) -> Node:
    """`trim`, `ltrim` and `rtrim`, of spaces or of the characters of a literal."""
    position = str(tree.args.get("position") or "BOTH").upper()
    name = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}.get(position)
    text = resolver.node(tree.this)
    signs = Literal(" ", "STRING") if tree.expression is None else resolver.node(tree.expression)
    if name is None or text.type != "STRING" or not isinstance(signs, Literal) or signs.type != "STRING":
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    return Call(name, (text, signs), "STRING")


def substring(resolver: "Resolver", tree: exp.Substring) -> Node:
    """`substring(s, start, length)`."""
    text, start = _text(resolver.node(tree.this), tree), resolver.node(tree.args["start"])
    given = tree.args.get("length")
    length = Literal(2**31 - 1, "INT") if given is None else resolver.node(given)
    if not is_integer(start.type) or not is_integer(length.type):
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    made = (text, cast(start, "INT"), cast(length, "INT"))
    if any(map(is_fallible, made)):
        raise UnresolvedError(f"{as_sql(tree)} may have no value, and Spark may skip it")
    return Call("substring", made, "STRING")


def like(resolver: "Resolver", tree: exp.Like) -> Node:
    """`LIKE` and `NOT LIKE` with a literal pattern."""
    for side in (tree.this, tree.expression):
        check_grouped(tree, side)
    text, pattern = resolver.node(tree.this), resolver.node(tree.expression)
    if (text.type, pattern.type) != ("STRING", "STRING") or not isinstance(pattern, Literal) or pattern.value is None:
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    escaped = str(pattern.value).replace("\\\\", "").replace("\\%", "").replace("\\_", "")
    if "\\" in escaped:
        raise UnresolvedError(f"{as_sql(tree)} has a backslash before an ordinary character, which Spark refuses")
    found = Call("like", (text, pattern), "BOOLEAN")
    return Call("not", (found,), "BOOLEAN") if tree.args.get("negate") else found


def indexed(resolver: "Resolver", tree: exp.Bracket) -> Node:
    """`array[i]`, counted from 0."""
    node, (key,) = resolver.node(tree.this), resolver.nodes(tree.expressions)
    kind = exp.DataType.build(node.type, dialect=DIALECT)
    if kind.this != exp.DataType.Type.ARRAY or not is_integer(key.type) or is_fallible(key):
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    return Call("index", (node, cast(key, "INT") if key.type != "BIGINT" else key), kind.expressions[0].sql(DIALECT))


# Times.


def truncated(resolver: "Resolver", tree: exp.TimestampTrunc) -> Node:
    """`date_trunc('HOUR', at)`."""
    unit = tree.args["unit"].name.upper()
    at = resolver.node(tree.this)
    if unit not in TRUNCATIONS or at.type not in ("TIMESTAMP", "DATE"):
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    return Call("date_trunc", (Literal(unit, "STRING"), cast(at, "TIMESTAMP")), "TIMESTAMP")


TRUNCATIONS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")


def to_date(resolver: "Resolver", tree: exp.Expr) -> Node:
    """`to_date(x)`, and the argument of functions of a date."""
    node = resolver.node(tree.this)
    if node.type not in ("DATE", "TIMESTAMP", "STRING"):
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    return cast(node, "DATE")


def date_part(name: str) -> Reading:
    """A part of a date, such as the year."""

    def read(resolver: "Resolver", tree: exp.Expr) -> Node:
        node = resolver.node(tree.this)
        if node.type not in ("DATE", "TIMESTAMP"):
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        return Call(name, (cast(node, "DATE"),), "INT")

    return read


def of_time(name: str, type: str) -> Reading:
    """A function of a TIMESTAMP."""

    def read(resolver: "Resolver", tree: exp.Expr) -> Node:
        node = resolver.node(tree.this)
        if node.type != "TIMESTAMP":
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        return Call(name, (node,), type)

    return read


def named(resolver: "Resolver", tree: exp.Anonymous) -> Node:
    """A function that the parser has no class for."""
    name, nodes = tree.name.lower(), resolver.nodes(tree.expressions)
    if len(nodes) == 1:
        (node,) = nodes
        if name in ("isnull", "isnotnull"):
            null = Call("is_null", (node,), "BOOLEAN")
            return null if name == "isnull" else Call("not", (null,), "BOOLEAN")
        if name in ("timestamp_seconds", "timestamp_millis", "timestamp_micros") and is_integer(node.type):
            return Call(name, (cast(node, "BIGINT"),), "TIMESTAMP")
        if name == "weekday" and node.type in ("DATE", "TIMESTAMP"):
            return Call(name, (cast(node, "DATE"),), "INT")
    raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
