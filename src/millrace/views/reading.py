"""Reads rows and changes of views. Filters and orders become SQL; their values are always passed as parameters."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from millrace.model.errors import PipelineError, not_found, shown, unknown
from millrace.model.schema import Column, Schema
from millrace.views.catalog import Catalog, ViewGeneration
from millrace.views.dialect import Dialect, StoreConnection, listed, quoted
from millrace.views.rights import Rights
from millrace.views.rowfilter import parse_filter, sql_of
from millrace.views.shape import free_names, kind_of
from millrace.views.store import Filter, ForgottenError, OpenView, Order, Snapshot, Streamed

_COMPARISONS = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
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
    columns, sql, values = _asked(connection.dialect, catalog.served(view), where, order, limit, offset, None)
    found = connection.execute(sql, values).fetchall()
    return Snapshot(catalog.version(), _table(connection.dialect, columns, found))


def stream(
    connection: StoreConnection,
    view: str,
    where: Sequence[Filter],
    order: Sequence[Order],
    limit: int | None,
    offset: int,
    rights: Rights,
) -> Streamed:
    """The rows of a view that a caller may see, read piece by piece."""
    catalog = Catalog(connection)
    kept = served_to(catalog, view, rights)
    columns, sql, values = _asked(
        connection.dialect, kept, where, order, limit, offset, rights.row_filter(kept.shape.name)
    )
    return _streamed(connection, kept, columns, sql, values)


def open_view(connection: StoreConnection, view: str) -> OpenView:
    """A served view, as one snapshot has it."""
    catalog, dialect = Catalog(connection), connection.dialect
    kept = catalog.served(view)
    columns = {column.name: column for column in (*kept.shape.columns, kept.shape.version)}

    def rows(sql: str, values: Sequence[Any], names: Sequence[str]) -> pa.Table:
        return _table(
            dialect, Schema(tuple(columns[name] for name in names)), connection.execute(sql, values).fetchall()
        )

    return OpenView(
        catalog.version(), kept.generation, kept.tables(dialect).data, dialect.name, rows,
        lambda since: changes(connection, view, since),
    )  # fmt: skip


def changes(connection: StoreConnection, view: str, since: int) -> pa.Table:
    """The changes of a view after a version."""
    catalog = Catalog(connection)
    columns, sql = _changed(connection.dialect, catalog, catalog.served(view), since, None)
    return _table(connection.dialect, columns, connection.execute(sql, (since,)).fetchall())


def stream_changes(connection: StoreConnection, view: str, since: int, rights: Rights) -> Streamed:
    """The changes of a view after a version that a caller may see, read piece by piece."""
    catalog = Catalog(connection)
    kept = served_to(catalog, view, rights)
    columns, sql = _changed(connection.dialect, catalog, kept, since, rights.row_filter(kept.shape.name))
    return _streamed(connection, kept, columns, sql, (since,))


def served_to(catalog: Catalog, view: str, rights: Rights) -> ViewGeneration:
    """The served generation of a view. One that the caller may not read is as unknown as one that does not exist."""
    served = {kept.shape.name: kept for kept in catalog.views() if kept.changes is not None}
    readable = {name: kept for name, kept in served.items() if rights.may_read(name)}
    if view not in readable:
        raise not_found("view", view, readable, "GET /views lists the views")
    return readable[view]


def state_of(kept: Iterable[ViewGeneration]) -> str:
    """The state of views: it differs if any row of them does."""
    return ",".join(f"{each.shape.name}:{each.generation}:{each.changed}" for each in kept)


def _asked(
    dialect: Dialect,
    kept: ViewGeneration,
    where: Sequence[Filter],
    order: Sequence[Order],
    limit: int | None,
    offset: int,
    condition: str | None,
) -> tuple[Schema, str, list[Any]]:
    """The columns of rows, the SQL that reads them, and its parameters."""
    shape = kept.shape
    columns = Schema((*shape.columns, shape.version))
    values: list[Any] = []
    conditions = [_condition(dialect, columns, each, values) for each in where]
    conditions += [] if condition is None else [_filter(dialect, columns, condition)]
    # This reads the table, not the SQL view: view definitions ignore the snapshot of the transaction, so the SQL view
    # may be of another generation by now.
    sql = [f"SELECT {_names(columns)} FROM {kept.tables(dialect).data}"]
    if conditions:
        sql.append(f"WHERE {' AND '.join(conditions)}")
    by = [*order, *((name, "asc") for name in shape.key)]
    if by:
        sql.append(f"ORDER BY {listed(_ordered(columns, each) for each in by)}")
    if limit is not None or offset:
        sql.append(f"LIMIT {2**62 if limit is None else _whole(limit, 'limit')} OFFSET {_whole(offset, 'offset')}")
    return columns, " ".join(sql), values


def _changed(
    dialect: Dialect, catalog: Catalog, kept: ViewGeneration, since: int, condition: str | None
) -> tuple[Schema, str]:
    """The columns of changes, and the SQL that reads them; $1 is the version after which."""
    now = catalog.version()
    if not kept.since <= since <= now:
        why = f"they are kept from {kept.since} on" if since < kept.since else f"the store is at {now}"
        raise ForgottenError(
            f"the changes of view {kept.shape.name!r} since version {since} are no longer available: {why}",
            "read its rows, and continue from their version",
        )
    columns = kept.shape.change_columns
    version, diff = quoted(kept.shape.version.name), quoted(kept.shape.diff.name)
    only = "" if condition is None else f" AND {_filter(dialect, columns, condition)}"
    source = quoted(str(kept.changes))
    return columns, f"SELECT {_names(columns)} FROM {source} WHERE {version} > $1{only} ORDER BY {version}, {diff}"


def _streamed(
    connection: StoreConnection, kept: ViewGeneration, columns: Schema, sql: str, values: Sequence[Any]
) -> Streamed:
    schema = pa.schema([(column.name, kind_of(column.type)) for column in columns])
    pieces = (_table(connection.dialect, columns, piece) for piece in connection.stream(sql, values))
    batches = (batch for table in pieces for batch in table.to_batches())
    return Streamed(Catalog(connection).version(), schema, batches, state_of([kept]))


def _filter(dialect: Dialect, columns: Schema, condition: str) -> str:
    """The condition of a row filter as SQL."""
    return f"({sql_of(parse_filter(condition, columns.names), dialect.name)})"


def history(connection: StoreConnection, view: str, where: Sequence[Filter], last: int, rights: Rights) -> Streamed:
    """The last of the available changes of some rows of a view that a caller may see, with the times of commits."""
    catalog = Catalog(connection)
    kept = served_to(catalog, view, rights)
    shape, dialect = kept.shape, connection.dialect
    columns = shape.change_columns
    committed = Column(free_names(columns.names, ["committed"])[0], "TIMESTAMP")
    values: list[Any] = []
    conditions = [_condition(dialect, columns, each, values) for each in where]
    only = rights.row_filter(shape.name)
    conditions += [] if only is None else [_filter(dialect, columns, only)]
    order = (f"changed.{quoted(shape.version.name)}", f"changed.{quoted(shape.diff.name)}")
    found = connection.execute(
        f"SELECT {listed(f'changed.{quoted(name)}' for name in columns.names)}, made.at "
        f"FROM (SELECT * FROM {quoted(str(kept.changes))} WHERE {' AND '.join(conditions) or 'TRUE'}) changed "
        f"LEFT JOIN millrace_versions made ON made.version = {order[0]} "
        f"ORDER BY {listed(f'{each} DESC' for each in order)} LIMIT {_whole(last, 'last')}",
        values,
    ).fetchall()[::-1]
    table = _table(dialect, columns, [row[:-1] for row in found])
    times = pa.array([row[-1] for row in found], pa.int64()).cast(kind_of(committed.type))
    table = table.append_column(committed.name, times)
    return Streamed(catalog.version(), table.schema, iter(table.to_batches()), state_of([kept]))


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
        if isinstance(value, str) and "\0" in value:  # PostgreSQL has no such text
            raise ValueError(value)
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
