"""From the parser's tree to a typed one, by the rules of Spark 4 with ANSI semantics.

Each kind of parser node that is understood stands in `_KINDS` with the arguments that are looked at; a node that is
not there, or that has an argument which nobody looks at, raises `UnresolvedError`. Nothing is dropped, and nothing is
guessed: what is not resolved here is left to Spark.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from sqlglot import exp

from millrace.model.errors import refuse
from millrace.model.schema import DIALECT, UNKNOWN, Schema
from millrace.model.typed import COMPARISONS, Call, Case, Cast, ColumnOf, Literal, Node, is_fallible
from millrace.model.types import (
    INTEGERS,
    NUMBERS,
    arithmetic,
    beside_text,
    decimal,
    decimal_of,
    is_decimal,
    is_float,
    is_integer,
    is_number,
    tightest,
    wider_decimal,
    widest,
)
from millrace.model.values import NoValueError, cast_value


class UnresolvedError(Exception):
    """Why only Spark can say what an expression means."""


def resolve(tree: exp.Expr, schema: Schema) -> Node:
    """The typed tree of a parsed expression over these columns. Raises UnresolvedError with the reason."""
    return Resolver(schema).node(tree)


class Kind(NamedTuple):
    """How one kind of parser node is read."""

    used: tuple[str, ...]
    """The arguments that are looked at."""
    read: Callable[["Resolver", Any], Node]


class Resolver:
    """Reads expressions over the columns of one schema."""

    def __init__(self, schema: Schema) -> None:
        """Nothing is read yet."""
        self._types = {column.name: column.type for column in schema}

    def node(self, tree: exp.Expr) -> Node:
        """One node and all below it."""
        kind = _KINDS.get(type(tree))
        if kind is None:
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        for name, value in tree.args.items():
            if name not in kind.used and value not in (None, False, []):
                raise UnresolvedError(f"{type(tree).__name__.upper()} with {name} is known to Spark only")
        return kind.read(self, tree)

    def nodes(self, trees: Sequence[exp.Expr]) -> list[Node]:
        """Several."""
        return [self.node(tree) for tree in trees]

    def operands(self, tree: exp.Expr) -> tuple[Node, Node]:
        """Both sides of an operator. Spark and the parser group `a = b < c` and the like in different ways."""
        for side in (tree.this, tree.expression):
            _check_grouped(tree, side)
        return self.node(tree.this), self.node(tree.expression)

    def column(self, tree: exp.Column) -> Node:
        """A column, or a field of a struct."""
        name, *fields = [part.name for part in tree.parts]
        type = self._types[name]
        path = [name]
        for field in fields:
            kind = exp.DataType.build(type, dialect=DIALECT) if type != UNKNOWN else None
            if kind is None or kind.this != exp.DataType.Type.STRUCT:
                raise UnresolvedError(f"{_said(tree)} is known to Spark only")
            found = [each for each in kind.expressions if each.name.lower() == field.lower()]
            if len(found) != 1:
                raise refuse(f"{'.'.join(path)} has no field {field!r}; it is {type}")
            path.append(found[0].name)
            type = found[0].kind.sql(DIALECT)
        if type == UNKNOWN:
            raise UnresolvedError(f"the type of {name} is known to Spark only")
        return ColumnOf(tuple(path), type)


def _said(tree: exp.Expr) -> str:
    return tree.sql(DIALECT)


# How operands are brought together.


def cast(node: Node, type: str, safe: bool = False) -> Node:
    """A node as another type; what is written out is converted now."""
    if node.type == type:
        return node
    if safe and type == "TIMESTAMP" and is_integer(node.type):
        raise UnresolvedError("a time beyond the year 9999 is known to Spark only")
    if (node.type, type) not in _CASTS and _kind(node.type, type) not in _CASTS:
        raise UnresolvedError(f"a cast from {node.type} to {type} is known to Spark only")
    if isinstance(node, Literal):
        if node.type == "STRING" and type in ("DATE", "TIMESTAMP"):
            _check_moment(node.value)
        try:
            return Literal(cast_value(node.value, node.type, type), type)
        except NoValueError:
            if safe:
                return Literal(None, type)
    return Cast(node, type, safe)


def _check_moment(text: str | None) -> None:
    """Spark has words for some moments, most of which are others each time."""
    word = (text or "").strip().lower().partition(" ")[0]
    if word in ("now", "today", "tomorrow", "yesterday"):
        raise refuse(f"{text!r} is different on every replay; use the event's own time")
    if word == "epoch":
        raise UnresolvedError(f"{text!r} as a time is known to Spark only")


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
"""The casts that are understood, decimals of any size alike."""


def _balanced(left: Node, right: Node, tree: exp.Expr) -> tuple[Node, Node]:
    """Both operands as one type; decimals may keep their own."""
    if "STRING" in (left.type, right.type):
        common = beside_text(right.type if left.type == "STRING" else left.type)
        if common is None:
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        return _read_text(left, common, tree), _read_text(right, common, tree)
    if is_decimal(left.type) or is_decimal(right.type):
        left, right = _beside_decimal(left, right.type), _beside_decimal(right, left.type)
        if is_decimal(left.type) and is_decimal(right.type):
            return left, right
    common = tightest(left.type, right.type)
    if common is None:
        raise UnresolvedError(f"{_said(tree)} brings {left.type} and {right.type} together as only Spark knows")
    return cast(left, common), cast(right, common)


def _read_text(node: Node, type: str, tree: exp.Expr) -> Node:
    """Text beside a number or a time is read as one, and must be one if it is written out."""
    made = cast(node, type)
    if isinstance(node, Literal) and not isinstance(made, Literal):
        raise refuse(f"{_said(tree)!r} compares {type} with {node.value!r}, which is not one")
    return made


def _beside_decimal(node: Node, other: str) -> Node:
    """An operand whose other side is a decimal, or which is one beside a number."""
    if is_decimal(node.type):
        return cast(node, "DOUBLE") if is_float(other) else node
    if is_integer(node.type):
        if isinstance(node, Cast) and isinstance(node.child, Literal) and node.type != "TINYINT":
            raise UnresolvedError(f"{node.child.value} as {node.type} beside a decimal is known to Spark only")
        digits = len(str(abs(node.value))) if isinstance(node, Literal) and node.value is not None else None
        return cast(node, decimal(*decimal_of(node.type)) if digits is None else decimal(digits, 0))
    return cast(node, other) if node.type == "VOID" else node


def _as_one(nodes: Sequence[Node], tree: exp.Expr) -> tuple[list[Node], str]:
    """The branches of a CASE and the like, as the one type that they share."""
    common = widest(node.type for node in nodes)
    if common is None or common == "VOID":
        raise UnresolvedError(f"the type of {_said(tree)} is known to Spark only")
    return [cast(node, common) for node in nodes], common


# Operators.


def _compared(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    return lambda resolver, tree: compare(name, *resolver.operands(tree), tree)


def compare(name: str, left: Node, right: Node, tree: exp.Expr) -> Node:
    """Two values compared as one type, which must be one that has an order."""
    _check_reach(left, right, tree)
    _check_reach(right, left, tree)
    left, right = _balanced(left, right, tree)
    if left.type != right.type:
        common = wider_decimal(left.type, right.type)
        left, right = cast(left, common), cast(right, common)
    if not is_number(left.type) and left.type not in ("STRING", "BOOLEAN", "DATE", "TIMESTAMP"):
        raise UnresolvedError(f"{_said(tree)} compares values of type {left.type}, which only Spark does")
    return _call(name, (left, right), "BOOLEAN", tree)


def _check_reach(node: Node, other: Node, tree: exp.Expr) -> None:
    """A decimal that no whole number reaches is more, or less, to Spark even than NULL."""
    beyond = isinstance(other, Literal) and is_decimal(other.type) and not -(2**63) <= (other.value or 0) < 2**63
    if is_integer(node.type) and beyond:
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")


def _computed(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        if tree.args.get("typed") or tree.args.get("safe"):  # of Div: other systems' divisions
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        left, right = _balanced(*resolver.operands(tree), tree)
        if not is_number(left.type) or not is_number(right.type):
            raise UnresolvedError(f"{_said(tree)} computes with {left.type} and {right.type}, which only Spark does")
        if is_decimal(left.type):
            if name == "intdiv":
                raise UnresolvedError(f"{_said(tree)} divides decimals, which only Spark does")
            return _call(name, (left, right), arithmetic(name, left.type, right.type), tree)
        type = {"div": "DOUBLE", "intdiv": "BIGINT"}.get(name, left.type)
        if name == "intdiv" and not is_integer(left.type):
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        return _call(name, (cast(left, type), cast(right, type)), type, tree)

    return read


def _call(name: str, arguments: tuple[Node, ...], type: str, tree: exp.Expr) -> Node:
    """A call, unless Spark's optimizer may leave a part of it out that has no value."""
    has_null = any(isinstance(each, Literal) and each.value is None for each in arguments)
    if has_null and any(map(is_fallible, arguments)):
        raise UnresolvedError(f"{_said(tree)} has a NULL in it, for which Spark leaves the rest out")
    return Call(name, arguments, type)


def _check_grouped(tree: exp.Expr, side: exp.Expr) -> None:
    loose = isinstance(side, exp.Predicate | exp.Connector | exp.Not) and not isinstance(side, exp.Paren)
    pipes = isinstance(tree, exp.DPipe) and isinstance(side, exp.Add | exp.Sub)
    if (loose and not isinstance(tree, exp.Connector)) or pipes:
        raise UnresolvedError(f"{_said(tree)} is grouped as only Spark knows; put parentheses around {_said(side)}")


def _connected(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        sides = [_condition(resolver.node(side), tree) for side in (tree.this, tree.expression)]
        if any(isinstance(side, Literal) for side in sides) and any(map(is_fallible, sides)):
            raise UnresolvedError(f"{_said(tree)} has a constant in it, for which Spark leaves the rest out")
        return Call(name, tuple(sides), "BOOLEAN")

    return read


def _condition(node: Node, tree: exp.Expr) -> Node:
    if node.type not in ("BOOLEAN", "VOID"):
        raise UnresolvedError(f"{_said(tree)} takes {node.type} as a condition, which only Spark does")
    return cast(node, "BOOLEAN")


def _not(resolver: Resolver, tree: exp.Not) -> Node:
    return Call("not", (_condition(resolver.node(tree.this), tree),), "BOOLEAN")


def _is(resolver: Resolver, tree: exp.Is) -> Node:
    _check_grouped(tree, tree.this)
    left, right = resolver.node(tree.this), tree.expression
    if isinstance(right, exp.Null):
        return Call("is_null", (left,), "BOOLEAN")
    if not isinstance(right, exp.Boolean) or left.type != "BOOLEAN":
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    return Call("same", (left, Literal(bool(right.this), "BOOLEAN")), "BOOLEAN")


def _in(resolver: Resolver, tree: exp.In) -> Node:
    _check_grouped(tree, tree.this)
    nodes, type = _as_one([resolver.node(tree.this), *resolver.nodes(tree.expressions)], tree)
    if any(map(is_fallible, nodes[1:])) or (is_fallible(nodes[0]) and len(nodes) == 2):
        raise UnresolvedError(f"{_said(tree)} may have no value in its list, which Spark looks at in its own way")
    if not is_number(type) and type not in ("STRING", "BOOLEAN", "DATE", "TIMESTAMP"):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    return _call("in", tuple(nodes), "BOOLEAN", tree)


def _between(resolver: Resolver, tree: exp.Between) -> Node:
    low, high = tree.args["low"], tree.args["high"]
    for side in (tree.this, low, high):
        _check_grouped(tree, side)
    value = resolver.node(tree.this)
    if is_fallible(value):
        raise UnresolvedError(f"{_said(tree)} may have no value, which Spark looks at in its own way")
    least = compare("ge", value, resolver.node(low), tree)
    return Call("and", (least, compare("le", value, resolver.node(high), tree)), "BOOLEAN")


def _case(resolver: Resolver, tree: exp.Case) -> Node:
    subject = resolver.node(tree.this) if tree.this else None
    conditions, values = [], []
    for branch in tree.args["ifs"]:
        if set(branch.args) - {"this", "true"} and branch.args.get("false") is not None:
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        when = resolver.node(branch.this)
        conditions.append(_condition(when, tree) if subject is None else compare("eq", subject, when, tree))
        values.append(resolver.node(branch.args["true"]))
    otherwise = tree.args.get("default")
    values.append(Literal(None, "VOID") if otherwise is None else resolver.node(otherwise))
    return _chosen(conditions, values, tree)


def _chosen(conditions: list[Node], values: list[Node], tree: exp.Expr) -> Node:
    if any(isinstance(each, Literal) for each in conditions):
        raise UnresolvedError(f"{_said(tree)} has a constant condition, which Spark leaves out")
    made, type = _as_one(values, tree)
    if any(map(is_fallible, made)) and len(set(made)) < len(made):
        raise UnresolvedError(f"{_said(tree)} has one value twice, which Spark may put together")
    return Case(tuple(zip(conditions, made[:-1], strict=True)), made[-1], type)


def _if(resolver: Resolver, tree: exp.If) -> Node:
    otherwise = tree.args.get("false")
    values = [resolver.node(tree.args["true"])]
    values.append(Literal(None, "VOID") if otherwise is None else resolver.node(otherwise))
    return _chosen([_condition(resolver.node(tree.this), tree)], values, tree)


def _coalesce(resolver: Resolver, tree: exp.Coalesce) -> Node:
    nodes, type = _as_one(resolver.nodes([tree.this, *tree.expressions]), tree)
    return Call("coalesce", tuple(nodes), type)


def _nullif(resolver: Resolver, tree: exp.Nullif) -> Node:
    value = resolver.node(tree.this)
    same = compare("eq", value, resolver.node(tree.expression), tree)
    if is_fallible(value) or isinstance(value, Literal):
        raise UnresolvedError(f"{_said(tree)} may have no value, which Spark looks at in its own way")
    return Case(((same, Literal(None, value.type)),), value, value.type)


def _picked(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        if not tree.args.get("ignore_nulls"):
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        given = resolver.nodes([tree.this, *tree.expressions])
        nodes, type = _as_one(given, tree)
        if any(node.type == "STRING" for node in given) and type != "STRING":
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        if len(nodes) < 2 or (not is_number(type) and type not in ("STRING", "BOOLEAN", "DATE", "TIMESTAMP")):
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        return Call(name, tuple(nodes), type)

    return read


# Numbers.


def _literal(resolver: Resolver, tree: exp.Literal) -> Node:
    if tree.is_string:
        return text_literal(tree.this)
    return number(tree.this)


def text_literal(text: str) -> Node:
    """A string; Spark keeps strings in UTF-8, and so do we."""
    return Literal(text, "STRING")


def number(text: str) -> Node:
    """A number as Spark reads it: an INT if it fits, else a BIGINT or a decimal; a double if it has an exponent.

    >>> number("2147483648").type, number("0.30").type, number("1e2").type
    ('BIGINT', 'DECIMAL(2, 2)', 'DOUBLE')
    """
    if "e" in text.lower():
        return Literal(float(text), "DOUBLE")
    if text.lstrip("-").isdigit():
        value = int(text)
        for type, bits in (("INT", 31), ("BIGINT", 63)):
            if -(1 << bits) <= value < 1 << bits:
                return Literal(value, type)
    exact = Decimal(text)
    _, digits, exponent = exact.as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(str(int("".join(map(str, digits))))), scale)
    if precision > 38:
        raise refuse(f"{text} has more than the 38 digits that Spark's decimals have")
    return Literal(exact, decimal(precision, scale))


def _negated(resolver: Resolver, tree: exp.Neg) -> Node:
    if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
        return number(f"-{tree.this.this}")  # to Spark the sign is a part of the number
    _check_grouped(tree, tree.this)
    node = resolver.node(tree.this)
    if isinstance(tree.this, exp.Cast) and isinstance(node, Literal):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    return _signed("neg", node, tree)


def _signed(name: str, node: Node, tree: exp.Expr) -> Node:
    if not is_number(node.type) or (is_decimal(node.type) and decimal_of(node.type)[0] > 18):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    return Call(name, (node,), node.type)


def _absolute(resolver: Resolver, tree: exp.Abs) -> Node:
    return _signed("abs", resolver.node(tree.this), tree)


def _whole(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        node = resolver.node(tree.this)
        if is_integer(node.type) and node.type != "BIGINT":
            node = cast(node, "DOUBLE")  # which Spark does, and which is exact
        if node.type == "FLOAT":
            node = cast(node, "DOUBLE")
        if node.type not in ("DOUBLE", "BIGINT"):
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        return Call(name, (node,), "BIGINT")

    return read


def _rounded(resolver: Resolver, tree: exp.Round) -> Node:
    node, given = resolver.node(tree.this), tree.args.get("decimals")
    digits = Literal(0, "INT") if given is None else resolver.node(given)
    if node.type != "DOUBLE" or not isinstance(digits, Literal) or digits.type != "INT":
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    return Call("round", (node, digits), "DOUBLE")


def _cast(resolver: Resolver, tree: exp.Cast) -> Node:
    if tree.find(exp.DataType) is not None and any(
        kind.this in (exp.DataType.Type.CHAR, exp.DataType.Type.VARCHAR) for kind in tree.find_all(exp.DataType)
    ):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    node, type = resolver.node(tree.this), tree.args["to"].sql(DIALECT)
    type = {"DECIMAL": "DECIMAL(10, 0)"}.get(type, type)
    safe = isinstance(tree, exp.TryCast)
    made = cast(node, type, safe)
    # The parser reads 3L as a cast; what it is to Spark is decided where it is used.
    return Cast(node, type, safe) if isinstance(made, Literal) and is_integer(type) and node.type != type else made


# Text.


def _text(node: Node, tree: exp.Expr) -> Node:
    """What takes text takes whole numbers and the like too."""
    if node.type == "STRING":
        return node
    if not is_integer(node.type) and node.type not in ("BOOLEAN", "DATE") and not is_decimal(node.type):
        raise UnresolvedError(f"{_said(tree)} takes {node.type} as text, which only Spark does")
    return cast(node, "STRING")


def _concatenated(resolver: Resolver, tree: exp.Concat | exp.DPipe) -> Node:
    if tree.args.get("coalesce"):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    if isinstance(tree, exp.DPipe):
        parts: Sequence[exp.Expr] = [tree.this, tree.expression]
        for part in parts:
            _check_grouped(tree, part)
    else:
        parts = tree.expressions
    nodes = [_text(node, tree) for node in resolver.nodes(parts)]
    if any(map(is_fallible, nodes)) or any(isinstance(node, Literal) and node.value is None for node in nodes):
        raise UnresolvedError(f"{_said(tree)} may have no value, which Spark looks at in its own way")
    return Call("concat", tuple(nodes), "STRING")


def _of_text(name: str, type: str) -> Callable[[Resolver, exp.Expr], Node]:
    return lambda resolver, tree: Call(name, (_text(resolver.node(tree.this), tree),), type)


def _two_texts(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        left, right = (resolver.node(side) for side in (tree.this, tree.expression))
        if (left.type, right.type) != ("STRING", "STRING"):
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        return _call(name, (left, right), "BOOLEAN", tree)

    return read


def _trimmed(resolver: Resolver, tree: exp.Trim) -> Node:
    position = str(tree.args.get("position") or "BOTH").upper()
    name = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}.get(position)
    text = resolver.node(tree.this)
    signs = Literal(" ", "STRING") if tree.expression is None else resolver.node(tree.expression)
    if name is None or text.type != "STRING" or not isinstance(signs, Literal) or signs.type != "STRING":
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    return Call(name, (text, signs), "STRING")


def _substring(resolver: Resolver, tree: exp.Substring) -> Node:
    text, start = _text(resolver.node(tree.this), tree), resolver.node(tree.args["start"])
    given = tree.args.get("length")
    length = Literal(2**31 - 1, "INT") if given is None else resolver.node(given)
    if not is_integer(start.type) or not is_integer(length.type):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    made = (text, cast(start, "INT"), cast(length, "INT"))
    if any(map(is_fallible, made)):
        raise UnresolvedError(f"{_said(tree)} may have no value, which Spark looks at in its own way")
    return Call("substring", made, "STRING")


def _like(resolver: Resolver, tree: exp.Like) -> Node:
    for side in (tree.this, tree.expression):
        _check_grouped(tree, side)
    text, pattern = resolver.node(tree.this), resolver.node(tree.expression)
    if (text.type, pattern.type) != ("STRING", "STRING") or not isinstance(pattern, Literal):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    escaped = str(pattern.value).replace("\\\\", "").replace("\\%", "").replace("\\_", "")
    if "\\" in escaped:
        raise UnresolvedError(f"{_said(tree)} has a backslash before another sign, which Spark refuses")
    found = Call("like", (text, pattern), "BOOLEAN")
    return Call("not", (found,), "BOOLEAN") if tree.args.get("negate") else found


def _indexed(resolver: Resolver, tree: exp.Bracket) -> Node:
    node, (key,) = resolver.node(tree.this), resolver.nodes(tree.expressions)
    kind = exp.DataType.build(node.type, dialect=DIALECT)
    if kind.this != exp.DataType.Type.ARRAY or not is_integer(key.type) or is_fallible(key):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    return Call("index", (node, cast(key, "INT") if key.type != "BIGINT" else key), kind.expressions[0].sql(DIALECT))


# Times.


def _truncated(resolver: Resolver, tree: exp.TimestampTrunc) -> Node:
    unit = tree.args["unit"].name.upper()
    at = resolver.node(tree.this)
    if unit not in TRUNCATIONS or at.type not in ("TIMESTAMP", "DATE"):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    return Call("date_trunc", (Literal(unit, "STRING"), cast(at, "TIMESTAMP")), "TIMESTAMP")


TRUNCATIONS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")


def _to_date(resolver: Resolver, tree: exp.Expr) -> Node:
    node = resolver.node(tree.this)
    if node.type not in ("DATE", "TIMESTAMP", "STRING"):
        raise UnresolvedError(f"{_said(tree)} is known to Spark only")
    return cast(node, "DATE")


def _date_part(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        node = resolver.node(tree.this)
        if node.type not in ("DATE", "TIMESTAMP"):
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        return Call(name, (cast(node, "DATE"),), "INT")

    return read


def _time_part(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        node = resolver.node(tree.this)
        if node.type != "TIMESTAMP":
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        return Call(name, (node,), "INT")

    return read


def _named(resolver: Resolver, tree: exp.Anonymous) -> Node:
    """Functions that the parser has no class for."""
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
    raise UnresolvedError(f"{_said(tree)} is known to Spark only")


def _since_1970(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        node = resolver.node(tree.this)
        if node.type != "TIMESTAMP":
            raise UnresolvedError(f"{_said(tree)} is known to Spark only")
        return Call(name, (node,), "BIGINT")

    return read


_BOTH = ("this", "expression")
_KINDS: dict[type[exp.Expr], Kind] = {
    exp.Column: Kind(("this", "table", "db", "catalog"), Resolver.column),
    exp.Paren: Kind(("this",), lambda resolver, tree: resolver.node(tree.this)),
    exp.Literal: Kind(("this", "is_string"), _literal),
    exp.Null: Kind((), lambda resolver, tree: Literal(None, "VOID")),
    exp.Boolean: Kind(("this",), lambda resolver, tree: Literal(bool(tree.this), "BOOLEAN")),
    exp.And: Kind(_BOTH, _connected("and")),
    exp.Or: Kind(_BOTH, _connected("or")),
    exp.Not: Kind(("this",), _not),
    exp.Is: Kind(_BOTH, _is),
    exp.In: Kind(("this", "expressions"), _in),
    exp.Between: Kind(("this", "low", "high"), _between),
    exp.Case: Kind(("this", "ifs", "default"), _case),
    exp.If: Kind(("this", "true", "false"), _if),
    exp.Coalesce: Kind(("this", "expressions"), _coalesce),
    exp.Nullif: Kind(_BOTH, _nullif),
    exp.Greatest: Kind(("this", "expressions", "ignore_nulls"), _picked("greatest")),
    exp.Least: Kind(("this", "expressions", "ignore_nulls"), _picked("least")),
    exp.Add: Kind(_BOTH, _computed("add")),
    exp.Sub: Kind(_BOTH, _computed("sub")),
    exp.Mul: Kind(_BOTH, _computed("mul")),
    exp.Div: Kind((*_BOTH, "typed", "safe"), _computed("div")),
    exp.IntDiv: Kind(_BOTH, _computed("intdiv")),
    exp.Mod: Kind(_BOTH, _computed("mod")),
    exp.Neg: Kind(("this",), _negated),
    exp.Abs: Kind(("this",), _absolute),
    exp.Floor: Kind(("this",), _whole("floor")),
    exp.Ceil: Kind(("this",), _whole("ceil")),
    exp.Round: Kind(("this", "decimals"), _rounded),
    exp.Cast: Kind(("this", "to"), _cast),
    exp.TryCast: Kind(("this", "to", "safe"), _cast),
    exp.Concat: Kind(("expressions", "safe", "coalesce"), _concatenated),
    exp.DPipe: Kind((*_BOTH, "safe"), _concatenated),
    exp.Length: Kind(("this",), _of_text("length", "INT")),
    exp.Lower: Kind(("this",), _of_text("lower", "STRING")),
    exp.Upper: Kind(("this",), _of_text("upper", "STRING")),
    exp.Trim: Kind(("this", "expression", "position"), _trimmed),
    exp.Substring: Kind(("this", "start", "length"), _substring),
    exp.Like: Kind((*_BOTH, "negate"), _like),
    exp.StartsWith: Kind(_BOTH, _two_texts("starts_with")),
    exp.EndsWith: Kind(_BOTH, _two_texts("ends_with")),
    exp.Contains: Kind(_BOTH, _two_texts("contains")),
    exp.Bracket: Kind(("this", "expressions"), _indexed),
    exp.TimestampTrunc: Kind(("this", "unit"), _truncated),
    exp.TsOrDsToDate: Kind(("this",), _to_date),
    exp.Year: Kind(("this",), _date_part("year")),
    exp.Quarter: Kind(("this",), _date_part("quarter")),
    exp.Month: Kind(("this",), _date_part("month")),
    exp.Day: Kind(("this",), _date_part("day")),
    exp.DayOfMonth: Kind(("this",), _date_part("day")),
    exp.DayOfYear: Kind(("this",), _date_part("dayofyear")),
    exp.DayOfWeek: Kind(("this",), _date_part("dayofweek")),
    exp.WeekOfYear: Kind(("this",), _date_part("weekofyear")),
    exp.Hour: Kind(("this",), _time_part("hour")),
    exp.Minute: Kind(("this",), _time_part("minute")),
    exp.Second: Kind(("this",), _time_part("second")),
    exp.UnixSeconds: Kind(("this",), _since_1970("unix_seconds")),
    exp.UnixMillis: Kind(("this",), _since_1970("unix_millis")),
    exp.UnixMicros: Kind(("this",), _since_1970("unix_micros")),
    exp.Anonymous: Kind(("this", "expressions"), _named),
    **{
        kind: Kind(_BOTH, _compared(name))
        for kind, name in zip(
            (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ), COMPARISONS, strict=True
        )
    },
}
"""Everything that is understood. A test reads it and tries every argument of every kind."""
