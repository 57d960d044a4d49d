"""Live queries from SQL: `SELECT columns FROM view WHERE ... ORDER BY ... LIMIT n OFFSET m`, with `$1` for parameters.

Each kind of parser node has a reader, which names the arguments that it reads. A node of another kind, or with another
argument, is refused by name: nothing is dropped or guessed.

`parse` is quick for a text it has seen before: the tree is prepared once for each text and kinds of parameters, and
then only the constants are filled in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millrace.live.condition import Condition, Constant
from millrace.live.constant import Given, Source, kind_of_parameter, source_of, unsupported, used
from millrace.live.query import LiveQuery, LiveView, Ordering, QueryShape, query_shape
from millrace.live.reading import Reader, column_named
from millrace.model.errors import PipelineError, shown
from millrace.views.asked import no_view

_LONGEST = 20_000
"""The longest text of a query."""
_EXAMPLE = "write it like SELECT a, b FROM view WHERE a > 1 ORDER BY b DESC LIMIT 10"
_CLAUSES = {
    "joins": "JOIN", "group": "GROUP BY", "having": "HAVING", "distinct": "DISTINCT", "with_": "WITH",
    "windows": "WINDOW", "qualify": "QUALIFY", "locks": "FOR UPDATE", "laterals": "LATERAL", "hint": "a hint",
    "into": "INTO", "kind": "SELECT AS", "sample": "TABLESAMPLE", "pivots": "PIVOT",
}  # fmt: skip
"""SQL for the parser's names of clauses."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A query with the sources of its constants: literals, and numbers of parameters."""

    shape: QueryShape
    sources: tuple[Source, ...]
    limit: Given | None
    offset: Given | None
    parameters: int

    def bind(self, params: Sequence[Any]) -> LiveQuery:
        """The query with these parameters."""
        constants = tuple(source.constant(params) for source in self.sources)
        offset = _whole(self.offset, params, "OFFSET") or 0
        return LiveQuery(self.shape, constants, _whole(self.limit, params, "LIMIT"), offset)


def parse(sql: str, views: Mapping[str, LiveView], params: Sequence[Any] = ()) -> LiveQuery:
    """A live query over one of these views. Raises MillraceError with the part that is not supported."""
    if not isinstance(sql, str) or not sql.strip():
        raise PipelineError("the query is empty", _EXAMPLE)
    if len(sql) > _LONGEST:
        raise PipelineError(f"the query is longer than {_LONGEST:,} characters", "pass its values as parameters")
    if not isinstance(params, list | tuple):
        raise PipelineError(f"params must be a list, not {shown(params)}")
    kinds = tuple(kind_of_parameter(number, value) for number, value in enumerate(params, 1))
    try:
        return _prepare(sql, _view(sql, views), kinds).bind(params)
    except RecursionError:
        raise PipelineError("the query is nested too deeply") from None


def parse_filter(text: str, view: LiveView) -> tuple[Condition, tuple[Constant, ...]]:
    """A condition over the rows of a view, such as the row filter of a token, and its constants."""
    select = _selected(f"SELECT * FROM {exp.to_identifier(view.name, quoted=True).sql()} WHERE ({text})")
    if {name for name, value in select.args.items() if value} != {"expressions", "from_", "where"}:
        raise PipelineError(f"{text!r} is not a condition", "write it like country = 'NO'")
    reader = Reader(view, ())
    condition = reader.condition(select.args["where"].this)
    return condition, tuple(source.constant(()) for source in reader.sources)


def _view(sql: str, views: Mapping[str, LiveView]) -> LiveView:
    name, quoted = _named(sql)
    if name in views:
        return views[name]
    found = [each for each in views if each.lower() == name.lower()]
    if quoted or not found:
        raise no_view(name, views)
    return views[found[0]]


@lru_cache(2_000)
def _named(sql: str) -> tuple[str, bool]:
    """The name of the view that a query reads, and whether it is quoted."""
    select = _selected(sql)
    source = select.args.get("from_")
    if source is None:
        raise PipelineError("the query has no FROM", _EXAMPLE)
    used(source, "this")
    table = source.this
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise unsupported(table, "FROM takes the name of one view")
    for name, value in table.args.items():
        if value and name != "this":
            raise PipelineError(f"{_CLAUSES.get(name, name)} is not supported in a live query: {table.sql()}", _EXAMPLE)
    return table.name, bool(table.this.args.get("quoted"))


@lru_cache(2_000)
def _prepare(sql: str, view: LiveView, kinds: tuple[str, ...]) -> Prepared:
    select = _selected(sql)
    for name, value in select.args.items():
        if value and name not in ("expressions", "from_", "where", "order", "limit", "offset"):
            raise PipelineError(f"{_CLAUSES.get(name, name)} is not supported in a live query", _EXAMPLE)
    reader = Reader(view, kinds)
    where, order = select.args.get("where"), select.args.get("order")
    if where is not None:
        used(where, "this")
    condition = None if where is None else reader.condition(where.this)
    by = () if order is None else _order(order, view)
    limit = _number(select.args.get("limit"), exp.Limit, reader)
    offset = _number(select.args.get("offset"), exp.Offset, reader)
    sorts = any(part is not None for part in (order, limit, offset))
    shape = query_shape(view, _columns(select.expressions, view), condition, by, sorts)
    reader.check_parameters()
    return Prepared(shape, tuple(reader.sources), limit, offset, len(kinds))


def _selected(sql: str) -> exp.Select:
    try:
        tree = sqlglot.parse_one(sql)
    except SqlglotError as error:
        reason = str(error).splitlines()[0].replace("\x1b[4m", "").replace("\x1b[0m", "")
        raise PipelineError(f"the query does not parse: {reason}", _EXAMPLE) from None
    if not isinstance(tree, exp.Select):
        kind = type(tree).__name__.upper()
        raise PipelineError(f"a live query is one SELECT; {kind} is not supported", _EXAMPLE)
    return tree


def _columns(items: Sequence[exp.Expr], view: LiveView) -> tuple[str, ...]:
    names: list[str] = []
    for item in items:
        if isinstance(item, exp.Star):
            used(item)
            names += view.columns.names
        elif isinstance(item, exp.Column) and not isinstance(item.this, exp.Star):
            names.append(column_named(item, view))
        else:
            raise unsupported(item, "select columns of the view by name, or *")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PipelineError(f"the query selects {twice!r} twice", "select each column once")
    return tuple(names)


def _order(order: exp.Order, view: LiveView) -> tuple[Ordering, ...]:
    used(order, "expressions")
    by: list[Ordering] = []
    for item in order.expressions:
        used(item, "this", "desc", "nulls_first")
        descending = bool(item.args.get("desc"))
        if bool(item.args.get("nulls_first")) == descending:
            raise unsupported(item, "NULL is the smallest value: first in ascending order, last in descending order")
        if not isinstance(item.this, exp.Column):
            raise unsupported(item.this, "sort by columns of the view")
        name = column_named(item.this, view)
        by.append(Ordering(name, Reader(view, ()).comparable(name, item.this), descending))
    unique = {each.column: each for each in reversed(by)}  # a column that comes again decides nothing
    return tuple(each for each in by if unique[each.column] is each)


def _number(clause: exp.Expr | None, kind: type[exp.Expr], reader: Reader) -> Given | None:
    if clause is None:
        return None
    name = kind.__name__.upper()
    if not isinstance(clause, kind):
        raise unsupported(clause, f"write LIMIT and OFFSET; {type(clause).__name__.upper()} is another clause")
    used(clause, "expression")
    given = source_of(clause.args["expression"], reader.kinds)
    if given is None:
        raise unsupported(clause, f"{name} takes a whole number")
    reader.note(given)
    return given


def _whole(given: Given | None, params: Sequence[Any], name: str) -> int | None:
    if given is None:
        return None
    value = given.value(params)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise PipelineError(f"{name} takes a whole number from 0 to {2**31 - 1}, not {shown(value)}")
    return value
