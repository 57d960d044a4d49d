"""SQL from clients: parsed, and built again from the parts that are allowed.

What runs is written from the tree that was checked, so that no text which two parsers read differently reaches the
database. A query may use the views that its caller may read, those rows of them that a filter leaves, and the nodes
and functions of the lists below; anything else is refused by name.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from millrace.model.errors import MillraceError, PipelineError
from millrace.views.asked import check_query, failed, no_view, only_reads
from millrace.views.rights import Rights
from millrace.views.rowfilter import parse_filter

_NODES = frozenset({
    exp.Add, exp.Alias, exp.All, exp.And, exp.Any, exp.Array, exp.Between, exp.Boolean, exp.CTE, exp.Case, exp.Cast,
    exp.Column, exp.Cube, exp.DPipe, exp.DataType, exp.DataTypeParam, exp.Distinct, exp.Div, exp.EQ, exp.Except,
    exp.Exists, exp.Filter, exp.From, exp.GT, exp.GTE, exp.Group, exp.GroupingSets, exp.Having, exp.ILike,
    exp.Identifier, exp.If, exp.In, exp.IntDiv, exp.Intersect, exp.Interval, exp.Is, exp.JSONExtract,
    exp.JSONExtractScalar, exp.JSONPath, exp.JSONPathKey, exp.JSONPathRoot, exp.JSONPathSubscript, exp.Join, exp.LT,
    exp.LTE, exp.Like, exp.Limit, exp.Literal, exp.Mod, exp.Mul, exp.NEQ, exp.Neg, exp.Not, exp.Null, exp.NullSafeEQ,
    exp.NullSafeNEQ, exp.Offset, exp.Or, exp.Order, exp.Ordered, exp.Parameter, exp.Paren, exp.Rollup, exp.Select,
    exp.Star, exp.Sub, exp.Subquery, exp.Table, exp.TableAlias, exp.Tuple, exp.Union, exp.Values, exp.Var, exp.Where,
    exp.Window, exp.WindowSpec, exp.With, exp.WithinGroup,
})  # fmt: skip
_FUNCTIONS = frozenset({
    exp.Abs, exp.ArrayAgg, exp.Avg, exp.Ceil, exp.Coalesce, exp.Concat, exp.ConcatWs, exp.Corr, exp.Count,
    exp.CumeDist, exp.Date, exp.DenseRank, exp.Exp, exp.Extract, exp.FirstValue, exp.Floor, exp.Greatest,
    exp.GroupConcat, exp.Lag, exp.LastValue, exp.Lead, exp.Least, exp.Left, exp.Length, exp.Ln, exp.LogicalAnd,
    exp.LogicalOr, exp.Lower, exp.Max, exp.Min, exp.NthValue, exp.Ntile, exp.Nullif, exp.PercentRank,
    exp.PercentileCont, exp.PercentileDisc, exp.Pow, exp.Rank, exp.Replace, exp.Right, exp.Round, exp.RowNumber,
    exp.Sign, exp.Sqrt, exp.StartsWith, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.StrPosition, exp.Substring,
    exp.Sum, exp.TimeToStr, exp.TimestampTrunc, exp.Trim, exp.TsOrDsToTimestamp, exp.Upper, exp.Variance,
    exp.VariancePop,
})  # fmt: skip
"""Functions without effects, whose results are not much larger than their arguments."""
_CLOCKS = frozenset({exp.CurrentDate, exp.CurrentTimestamp})
"""Functions whose value changes without a change of a view."""
_NAMED = {
    "sqlite": frozenset({"datetime", "ifnull", "iif", "julianday", "time", "total", "typeof", "unixepoch"}),
    "postgres": frozenset({"age", "date_part", "initcap", "jsonb_array_length", "to_timestamp"}),
}
"""Functions that the parser does not know, by database."""
_TIMES = frozenset({exp.Date, exp.TimeToStr, exp.TsOrDsToTimestamp})
"""Functions of SQLite that take the text 'now'."""
_TYPES = frozenset({
    exp.DType.BIGINT, exp.DType.BOOLEAN, exp.DType.DATE, exp.DType.DECIMAL, exp.DType.DOUBLE, exp.DType.FLOAT,
    exp.DType.INT, exp.DType.JSON, exp.DType.JSONB, exp.DType.SMALLINT, exp.DType.TEXT, exp.DType.TIME,
    exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.VARCHAR, exp.DType.INTERVAL,
})  # fmt: skip
_LONGEST = 100_000
"""The maximum length of a query in characters."""
_TOKEN = re.compile(r" but got <Token.*?>|\x1b\[\d+m")
"""What the parser's messages say beyond the problem."""
_FENCES = {"sqlite": exp.Literal.number(-1), "postgres": None}
"""The limit of the subquery of a row filter; with an offset, neither database computes the query's own conditions
before the filter, where an error of one would tell of rows that the caller may not see."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A query that may run."""

    sql: str
    views: tuple[str, ...]
    """The views that it reads."""
    is_stable: bool
    """Whether its answer changes only with those views."""


def guard(sql: str, dialect: str, views: Mapping[str, tuple[str, ...]], rights: Rights) -> Guarded:
    """The query as it may run for a caller; `views` are the served ones with their columns. Refuses any other SQL.

    A view that the caller may not read is as unknown as one that does not exist.
    """
    check_query(sql)
    if len(sql) > _LONGEST:
        raise PipelineError(f"the query is longer than {_LONGEST:,} characters", "pass values as params")
    readable = {name: columns for name, columns in views.items() if rights.may_read(name)}
    try:
        statements = [each for each in sqlglot.parse(sql, read=dialect, error_level=ErrorLevel.RAISE) if each]
        if len(statements) != 1:
            raise only_reads()
        checker = _Checker(dialect, readable, rights)
        tree = checker.checked(statements[0])
        written = tree.sql(dialect, comments=False, normalize_functions=False, unsupported_level=ErrorLevel.RAISE)
    except SqlglotError as error:
        raise failed(_TOKEN.sub("", str(error).partition("\n")[0])) from None
    except RecursionError:
        raise PipelineError("the query is nested too deeply", "write it with fewer subqueries") from None
    return Guarded(written, tuple(sorted(checker.used)), checker.is_stable)


class _Checker:
    """Checks a tree and puts the views in it, one query at a time."""

    def __init__(self, dialect: str, views: Mapping[str, tuple[str, ...]], rights: Rights) -> None:
        self._dialect, self._views, self._rights = dialect, views, rights
        self._fold: Callable[[exp.Identifier], str] = (
            (lambda name: name.name.lower()) if dialect == "sqlite" else _folded
        )
        self._known = {name.lower() if dialect == "sqlite" else name: name for name in views}
        self.used: set[str] = set()
        self.is_stable = True

    def checked(self, tree: exp.Expr) -> exp.Expr:
        """The tree with its views; refuses it if any part is not allowed."""
        if not isinstance(tree, exp.Select | exp.SetOperation | exp.Subquery | exp.Values):
            raise only_reads()
        names = self._names(tree)
        for node in tree.walk():
            self._check(node)
            if isinstance(node, exp.Column) and node.table and node.name.lower() not in names:
                raise PipelineError(f"unknown column {f'{node.table}.{node.name}'!r}", "name an expression with AS")
        self._resolve(tree, frozenset())
        return tree

    def _names(self, tree: exp.Expr) -> set[str]:
        """All names of columns. PostgreSQL reads `v.f`, where `v` has no column `f`, as a call of the function f."""
        columns = {name.lower() for columns in self._views.values() for name in columns}
        aliases = {node.alias.lower() for node in tree.find_all(exp.Alias)}
        return (
            columns
            | aliases
            | {each.name.lower() for node in tree.find_all(exp.TableAlias) for each in node.columns}
            | {"*"}
        )

    def _check(self, node: exp.Expr) -> None:
        """Refuse a node of a kind that is not allowed."""
        kind = type(node)
        if kind in _CLOCKS or (kind in _TIMES and "'now'" in node.sql(self._dialect).lower()):
            self.is_stable = False
        if isinstance(node, exp.Anonymous):
            if str(node.this).lower() not in _NAMED[self._dialect]:
                raise _refused(f"the function {str(node.this)!r}")
            self.is_stable &= "'now'" not in node.sql(self._dialect).lower()
        elif isinstance(node, exp.DataType):
            if node.this not in _TYPES:
                raise _refused(f"the type {node.sql(self._dialect)}")
        elif kind not in _NODES and kind not in _FUNCTIONS and kind not in _CLOCKS:
            if isinstance(node, exp.DML | exp.DDL | exp.Into | exp.Command):
                raise only_reads()
            what = f"the function {node.sql_name()!r}" if isinstance(node, exp.Func) else kind.__name__.upper()
            raise _refused(what)

    def _resolve(self, node: exp.Expr, tables: frozenset[str]) -> None:
        """Put views for the names of tables, where `tables` are the names that a WITH around the node gives."""
        given = node.args.get("with_")
        if isinstance(given, exp.With):
            for each in given.expressions:
                name = self._fold(each.args["alias"].this)
                if name in self._known:
                    raise PipelineError(f"WITH gives the name of view {name!r} to something else", "choose another")
                self._resolve(each.this, tables | {name} if given.recursive else tables)
                tables = tables | {name}
        for child in list(node.iter_expressions()):
            if child is not given:
                self._resolve(child, tables)
        if isinstance(node, exp.Table):
            self._put(node, tables)

    def _put(self, table: exp.Table, tables: frozenset[str]) -> None:
        name = table.this
        if not isinstance(name, exp.Identifier):
            raise _refused("a function in the place of a view")
        extra = [key for key, value in table.args.items() if value and key not in ("this", "alias", "joins")]
        if extra:
            raise no_view(table.sql(self._dialect), self._views)
        folded = self._fold(name)
        if folded in tables:
            return
        if folded not in self._known:
            raise no_view(name.name, self._views)
        view = self._known[folded]
        self.used.add(view)
        alias = table.args.get("alias") or exp.TableAlias(this=name.copy())
        plain = exp.Table(this=exp.to_identifier(view, quoted=True))
        condition = self._rights.row_filter(view)
        if condition is None:
            table.set("this", plain.this)
            table.set("alias", alias)
            return
        some = exp.Select(
            expressions=[exp.column(exp.to_identifier(each, quoted=True)) for each in self._views[view]],
            from_=exp.From(this=plain),
            where=exp.Where(this=parse_filter(condition, self._views[view])),
            offset=exp.Offset(expression=exp.Literal.number(0)),
        )
        fence = _FENCES[self._dialect]
        if fence is not None:
            some.set("limit", exp.Limit(expression=fence.copy()))
        table.replace(exp.Subquery(this=some, alias=alias, joins=table.args.get("joins")))


def _folded(name: exp.Identifier) -> str:
    """A name as PostgreSQL reads it."""
    return name.name if name.quoted else name.name.lower()


def _refused(what: str) -> MillraceError:
    return PipelineError(f"a query cannot use {what}", "docs/server.md lists what it can use")
