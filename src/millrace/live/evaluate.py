"""The value of a condition for many rows at once, in Arrow.

A slot is a scalar where one query is evaluated over rows, or an array where each row comes with the constants of a
query of its own. An operation without a value is NULL: a division by zero, a whole number beyond BIGINT, arithmetic
over a DOUBLE that is not 0 and not between 1e-150 and 1e150 in magnitude.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.live.condition import ARITHMETIC, COMPARISONS, LEAST, MOST, Call, ColumnOf, Condition, Slot, Value
from millrace.model.types import decimal_of, is_decimal

Column: TypeAlias = Any
"""An array or a scalar of Arrow, whose compute functions take both."""
Slots: TypeAlias = Sequence[Column] | Mapping[int, Column]
"""Constants by the numbers of their slots."""
_TYPES = {
    "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "STRING": pa.string(), "PATTERN": pa.string(), "BOOLEAN": pa.bool_(),
    "DATE": pa.int64(), "TIMESTAMP": pa.int64(),
}  # fmt: skip
"""The Arrow type of a value; times are numbers."""
_WIDE = 38


def truth(node: Condition | None, rows: pa.Table, slots: Slots) -> pa.Array:
    """Whether the condition is true, for each row; never NULL."""
    if node is None:
        return pa.array(np.ones(len(rows), bool))
    found = evaluate(node, columns(rows), slots)
    if isinstance(found, pa.Scalar):
        return pa.array(np.full(len(rows), bool(found.as_py())))
    return found.fill_null(False)


def columns(rows: pa.Table) -> dict[str, pa.Array]:
    """The columns of a table by name, each as one array."""
    return {name: column.combine_chunks() for name, column in zip(rows.column_names, rows.itercolumns(), strict=True)}


def arrow_type_of(type: str) -> pa.DataType:
    """The Arrow type of values of a type."""
    return pa.decimal128(*decimal_of(type)) if is_decimal(type) else _TYPES[type]


def scalar(value: Value, type: str) -> pa.Scalar:
    """A constant."""
    if isinstance(value, Decimal):
        return pa.scalar(value, pa.decimal128(_WIDE, decimal_of(type)[1]))
    return pa.scalar(value, arrow_type_of(type))


def evaluate(node: Condition, rows: Mapping[str, pa.Array], slots: Slots) -> Column:
    """The value of a node for each row; a scalar if it reads no column."""
    match node:
        case ColumnOf(name=name, type=type):
            return rows[name] if type == "OTHER" else plain(rows[name], type)
        case Slot(number=number):
            return slots[number]
        case Call(name=name, arguments=(value, Slot(number=number))) if name in ("in", "like"):
            return _against(name, value.type)(evaluate(value, rows, slots), slots[number])
        case Call(name=name, arguments=arguments, type=type):
            values = [evaluate(argument, rows, slots) for argument in arguments]
            if name in COMPARISONS:
                return _COMPARED[name](*_alike(values, [argument.type for argument in arguments]))
            if name in ARITHMETIC:
                return _whole(name, values) if type == "BIGINT" else _double(name, values)
            return _CALLS[name](*values)


def plain(column: pa.Array, type: str) -> pa.Array:
    """A column of a view as values of a type."""
    if type in ("DATE", "TIMESTAMP"):
        return column.cast(pa.int32() if type == "DATE" else pa.int64()).cast(pa.int64())
    return column if is_decimal(type) else column.cast(_TYPES[type])


def orderable(column: Column, type: str) -> Column:
    """Values that compare as values of a type do: a DOUBLE as a whole number, by which NaN is equal to itself."""
    return _ordered(column) if type == "DOUBLE" else column


def _ordered(column: Column) -> Column:
    if isinstance(column, pa.Scalar):
        return pa.scalar(None if column.as_py() is None else ordered(column.as_py()), pa.int64())
    doubles = column.to_numpy(zero_copy_only=False) + 0.0  # -0.0 is 0.0; NULL is NaN here
    doubles[np.isnan(doubles)] = np.nan  # of one representation
    bits = doubles.view(np.int64)
    return pa.array(np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits), mask=np.asarray(column.is_null()))


def ordered(value: float) -> int:
    """A whole number for a double, in the order of doubles; NaN is the largest."""
    bits = int(np.float64(np.nan if value != value else value + 0.0).view(np.int64))
    return bits ^ (2**63 - 1) if bits < 0 else bits


def _alike(values: list[Column], types: list[str]) -> list[Column]:
    if any(map(is_decimal, types)):
        most = max(decimal_of(type)[1] for type in types)
        return [value.cast(pa.decimal128(_WIDE, most)) for value in values]
    return [orderable(value, type) for value, type in zip(values, types, strict=True)]


# Membership and patterns: their constants are lists and patterns, which Arrow takes only one at a time.


def _against(name: str, type: str) -> Callable[[Column, Any], Column]:
    return _like if name == "like" else lambda value, members: _in(value, members, type)


def _in(value: Column, members: Any, type: str) -> Column:
    """Membership: NULL if the value is NULL, or if it is not found in a list with NULL."""
    if isinstance(members, tuple):
        wide = pa.decimal128(_WIDE, decimal_of(type)[1]) if is_decimal(type) else arrow_type_of(type)
        present = orderable(pa.array([each for each in members if each is not None], wide), type)
        value = value.cast(wide) if is_decimal(type) else orderable(value, type)
        found = pc.is_in(value, present)
        unknown = value.is_null() if isinstance(value, pa.Array) else pa.scalar(not value.is_valid)
        if None in members:
            unknown = pc.or_(unknown, pc.invert(found))
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)
    return pa.array([_among(one, each) for one, each in zip(value.to_pylist(), members, strict=True)], pa.bool_())


def _among(value: Any, members: tuple[Value, ...]) -> bool | None:
    if value is None:
        return None
    return True if value in members else None if None in members else False


def _like(value: Column, pattern: Column) -> Column:
    if isinstance(pattern, pa.Scalar):
        if not pattern.is_valid or isinstance(value, pa.Scalar):
            return pa.scalar(None, pa.bool_())
        patterns = [pattern.as_py()] * len(value)
    else:
        patterns = pattern.to_pylist()
    found = [
        None if text is None or each is None else _compiled(each).fullmatch(text) is not None
        for text, each in zip(value.to_pylist(), patterns, strict=True)
    ]
    return pa.array(found, pa.bool_())


@lru_cache(100_000)
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression that never goes back: the first place for each part between two % will do."""
    first, *rest = ("".join("." if sign == "_" else re.escape(sign) for sign in part) for part in pattern.split("%"))
    middle = "".join(f"(?>.*?{part})" for part in rest[:-1] if part)
    return re.compile(first + middle + (f".*{rest[-1]}" if rest else ""), re.DOTALL)


# Arithmetic.

_CHECKED = {"add": pc.add_checked, "sub": pc.subtract_checked, "mul": pc.multiply_checked, "neg": pc.negate_checked}
_FLOATING = {"add": pc.add, "sub": pc.subtract, "mul": pc.multiply, "div": pc.divide, "neg": pc.negate}


def _whole(name: str, values: list[Column]) -> Column:
    """Arithmetic over whole numbers. A division truncates; the remainder has the sign of the dividend."""
    if name in _CHECKED:
        try:
            return _CHECKED[name](*values)
        except pa.ArrowInvalid:  # some of the values are beyond BIGINT
            pass
    arrays = [value for value in values if isinstance(value, pa.Array)]
    many = len(arrays[0]) if arrays else 1
    lists = [value.to_pylist() if isinstance(value, pa.Array) else [value.as_py()] * many for value in values]
    found = pa.array([_exact(name, *each) for each in zip(*lists, strict=True)], pa.int64())
    return found if arrays else found[0]


def _exact(name: str, left: int | None, right: int | None = 0) -> int | None:
    if left is None or right is None:
        return None
    match name:
        case "add":
            found = left + right
        case "sub":
            found = left - right
        case "mul":
            found = left * right
        case "neg":
            found = -left
        case _ if right == 0:
            return None
        case _:
            found = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            if name == "mod":
                found = left - right * found
    return found if -(2**63) <= found < 2**63 else None


def _double(name: str, values: list[Column]) -> Column:
    within = [_taken(value) for value in values]
    if name == "div":
        within[1] = pc.if_else(pc.equal(within[1], 0.0), pa.scalar(None, pa.float64()), within[1])
    return _FLOATING[name](*within)


def _taken(value: Column) -> Column:
    """A double where arithmetic takes it, else NULL."""
    size = pc.abs(value)
    fits = pc.or_(pc.equal(size, 0.0), pc.and_(pc.greater_equal(size, LEAST), pc.less_equal(size, MOST)))
    return pc.if_else(fits, value, pa.scalar(None, pa.float64()))


_COMPARED: dict[str, Callable[..., Column]] = {
    "eq": pc.equal, "ne": pc.not_equal, "lt": pc.less, "le": pc.less_equal, "gt": pc.greater, "ge": pc.greater_equal,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Column]] = {
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "is_null": pc.is_null,
    "is_true": lambda value: pc.fill_null(value, False),
    "double": lambda value: value.cast(pa.float64(), safe=False),
}
