"""The fused edge: rows to partials in one DuckDB statement.

For each bundle: filter, project, join small tables, cut event time into slices and aggregate by (key,
slice), in columns and without a Python loop. What cannot be said in DuckDB's SQL with Spark's meaning
is refused with the reason (`CannotFuseError`), and the query runs natively instead.

A bundle with a row that has no value somewhere makes the statement fail (`duckdb.Error`). Nothing of it has been
taken in then; its host can take it in row by row, so that only that row is set aside.
"""

from collections.abc import Callable

import duckdb
import pyarrow as pa

from millrace.edge.sql import CannotFuseError, quoted, to_duckdb
from millrace.model.aggregate import (
    Aggregate,
    Collect,
    Count,
    CountIf,
    First,
    Last,
    Max,
    Min,
    Sum,
    TopK,
    Variance,
)
from millrace.model.arrow import arrow_type
from millrace.model.query import Computed, Query
from millrace.model.schema import is_integer
from millrace.model.stream import (
    EventTime,
    Join,
    Select,
    Source,
    Stream,
    Table,
    Union,
    Where,
    WithColumns,
    find_event_time,
)
from millrace.model.watermark import Punctuated
from millrace.model.window import Fixed, Global, Session, Sliding, Windowing

_AT = "__at"


class Fused:
    """One source of a query, compiled to a statement."""

    def __init__(self, query: Query, source: Source) -> None:
        """Write the statement. Raises CannotFuseError with the reason if there is none."""
        self._tables: dict[str, pa.Table] = {}
        staged = self._stream(query.stream, source)
        if staged is None:
            raise CannotFuseError(f"source {source.name} is not part of the query")
        event_time = find_event_time(query.stream)
        at = "0" if event_time is None else f"epoch_us({quoted(event_time.column)})"
        keys = [f"{_key(query, name)} AS {key}" for name, key in zip(query.keys, query.key_columns, strict=True)]
        partials = []
        for computed, names in zip(query.computed, query.partial_columns, strict=True):
            columns = _partials(computed)
            partials += [f"{sql} AS {name}" for sql, name in zip(columns, names, strict=True)]
        chosen = [*keys, f"{_slice(query.windowing)} AS slice", "count(*) AS elements", *partials]
        self.statement = (
            f"SELECT {', '.join(chosen)} FROM (SELECT *, {at} AS {_AT} FROM ({staged})) "
            f"GROUP BY {', '.join([*query.key_columns, 'slice'])}"
        )

    def partials(self, rows: pa.Table) -> pa.Table:
        """The partials of a bundle. Raises duckdb.Error if a row has no value somewhere."""
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
        connection.register("__rows", rows)
        for name, table in self._tables.items():
            connection.register(name, table)
        return connection.sql(self.statement).to_arrow_table()

    def _stream(self, node: Stream, source: Source) -> str | None:
        """A stream as a query over the rows of one source; None if that source is not part of it."""
        if isinstance(node, Source):
            columns = ", ".join(map(quoted, node.schema.names))
            return f"SELECT {columns} FROM __rows" if node == source else None
        if isinstance(node, Union):
            names = ", ".join(map(quoted, node.schema.names))
            sides = [self._stream(side, source) for side in node.parents]
            return " UNION ALL ".join(f"SELECT {names} FROM ({side})" for side in sides if side is not None) or None
        if not isinstance(node, Where | Select | WithColumns | Join | EventTime):
            raise CannotFuseError(f"{type(node).__name__.lower()} needs to remember rows")
        above = self._stream(node.parent, source)
        return None if above is None else self._step(node, above)

    def _step(self, node: Where | Select | WithColumns | Join | EventTime, above: str) -> str:
        match node:
            case Where(condition=condition):
                return f"SELECT * FROM ({above}) WHERE {to_duckdb(condition)}"
            case Select(columns=columns):
                return (
                    f"SELECT {', '.join(f'{to_duckdb(sql)} AS {quoted(name)}' for name, sql in columns)} FROM ({above})"
                )
            case WithColumns(parent=parent, columns=columns):
                made = {name: to_duckdb(sql) for name, sql in columns}
                kept = {name: quoted(name) for name in parent.schema.names}
                chosen = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in {**kept, **made}.items())
                return f"SELECT {chosen} FROM ({above})"
            case Join(table=table, on=on, how=how):
                names = ", ".join(quoted(name) for name in node.schema.names)
                same = ", ".join(map(quoted, on))
                return f"SELECT {names} FROM ({above}) {how.upper()} JOIN {self._table(table)} USING ({same})"
            case EventTime(column=column, estimator=estimator):
                if isinstance(estimator.policy, Punctuated):
                    raise CannotFuseError("punctuated watermarks have rows that are no elements")
                checked = f"CASE WHEN {quoted(column)} IS NULL THEN error('no event time') ELSE {quoted(column)} END"
                return f"SELECT * REPLACE ({checked} AS {quoted(column)}) FROM ({above})"

    def _table(self, table: Table) -> str:
        if table.path is not None:
            raise CannotFuseError(f"table {table.name} is in a file")
        name = f"__table_{table.name}"
        columns = zip(*table.rows, strict=True)
        self._tables[name] = pa.table(
            {
                column.name: pa.array(values, arrow_type(column.type))
                for column, values in zip(table.schema, columns, strict=True)
            }
        )
        return quoted(name)


def how(query: Query, source: Source) -> str:
    """How the edge of a query runs: fused, or natively and why."""
    try:
        Fused(query, source)
    except CannotFuseError as error:
        return f"native: {error}"
    return "fused"


def _key(query: Query, name: str) -> str:
    """A key as it is compared: -0.0 is 0.0."""
    return f"{quoted(name)} + 0.0" if query.stream.schema.type_of(name) in ("DOUBLE", "FLOAT") else quoted(name)


def _slice(windowing: Windowing) -> str:
    """The start of the slice of an element: `panes.slices.slice_of` in SQL, whose % has the sign of the left."""
    match windowing:
        case Fixed(size, offset):
            return f"({_AT} - {_modulo(offset, size)})"
        case Sliding(size, every, offset):
            into, cut = _modulo(offset, every), size % every
            return f"({_AT} - {into} + CASE WHEN {into} < {cut} THEN 0 ELSE {cut} END)"
        case Session():
            return _AT
        case Global():
            return "CAST(0 AS BIGINT)"
    raise CannotFuseError(f"{windowing} is not cut into slices by SQL")


def _modulo(offset: int, size: int) -> str:
    return f"((({_AT} - {offset}) % {size} + {size}) % {size})"


def _partials(computed: Computed) -> list[str]:
    """The partial columns of an aggregate, as `panes.columns` has them."""
    write = next((write for kind, write in _AGGREGATES if isinstance(computed.aggregate, kind)), None)
    if write is None:
        raise CannotFuseError(f"{computed.aggregate} is computed value by value")
    return write(computed)


def _counted(computed: Computed) -> list[str]:
    if not computed.arguments:
        return ["count(*)"]
    argument = to_duckdb(computed.arguments[0])
    return [f"count(*) FILTER (WHERE {argument})" if isinstance(computed.aggregate, CountIf) else f"count({argument})"]


def _summed(computed: Computed) -> list[str]:
    (argument,) = computed.arguments
    if not is_integer(argument.type) and argument.type not in ("DOUBLE", "FLOAT"):
        raise CannotFuseError(f"sums of {argument.type} are not fused")
    kind = "BIGINT" if is_integer(argument.type) else "DOUBLE"
    value = to_duckdb(argument)
    return [f"CAST(coalesce(sum({value}), 0) AS {kind})", f"count({value})"]


def _spread(computed: Computed) -> list[str]:
    value = f"CAST({to_duckdb(computed.arguments[0])} AS DOUBLE)"
    count = f"count({value})"
    return [count, f"coalesce(avg({value}), 0.0)", f"coalesce(var_pop({value}) * {count}, 0.0)"]


def _extreme(computed: Computed) -> list[str]:
    return [f"{'max' if isinstance(computed.aggregate, Max) else 'min'}({to_duckdb(computed.arguments[0])})"]


def _timed(computed: Computed) -> list[str]:
    value = to_duckdb(computed.arguments[0])
    choose = "max" if isinstance(computed.aggregate, Last) else "min"
    whole = f"{choose}({{'at': {_AT}, 'value': {value}}}) FILTER (WHERE {value} IS NOT NULL)"
    return [f"({whole}).at", f"({whole}).value"]


def _listed(computed: Computed) -> list[str]:
    value = to_duckdb(computed.arguments[0])
    return [f"list({value}) FILTER (WHERE {value} IS NOT NULL)"]


def _topped(computed: Computed) -> list[str]:
    value, rank = to_duckdb(computed.arguments[0]), to_duckdb(computed.arguments[-1])
    held = f"FILTER (WHERE {value} IS NOT NULL AND {rank} IS NOT NULL)"
    return [f"list({value}) {held}", f"list({rank}) {held}"]


_AGGREGATES: tuple[tuple[type[Aggregate], Callable[[Computed], list[str]]], ...] = (
    (Count, _counted),
    (Sum, _summed),
    (Variance, _spread),
    (Min, _extreme),
    (First, _timed),
    (Collect, _listed),
    (TopK, _topped),
)
