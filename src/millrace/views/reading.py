"""Reads rows and changes of views. Filters and orders become SQL; their values are always passed as parameters."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from millrace.model.errors import PipelineError, shown, unknown
from millrace.model.schema import Column, Schema
from millrace.views.catalog import Catalog
from millrace.views.dialect import Dialect, StoreConnection, listed, quoted
from millrace.views.shape import free_names, kind_of
from millrace.views.store import Filter, ForgottenError, Order, Snapshot

_COMPARISONS = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
COMMITTED = "committed"
"""The column of a history with the time of a commit."""
_ORDERS = {"asc": "ASC NULLS FIRST", "desc": "DESC NULLS LAST"}


def rows(
    connection: StoreConnection,
    view: str,
    where: Sequence[Filter],
    order: Sequence[Order],
    limit: int | None,
    offset: int,
) -> Snapshot:
    """A snapshot of the rows of a view, with its version."""
    catalog = Catalog(connection)
    kept = catalog.served(view)
    shape = kept.shape
    columns = Schema((*shape.columns, shape.version))
    values: list[Any] = []
    conditions = [_condition(connection.dialect, columns, each, values) for each in where]
    # This reads the table, not the SQL view: view definitions ignore the snapshot of the transaction, so the SQL view
    # may be of another generation by now.
    sql = [f"SELECT {_names(columns)} FROM {kept.tables(connection.dialect).data}"]
    if conditions:
        sql.append(f"WHERE {' AND '.join(conditions)}")
    by = [*order, *((name, "asc") for name in shape.key)]
    if by:
        sql.append(f"ORDER BY {listed(_ordered(columns, each) for each in by)}")
    if limit is not None or offset:
        sql.append(f"LIMIT {2**62 if limit is None else _whole(limit, 'limit')} OFFSET {_whole(offset, 'offset')}")
    found = connection.execute(" ".join(sql), values).fetchall()
    return Snapshot(catalog.version(), _table(connection.dialect, columns, found))


def changes(connection: StoreConnection, view: str, since: int) -> pa.Table:
    """The changes of a view after a version."""
    catalog = Catalog(connection)
    kept, now = catalog.served(view), catalog.version()
    if not kept.since <= since <= now:
        why = f"they are kept from {kept.since} on" if since < kept.since else f"the store is at {now}"
        raise ForgottenError(
            f"the changes of view {view!r} since version {since} are no longer available: {why}",
            "read its rows, and continue from their version",
        )
    columns = kept.shape.change_columns
    version, diff = quoted(kept.shape.version.name), quoted(kept.shape.diff.name)
    sql = f"SELECT {_names(columns)} FROM {quoted(str(kept.changes))} WHERE {version} > $1 ORDER BY {version}, {diff}"
    return _table(connection.dialect, columns, connection.execute(sql, (since,)).fetchall())


def history(connection: StoreConnection, view: str, where: Sequence[Filter], last: int) -> pa.Table:
    """The last of the available changes of rows of a view for which all filters hold, with the times of commits."""
    kept = Catalog(connection).served(view)
    columns, version, diff = kept.shape.change_columns, kept.shape.version.name, kept.shape.diff.name
    values: list[Any] = []
    conditions = [_condition(connection.dialect, columns, each, values) for each in where]
    order = [f"changed.{quoted(version)}", f"changed.{quoted(diff)}"]
    found = connection.execute(
        f"SELECT {listed(f'changed.{quoted(name)}' for name in columns.names)}, made.at "
        f"FROM (SELECT * FROM {quoted(str(kept.changes))} WHERE {' AND '.join(conditions) or 'TRUE'}) changed "
        f"LEFT JOIN millrace_versions made ON made.version = changed.{quoted(version)} "
        f"ORDER BY {listed(f'{each} DESC' for each in order)} LIMIT {_whole(last, 'last')}",
        values,
    ).fetchall()[::-1]
    table = _table(connection.dialect, columns, [row[:-1] for row in found])
    times = pa.array([row[-1] for row in found], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return table.append_column(free_names(columns.names, [COMMITTED])[0], times)


def _condition(dialect: Dialect, columns: Schema, filter: Filter, values: list[Any]) -> str:
    """A filter as SQL; its parameters are appended to `values`."""
    name, operator, value = filter
    column = _column(columns, name)
    if operator == "in":
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise PipelineError(f"the filter {name} in {shown(value)} needs several values")
        return f"({' OR '.join(_condition(dialect, columns, (name, '=', each), values) for each in value) or 'FALSE'})"
    if operator not in _COMPARISONS:
        raise PipelineError(unknown("comparison", operator, (*_COMPARISONS, "in")))
    if value is None and operator in ("=", "!="):
        return f"{quoted(name)} IS {'NOT ' if operator == '!=' else ''}NULL"
    values.append(dialect.parameter(_scalar(column, value)))
    return f"{quoted(name)} {_COMPARISONS[operator]} ${len(values)}"


def _ordered(columns: Schema, order: Order) -> str:
    name, direction = order
    if direction not in _ORDERS:
        raise PipelineError(unknown("order", direction, _ORDERS))
    return f"{quoted(_column(columns, name).name)} {_ORDERS[direction]}"


def _column(columns: Schema, name: str) -> Column:
    for column in columns:
        if column.name == name:
            return column
    raise PipelineError(unknown("column", name, columns.names))


def _scalar(column: Column, value: Any) -> pa.Scalar:
    """A filter value, cast to the type of its column."""
    kind = kind_of(column.type)
    if types.is_nested(kind):
        raise PipelineError(f"{column.name} is {column.type}, which filters cannot compare; use SQL")
    try:
        if types.is_timestamp(kind) and isinstance(value, str):
            at = datetime.fromisoformat(value)
            value = at if at.tzinfo else at.replace(tzinfo=UTC)
        return pa.scalar(value).cast(kind)
    except (pa.ArrowException, ValueError, OverflowError):
        raise PipelineError(f"{shown(value)} cannot be compared with {column.name}, which is {column.type}") from None


def _whole(number: int, what: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise PipelineError(f"{what} is a whole number, not {shown(number)}")
    return number


def _names(columns: Schema) -> str:
    return listed(map(quoted, columns.names))


def _table(dialect: Dialect, columns: Schema, found: list[Any]) -> pa.Table:
    kinds = [kind_of(column.type) for column in columns]
    values = list(zip(*found, strict=True)) or [()] * len(kinds)
    arrays = [dialect.column(each, kind) for each, kind in zip(values, kinds, strict=True)]
    return pa.table(arrays, pa.schema(list(zip(columns.names, kinds, strict=True))))
