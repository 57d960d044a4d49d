"""Reads the parser's tree of a condition as a typed tree, by an allow-list of nodes and of their arguments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, TypeAlias

from sqlglot import exp

from millrace.live.condition import (
    ARITHMETIC,
    Call,
    ColumnOf,
    Condition,
    Constant,
    Operation,
    Slot,
    Value,
    type_in_condition,
)
from millrace.live.query import LiveView
from millrace.model.errors import PipelineError, shown, unknown_option
from millrace.model.types import decimal_of, is_decimal

_DEEPEST = 4
"""How deep arithmetic may be nested: its SQL grows with each level."""
_MOST_PARTS = 200
"""The largest number of operators in a condition."""


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
            return tuple(dict.fromkeys(_converted(each.value(params), self.type) for each in self.given))
        return _converted(self.given.value(params), self.type)


class _Kind(NamedTuple):
    """The reader of one kind of parser node."""

    used: tuple[str, ...]
    read: Callable[["Reader", Any], "_Node"]


_Node: TypeAlias = Condition | Given
"""A typed node, or a constant whose type depends on what is beside it."""


class Reader:
    """Reads conditions over a view."""

    def __init__(self, view: LiveView, kinds: tuple[str, ...]) -> None:
        """Read columns of this view, and parameters of these kinds."""
        self.view, self.kinds = view, kinds
        self.sources: list[Source] = []
        self._seen: set[int] = set()

    def condition(self, tree: exp.Expr) -> Condition:
        """A condition: true, false or NULL for each row."""
        if sum(type(each) in _KINDS and not isinstance(each, exp.Column) for each in tree.walk()) > _MOST_PARTS:
            raise PipelineError(f"the condition has more than {_MOST_PARTS} operators", "use IN for many values")
        return self.boolean(tree)

    def boolean(self, tree: exp.Expr) -> Condition:
        """A part that is true, false or NULL."""
        node = self.typed(self.node(tree), "BOOLEAN", tree)
        if node.type != "BOOLEAN":
            raise PipelineError(f"{as_sql(tree)} is {node.type}, not a condition", "compare it with a value")
        return node

    def node(self, tree: exp.Expr) -> _Node:
        """A parser node and all below it."""
        given = source_of(tree, self.kinds)
        if given is not None:
            self.note(given)
            return given
        kind = _KINDS.get(type(tree))
        if kind is None:
            raise unsupported(tree)
        used(tree, *kind.used)
        return kind.read(self, tree)

    def typed(self, node: _Node, type: str, tree: exp.Expr) -> Condition:
        """A node; a constant gets a slot of this type."""
        return self.slot(node, type, tree) if isinstance(node, Given) else node

    def slot(self, given: Given | tuple[Given, ...], type: str, tree: exp.Expr) -> Slot:
        """A slot for a constant, or for a list of them. Refuses a constant that is not of the type."""
        for each in given if isinstance(given, tuple) else (given,):
            if each.kind not in _ACCEPTED[type.split("(")[0]]:
                problem = f"{as_sql(tree)} compares {type} with {_SHOWN[each.kind]}"
                raise PipelineError(problem, "write a constant of the same type")
            if each.parameter is None:
                _converted(each.value(()), type)
        self.sources.append(Source(given, type))
        return Slot(len(self.sources) - 1, type)

    def note(self, given: Given) -> None:
        """Remember that a parameter is used."""
        if given.parameter is not None:
            self._seen.add(given.parameter)

    def check_parameters(self) -> None:
        """Refuse parameters that the query does not use."""
        unused = set(range(1, len(self.kinds) + 1)) - self._seen
        if unused:
            raise PipelineError(f"the query does not use parameter ${min(unused)}", "pass only those that it uses")

    def comparable(self, name: str, tree: exp.Expr) -> str:
        """The type of a column in comparisons. Refuses a column that cannot be compared."""
        stored = self.view.columns.type_of(name)
        found = type_in_condition(stored)
        if found is None:
            raise PipelineError(
                f"{as_sql(tree)} is {stored}, which live queries can neither compare nor sort",
                "cast it in the pipeline, to DOUBLE for example; it can be selected, and tested with IS NULL",
            )
        return found

    def operands(self, tree: exp.Expr, *sides: exp.Expr) -> list[_Node]:
        """The nodes of operands. Refuses what databases group differently."""
        _check_grouping(tree, *sides)
        return [self.node(side) for side in sides]

    def compared(self, name: Operation, left: _Node, right: _Node, tree: exp.Expr) -> Condition:
        """A comparison of two values of one type."""
        return Call(name, self.alike(left, right, tree), "BOOLEAN")

    def alike(self, left: _Node, right: _Node, tree: exp.Expr) -> tuple[Condition, Condition]:
        """Two values with one type."""
        if isinstance(left, Given) and isinstance(right, Given):
            type = _wider(_ALONE[left.kind], _ALONE[right.kind])
            type = type or "STRING"
            return self.slot(left, type, tree), self.slot(right, type, tree)
        if isinstance(left, Given):
            second, first = self.alike(right, left, tree)
            return first, second
        if isinstance(right, Given):
            if right.kind == "float" and left.type == "BIGINT":
                left = Call("double", (left,), "DOUBLE")
            return left, self.slot(right, left.type, tree)
        if left.type == right.type or (_is_exact(left.type) and _is_exact(right.type)):
            return left, right
        if {left.type, right.type} == {"BIGINT", "DOUBLE"}:
            return _as_double(left), _as_double(right)
        raise PipelineError(f"{as_sql(tree)} compares {left.type} with {right.type}", "compare values of one type")


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


def column_named(tree: exp.Column, view: LiveView) -> str:
    """The name of a column as the view spells it: as written if it is quoted, in any case if not."""
    used(tree, "this", "table")
    qualifier = tree.args.get("table")
    if qualifier is not None and qualifier.name.lower() != view.name.lower():
        raise PipelineError(f"{as_sql(tree)} is not a column of {view.name!r}")
    name = tree.name
    if name in view.columns:
        return name
    if not tree.this.args.get("quoted"):
        for each in view.columns.names:
            if each.lower() == name.lower():
                return each
    raise unknown_option("column", name, view.columns.names)


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


# Constants.

_ALONE = {
    "int": "BIGINT", "float": "DOUBLE", "str": "STRING", "bool": "BOOLEAN", "none": "VOID", "date": "DATE",
    "timestamp": "TIMESTAMP",
}  # fmt: skip
"""The type of a constant beside another one."""
_ACCEPTED = {
    "BIGINT": ("int", "none"),
    "DOUBLE": ("int", "float", "none"),
    "DECIMAL": ("int", "float", "none"),
    "STRING": ("str", "none"),
    "PATTERN": ("str", "none"),
    "BOOLEAN": ("bool", "none"),
    "DATE": ("str", "date", "none"),
    "TIMESTAMP": ("str", "timestamp", "none"),
}
_SHOWN = {"int": "a number", "float": "a number", "str": "text", "bool": "a boolean", "none": "NULL"} | {
    kind: f"a {kind}" for kind in ("date", "timestamp")
}


def _wider(left: str, right: str) -> str | None:
    if "VOID" in (left, right):
        return right if left == "VOID" and right != "VOID" else left if left != "VOID" else None
    return "DOUBLE" if {left, right} == {"BIGINT", "DOUBLE"} else left


def _converted(value: Any, type: str) -> Value:
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


# Nodes.

_PREDICATES = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is, exp.In, exp.Like, exp.Between, exp.Not, exp.And, exp.Or,
)  # fmt: skip


def _check_grouping(tree: exp.Expr, *sides: exp.Expr) -> None:
    """Refuse operands that databases group differently without parentheses.

    The parser puts parentheses around IS by itself, so that those of the user cannot be told from its own.
    """
    for side in sides:
        if isinstance(side, exp.Paren) and isinstance(side.this, exp.Is) and not isinstance(tree, exp.Is):
            raise PipelineError(f"{as_sql(tree)} can be read in two ways", "write it with AND and OR")
        if isinstance(side, _PREDICATES):
            raise PipelineError(f"{as_sql(tree)} can be read in two ways", "put parentheses around its parts")


def _is_exact(type: str) -> bool:
    return type == "BIGINT" or is_decimal(type)


def _as_double(node: Condition) -> Condition:
    return node if node.type == "DOUBLE" else Call("double", (node,), "DOUBLE")


def _negated(node: Condition, tree: exp.Expr) -> Condition:
    """The node, or its opposite: some dialects of the parser write NOT LIKE as an argument of LIKE."""
    return Call("not", (node,), "BOOLEAN") if tree.args.get("negate") else node


def _column(reader: Reader, tree: exp.Column) -> Condition:
    name = column_named(tree, reader.view)
    return ColumnOf(name, reader.comparable(name, tree), reader.view.columns.type_of(name))


def _comparison(name: Operation) -> Callable[[Reader, exp.Expr], Condition]:
    def read(reader: Reader, tree: exp.Expr) -> Condition:
        left, right = reader.operands(tree, tree.this, tree.expression)
        return reader.compared(name, left, right, tree)

    return read


def _connective(name: Operation) -> Callable[[Reader, exp.Expr], Condition]:
    def read(reader: Reader, tree: exp.Expr) -> Condition:
        return Call(name, (reader.boolean(tree.this), reader.boolean(tree.expression)), "BOOLEAN")

    return read


def _not(reader: Reader, tree: exp.Not) -> Condition:
    return Call("not", (reader.boolean(tree.this),), "BOOLEAN")


def _is(reader: Reader, tree: exp.Is) -> Condition:
    what = tree.expression
    if isinstance(what, exp.Null):
        return _negated(Call("is_null", (_tested(reader, tree),), "BOOLEAN"), tree)
    if not isinstance(what, exp.Boolean):
        raise unsupported(tree, "IS takes NULL, TRUE or FALSE")
    _check_grouping(tree, tree.this)
    node = reader.boolean(tree.this)
    if not what.this:
        node = Call("not", (node,), "BOOLEAN")
    return _negated(Call("is_true", (node,), "BOOLEAN"), tree)


def _tested(reader: Reader, tree: exp.Is) -> Condition:
    """The operand of IS NULL, which may be a column of any type."""
    if isinstance(tree.this, exp.Column) and source_of(tree.this, reader.kinds) is None:
        name = column_named(tree.this, reader.view)
        stored = reader.view.columns.type_of(name)
        return ColumnOf(name, type_in_condition(stored) or "OTHER", stored)
    (node,) = reader.operands(tree, tree.this)
    return reader.typed(node, _ALONE[node.kind].replace("VOID", "STRING"), tree) if isinstance(node, Given) else node


def _in(reader: Reader, tree: exp.In) -> Condition:
    (value,) = reader.operands(tree, tree.this)
    given = tuple(source_of(each, reader.kinds) for each in tree.expressions)
    if not given:
        raise unsupported(tree, "list at least one constant")
    members = [each for each in given if each is not None]
    if len(members) < len(given):
        raise unsupported(tree, "IN takes a list of constants")
    for each in members:
        reader.note(each)
    if isinstance(value, Given):
        raise unsupported(tree, "IN needs a column on its left")
    if value.type == "BIGINT" and any(each.kind == "float" for each in members):
        value = _as_double(value)
    return _negated(Call("in", (value, reader.slot(tuple(members), value.type, tree)), "BOOLEAN"), tree)


def _between(reader: Reader, tree: exp.Between) -> Condition:
    low, high = tree.args["low"], tree.args["high"]
    value, least, most = reader.operands(tree, tree.this, low, high)
    parts = (reader.compared("ge", value, least, tree), reader.compared("le", value, most, tree))
    return _negated(Call("and", parts, "BOOLEAN"), tree)


def _like(reader: Reader, tree: exp.Like) -> Condition:
    (value,) = reader.operands(tree, tree.this)
    pattern = source_of(tree.expression, reader.kinds)
    if pattern is None or pattern.kind not in ("str", "none"):
        raise unsupported(tree, "LIKE takes a pattern that is a constant text")
    reader.note(pattern)
    if isinstance(value, Given) or value.type != "STRING":
        raise unsupported(tree, "LIKE needs a text column on its left")
    return _negated(Call("like", (value, reader.slot(pattern, "PATTERN", tree)), "BOOLEAN"), tree)


def _arithmetic(name: Operation) -> Callable[[Reader, exp.Expr], Condition]:
    def read(reader: Reader, tree: exp.Expr) -> Condition:
        left, right = reader.operands(tree, tree.this, tree.expression)
        return _computed(name, reader.alike(left, right, tree), tree)

    return read


def _neg(reader: Reader, tree: exp.Neg) -> Condition:
    (node,) = reader.operands(tree, tree.this)
    if isinstance(node, Given):
        node = reader.typed(node, _ALONE[node.kind], tree)
    return _computed("neg", (node,), tree)


def _computed(name: Operation, arguments: tuple[Condition, ...], tree: exp.Expr) -> Condition:
    type = arguments[0].type
    if any(each.type != type for each in arguments) or type not in ("BIGINT", "DOUBLE"):
        kinds = " and ".join(dict.fromkeys(each.type for each in arguments))
        raise PipelineError(f"{as_sql(tree)} computes with {kinds}", "cast it in the pipeline, to DOUBLE for example")
    if name == "mod" and type == "DOUBLE":
        raise PipelineError(f"{as_sql(tree)} computes with DOUBLE", "% takes whole numbers")
    made = Call(name, arguments, type)
    if _depth(made) > _DEEPEST:
        raise PipelineError(f"{as_sql(tree)} is nested too deeply", "compute it in the pipeline")
    return made


def _depth(node: Condition) -> int:
    if not isinstance(node, Call) or node.name not in ARITHMETIC:
        return 0
    return 1 + max(_depth(argument) for argument in node.arguments)


def _paren(reader: Reader, tree: exp.Paren) -> _Node:
    return reader.node(tree.this)


_TWO = ("this", "expression")
_KINDS: dict[type[exp.Expr], _Kind] = {
    exp.Column: _Kind(("this", "table"), _column),
    exp.Paren: _Kind(("this",), _paren),
    exp.And: _Kind(_TWO, _connective("and")),
    exp.Or: _Kind(_TWO, _connective("or")),
    exp.Not: _Kind(("this",), _not),
    exp.EQ: _Kind(_TWO, _comparison("eq")),
    exp.NEQ: _Kind(_TWO, _comparison("ne")),
    exp.LT: _Kind(_TWO, _comparison("lt")),
    exp.LTE: _Kind(_TWO, _comparison("le")),
    exp.GT: _Kind(_TWO, _comparison("gt")),
    exp.GTE: _Kind(_TWO, _comparison("ge")),
    exp.Is: _Kind((*_TWO, "negate"), _is),
    exp.In: _Kind(("this", "expressions", "negate"), _in),
    exp.Between: _Kind(("this", "low", "high", "negate"), _between),
    exp.Like: _Kind((*_TWO, "negate"), _like),
    exp.Add: _Kind(_TWO, _arithmetic("add")),
    exp.Sub: _Kind(_TWO, _arithmetic("sub")),
    exp.Mul: _Kind(_TWO, _arithmetic("mul")),
    exp.Div: _Kind(_TWO, _arithmetic("div")),
    exp.Mod: _Kind(_TWO, _arithmetic("mod")),
    exp.Neg: _Kind(("this",), _neg),
}
