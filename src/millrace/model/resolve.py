"""Turns the parser's tree into a typed tree, by the rules of Spark 4 with ANSI semantics.

`_KINDS` lists each supported kind of parser node with the arguments that its resolver reads. A node of another kind,
or with an argument that its resolver does not read, raises `UnresolvedError`. Nothing is dropped or guessed: an
expression that is not resolved here is left to Spark.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from sqlglot import exp

from millrace.model import called
from millrace.model.coercion import UnresolvedError, as_one, as_sql, balanced, call, cast, check_grouped
from millrace.model.errors import refuse
from millrace.model.schema import DIALECT, UNKNOWN, Schema
from millrace.model.typed import COMPARISONS, Call, Case, Cast, ColumnOf, Literal, Node, flat, is_constant, is_fallible
from millrace.model.types import (
    arithmetic,
    decimal,
    is_decimal,
    is_integer,
    is_number,
    normal,
    wider_decimal,
)


def resolve(tree: exp.Expr, schema: Schema) -> Node:
    """The typed tree of a parsed expression over these columns. Raises UnresolvedError with the reason."""
    return Resolver(schema).node(tree)


class OperatorKind(NamedTuple):
    """The resolver of one kind of parser node."""

    used: tuple[str, ...]
    """The arguments that `read` uses."""
    read: Callable[["Resolver", Any], Node]


class Resolver:
    """Resolves expressions over the columns of one schema."""

    def __init__(self, schema: Schema) -> None:
        """Resolve columns by this schema."""
        self._types = {column.name: column.type for column in schema}

    def node(self, tree: exp.Expr) -> Node:
        """Resolve a parser node and all nodes below it."""
        kind = _KINDS.get(type(tree))
        if kind is None:
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        for name, value in tree.args.items():
            if name not in kind.used and value not in (None, False, []):
                raise UnresolvedError(f"{type(tree).__name__.upper()} with {name} runs only in Spark")
        return kind.read(self, tree)

    def nodes(self, trees: Sequence[exp.Expr]) -> list[Node]:
        """Resolve several parser nodes."""
        return [self.node(tree) for tree in trees]

    def operands(self, tree: exp.Expr) -> tuple[Node, Node]:
        """Resolve both sides of an operator; unresolved where Spark and the parser may group them differently."""
        for side in (tree.this, tree.expression):
            check_grouped(tree, side)
        return self.node(tree.this), self.node(tree.expression)

    def column(self, tree: exp.Column) -> Node:
        """A column, or a field of a struct."""
        name, *fields = [part.name for part in tree.parts]
        type = self._types[name]
        path = [name]
        for field in fields:
            kind = exp.DataType.build(type, dialect=DIALECT) if type != UNKNOWN else None
            if kind is None or kind.this != exp.DataType.Type.STRUCT:
                raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
            found = [each for each in kind.expressions if each.name.lower() == field.lower()]
            if len(found) != 1:
                raise refuse(f"{'.'.join(path)} is {type}, which has no field {field!r}")
            path.append(found[0].name)
            type = found[0].kind.sql(DIALECT)
        if type == UNKNOWN:
            raise UnresolvedError(f"only Spark knows the type of {name}")
        return ColumnOf(tuple(path), type)


# Operators.


def _compared(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    return lambda resolver, tree: compare(name, *resolver.operands(tree), tree)


def compare(name: str, left: Node, right: Node, tree: exp.Expr) -> Node:
    """A comparison of two values, cast to a common type that has an order."""
    _check_reach(left, right, tree)
    _check_reach(right, left, tree)
    left, right = balanced(left, right, tree)
    if left.type != right.type:
        common = wider_decimal(left.type, right.type)
        left, right = cast(left, common), cast(right, common)
    if not is_number(left.type) and left.type not in ("STRING", "BOOLEAN", "DATE", "TIMESTAMP"):
        raise UnresolvedError(f"{as_sql(tree)} compares values of type {left.type}, which only Spark supports")
    return call(name, (left, right), "BOOLEAN", tree)


def _check_reach(node: Node, other: Node, tree: exp.Expr) -> None:
    """Leave a whole number beside a decimal literal beyond BIGINT to Spark, which decides it even for NULL."""
    beyond = isinstance(other, Literal) and is_decimal(other.type) and not -(2**63) <= (other.value or 0) < 2**63
    if is_integer(node.type) and beyond:
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")


def _computed(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        if tree.args.get("typed") or tree.args.get("safe"):  # set on Div for divisions of other SQL dialects
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        left, right = balanced(*resolver.operands(tree), tree)
        if not is_number(left.type) or not is_number(right.type):
            raise UnresolvedError(
                f"{as_sql(tree)} computes with {left.type} and {right.type}, which only Spark supports"
            )
        if is_decimal(left.type):
            if name == "intdiv":
                raise UnresolvedError(f"{as_sql(tree)} divides decimals, which only Spark supports")
            return call(name, (left, right), arithmetic(name, left.type, right.type), tree)
        type = {"div": "DOUBLE", "intdiv": "BIGINT"}.get(name, left.type)
        if name == "intdiv" and not is_integer(left.type):
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        return call(name, (cast(left, type), cast(right, type)), type, tree)

    return read


def _connected(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    return lambda resolver, tree: connect(
        name, [_condition(resolver.node(side), tree) for side in (tree.this, tree.expression)], tree
    )


def connect(name: str, sides: Sequence[Node], tree: exp.Expr) -> Node:
    """AND or OR. Raises UnresolvedError if Spark's optimizer may skip a part that has no value."""
    made = Call(name, tuple(sides), "BOOLEAN")
    if any(map(is_fallible, sides)):
        parts = [part for each in flat(made, "and") for part in flat(each, "or")]
        if any(map(is_constant, parts)) or len(set(parts)) < len(parts):
            raise UnresolvedError(
                f"{as_sql(tree)} contains a constant or a repeated part, and Spark may skip other parts"
            )
    return made


def _condition(node: Node, tree: exp.Expr) -> Node:
    if node.type not in ("BOOLEAN", "VOID"):
        raise UnresolvedError(f"{as_sql(tree)} uses {node.type} as a condition, which only Spark supports")
    return cast(node, "BOOLEAN")


def _not(resolver: Resolver, tree: exp.Not) -> Node:
    return Call("not", (_condition(resolver.node(tree.this), tree),), "BOOLEAN")


def _is(resolver: Resolver, tree: exp.Is) -> Node:
    check_grouped(tree, tree.this)
    left, right = resolver.node(tree.this), tree.expression
    if isinstance(right, exp.Null):
        return Call("is_null", (left,), "BOOLEAN")
    if not isinstance(right, exp.Boolean) or left.type != "BOOLEAN":
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    return Call("same", (left, Literal(bool(right.this), "BOOLEAN")), "BOOLEAN")


def _in(resolver: Resolver, tree: exp.In) -> Node:
    check_grouped(tree, tree.this)
    nodes, type = as_one([resolver.node(tree.this), *resolver.nodes(tree.expressions)], tree)
    if any(map(is_fallible, nodes[1:])) or (is_fallible(nodes[0]) and len(nodes) == 2):
        raise UnresolvedError(f"a value in the list of {as_sql(tree)} may fail, and Spark may skip it")
    if not is_number(type) and type not in ("STRING", "BOOLEAN", "DATE", "TIMESTAMP"):
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    return call("in", tuple(nodes), "BOOLEAN", tree)


def _between(resolver: Resolver, tree: exp.Between) -> Node:
    low, high = tree.args["low"], tree.args["high"]
    for side in (tree.this, low, high):
        check_grouped(tree, side)
    value = resolver.node(tree.this)
    if is_fallible(value):
        raise UnresolvedError(f"{as_sql(tree)} may have no value, and Spark may skip it")
    least = compare("ge", value, resolver.node(low), tree)
    return connect("and", [least, compare("le", value, resolver.node(high), tree)], tree)


def _case(resolver: Resolver, tree: exp.Case) -> Node:
    subject = resolver.node(tree.this) if tree.this else None
    conditions, values = [], []
    for branch in tree.args["ifs"]:
        if set(branch.args) - {"this", "true"} and branch.args.get("false") is not None:
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        when = resolver.node(branch.this)
        conditions.append(_condition(when, tree) if subject is None else compare("eq", subject, when, tree))
        values.append(resolver.node(branch.args["true"]))
    otherwise = tree.args.get("default")
    values.append(Literal(None, "VOID") if otherwise is None else resolver.node(otherwise))
    return _chosen(conditions, values, tree)


def _chosen(conditions: list[Node], values: list[Node], tree: exp.Expr) -> Node:
    if any(isinstance(each, Literal) for each in conditions):
        raise UnresolvedError(f"{as_sql(tree)} has a constant condition, which Spark removes")
    made, type = as_one(values, tree)
    if any(map(is_fallible, made)) and len(set(made)) < len(made):
        raise UnresolvedError(f"{as_sql(tree)} has one value twice, which Spark may evaluate once")
    return Case(tuple(zip(conditions, made[:-1], strict=True)), made[-1], type)


def _if(resolver: Resolver, tree: exp.If) -> Node:
    otherwise = tree.args.get("false")
    values = [resolver.node(tree.args["true"])]
    values.append(Literal(None, "VOID") if otherwise is None else resolver.node(otherwise))
    return _chosen([_condition(resolver.node(tree.this), tree)], values, tree)


def _coalesce(resolver: Resolver, tree: exp.Coalesce) -> Node:
    nodes, type = as_one(resolver.nodes([tree.this, *tree.expressions]), tree)
    return Call("coalesce", tuple(nodes), type)


def _nullif(resolver: Resolver, tree: exp.Nullif) -> Node:
    value = resolver.node(tree.this)
    same = compare("eq", value, resolver.node(tree.expression), tree)
    if is_fallible(value) or isinstance(value, Literal):
        raise UnresolvedError(f"{as_sql(tree)} may have no value, and Spark may skip it")
    return Case(((same, Literal(None, value.type)),), value, value.type)


def _picked(name: str) -> Callable[[Resolver, exp.Expr], Node]:
    def read(resolver: Resolver, tree: exp.Expr) -> Node:
        if not tree.args.get("ignore_nulls"):
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        given = resolver.nodes([tree.this, *tree.expressions])
        nodes, type = as_one(given, tree)
        if any(node.type == "STRING" for node in given) and type != "STRING":
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        if len(nodes) < 2 or (not is_number(type) and type not in ("STRING", "BOOLEAN", "DATE", "TIMESTAMP")):
            raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
        return Call(name, tuple(nodes), type)

    return read


# Literals and casts.


def _literal(resolver: Resolver, tree: exp.Literal) -> Node:
    if tree.is_string:
        return Literal(tree.this, "STRING")
    return number(tree.this)


def number(text: str) -> Node:
    """A number literal as Spark reads it: an INT if it fits, else BIGINT or decimal; DOUBLE if it has an exponent.

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
        raise refuse(f"{text} has more digits than the 38 of a decimal in Spark")
    return Literal(exact, decimal(precision, scale))


def _negated(resolver: Resolver, tree: exp.Neg) -> Node:
    if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
        return number(f"-{tree.this.this}")  # Spark reads the sign as part of the literal
    check_grouped(tree, tree.this)
    node = resolver.node(tree.this)
    if is_integer(node.type) and is_constant(node) and isinstance(tree.this, exp.Cast):
        # Spark reads the sign of -128Y as part of the literal; the parser's tree is that of -CAST(128 AS TINYINT).
        raise UnresolvedError(f"{as_sql(tree)} runs only in Spark")
    return called.signed("neg", node, tree)


def _cast(resolver: Resolver, tree: exp.Cast) -> Node:
    node, type = resolver.node(tree.this), normal(tree.args["to"].sql(DIALECT))
    safe = isinstance(tree, exp.TryCast)
    made = cast(node, type, safe)
    # The parser reads 3L as a cast, so the cast stays: coercion beside a decimal depends on it.
    return Cast(node, type, safe) if isinstance(made, Literal) and is_integer(type) else made


_BOTH = ("this", "expression")
_KINDS: dict[type[exp.Expr], OperatorKind] = {
    exp.Column: OperatorKind(("this", "table", "db", "catalog"), Resolver.column),
    exp.Paren: OperatorKind(("this",), lambda resolver, tree: resolver.node(tree.this)),
    exp.Literal: OperatorKind(("this", "is_string"), _literal),
    exp.Null: OperatorKind((), lambda resolver, tree: Literal(None, "VOID")),
    exp.Boolean: OperatorKind(("this",), lambda resolver, tree: Literal(bool(tree.this), "BOOLEAN")),
    exp.And: OperatorKind(_BOTH, _connected("and")),
    exp.Or: OperatorKind(_BOTH, _connected("or")),
    exp.Not: OperatorKind(("this",), _not),
    exp.Is: OperatorKind(_BOTH, _is),
    exp.In: OperatorKind(("this", "expressions"), _in),
    exp.Between: OperatorKind(("this", "low", "high"), _between),
    exp.Case: OperatorKind(("this", "ifs", "default"), _case),
    exp.If: OperatorKind(("this", "true", "false"), _if),
    exp.Coalesce: OperatorKind(("this", "expressions"), _coalesce),
    exp.Nullif: OperatorKind(_BOTH, _nullif),
    exp.Greatest: OperatorKind(("this", "expressions", "ignore_nulls"), _picked("greatest")),
    exp.Least: OperatorKind(("this", "expressions", "ignore_nulls"), _picked("least")),
    exp.Add: OperatorKind(_BOTH, _computed("add")),
    exp.Sub: OperatorKind(_BOTH, _computed("sub")),
    exp.Mul: OperatorKind(_BOTH, _computed("mul")),
    exp.Div: OperatorKind((*_BOTH, "typed", "safe"), _computed("div")),
    exp.IntDiv: OperatorKind(_BOTH, _computed("intdiv")),
    exp.Mod: OperatorKind(_BOTH, _computed("mod")),
    exp.Neg: OperatorKind(("this",), _negated),
    exp.Abs: OperatorKind(("this",), called.absolute),
    exp.Floor: OperatorKind(("this",), called.whole("floor")),
    exp.Ceil: OperatorKind(("this",), called.whole("ceil")),
    exp.Round: OperatorKind(("this", "decimals"), called.rounded),
    exp.Cast: OperatorKind(("this", "to"), _cast),
    exp.TryCast: OperatorKind(("this", "to", "safe"), _cast),
    exp.Concat: OperatorKind(("expressions", "safe", "coalesce"), called.concatenated),
    exp.DPipe: OperatorKind((*_BOTH, "safe"), called.concatenated),
    exp.Length: OperatorKind(("this",), called.of_text("length", "INT")),
    exp.Lower: OperatorKind(("this",), called.of_text("lower", "STRING")),
    exp.Upper: OperatorKind(("this",), called.of_text("upper", "STRING")),
    exp.Trim: OperatorKind(("this", "expression", "position"), called.trimmed),
    exp.Substring: OperatorKind(("this", "start", "length"), called.substring),
    exp.Like: OperatorKind((*_BOTH, "negate"), called.like),
    exp.StartsWith: OperatorKind(_BOTH, called.two_texts("starts_with")),
    exp.EndsWith: OperatorKind(_BOTH, called.two_texts("ends_with")),
    exp.Contains: OperatorKind(_BOTH, called.two_texts("contains")),
    exp.Bracket: OperatorKind(("this", "expressions"), called.indexed),
    exp.TimestampTrunc: OperatorKind(("this", "unit"), called.truncated),
    exp.TsOrDsToDate: OperatorKind(("this",), called.to_date),
    exp.Year: OperatorKind(("this",), called.date_part("year")),
    exp.Quarter: OperatorKind(("this",), called.date_part("quarter")),
    exp.Month: OperatorKind(("this",), called.date_part("month")),
    exp.Day: OperatorKind(("this",), called.date_part("day")),
    exp.DayOfMonth: OperatorKind(("this",), called.date_part("day")),
    exp.DayOfYear: OperatorKind(("this",), called.date_part("dayofyear")),
    exp.DayOfWeek: OperatorKind(("this",), called.date_part("dayofweek")),
    exp.WeekOfYear: OperatorKind(("this",), called.date_part("weekofyear")),
    exp.Hour: OperatorKind(("this",), called.of_time("hour", "INT")),
    exp.Minute: OperatorKind(("this",), called.of_time("minute", "INT")),
    exp.Second: OperatorKind(("this",), called.of_time("second", "INT")),
    exp.UnixSeconds: OperatorKind(("this",), called.of_time("unix_seconds", "BIGINT")),
    exp.UnixMillis: OperatorKind(("this",), called.of_time("unix_millis", "BIGINT")),
    exp.UnixMicros: OperatorKind(("this",), called.of_time("unix_micros", "BIGINT")),
    exp.Anonymous: OperatorKind(("this", "expressions"), called.named),
    **{
        kind: OperatorKind(_BOTH, _compared(name))
        for kind, name in zip(
            (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ), COMPARISONS, strict=True
        )
    },
}
"""The supported kinds of parser nodes. A test reads the table and tries every argument of every kind."""
