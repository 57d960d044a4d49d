"""Row expressions as DuckDB's SQL, where DuckDB and Spark are known to agree.

A table lists the supported operations and the types they accept. A test proves each entry: it compares DuckDB with
Spark over boundary values of those types, alone and nested at random (`tests/spark/test_expressions.py`). Everything
else raises `CannotFuseError` with the reason; the query then runs natively in Spark.

A row that has no value makes DuckDB fail, as it makes Spark fail; `tried` catches that row by row. An operand that
Spark does not evaluate must not be evaluated here either: DuckDB evaluates only the chosen branch of a CASE, but both
sides of AND.
"""

from collections.abc import Callable
from typing import assert_never

from millrace.model.computed import value_of
from millrace.model.errors import NoValueError
from millrace.model.expression import Expression
from millrace.model.typed import COMPARISONS, Call, Case, Cast, ColumnOf, Literal, Node, flat, is_constant, is_fallible
from millrace.model.types import INTEGERS, NUMBERS, decimal_of, is_decimal, is_float, is_integer

_DIGITS = 18
"""The number of decimal digits that DuckDB stores in 64 bits."""
_LONGEST = 20_000
"""The maximum length of a written expression, in characters: some parts are written twice."""


class CannotFuseError(Exception):
    """The reason why DuckDB cannot compute an expression."""


def to_duckdb(expression: Expression) -> str:
    """The expression in DuckDB's SQL. Raises CannotFuseError if DuckDB and Spark may differ on it."""
    if expression.node is None:
        raise CannotFuseError(expression.unresolved or f"{expression.sql} runs only in Spark")
    written = write(expression.node)
    if len(written) > _LONGEST:
        raise CannotFuseError(f"the SQL of {expression.sql[:40]}... is too long")
    return written


def tried(sql: str) -> str:
    """A struct with the value of an expression in its field `v`; NULL for a row that has no value."""
    return f"TRY(struct_pack(v := {sql}))"


def quoted(name: str) -> str:
    """A name, quoted for DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def duckdb_type(type: str) -> str:
    """DuckDB's name of a Spark type."""
    return _TYPES.get(type, type)


def write(node: Node) -> str:
    """A typed tree in DuckDB's SQL. Raises CannotFuseError."""
    if not isinstance(node, Literal) and is_constant(node):
        return _literal(_folded(node))
    match node:
        case ColumnOf(path=path):
            return ".".join(map(quoted, path))
        case Literal():
            return _literal(node)
        case Cast():
            return _cast(node)
        case Case(branches=branches, otherwise=otherwise):
            whens = "".join(f" WHEN {write(condition)} THEN {write(value)}" for condition, value in branches)
            return f"(CASE{whens} ELSE {write(otherwise)} END)"
        case Call(name=name, arguments=arguments):
            entry = _CALLS.get(name)
            if entry is None or not all(map(entry[0], [each.type for each in arguments])):
                types = ", ".join(each.type for each in arguments)
                raise CannotFuseError(f"{name} of {types} may differ between DuckDB and Spark")
            return entry[1](node)
    assert_never(node)


# Literals and casts.


def _folded(node: Node) -> Literal:
    """A part without columns as its value: DuckDB would compute it while planning, where TRY cannot catch an error."""
    try:
        return Literal(value_of(node, {}), node.type)
    except NoValueError as error:
        raise CannotFuseError(f"a constant part has no value: {error}") from None


def _literal(node: Literal) -> str:
    value, type = node.value, node.type
    if value is None:
        return f"CAST(NULL AS {duckdb_type(type)})" if type != "VOID" else "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if type == "STRING":
        if "\0" in value or not _is_utf8(value):
            raise CannotFuseError(f"{value!r} contains a character that DuckDB does not accept")
        return "'" + str(value).replace("'", "''") + "'"
    text = f"{value:f}" if is_decimal(type) else repr(value) if is_float(type) else str(value)
    return f"CAST('{text}' AS {duckdb_type(type)})"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cast(node: Cast) -> str:
    source, target, inside = node.child.type, node.type, write(node.child)
    if not any(of(source) and to(target) for of, to in _CASTS):
        raise CannotFuseError(f"a cast from {source} to {target} may differ between DuckDB and Spark")
    if is_float(source) and is_integer(target):
        inside = f"trunc({inside})"  # DuckDB would round
    function = "TRY_CAST" if node.safe else "CAST"
    if is_decimal(source) and is_integer(target):
        precision, scale = decimal_of(source)
        if scale:  # DuckDB would round
            inside = f"trunc({inside})"
    if is_decimal(source) and target == "STRING":
        precision, scale = decimal_of(source)
        if precision == scale:  # DuckDB would write .5
            if precision == 38:
                raise CannotFuseError(f"a cast from {source} to STRING runs only in Spark")
            inside = f"CAST({inside} AS DECIMAL({precision + 1}, {scale}))"
    return f"{function}({inside} AS {duckdb_type(target)})"


def _one_of(*types: str) -> Callable[[str], bool]:
    return lambda type: type in types


def _is_plain(type: str) -> bool:
    """A type whose values DuckDB orders and compares as Spark does."""
    return type in _COMPARABLE or is_decimal(type)


def _is_computed(type: str) -> bool:
    return type in NUMBERS or is_decimal(type)


_COMPARABLE = (*NUMBERS, "STRING", "BOOLEAN", "DATE", "TIMESTAMP")
_TYPES = {"STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ", "INT": "INTEGER"}
_CASTS: tuple[tuple[Callable[[str], bool], Callable[[str], bool]], ...] = (
    (is_integer, _one_of(*NUMBERS, "STRING", "BOOLEAN")),
    (is_integer, is_decimal),
    (_one_of("BOOLEAN"), _one_of(*INTEGERS, "STRING")),
    (_one_of("DOUBLE"), _one_of(*INTEGERS)),
    (_one_of("FLOAT"), _one_of(*INTEGERS, "DOUBLE")),
    (_one_of("DOUBLE", "FLOAT"), _one_of("BOOLEAN")),
    (is_decimal, is_decimal),
    (is_decimal, _one_of("STRING", "BOOLEAN")),
    (_one_of("DATE"), _one_of("STRING", "TIMESTAMP")),
    (_one_of("TIMESTAMP"), _one_of("DATE")),
)
"""The casts on which DuckDB and Spark agree."""


# Logic.


def _joined(sign: str, decides: str) -> Callable[[Call], str]:
    """AND and OR: operands after one that decides are not evaluated."""

    def written(node: Call) -> str:
        parts = flat(node, node.name)
        sides = [write(part) for part in parts]
        whole = f"({f' {sign} '.join(sides)})"
        fallible = [place for place, part in enumerate(parts) if is_fallible(part)]
        if not fallible or fallible[-1] == 0:
            return whole
        guards = "".join(f" WHEN {side} IS {decides} THEN {decides}" for side in sides[: fallible[-1]])
        return f"(CASE{guards} ELSE {whole} END)"

    return written


def _infix(sign: str) -> Callable[[Call], str]:
    return lambda node: _guarded(node, f"({write(node.arguments[0])} {sign} {write(node.arguments[1])})")


def _guarded(node: Call, written: str) -> str:
    """An operator whose right side is not evaluated if the left side is NULL."""
    left, right = node.arguments
    if not is_fallible(right) or (isinstance(left, Literal) and left.value is not None):
        return written
    return f"(CASE WHEN {write(left)} IS NOT NULL THEN {written} END)"


def _same(node: Call) -> str:
    return f"({write(node.arguments[0])} IS NOT DISTINCT FROM {write(node.arguments[1])})"


def _in(node: Call) -> str:
    value, *members = map(write, node.arguments)
    return f"({value} IN ({', '.join(members)}))"


def _picked(function: str, sign: str) -> Callable[[Call], str]:
    """Greatest and least; DuckDB's own functions turn -0.0 into 0.0."""

    def written(node: Call) -> str:
        if not is_float(node.type):
            return f"{function}({', '.join(map(write, node.arguments))})"
        best, *more = map(write, node.arguments)
        for each in more:
            best = (
                f"(CASE WHEN {best} IS NULL THEN {each} WHEN {each} IS NULL THEN {best} WHEN {each} {sign} {best} "
                f"THEN {each} ELSE {best} END)"
            )
        return best

    return written


def _listed(function: str) -> Callable[[Call], str]:
    return lambda node: f"{function}({', '.join(map(write, node.arguments))})"


# Numbers.


def _computed(sign: str) -> Callable[[Call], str]:
    def written(node: Call) -> str:
        left, right = node.arguments
        sides = [write(left), write(right)]
        if is_decimal(node.type):
            precision, scale = decimal_of(node.type)
            (p1, s1), (p2, s2) = decimal_of(left.type), decimal_of(right.type)
            wanted = (p1 + p2 + 1, s1 + s2) if sign == "*" else (max(p1 - s1, p2 - s2) + max(s1, s2) + 1, max(s1, s2))
            if (precision, scale) != wanted:
                raise CannotFuseError(f"{left.type} {sign} {right.type} is rounded, which only Spark supports")
            if sign == "*" and max(p1, p2) <= _DIGITS < p1 + p2:
                sides[0] = f"CAST({sides[0]} AS DECIMAL({_DIGITS + 1}, {s1}))"  # otherwise DuckDB stays within 64 bits
            if sign != "*":
                sides = [f"CAST({side} AS {node.type})" for side in sides]
        return _guarded(node, f"CAST({sides[0]} {sign} {sides[1]} AS {duckdb_type(node.type)})")

    return written


def _divided(sign: str) -> Callable[[Call], str]:
    """The divisor is evaluated first: if it is NULL, the dividend is not. NULL on either side prevails over a zero."""

    def written(node: Call) -> str:
        left, right = node.arguments
        over, under = write(left), write(right)
        type = duckdb_type(node.type)
        minus_one = f"CAST(-1 AS {type})"
        if isinstance(right, Literal) and right.value not in (None, 0, -1):  # a divisor that needs no check
            return f"CAST({over} {sign} {under} AS {type})"
        # The failing cast fails the row: DuckDB itself returns infinity or NULL for a division by zero.
        fail = f"CAST('divided by ' || {under} AS {type})"
        zero = f"WHEN {under} IS NULL THEN NULL WHEN {over} IS NULL THEN NULL WHEN {under} = 0 THEN {fail}"
        if sign == "%" and is_integer(node.type):  # the smallest integer divided by -1 overflows
            zero += f" WHEN {under} = {minus_one} THEN CAST(0 AS {type})"
        return f"(CASE {zero} ELSE CAST({over} {sign} {under} AS {type}) END)"

    return written


def _whole(function: str) -> Callable[[Call], str]:
    """Floor and ceil: a BIGINT is returned unchanged, and NaN becomes 0, as in Java."""

    def written(node: Call) -> str:
        (argument,) = node.arguments
        inside = write(argument)
        if argument.type == "BIGINT":
            return inside
        return f"(CASE WHEN isnan({inside}) THEN 0 ELSE CAST({function}({inside}) AS BIGINT) END)"

    return written


# Text.


def _trimmed(node: Call) -> str:
    text, signs = node.arguments
    if not isinstance(signs, Literal) or not str(signs.value).isascii() or not signs.value:
        raise CannotFuseError(f"{node.name}() of characters other than ASCII runs only in Spark")
    return f"{node.name}({write(text)}, {write(signs)})"


def _substring(node: Call) -> str:
    text, start, length = node.arguments
    if not isinstance(start, Literal) or not isinstance(length, Literal) or not start.value or length.value is None:
        raise CannotFuseError(
            "substring() runs only in Spark unless its start and length are number literals and the start is not 0"
        )
    if length.value < 0:
        raise CannotFuseError("substring() with a negative length runs only in Spark")
    return f"substring({write(text)}, {start.value}, {length.value})"


def _like(node: Call) -> str:
    text, pattern = node.arguments
    if not isinstance(pattern, Literal) or "\\" in pattern.value:
        raise CannotFuseError("LIKE runs only in Spark unless its pattern is a text literal without backslashes")
    return f"({write(text)} LIKE {write(pattern)})"


# Times.


def _truncated(node: Call) -> str:
    unit, at = node.arguments
    assert isinstance(unit, Literal)
    return f"date_trunc('{unit.value.lower()}', {write(at)})"


def _part(function: str, plus: int = 0) -> Callable[[Call], str]:
    more = f" + {plus}" if plus else ""
    return lambda node: f"CAST({function}({write(node.arguments[0])}){more} AS INTEGER)"


def _since_1970(unit: int) -> Callable[[Call], str]:
    """A time in the years 1 to 9999, which Python supports; for other years the row has no value."""

    def written(node: Call) -> str:
        inside = f"{write(node.arguments[0])}"
        micros = f"CAST({inside} * CAST({unit} AS BIGINT) AS BIGINT)"
        known = f"{micros} BETWEEN -62135596800000000 AND 253402300799999999"
        return (
            f"(CASE WHEN {inside} IS NULL THEN NULL WHEN {known} THEN make_timestamptz({micros}) "
            f"ELSE CAST('time ' || {inside} AS TIMESTAMPTZ) END)"
        )

    return written


def _until(unit: int) -> Callable[[Call], str]:
    def written(node: Call) -> str:
        micros = f"epoch_us({write(node.arguments[0])})"
        rest = f"(({micros} % {unit} + {unit}) % {unit})"
        return f"(({micros} - {rest}) // {unit})"

    return written


_CALLS: dict[str, tuple[Callable[[str], bool], Callable[[Call], str]]] = {
    "and": (_one_of("BOOLEAN"), _joined("AND", "FALSE")),
    "or": (_one_of("BOOLEAN"), _joined("OR", "TRUE")),
    "not": (_one_of("BOOLEAN"), lambda node: f"(NOT {write(node.arguments[0])})"),
    **{
        name: (_is_plain, _infix(sign))
        for name, sign in zip(COMPARISONS[:-1], ("=", "<>", "<", "<=", ">", ">="), strict=True)
    },
    "same": (_is_plain, _same),
    "is_null": (lambda type: True, lambda node: f"({write(node.arguments[0])} IS NULL)"),
    "in": (_is_plain, _in),
    "coalesce": (_is_plain, _listed("coalesce")),
    "greatest": (_is_plain, _picked("greatest", ">")),
    "least": (_is_plain, _picked("least", "<")),
    "add": (_is_computed, _computed("+")),
    "sub": (_is_computed, _computed("-")),
    "mul": (_is_computed, _computed("*")),
    "div": (_one_of("DOUBLE"), _divided("/")),
    "intdiv": (_one_of("BIGINT"), _divided("//")),
    "mod": (_one_of(*NUMBERS), _divided("%")),
    "neg": (_is_computed, lambda node: f"(- {write(node.arguments[0])})"),
    "abs": (_is_computed, lambda node: f"abs({write(node.arguments[0])})"),
    "floor": (_one_of("DOUBLE", "BIGINT"), _whole("floor")),
    "ceil": (_one_of("DOUBLE", "BIGINT"), _whole("ceil")),
    "concat": (_one_of("STRING"), lambda node: f"({' || '.join(map(write, node.arguments))})"),
    "length": (_one_of("STRING"), lambda node: f"CAST(length({write(node.arguments[0])}) AS INTEGER)"),
    "trim": (_one_of("STRING"), _trimmed),
    "ltrim": (_one_of("STRING"), _trimmed),
    "rtrim": (_one_of("STRING"), _trimmed),
    "substring": (_one_of("STRING", "INT"), _substring),
    "like": (_one_of("STRING"), _like),
    "starts_with": (_one_of("STRING"), _listed("starts_with")),
    "ends_with": (_one_of("STRING"), _listed("ends_with")),
    "contains": (_one_of("STRING"), _listed("contains")),
    "date_trunc": (_one_of("STRING", "TIMESTAMP"), _truncated),
    "year": (_one_of("DATE"), _part("year")),
    "quarter": (_one_of("DATE"), _part("quarter")),
    "month": (_one_of("DATE"), _part("month")),
    "day": (_one_of("DATE"), _part("day")),
    "dayofyear": (_one_of("DATE"), _part("dayofyear")),
    "dayofweek": (_one_of("DATE"), _part("dayofweek", 1)),
    "weekday": (_one_of("DATE"), _part("isodow", -1)),
    "weekofyear": (_one_of("DATE"), _part("weekofyear")),
    "hour": (_one_of("TIMESTAMP"), _part("hour")),
    "minute": (_one_of("TIMESTAMP"), _part("minute")),
    "second": (_one_of("TIMESTAMP"), _part("second")),
    "timestamp_seconds": (_one_of("BIGINT"), _since_1970(1_000_000)),
    "timestamp_millis": (_one_of("BIGINT"), _since_1970(1_000)),
    "timestamp_micros": (_one_of("BIGINT"), _since_1970(1)),
    "unix_seconds": (_one_of("TIMESTAMP"), _until(1_000_000)),
    "unix_millis": (_one_of("TIMESTAMP"), _until(1_000)),
    "unix_micros": (_one_of("TIMESTAMP"), lambda node: f"epoch_us({write(node.arguments[0])})"),
}
"""The calls that can be fused: a check of each argument's type, and the function that writes the call."""
