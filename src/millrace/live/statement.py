"""Live queries as SQL of SQLite and of PostgreSQL, with the meaning that `evaluate` has.

Constants are parameters, in the representation of the store. Where the databases differ from the chosen meaning, or
from each other, the SQL says what is meant: CASE around arithmetic that may overflow, GLOB for LIKE in SQLite, which
would ignore case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa

from millrace.live.condition import (
    ARITHMETIC,
    COMPARISONS,
    LEAST,
    MOST,
    Call,
    ColumnOf,
    Condition,
    Constant,
    Operation,
    Slot,
    Value,
    conjuncts,
)
from millrace.live.events import Read
from millrace.live.query import LiveQuery, LiveView, Ordering
from millrace.model.types import is_decimal
from millrace.views.dialect import Dialect, listed, quoted
from millrace.views.postgresql_values import PostgresqlDialect
from millrace.views.shape import kind_of
from millrace.views.sqlite_values import SqliteDialect


class Database(StrEnum):
    """A kind of store."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


_DIALECTS: dict[Database, Dialect] = {Database.SQLITE: SqliteDialect(), Database.POSTGRESQL: PostgresqlDialect()}
_SYMBOLS: dict[Operation, str] = {
    "eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%",
}  # fmt: skip
_POSTGRESQL_TYPES = {
    "BIGINT": "BIGINT", "DOUBLE": "DOUBLE PRECISION", "STRING": "TEXT", "PATTERN": "TEXT", "BOOLEAN": "BOOLEAN",
    "DATE": "DATE", "TIMESTAMP": "TIMESTAMPTZ",
}  # fmt: skip
_MOST_CONSTANTS = 10_000
"""The largest number of constants in one statement; SQLite allows three times as many."""
_TIMES = {"DATE": pa.int32(), "TIMESTAMP": pa.int64()}
_KINDS = {"DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us", "UTC")}


@dataclass(frozen=True, slots=True)
class Statement:
    """An SQL statement and its parameters `$1`, `$2` and so on."""

    sql: str
    values: tuple[Any, ...]
    columns: tuple[str, ...]
    """The names of the columns that it returns."""


def select(query: LiveQuery, table: str, database: Database, end: int | None = None) -> Statement:
    """The statement that reads the rows of a query, with all columns that the query needs.

    `table` is SQL for the table of the view. A sorted query is read from its first row on, up to `end` rows.
    """
    shape = query.shape
    writer = _Writer(database, query.constants)
    parts = [f"SELECT {listed(map(quoted, shape.needed))} FROM {table}"]
    if shape.condition is not None:
        parts.append(f"WHERE {writer.sql(shape.condition)}")
    if shape.order:
        parts.append(f"ORDER BY {listed(map(_by, shape.order))}")
    if end is not None:
        parts.append(f"LIMIT {end}")
    return Statement(" ".join(parts), tuple(writer.values), shape.needed)


def statement(read: Read, table: str, database: Database) -> Statement:
    """The statement of a read that the hub wants. `table` is SQL for the table of the view.

    One query: its rows, sorted. Several queries: the rows of any of them, each once, and perhaps other rows, because
    many conditions cost more than the rows that they leave out.
    """
    if len(read.queries) == 1:
        return select(read.queries[0], table, database, read.end)
    writer = _Writer(database, ())
    columns = tuple(dict.fromkeys(name for query in read.queries for name in query.shape.needed))
    sql = f"SELECT {listed(map(quoted, columns))} FROM {table}"
    constants = _equal_to(read.queries)
    if constants is None:
        return Statement(sql, (), columns)
    column, members = constants
    writer.constants = (tuple(members),)
    condition = writer.sql(Call("in", (column, Slot(0, column.type)), "BOOLEAN"))
    return Statement(f"{sql} WHERE {condition}", tuple(writer.values), columns)


def _equal_to(queries: Sequence[LiveQuery]) -> tuple[ColumnOf, list[Value]] | None:
    """A column that must equal a constant in each query, and all these constants; None if there is no such column."""
    found: dict[ColumnOf, dict[Value, None]] | None = None
    for query in queries:
        equal: dict[ColumnOf, dict[Value, None]] = {}
        for part in conjuncts(query.shape.condition):
            match part:
                case Call(name="eq" | "in", arguments=(ColumnOf() as column, Slot(number=number))):
                    given = query.constants[number]
                    members = given if isinstance(given, tuple) else (given,)
                    equal.setdefault(column, dict.fromkeys(members))
        both = equal if found is None else {each: found[each] | equal[each] for each in found if each in equal}
        if not both:
            return None
        found = both
    column, constants = min((found or {}).items(), key=lambda each: len(each[1]))
    return (column, list(constants)) if len(constants) <= _MOST_CONSTANTS else None


def as_table(made: Statement, view: LiveView, database: Database, found: Sequence[Sequence[Any]]) -> pa.Table:
    """The rows that a store returned for a statement, with the types of the view."""
    kinds = [kind_of(view.columns.type_of(name)) for name in made.columns]
    values = list(zip(*found, strict=True)) or [()] * len(kinds)
    dialect = _DIALECTS[database]
    arrays = [dialect.column(each, kind) for each, kind in zip(values, kinds, strict=True)]
    return pa.table(arrays, pa.schema(list(zip(made.columns, kinds, strict=True))))


def _by(order: Ordering) -> str:
    return f"{quoted(order.column)} {'DESC NULLS LAST' if order.descending else 'ASC NULLS FIRST'}"


@dataclass(slots=True)
class _Writer:
    """Writes conditions as SQL, and collects parameters."""

    database: Database
    constants: tuple[Constant, ...]
    values: list[Any] = field(default_factory=list)

    def sql(self, node: Condition) -> str:
        """SQL for a node."""
        match node:
            case ColumnOf(name=name, stored=stored):
                is_float = stored == "FLOAT" and self.database is Database.POSTGRESQL
                return f"CAST({quoted(name)} AS DOUBLE PRECISION)" if is_float else quoted(name)
            case Slot(number=number, type=type):
                value = self.constants[number]
                assert not isinstance(value, tuple)
                return self._parameter(value, type)
            case Call(name="in", arguments=(value, Slot(number=number, type=type))):
                members = self.constants[number]
                assert isinstance(members, tuple)
                return f"({self.sql(value)} IN ({listed(self._parameter(each, type) for each in members)}))"
            case Call(name="like", arguments=(value, Slot(number=number))):
                pattern = self.constants[number]
                assert pattern is None or isinstance(pattern, str)
                if self.database is Database.SQLITE:
                    return f"({self.sql(value)} GLOB {self._parameter(_glob(pattern), 'STRING')})"
                return f"({self.sql(value)} LIKE {self._parameter(pattern, 'STRING')} ESCAPE '')"
            case Call(name=name, arguments=arguments, type=type):
                parts = [self.sql(argument) for argument in arguments]
                if name in COMPARISONS:
                    return f"({parts[0]} {_SYMBOLS[name]} {parts[1]})"
                if name in ARITHMETIC:
                    return self._whole(name, parts) if type == "BIGINT" else _double(name, parts)
                return self._call(name, parts)

    def _call(self, name: Operation, parts: list[str]) -> str:
        match name:
            case "and" | "or":
                return f"({parts[0]} {name.upper()} {parts[1]})"
            case "not":
                return f"(NOT {parts[0]})"
            case "is_null":
                return f"({parts[0]} IS NULL)"
            case "is_true":
                return f"({parts[0]} IS TRUE)"
            case "double":
                type = "REAL" if self.database is Database.SQLITE else "DOUBLE PRECISION"
                return f"CAST({parts[0]} AS {type})"
            case _:
                raise AssertionError(name)

    def _whole(self, name: Operation, parts: list[str]) -> str:
        """Arithmetic over whole numbers; NULL beyond BIGINT.

        SQLite computes a floating point number instead, and PostgreSQL would fail, so it computes without limits.
        """
        if self.database is Database.SQLITE:
            found = f"(- {parts[0]})" if name == "neg" else f"({parts[0]} {_SYMBOLS[name]} {parts[1]})"
            return f"(CASE WHEN typeof{found} = 'integer' THEN {found} END)"
        wide = [f"CAST({part} AS NUMERIC)" for part in parts]
        match name:
            case "neg":
                found = f"(- {wide[0]})"
            case "div" | "mod":
                found = f"{name}({wide[0]}, NULLIF({wide[1]}, 0))"
            case _:
                found = f"({wide[0]} {_SYMBOLS[name]} {wide[1]})"
        return f"(CASE WHEN {found} BETWEEN {-(2**63)} AND {2**63 - 1} THEN CAST({found} AS BIGINT) END)"

    def _parameter(self, value: Value, type: str) -> str:
        if type in _KINDS and value is not None:
            value = _DIALECTS[self.database].parameter(pa.scalar(value, _TIMES[type]).cast(_KINDS[type]))
        elif isinstance(value, str):
            value = _DIALECTS[self.database].parameter(pa.scalar(value))
        elif self.database is Database.SQLITE and isinstance(value, Decimal):
            value = float(value)
        self.values.append(value)
        if self.database is Database.SQLITE:
            return f"${len(self.values)}"
        return f"CAST(${len(self.values)} AS {'NUMERIC' if is_decimal(type) else _POSTGRESQL_TYPES[type]})"


def _double(name: Operation, parts: list[str]) -> str:
    """Arithmetic over doubles; NULL if an operand is not 0 and not within the limits, which NaN is not either."""
    taken = " AND ".join(
        f"({part} = 0 OR {part} BETWEEN {LEAST} AND {MOST} OR {part} BETWEEN {-MOST} AND {-LEAST})" for part in parts
    )
    if name == "neg":
        return f"(CASE WHEN {taken} THEN (- {parts[0]}) END)"
    divisor = f"NULLIF({parts[1]}, 0)" if name == "div" else parts[1]
    return f"(CASE WHEN {taken} THEN ({parts[0]} {_SYMBOLS[name]} {divisor}) END)"


def _glob(pattern: str | None) -> str | None:
    """A pattern of LIKE as one of GLOB, which respects case."""
    signs = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return None if pattern is None else "".join(signs.get(part, part) for part in pattern)
