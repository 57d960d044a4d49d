"""The columns of a stream: names with SQL types, as Spark writes them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millrace.model.errors import refuse, refuse_unknown, shown
from millrace.model.types import is_integer as is_integer
from millrace.model.types import is_number, normal

DIALECT = "databricks"
"""sqlglot's name for Spark SQL whose casts and divisions are ANSI, as Spark 4's are."""

UNKNOWN = "UNKNOWN"
"""The type of a column whose type only Spark can resolve; every check accepts it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A name and its type; a `required` column of a source is NOT NULL."""

    name: str
    type: str
    required: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.type}{' NOT NULL' if self.required else ''}"


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns in order, with unique names."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Refuse duplicate names, ignoring case as Spark does, and names that are reserved for Millrace."""
        seen: set[str] = set()
        for column in self.columns:
            if column.name.startswith("__"):
                renamed = column.name.lstrip("_") or "other"
                raise refuse(
                    f"column {column.name!r} has a reserved name: names that start with __ belong to Millrace",
                    advice="choose another name, or let the topic rename the field: "
                    f"--intercept rename:{column.name}={renamed}",
                )
            if column.name.lower() in seen:
                raise refuse(f"the schema has two columns {column.name!r}")
            seen.add(column.name.lower())

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the columns that are NOT NULL, in order."""
        return tuple(column.name for column in self.columns if column.required)

    @property
    def typed(self) -> tuple[tuple[str, str], ...]:
        """Names and types, which are all that the rows of a stream have in common."""
        return tuple((column.name, column.type) for column in self.columns)

    def type_of(self, name: str) -> str:
        """The type of a column; an unknown name is refused."""
        for column in self.columns:
            if column.name == name:
                return column.type
        if isinstance(name, list | tuple):
            advice = "pass each name as an argument of its own"
            raise refuse(f"the name of a column must be a string, not {shown(name)}", advice=advice)
        if not str(name).isidentifier() and any(column in str(name) for column in self.names):
            raise refuse(f"{str(name)!r} is not a column", advice=f"compute it first: with_columns(x={str(name)!r})")
        raise refuse_unknown("column", name, self.names)

    def with_columns(self, added: Iterable[Column]) -> "Schema":
        """The schema with these columns replaced, or added at the end."""
        new = {column.name: column for column in added}
        kept = tuple(new.pop(column.name, column) for column in self.columns)
        return Schema((*kept, *new.values()))

    def __str__(self) -> str:
        return ", ".join(map(str, self.columns))


def parse_schema(text: str | Mapping[str, str] | Schema) -> Schema:
    """Read `"user STRING NOT NULL, ms BIGINT"`, or a mapping of names to types.

    >>> str(parse_schema("user string not null, ms long"))
    'user STRING NOT NULL, ms BIGINT'
    """
    if isinstance(text, Schema):
        return text
    if isinstance(text, Mapping):
        text = ", ".join(f"`{name}` {type}" for name, type in text.items())
    if not isinstance(text, str) or not text.strip():
        raise refuse(f"a schema must be text such as 'user STRING, ms BIGINT, at TIMESTAMP', not {text!r}")
    try:
        parsed = sqlglot.parse_one(f"CREATE TABLE t ({text})", dialect=DIALECT)
    except SqlglotError:
        parsed = None
    definitions = parsed.this.expressions if isinstance(parsed, exp.Create) and parsed.this else []
    if not definitions or not all(isinstance(item, exp.ColumnDef) and item.kind for item in definitions):
        advice = "write it like 'user STRING, ms BIGINT, at TIMESTAMP'"
        raise refuse(f"schema {text!r} does not parse", advice=advice)
    return Schema(tuple(Column(item.name, normal(item.kind.sql(DIALECT)), _is_required(item)) for item in definitions))


def missing(name: str) -> str:
    """The reason why a record without a value for a NOT NULL column is a dead letter."""
    return f"{name} is missing or null, but NOT NULL"


def _is_required(definition: exp.ColumnDef) -> bool:
    required = False
    for each in definition.constraints:
        if isinstance(each.kind, exp.NotNullColumnConstraint):
            required = not each.kind.args.get("allow_null")
        elif not isinstance(each.kind, exp.CommentColumnConstraint):
            problem = f"column {definition.name!r} has {each.sql(DIALECT)}, which no source can promise"
            raise refuse(problem, advice="leave it out; a column can only be NOT NULL")
    return required


def backticked(name: str) -> str:
    """A name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def is_numeric(type: str) -> bool:
    """Whether values of this type can be added up."""
    return type == UNKNOWN or is_number(type)
