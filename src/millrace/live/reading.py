"""Reads the parser's tree of a condition as a typed tree, by an allow-list of nodes and of their arguments."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from sqlglot import exp

from millrace.live.condition import (
    ARITHMETIC,
    Call,
    ColumnOf,
    Condition,
    Operation,
    Slot,
    type_in_condition,
)
from millrace.live.constant import (
    ACCEPTED,
    ALONE,
    SHOWN,
    Given,
    Source,
    as_sql,
    converted,
    source_of,
    unsupported,
    used,
    wider,
)
from millrace.live.query import LiveView
from millrace.model.errors import PipelineError, unknown_option
from millrace.model.types import is_decimal

_DEEPEST = 4
"""How deep arithmetic may be nested: its SQL grows with each level."""
_MOST_PARTS = 200
"""The largest number of operators in a condition."""


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
            if each.kind not in ACCEPTED[type.split("(")[0]]:
                problem = f"{as_sql(tree)} compares {type} with {SHOWN[each.kind]}"
                raise PipelineError(problem, "write a constant of the same type")
            if each.parameter is None:
                converted(each.value(()), type)
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
            type = wider(ALONE[left.kind], ALONE[right.kind])
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
    return reader.typed(node, ALONE[node.kind].replace("VOID", "STRING"), tree) if isinstance(node, Given) else node


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
        node = reader.typed(node, ALONE[node.kind], tree)
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
