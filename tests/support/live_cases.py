"""Random views, rows and conditions for tests of live queries."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import strategies as st

from millrace.live.query import LiveView
from millrace.model.schema import parse_schema
from millrace.views.dialect import Dialect, quoted
from millrace.views.shape import kind_of
from millrace.views.sqlite_values import values

Row: TypeAlias = tuple[Any, ...]
VIEW = LiveView(
    "items",
    parse_schema(
        "id BIGINT, n BIGINT, m INT, x DOUBLE, f FLOAT, price DECIMAL(9, 2), name STRING, tag STRING, ok BOOLEAN, "
        "at TIMESTAMP, day DATE"
    ),
    ("id",),
)
KINDS = [kind_of(column.type) for column in VIEW.columns]
TEXTS = ["", "a", "A", "ab", "aB", "b%", "_", "a_b", "*", "[a]", "é", "z\U0001f600", "a\nb", "O'Neil"]
_START = datetime(2024, 1, 1, tzinfo=UTC)
_SMALL = st.integers(-5, 5)
_LARGE = st.sampled_from([-(2**63), 2**63 - 1, 2**62, 2**53 + 1, -(2**31)])
_DOUBLES = st.sampled_from([-1.5, -0.0, 0.0, 0.1, 2.0, 2.5, 3e9])
_EXTREME = st.sampled_from([math.nan, -math.nan, math.inf, -math.inf, 1e308, 1e-308, 1e160, -1e-200])


def rows(extreme: bool, most: int = 12) -> st.SearchStrategy[list[Row]]:
    """Rows of the view, each with a key of its own; with values at the limits of their types if `extreme`."""
    whole = st.one_of(_SMALL, _LARGE) if extreme else _SMALL
    doubles = st.one_of(_DOUBLES, _EXTREME) if extreme else _DOUBLES
    values = (
        whole,
        _SMALL,
        doubles,
        st.sampled_from([0.5, 0.25, -2.0, 3.0]),
        st.integers(-300, 300).map(lambda cents: Decimal(cents) / 100),
        st.sampled_from(TEXTS),
        st.sampled_from(["a", "b", "c"]),
        st.booleans(),
        st.integers(0, 3).map(lambda hours: _START + timedelta(hours=hours, microseconds=hours)),
        st.integers(0, 3).map(lambda days: date(2024, 1, 1) + timedelta(days)),
    )
    row = st.tuples(*(st.one_of(st.none(), each) for each in values))
    return st.lists(row, max_size=most).map(lambda found: [(key, *each) for key, each in enumerate(found)])


def table(found: Sequence[Row], names: Sequence[str] = VIEW.columns.names) -> pa.Table:
    """Rows as a table."""
    columns = list(zip(*found, strict=True)) or [()] * len(KINDS)
    return pa.table([pa.array(each, kind) for each, kind in zip(columns, KINDS, strict=True)], list(names))


def create(dialect: Dialect, name: str = "items") -> str:
    """The statement that creates the table of the view in a store."""
    columns = (f"{quoted(each)} {dialect.type_of(kind)}" for each, kind in zip(VIEW.columns.names, KINDS, strict=True))
    return f"CREATE TABLE {name} ({', '.join(columns)})"


def sqlite_rows(found: Sequence[Row]) -> list[Row]:
    """Rows as SQLite stores them."""
    return list(zip(*(values(column.combine_chunks()) for column in table(found).columns), strict=True))


# Conditions, as text.


def conditions(arithmetic: bool = True, like: bool = True, depth: int = 2) -> st.SearchStrategy[str]:
    """Random conditions. Those without arithmetic and LIKE mean the same to SQLite and PostgreSQL as they are."""
    compare = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
    whole = st.sampled_from(["n", "m", "id"])
    number = st.integers(-5, 5).map(str)
    # A parameter or literal with decimals beside a whole number makes both DOUBLE.
    double_literal = st.sampled_from(["0.0", "0.1", "2.5", "-1.5", "1e2"])
    price = st.integers(-300, 300).map(lambda cents: str(Decimal(cents) / 100))
    text = st.sampled_from(TEXTS).map(lambda found: "'" + found.replace("'", "''") + "'")
    at = st.integers(0, 3).map(lambda hours: f"'2024-01-01 {hours:02}:00:00.{hours:06}Z'")
    day = st.integers(1, 4).map(lambda found: f"'2024-01-{found:02}'")
    typed = st.sampled_from(
        [(whole, number), (st.sampled_from(["x", "f"]), double_literal), (st.just("price"), price),
         (st.sampled_from(["name", "tag"]), text), (st.just("at"), at), (st.just("day"), day)]
    )  # fmt: skip

    def simple(pair: tuple[st.SearchStrategy[str], st.SearchStrategy[str]]) -> st.SearchStrategy[str]:
        column, constant = pair
        return st.one_of(
            st.builds("{} {} {}".format, column, compare, constant),
            st.builds("{} {} {}".format, constant, compare, column),
            st.builds("{} {} {}".format, column, compare, column),
            st.builds("{} {}BETWEEN {} AND {}".format, column, st.sampled_from(["", "NOT "]), constant, constant),
            st.builds(
                "{} {}IN ({})".format,
                column,
                st.sampled_from(["", "NOT "]),
                st.lists(st.one_of(constant, st.just("NULL")), min_size=1, max_size=3).map(", ".join),
            ),
            st.builds("{} IS {}NULL".format, column, st.sampled_from(["", "NOT "])),
        )

    options = [typed.flatmap(simple), st.just("ok"), st.sampled_from(["ok = TRUE", "ok IS NOT FALSE", "n = NULL"])]
    if arithmetic:
        integer = st.builds("({} {} {})".format, whole, st.sampled_from("+-*/%"), st.one_of(whole, number))
        deeper = st.builds("({} {} {})".format, integer, st.sampled_from("+-*/%"), st.one_of(integer, whole))
        negated = whole.map("-{}".format)
        double = st.builds("(x {} {})".format, st.sampled_from("+-*/"), st.sampled_from(["x", "f", "n", "0.1", "2"]))
        options += [
            st.builds("{} {} {}".format, st.one_of(integer, deeper, negated), compare, st.one_of(whole, number)),
            st.builds("{} {} {}".format, double, compare, st.sampled_from(["f", "x", "0.2", "m"])),
            st.builds("{} {} {}".format, whole, compare, st.sampled_from(["x", "f", "1.5", "price"])),
        ]
    if like:
        pattern = st.lists(st.sampled_from(["%", "_", "a", "A", "b", "*", "[", "é"]), max_size=4).map("".join)
        options.append(st.builds("name {}LIKE '{}'".format, st.sampled_from(["", "NOT "]), pattern))
    leaf = st.one_of(options)
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds("({} AND {})".format, inner, inner),
            st.builds("({} OR {})".format, inner, inner),
            st.builds("(NOT ({}))".format, inner),
        ),
        max_leaves=2**depth,
    )
