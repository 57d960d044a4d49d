"""Spark as the judge of row expressions: rows at the edge of every type; expressions from tables and at random."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession

from millrace.edge.connection import Prepared
from millrace.formats.sql import CannotFuseError, to_duckdb
from millrace.formats.sql import tried as tried_in_duckdb
from millrace.model.arrow import arrow_type
from millrace.model.errors import MillraceError
from millrace.model.evaluate import RowError, evaluate
from millrace.model.expression import Expression, parse_expression
from millrace.model.schema import parse_schema
from millrace.model.values import to_decimal
from millrace.spark.tried import SETTINGS, all_tried

NO_VALUE = "no value"
"""Stands for what an expression has for a row on which it fails."""
REFUSED = "refused"
"""Stands for the answers of an engine that leaves an expression to Spark."""

COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "t": ("TINYINT", [0, 1, -1, 127, -128, 2, 10, 100, None, -7, 7, 3, 5, 0, 64, 1]),
    "h": ("SMALLINT", [0, -1, 1, 32767, -32768, 3, 100, -300, 9, None, 200, 3, -5, 0, 2, 1]),
    "j": ("INT", [0, 1, -1, 2**31 - 1, -(2**31), 2, 7, -7, 12, 100, None, 0, 65536, 3, -2, 1]),
    "k": ("INT", [1, 0, -1, 1, -1, None, 3, 2, -12, 0, 5, 0, 65536, 0, 2, 1]),
    "n": ("BIGINT", [0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 2**31, -(2**31) - 1, 10, 7, 3, None, 2**62, 5, -9, 1]),
    "m": ("BIGINT", [0, -1, 1, 1, -1, 3, 2, 0, -3, None, 10**12, 0, 2, 4, 7, 1]),
    "f": ("FLOAT", [0.0, -0.0, 1.5, -2.5, math.nan, math.inf, -math.inf, 1.401298464324817e-45,
                    3.4028234663852886e38, 0.5, 16777216.0, None, 0.10000000149011612, 2.0, -1.0, 1.0]),
    "d": ("DOUBLE", [0.0, -0.0, 2.5, -2.5, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, -0.5, 0.1,
                     9.223372036854775e18, None, 1e19, -1e19, 1.0]),
    "e": ("DOUBLE", [1.0, 0.0, -0.0, math.nan, math.nan, 2.0, math.inf, 0.1, -1e308, 3.5, 0.2, -0.5, 1.0, None, 1e16,
                     1.0]),
    "c": ("DECIMAL(10, 2)", ["0.00", "12.34", "-12.34", "99999999.99", "-99999999.99", "0.01", "1.00", "0.50", "2.50",
                             "-0.01", "1.50", "3.33", "100.00", None, "7.00", "1.00"]),
    "w": ("DECIMAL(38, 10)", ["0", "1.0000000001", "-1", "9999999999999999999999999999.9999999999",
                              "-9999999999999999999999999999.9999999999", "0.3333333333", "12.34", "2", "-0.5", "10",
                              "123456789012345.6789", "0.0000000001", "99", "1", None, "1"]),
    "s": ("STRING", ["Hello", " pad\t ", "", "12", "a%b_c", "na\u00efve \U0001f600 e\u0301", "z" * 40, "A", "it's",
                     "\uffee", "\U0001f600", "nul\0here", "true", "1.5", None, "HHxHH"]),
    "u": ("STRING", ["hello", "", " ", "7", "%", "\U0001f600", "a", "B", "'", "\U00010000", "\ud7ff", "nul", "false",
                     "HH", "x", None]),
    "b": ("BOOLEAN", [True, False, None, True, False, None, True, False, True, False, True, False, None, True, False,
                      True]),
    "a": ("BOOLEAN", [True, True, True, False, False, False, None, None, None, True, False, None, True, False, True,
                      False]),
    "dt": ("DATE", [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29), date(1969, 12, 31),
                    date(2000, 1, 1), date(2021, 1, 3), date(1582, 10, 15), date(1582, 10, 4), date(2020, 12, 31),
                    date(1900, 3, 1), date(2026, 3, 29), date(2016, 1, 3), None, date(2027, 1, 1), date(2026, 7, 4)]),
    "at": ("TIMESTAMP", [datetime(1970, 1, 1, tzinfo=UTC), datetime(1, 1, 8, tzinfo=UTC),
                         datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
                         datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
                         datetime(2026, 3, 29, 1, 30, tzinfo=UTC), datetime(2026, 10, 25, 0, 59, 59, 1, tzinfo=UTC),
                         datetime(1582, 10, 15, tzinfo=UTC), datetime(1900, 1, 1, 0, 0, 0, 500000, tzinfo=UTC),
                         datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC),
                         datetime(2020, 12, 31, 23, 0, tzinfo=UTC), datetime(2021, 1, 3, 5, 6, 7, tzinfo=UTC),
                         datetime(1960, 6, 15, 12, 0, 0, 123000, tzinfo=UTC),
                         datetime(2016, 1, 3, 10, 0, tzinfo=UTC), None, datetime(2026, 7, 4, 8, 9, 10, tzinfo=UTC)]),
}  # fmt: skip
SCHEMA = parse_schema({name: type for name, (type, _) in COLUMNS.items()})
MANY = 16
EXACT: dict[str, list[Any]] = {
    name: [to_decimal(Decimal(value), type) if value and type.startswith("DECIMAL") else value for value in values]
    for name, (type, values) in COLUMNS.items()
}
ROWS = [{name: values[place] for name, values in EXACT.items()} for place in range(MANY)]
TABLE = pa.table({name: pa.array(EXACT[name], arrow_type(type)) for name, (type, _) in COLUMNS.items()})


def plain(value: Any) -> Any:
    """A value as it is compared: types apart, NaN equal to itself, 0.0 apart from -0.0."""
    if isinstance(value, float):
        return ("float", repr(value))
    if isinstance(value, Decimal):
        return ("decimal", str(value))
    if isinstance(value, datetime):
        return ("time", value.astimezone(UTC).isoformat())
    return (type(value).__name__, value)


class Judge:
    """Spark, asked for the values of many expressions at once."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark.newSession()
        # A constant that has no value would fail as the query is planned; here it is to fail row by row.
        folding = "org.apache.spark.sql.catalyst.optimizer.ConstantFolding"
        for name, value in {**SETTINGS, "spark.sql.optimizer.excludedRules": folding}.items():
            self._spark.conf.set(name, value)
        self._rows: DataFrame = self._spark.createDataFrame(TABLE)

    def answers(self, texts: Sequence[str], compiled: bool = False) -> dict[str, tuple[str, list[Any]] | None]:
        """For each expression its type and its value for every row; None if Spark refuses it.

        Rows that are given are computed by Spark's interpreter, in its optimizer; others by compiled code in a task.
        """
        rows = self._rows.repartition(1) if compiled else self._rows
        found: dict[str, tuple[str, list[Any]] | None] = dict.fromkeys(texts)
        for first in range(0, len(texts), 50):
            columns = self._columns(texts[first : first + 50])
            made = self._analyzed(rows, columns)
            if made is None:  # Spark refuses some of them
                columns = {text: each for text, each in columns.items() if self._analyzed(rows, {text: each})}
                made = self._analyzed(rows, columns)
            chunk = list(columns)
            assert made is not None
            names = [name for place in range(len(chunk)) for name in (f"c{place} IS NULL", f"c{place}.v")]
            table = made.selectExpr(*(f"{name} AS x{place}" for place, name in enumerate(names))).toArrow()
            for place, text in enumerate(chunk):
                kind = made.schema[f"c{place}"].dataType["v"].dataType  # type: ignore[index]
                missing, values = table[2 * place].to_pylist(), in_python(table[2 * place + 1])
                answers = [NO_VALUE if none else value for none, value in zip(missing, values, strict=True)]
                found[text] = _named(kind.simpleString()), answers
        return found

    def _columns(self, texts: Sequence[str]) -> dict[str, Column]:
        """Each expression that Spark can read."""
        try:
            return dict(zip(texts, all_tried(self._spark, texts), strict=True))
        except ParseException:
            if len(texts) == 1:
                return {}
            return {text: column for each in texts for text, column in self._columns([each]).items()}

    def _analyzed(self, rows: DataFrame, columns: Mapping[str, Column]) -> DataFrame | None:
        try:
            return rows.select(*(column.alias(f"c{place}") for place, column in enumerate(columns.values())))
        except AnalysisException:
            return None


def in_python(column: pa.ChunkedArray) -> list[Any]:
    """Values as Python has them; there are none beyond the years 1 to 9999, where we differ from Spark on purpose."""
    if not pa.types.is_temporal(column.type):
        return list(column.to_pylist())
    found = []
    for value in column:
        try:
            found.append(value.as_py())
        except (OverflowError, ValueError):
            found.append(NO_VALUE)
    return found


def _named(type: str) -> str:
    return str(parse_schema(f"x {type}").columns[0].type)


def by_reference(expression: Expression) -> list[Any] | str:
    """What the reference says of each row."""
    if expression.node is None:
        return REFUSED
    found = []
    for row in ROWS:
        try:
            found.append(evaluate(expression, row))
        except RowError:
            found.append(NO_VALUE)
    return found


def fused(expressions: Sequence[Expression]) -> dict[str, list[Any] | str]:
    """What DuckDB says of each row, for all that may be fused."""
    written = {}
    found: dict[str, list[Any] | str] = {}
    for expression in expressions:
        try:
            written[expression.sql] = to_duckdb(expression)
        except CannotFuseError:
            found[expression.sql] = REFUSED
    texts = list(written)
    for first in range(0, len(texts), 100):
        chunk = texts[first : first + 100]
        columns = ", ".join(f"{tried_in_duckdb(written[text])} AS c{place}" for place, text in enumerate(chunk))
        with Prepared().over(TABLE) as ask:
            table = ask(f"SELECT {columns} FROM __rows").to_arrow_table()
        for place, text in enumerate(chunk):
            found[text] = [NO_VALUE if each is None else each["v"] for each in table[place].to_pylist()]
    return found


def parsed(texts: Sequence[str]) -> dict[str, Expression | None]:
    """Each expression as Millrace reads it; None if it refuses it."""
    found: dict[str, Expression | None] = {}
    for text in texts:
        try:
            found[text] = parse_expression(text, SCHEMA)
        except MillraceError:
            found[text] = None
    return found


OF_TYPE = {
    "TINYINT": ["t"], "SMALLINT": ["h"], "INT": ["j", "k"], "BIGINT": ["n", "m"], "FLOAT": ["f"], "DOUBLE": ["d", "e"],
    "DECIMAL": ["c", "w"], "STRING": ["s", "u"], "BOOLEAN": ["b", "a"], "DATE": ["dt"], "TIMESTAMP": ["at"],
}  # fmt: skip
LITERALS = {
    "TINYINT": ["1Y", "CAST(-1 AS TINYINT)"], "SMALLINT": ["300S"], "INT": ["0", "1", "-1", "2147483647", "7"],
    "BIGINT": ["0L", "2147483648", "-9223372036854775808", "3000000000"], "FLOAT": ["CAST(0.5 AS FLOAT)"],
    "DOUBLE": ["1e0", "0.1D", "-0.0D", "1e300", "0e0"],
    "DECIMAL": ["0.1", "0.30", "2.5", "-1.25", "100.00", "99999999999999999999"],
    "STRING": ["'Hello'", "''", "'12'", "'it''s'", r"'it\'s'", "'\U0001f600'", '"dq"', "'a' 'b'"],
    "BOOLEAN": ["(j = 1)"], "DATE": ["DATE '2024-02-29'"],
    "TIMESTAMP": ["TIMESTAMP '2024-02-29 12:34:56.789012'", "TIMESTAMP '1969-12-31 23:59:59'"],
}  # fmt: skip
INTEGRAL = ("TINYINT", "SMALLINT", "INT", "BIGINT")
NUMERIC = (*INTEGRAL, "FLOAT", "DOUBLE", "DECIMAL")


def from_tables() -> list[str]:
    """Every operation with every combination of types that it takes, once with columns and once with literals."""
    texts: list[str] = []
    names = [name for names in OF_TYPE.values() for name in names]
    literals = [literal for literals in LITERALS.values() for literal in literals]
    for sign in ("+", "-", "*", "/", "%"):
        numbers = [name for type in NUMERIC for name in OF_TYPE[type]]
        texts += [f"{one} {sign} {other}" for one, other in product(numbers, numbers)]
        texts += [f"{one} {sign} {other}" for one in numbers for type in NUMERIC for other in LITERALS[type]]
        texts += [f"{other} {sign} {one}" for one in numbers for type in NUMERIC for other in LITERALS[type][:2]]
    texts += [f"{one} div {other}" for one, other in product("tjnmck", "tjnmkc")]
    for sign in ("=", "<>", "<", "<=", ">", ">=", "<=>"):
        texts += [f"{one} {sign} {other}" for one, other in product(names, names) if sign in ("=", "<", "<=>")]
        texts += [f"{one} {sign} {other}" for one in names for other in literals if sign in ("<=", "<>", ">", ">=")]
    for name in names:
        texts += [f"{name} IS NULL", f"{name} IS NOT NULL", f"isnull({name})", f"coalesce({name}, {name})"]
        texts += [f"coalesce({name}, {other})" for other in names]
        texts += [f"greatest({name}, {other})" for other in names] + [f"least({name}, {other})" for other in names[::3]]
        texts += [f"CASE WHEN b THEN {name} ELSE {other} END" for other in names]
        texts += [f"if(a, {name}, {other})" for other in literals[::3]] + [f"nullif({name}, {o})" for o in names[::2]]
        texts += [f"{name} IN ({other}, {literal})" for other in names[::4] for literal in literals[::5]]
        texts += [f"{name} BETWEEN {low} AND {high}" for low in names[::5] for high in literals[::6]]
        texts += [f"{name} NOT BETWEEN {low} AND {name}" for low in literals[::4]]
        texts += [f"- {name}", f"abs({name})", f"floor({name})", f"ceil({name})", f"round({name})", f"+{name}"]
        texts += [f"CAST({name} AS {type})" for type in CAST_TO] + [f"try_cast({name} AS {type})" for type in CAST_TO]
        texts += [f"length({name})", f"{name} || 'x'", f"concat('<', {name}, '>')"]
    for literal in literals:
        texts += [
            literal,
            f"- {literal}",
            f"CAST({literal} AS STRING)",
            f"CAST({literal} AS BIGINT)",
            f"abs({literal})",
        ]
    for one, other in product(("b", "a", "j > 0", "s = 'A'", "NULL"), repeat=2):
        texts += [f"{one} AND {other}", f"{one} OR {other}", f"NOT ({one} AND {other})", f"({one}) = ({other})"]
    texts += MORE
    texts += [f"CAST({quoted} AS {type})" for quoted in TEXTS for type in CAST_TO]
    texts += [f"try_cast({quoted} AS {type})" for quoted in TEXTS for type in CAST_TO]
    return list(dict.fromkeys(texts))


CAST_TO = (
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10, 2)", "DECIMAL(38, 0)", "DECIMAL(3, 1)",
    "STRING", "BOOLEAN", "DATE", "TIMESTAMP",
)  # fmt: skip
TEXTS = [
    repr(text)
    for text in (
        "1.5", "1e2", "1_0", " 12 ", "+5", "-0", "", "abc", "0x10", "9223372036854775808", "t", "YES", "0", "n", "inf",
        "NaN", "1.5d", ".5", "5.", "1e400", "2024-02-30", "2024-2-9", "2024", "2024-02-29T24:00:00", "24:00:00",
        "2024-02-29 12:34:56.7890125", "2024-02-29T12:34:56Z", "2024-02-29 12:34:56+05:30", "2024-02-29 12:34:56+99:00",
        "epoch", "2024-02-29 12", "2024-02-29 12:34", "2024-02-29T", "12345.678", "99.95", "-99.96", "1e-1",
        "\\t7\\n", "2024-02-29 1:2:3", "2024-02-29 12:34:56 UTC", "2024-02-29x", "-1",
    )
]  # fmt: skip
MORE = (Path(__file__).parent / "expressions.txt").read_text(encoding="utf-8").splitlines()
"""What does not come out of the tables above: a line each."""


class Maker:
    """Expressions made at random, of a type that is asked for; some parts of them may have no value."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def texts(self, many: int) -> Iterator[str]:
        """So many different ones."""
        seen: set[str] = set()
        while len(seen) < many:
            text = self.of(self._random.choice(list(OF_TYPE)), self._random.randint(1, 4))
            if text not in seen:
                seen.add(text)
                yield text

    def of(self, type: str, depth: int) -> str:
        """One of a type, so deep."""
        choose = self._random.choice
        if depth <= 0 or self._random.random() < 0.1:
            return choose(OF_TYPE[type]) if self._random.random() < 0.75 else choose(LITERALS[type])
        deeper = depth - 1
        if self._random.random() < 0.25:
            made: list[Callable[[], str]] = [
                lambda: (
                    f"CASE WHEN {self.of('BOOLEAN', deeper)} THEN {self.of(type, deeper)} "
                    f"ELSE {self.of(self._near(type), deeper)} END"
                ),
                lambda: f"coalesce({self.of(type, deeper)}, {self.of(self._near(type), deeper)})",
                lambda: f"if({self.of('BOOLEAN', deeper)}, {self.of(type, deeper)}, {self.of(type, deeper)})",
                lambda: f"greatest({self.of(type, deeper)}, {self.of(type, deeper)})",
                lambda: f"nullif({self.of(type, 0)}, {self.of(type, deeper)})",
            ]
            return choose(made)()
        return str(getattr(self, f"_{type.lower()}")(deeper))

    def _near(self, type: str) -> str:
        return self._random.choice(NUMERIC) if type in NUMERIC and self._random.random() < 0.3 else type

    def _wrapped(self, text: str) -> str:
        return f"({text})" if self._random.random() < 0.7 else text

    def _number(self, type: str, deeper: int) -> str:
        signs = ["+", "-", "*", "%", "%"] if type in INTEGRAL else ["+", "-", "*"]
        if type in ("DOUBLE", "DECIMAL"):
            signs.append("/")
        one, other = self.of(type, deeper), self.of(self._near(type), deeper)
        made = f"{self._wrapped(one)} {self._random.choice(signs)} {self._wrapped(other)}"
        return self._random.choice(
            [made, made, made, f"abs({one})", f"- ({one})", f"CAST({self._any(deeper)} AS {type})"]
        )

    def _any(self, deeper: int) -> str:
        return self.of(self._random.choice([*NUMERIC, "BOOLEAN", "STRING"]), deeper)

    def _tinyint(self, deeper: int) -> str:
        return self._number("TINYINT", deeper)

    def _smallint(self, deeper: int) -> str:
        return self._number("SMALLINT", deeper)

    def _float(self, deeper: int) -> str:
        return self._number("FLOAT", deeper)

    def _int(self, deeper: int) -> str:
        part = self._random.choice(["year", "month", "dayofweek", "weekofyear", "dayofyear"])
        return self._random.choice(
            [self._number("INT", deeper), f"length({self.of('STRING', deeper)})", f"{part}({self.of('DATE', deeper)})"]
        )

    def _bigint(self, deeper: int) -> str:
        return self._random.choice(
            [
                self._number("BIGINT", deeper),
                f"floor({self.of('DOUBLE', deeper)})",
                f"{self._wrapped(self.of('BIGINT', deeper))} div {self._wrapped(self.of('BIGINT', deeper))}",
                f"unix_millis({self.of('TIMESTAMP', deeper)})",
            ]
        )

    def _double(self, deeper: int) -> str:
        return self._random.choice(
            [self._number("DOUBLE", deeper), f"{self._any_number(deeper)} / ({self._any_number(0)})"]
        )

    def _any_number(self, deeper: int) -> str:
        return self._wrapped(self.of(self._random.choice(NUMERIC), deeper))

    def _decimal(self, deeper: int) -> str:
        one, other = self.of("DECIMAL", deeper), self.of(self._random.choice(("DECIMAL", "INT")), deeper)
        sign = self._random.choice("+-*/%")
        return self._random.choice(
            [f"({one}) {sign} ({other})", f"CAST({self._any_number(deeper)} AS DECIMAL(12, 3))", f"abs({one})"]
        )

    def _string(self, deeper: int) -> str:
        text = self.of("STRING", deeper)
        return self._random.choice(
            [
                f"concat({text}, {self.of('STRING', deeper)})",
                f"trim({text})",
                f"substring({text}, {self._random.randint(-3, 4)}, {self._random.randint(0, 4)})",
                f"CAST({self._any(deeper)} AS STRING)",
                f"ltrim({text})",
                f"{text} || {self.of('STRING', 0)}",
            ]
        )

    def _boolean(self, deeper: int) -> str:
        one = self._random.choice(list(OF_TYPE))
        left, right = self.of(one, deeper), self.of(self._near(one), deeper)
        sides = [self._wrapped(self.of("BOOLEAN", deeper)) for _ in range(2)]
        sign = self._random.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
        return self._random.choice(
            [
                f"({left}) {sign} ({right})",
                " AND ".join(sides),
                " OR ".join(sides),
                f"NOT {sides[0]}",
                f"({left}) IS NOT NULL",
                f"{self.of(one, 0)} BETWEEN {self.of(one, 0)} AND {self.of(one, 0)}",
                f"{self.of(one, 0)} IN ({self.of(one, 0)}, {self.of(one, 0)})",
                f"{self.of('STRING', 0)} NOT LIKE '%{self._random.choice('aeH')}%'",
            ]
        )

    def _date(self, deeper: int) -> str:
        return f"CAST({self.of('TIMESTAMP', deeper)} AS DATE)"

    def _timestamp(self, deeper: int) -> str:
        unit = self._random.choice(["DAY", "HOUR", "MONTH", "MINUTE"])
        return self._random.choice(
            [f"date_trunc('{unit}', {self.of('TIMESTAMP', deeper)})", f"timestamp_millis({self.of('INT', deeper)})"]
        )
