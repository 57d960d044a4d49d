"""Row expressions as DuckDB's SQL, where DuckDB and Spark are known to agree.

Only what is listed here can be fused, and only what a test has shown to agree with Spark on edge values
(`tests/test_edge_sql.py`) is listed here. Everything else raises `CannotFuseError` with the reason; the query then
runs natively in Spark.

An expression that has no value for some row makes the whole statement fail, as in Spark: a division by
zero, a number that is too large. Whoever runs the statement finds out which row it was.
"""

from collections.abc import Callable

from sqlglot import exp

from millrace.model.expression import Expression, type_of
from millrace.model.schema import DIALECT, UNKNOWN, is_integer


class CannotFuseError(Exception):
    """Why an expression cannot be computed by DuckDB."""


def to_duckdb(expression: Expression) -> str:
    """The expression in DuckDB's SQL. Raises CannotFuseError if the two may differ on it."""
    return _write(expression.tree)


def quoted(name: str) -> str:
    """A name as DuckDB writes it."""
    return '"' + name.replace('"', '""') + '"'


def duckdb_type(type: str) -> str:
    """What DuckDB calls a type of Spark's."""
    return _DUCKDB.get(type, type)


def _write(node: exp.Expr) -> str:
    if isinstance(node, exp.Column):
        return _column(node)
    special = _SPECIAL.get(type(node))
    if special is not None:
        return special(node)
    if type(node) in _INFIX:
        _same_kind(node.this, node.expression)
        return f"({_write(node.this)} {_INFIX[type(node)]} {_write(node.expression)})"
    if type(node) in _CALLS:
        inside = ", ".join(_write(part) for part in (node.this, *node.expressions))
        return f"{_CALLS[type(node)]}({inside})"
    raise CannotFuseError(f"{node.sql(DIALECT)} is not known to mean the same in DuckDB")


def _column(node: exp.Column) -> str:
    return ".".join(quoted(part.name) for part in node.parts)


def _literal(node: exp.Expr) -> str:
    if node.is_string:
        return "'" + str(node.this).replace("'", "''") + "'"
    if node.is_int:
        return str(node.this)
    parent = node.parent
    beside = isinstance(parent, exp.Binary) and {type_of(parent.this), type_of(parent.expression)} == {"DOUBLE"}
    if not beside and not isinstance(parent, exp.Cast) and "e" not in node.this.lower():
        raise CannotFuseError(f"{node.this} is a DECIMAL to Spark; write {node.this}D for a DOUBLE")
    return f"CAST({node.this} AS DOUBLE)"


def _divide(node: exp.Expr) -> str:
    """DuckDB divides by zero to infinity; Spark does not."""
    return f"(CAST({_write(node.this)} AS DOUBLE) / {_not_zero(node.expression)})"


def _not_zero(node: exp.Expr) -> str:
    divisor = _write(node)
    if isinstance(node, exp.Literal) and node.is_int and int(node.this):
        return divisor
    return f"(CASE WHEN {divisor} = 0 THEN error('division by zero') ELSE {divisor} END)"


def _whole(sign: str) -> Callable[[exp.Expr], str]:
    def write(node: exp.Expr) -> str:
        if not is_integer(type_of(node.this)) or not is_integer(type_of(node.expression)):
            raise CannotFuseError(f"{node.sql(DIALECT)} is fused for whole numbers only")
        return f"({_write(node.this)} {sign} {_write(node.expression)})"

    return write


def _to_whole(function: str) -> Callable[[exp.Expr], str]:
    """Spark's floor and ceil give a BIGINT."""
    return lambda node: f"CAST({function}({_write(node.this)}) AS BIGINT)"


def _is(node: exp.Expr) -> str:
    return f"({_write(node.this)} IS {_write(node.expression)})"


def _in(node: exp.Expr) -> str:
    for member in node.expressions:
        _same_kind(node.this, member)
    return f"({_write(node.this)} IN ({', '.join(map(_write, node.expressions))}))"


def _between(node: exp.Expr) -> str:
    low, high = node.args["low"], node.args["high"]
    _same_kind(node.this, low)
    _same_kind(node.this, high)
    return f"({_write(node.this)} BETWEEN {_write(low)} AND {_write(high)})"


def _case(node: exp.Expr) -> str:
    subject = f" {_write(node.this)}" if node.this else ""
    branches = "".join(f" WHEN {_write(each.this)} THEN {_write(each.args['true'])}" for each in node.args["ifs"])
    otherwise = node.args.get("default")
    return f"(CASE{subject}{branches}{f' ELSE {_write(otherwise)}' if otherwise else ''} END)"


def _if(node: exp.Expr) -> str:
    otherwise = node.args.get("false")
    return (
        f"(CASE WHEN {_write(node.this)} THEN {_write(node.args['true'])} "
        f"ELSE {_write(otherwise) if otherwise else 'NULL'} END)"
    )


def _concat(node: exp.Expr) -> str:
    """Spark's concat of anything with NULL is NULL."""
    return f"({' || '.join(_text(part) for part in node.expressions)})"


def _pipes(node: exp.Expr) -> str:
    return f"({_text(node.this)} || {_text(node.expression)})"


def _text(node: exp.Expr) -> str:
    if type_of(node) not in ("STRING", "VARCHAR"):
        raise CannotFuseError(f"{node.sql(DIALECT)} is put together with text, but is {type_of(node)}")
    return _write(node)


def _substring(node: exp.Expr) -> str:
    start, length = node.args["start"], node.args.get("length")
    if isinstance(start, exp.Literal) and start.name == "0":
        raise CannotFuseError("substring() from 0 means another thing in DuckDB")
    if not isinstance(start, exp.Literal) and not isinstance(start, exp.Neg):
        raise CannotFuseError("substring() is fused for a start that is written as a number")
    return f"substring({_write(node.this)}, {_write(start)}{f', {_write(length)}' if length else ''})"


def _like(node: exp.Expr) -> str:
    if not isinstance(node.expression, exp.Literal) or "\\" in node.expression.name:
        raise CannotFuseError("LIKE is fused for a pattern that is written as text without backslashes")
    return f"({_write(node.this)} LIKE {_write(node.expression)})"


def _truncate(node: exp.Expr) -> str:
    unit = node.args["unit"].name.lower()
    if unit not in ("year", "month", "week", "day", "hour", "minute", "second"):
        raise CannotFuseError(f"date_trunc() to {unit} is not known to mean the same in DuckDB")
    return f"date_trunc('{unit}', {_write(node.this)})"


def _cast(node: exp.Expr) -> str:
    source, target, inside = type_of(node.this), node.args["to"].sql(DIALECT), _write(node.this)
    if isinstance(node.this, exp.Literal) and node.this.is_string and target in ("BIGINT", "DOUBLE", "TIMESTAMP"):
        return f"CAST({inside} AS {duckdb_type(target)})"
    if source == target:
        return inside
    if target in _WHOLE and source in ("DOUBLE", "FLOAT"):
        return f"CAST(trunc({inside}) AS {target})"  # DuckDB would round
    if (source in _WHOLE and target in (*_WHOLE, "DOUBLE", "STRING", "BOOLEAN")) or (
        source == "BOOLEAN" and target in (*_WHOLE, "STRING")
    ):
        return f"CAST({inside} AS {duckdb_type(target)})"
    raise CannotFuseError(f"a cast from {source} to {target} is not known to mean the same in DuckDB")


def _named(node: exp.Expr) -> str:
    factor = {"timestamp_millis": 1_000, "timestamp_micros": 1}.get(node.name.lower())
    if factor is None or not is_integer(type_of(node.expressions[0])):
        raise CannotFuseError(f"{node.sql(DIALECT)} is not known to mean the same in DuckDB")
    micros = f"CAST({_write(node.expressions[0])} AS BIGINT) * {factor}"
    # Years 1 to 9999, which is what Python knows, and the reference.
    known = f"{micros} BETWEEN -62135596800000000 AND 253402300799999999"
    return f"CASE WHEN {micros} IS NULL OR {known} THEN make_timestamptz({micros}) ELSE error('not a time') END"


def _same_kind(one: exp.Expr, other: exp.Expr) -> None:
    """Refuse to mix kinds of values, which each system converts in its own way."""
    kinds = {_KINDS.get(type_of(node).partition("(")[0], type_of(node)) for node in (one, other)} - {"NULL", "VOID"}
    if len(kinds) > 1 or UNKNOWN in kinds:
        raise CannotFuseError(f"{one.sql(DIALECT)} and {other.sql(DIALECT)} are of different or unknown types")


_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_KINDS = {**dict.fromkeys((*_WHOLE, "DOUBLE", "FLOAT"), "number"), "VARCHAR": "STRING"}
_DUCKDB = {"STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ"}

_INFIX: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.And: "AND",
    exp.Or: "OR",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
}

_CALLS: dict[type[exp.Expr], str] = {
    exp.Abs: "abs",
    exp.Coalesce: "coalesce",
    exp.Greatest: "greatest",
    exp.Least: "least",
    exp.Length: "length",
    exp.Trim: "trim",
}

_SPECIAL: dict[type[exp.Expr], Callable[[exp.Expr], str]] = {
    exp.Literal: _literal,
    exp.Null: lambda node: "NULL",
    exp.Boolean: lambda node: "TRUE" if node.this else "FALSE",
    exp.Paren: lambda node: _write(node.this),
    exp.Not: lambda node: f"(NOT {_write(node.this)})",
    exp.Neg: lambda node: f"(- {_write(node.this)})",
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Case: _case,
    exp.If: _if,
    exp.Nullif: lambda node: f"nullif({_write(node.this)}, {_write(node.expression)})",
    exp.Div: _divide,
    exp.IntDiv: _whole("//"),
    exp.Mod: _whole("%"),
    exp.Ceil: _to_whole("ceil"),
    exp.Floor: _to_whole("floor"),
    exp.Concat: _concat,
    exp.DPipe: _pipes,
    exp.Substring: _substring,
    exp.Like: _like,
    exp.TimestampTrunc: _truncate,
    exp.Cast: _cast,
    exp.Anonymous: _named,
}
