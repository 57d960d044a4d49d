"""What a row expression means: its value for one row, with Spark 4's ANSI semantics.

This is the reference's evaluator: a plain walk over the tree, one function a kind of node. Values
are Python's own: None for NULL, datetime in UTC for TIMESTAMP. A row for which an expression has no
value (a cast that fails, a division by zero) raises `RowError`; the row is then a dead letter.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from sqlglot import exp

from millrace.model.aggregate import sort_key
from millrace.model.duration import to_datetime
from millrace.model.errors import ModelError, refuse
from millrace.model.expression import Expression, type_of
from millrace.model.schema import DIALECT
from millrace.model.window import Row


class RowError(ValueError):
    """Why an expression has no value for a row."""


def evaluate(expression: Expression, row: Row) -> Any:
    """The value of the expression for this row."""
    try:
        return _value(expression.tree, row)
    except ModelError:
        raise
    except TypeError:
        used = ", ".join(f"{name} is {row[name]!r:.40}" for name in expression.columns)
        raise RowError(f"{expression.sql}: it has no value where {used}") from None
    except (ValueError, ArithmeticError) as error:
        raise RowError(f"{expression.sql}: {str(error) or type(error).__name__}") from None


def check_known(expression: Expression) -> None:
    """Refuse an expression that this evaluator does not know, though Spark may."""
    for node in expression.tree.walk():
        named = isinstance(node, exp.Anonymous) and node.name.lower() in _NAMED
        skipped = isinstance(node, exp.Column | exp.Identifier | exp.DataType | exp.DataTypeParam | exp.If)
        if not named and not skipped and type(node) not in _SPECIAL and type(node) not in _STRICT:
            raise refuse(
                f"the reference engine does not evaluate {node.sql(DIALECT)} in {expression.sql!r}; Spark does"
            )


def _value(node: exp.Expr, row: Row) -> Any:
    if isinstance(node, exp.Column):
        value = row[node.parts[0].name]
        for part in node.parts[1:]:
            value = None if value is None else value[part.name]
        return value
    special = _SPECIAL.get(type(node))
    if special is not None:
        return special(node, row)
    if isinstance(node, exp.Anonymous):
        function, arguments = _NAMED.get(node.name.lower()), node.expressions
    else:
        function, arguments = _STRICT.get(type(node)), _arguments(node)
    if function is None:
        raise refuse(f"the reference engine does not evaluate {node.sql(DIALECT)!r}")
    values = [_value(argument, row) for argument in arguments]
    if any(value is None for value in values):
        return None
    return _in_range(node, function(*values))


def _in_range(node: exp.Expr, value: Any) -> Any:
    """Whole numbers have as many bits as their type, as in Spark and in DuckDB."""
    if isinstance(value, int) and not isinstance(value, bool):
        limit = 1 << _INTEGER_BITS.get(type_of(node), 64) - 1
        if not -limit <= value < limit:
            raise RowError("it is too large for its type")
    return value


def _arguments(node: exp.Expr) -> list[exp.Expr]:
    """The operands of a node in the order in which SQL writes them."""
    found: list[exp.Expr] = []
    for value in node.args.values():
        found.extend(item for item in (value if isinstance(value, list) else [value]) if isinstance(item, exp.Expr))
    return found


# Logic has three values; NULL is the one in the middle.


def _and(node: exp.Expr, row: Row) -> bool | None:
    values = [_value(node.this, row), _value(node.expression, row)]
    return False if False in values else None if None in values else True


def _or(node: exp.Expr, row: Row) -> bool | None:
    values = [_value(node.this, row), _value(node.expression, row)]
    return True if True in values else None if None in values else False


def _is(node: exp.Expr, row: Row) -> bool:
    return bool(_value(node.this, row) is _value(node.expression, row))


def _same(node: exp.Expr, row: Row) -> bool:
    left, right = _value(node.this, row), _value(node.expression, row)
    return left is right if left is None or right is None else sort_key(left) == sort_key(right)


def _in(node: exp.Expr, row: Row) -> bool | None:
    value = _value(node.this, row)
    if value is None:
        return None
    members = [_value(member, row) for member in node.expressions]
    if any(member is not None and sort_key(member) == sort_key(value) for member in members):
        return True
    return None if None in members else False


def _case(node: exp.Expr, row: Row) -> Any:
    subject = _value(node.this, row) if node.this else True
    for branch in node.args["ifs"]:
        if subject is not None and _value(branch.this, row) == subject:
            return _value(branch.args["true"], row)
    otherwise = node.args.get("default")
    return _value(otherwise, row) if otherwise else None


def _if(node: exp.Expr, row: Row) -> Any:
    chosen = node.args["true"] if _value(node.this, row) is True else node.args.get("false")
    return _value(chosen, row) if chosen else None


def _coalesce(node: exp.Expr, row: Row) -> Any:
    values = (_value(part, row) for part in (node.this, *node.expressions))
    return next((value for value in values if value is not None), None)


def _nullif(node: exp.Expr, row: Row) -> Any:
    left = _value(node.this, row)
    return None if left == _value(node.expression, row) else left


def _pick(choose: Callable[..., Any]) -> Callable[[exp.Expr, Row], Any]:
    def pick(node: exp.Expr, row: Row) -> Any:
        values = [_value(part, row) for part in (node.this, *node.expressions)]
        return choose((value for value in values if value is not None), key=sort_key, default=None)

    return pick


def _literal(node: exp.Expr, row: Row) -> Any:
    if node.is_string:
        return node.this
    return int(node.this) if node.is_int else float(node.this)


def _cast(node: exp.Expr, row: Row) -> Any:
    value = _value(node.this, row)
    try:
        return None if value is None else _convert(value, node.args["to"].sql(DIALECT))
    except (ValueError, ArithmeticError):
        if node.args.get("safe"):
            return None
        raise


def _bracket(node: exp.Expr, row: Row) -> Any:
    container, key = _value(node.this, row), _value(node.expressions[0], row)
    if container is None or key is None:
        return None
    if isinstance(container, Mapping):
        return container.get(key)
    if not 0 <= key < len(container):
        raise RowError(f"index {key} is outside of an array of {len(container)}")
    return container[key]


def _convert(value: Any, type: str) -> Any:
    if type == "STRING":
        return str(value).lower() if isinstance(value, bool) else str(value)
    if type in _INTEGER_BITS:
        number = _whole(value) if isinstance(value, str) else math.trunc(value)
        limit = 1 << _INTEGER_BITS[type] - 1
        if not -limit <= number < limit:
            raise RowError(f"{number} does not fit into {type}")
        return number
    if type in ("DOUBLE", "FLOAT"):
        return float(value)
    if type.startswith("DECIMAL"):
        scale = int(type.rstrip(")").split(",")[1]) if "," in type else 0
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    if type == "BOOLEAN":
        return {"true": True, "false": False}[value.strip().lower()] if isinstance(value, str) else bool(value)
    if type == "TIMESTAMP":
        return _timestamp(value)
    raise refuse(f"the reference engine does not cast to {type}")


def _whole(text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise RowError(f"{text!r:.40} is not a whole number") from None


def _timestamp(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise RowError(f"{value!r:.40} is not a timestamp") from None
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return to_datetime(round(value * 1_000_000))


def _divide(left: Any, right: Any) -> Any:
    if right == 0:
        raise RowError("division by zero")
    return left / right


def _whole_divide(left: int, right: int) -> int:
    if right == 0:
        raise RowError("division by zero")
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _remainder(left: Any, right: Any) -> Any:
    if right == 0:
        raise RowError("division by zero")
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _round(value: Any, digits: int = 0) -> Any:
    rounded = Decimal(str(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return type(value)(rounded)


def _substring(text: str, start: int, length: int | None = None) -> str:
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = len(text) if length is None else begin + length
    return text[max(begin, 0) : max(end, 0)]


def _like(text: str, pattern: str) -> bool:
    tokens = re.findall(r"\\?.", pattern, re.DOTALL)  # a backslash makes the next character plain
    regex = "".join({"%": ".*", "_": "."}.get(token, re.escape(token[-1])) for token in tokens)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def _truncate(at: datetime, unit: str) -> datetime:
    fields = ("year", "month", "day", "hour", "minute", "second")
    if unit.lower() == "week":
        at -= timedelta(days=at.weekday())
        unit = "day"
    if unit.lower() not in fields:
        raise refuse(f"date_trunc() to {unit!r} is not evaluated by the reference engine")
    kept = {name: getattr(at, name) for name in fields[: fields.index(unit.lower()) + 1]}
    return datetime(**{"month": 1, "day": 1, **kept}, tzinfo=UTC)


def _compare(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda left, right: holds(sort_key(left), sort_key(right))


_INTEGER_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}

_SPECIAL: dict[type[exp.Expr], Callable[[exp.Expr, Row], Any]] = {
    exp.Literal: _literal,
    exp.Null: lambda node, row: None,
    exp.Boolean: lambda node, row: node.this,
    exp.Paren: lambda node, row: _value(node.this, row),
    exp.Var: lambda node, row: node.name,
    exp.And: _and,
    exp.Or: _or,
    exp.Is: _is,
    exp.NullSafeEQ: _same,
    exp.In: _in,
    exp.Case: _case,
    exp.If: _if,
    exp.Coalesce: _coalesce,
    exp.Nullif: _nullif,
    exp.Greatest: _pick(max),
    exp.Least: _pick(min),
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Bracket: _bracket,
}

_STRICT: dict[type[exp.Expr], Callable[..., Any]] = {
    exp.EQ: _compare(operator.eq),
    exp.NEQ: _compare(operator.ne),
    exp.LT: _compare(operator.lt),
    exp.LTE: _compare(operator.le),
    exp.GT: _compare(operator.gt),
    exp.GTE: _compare(operator.ge),
    exp.Between: lambda value, low, high: sort_key(low) <= sort_key(value) <= sort_key(high),
    exp.Not: operator.not_,
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
    exp.Div: _divide,
    exp.IntDiv: _whole_divide,
    exp.Mod: _remainder,
    exp.Neg: operator.neg,
    exp.Abs: abs,
    exp.Ceil: math.ceil,
    exp.Floor: math.floor,
    exp.Round: _round,
    exp.DPipe: operator.add,
    exp.Concat: lambda *parts: "".join(map(str, parts)),
    exp.Lower: str.lower,
    exp.Upper: str.upper,
    exp.Length: len,
    exp.Trim: lambda text: text.strip(" "),
    exp.Substring: _substring,
    exp.Like: _like,
    exp.RegexpLike: lambda text, pattern: re.search(pattern, text) is not None,
    exp.TimestampTrunc: _truncate,
}

_NAMED: dict[str, Callable[..., Any]] = {
    "timestamp_seconds": lambda value: to_datetime(round(value * 1_000_000)),
    "timestamp_millis": lambda value: to_datetime(value * 1_000),
    "timestamp_micros": to_datetime,
}
