"""The query of a client, as it may run on a store."""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.views.catalog import Catalog
from millrace.views.dialect import StoreConnection
from millrace.views.guarded import guard
from millrace.views.reading import state_of
from millrace.views.rights import Rights


@dataclass(frozen=True, slots=True)
class Permitted:
    """A query that may run."""

    sql: str
    tables: Mapping[str, str]
    """The tables that it reads, by the view that does."""
    state: str | None
    """The state of its views; None if its answer also depends on something else."""


def permitted(connection: StoreConnection, sql: str, rights: Rights) -> Permitted:
    """The query as it may run for a caller. Refuses what it may not do."""
    served = {kept.shape.name: kept for kept in Catalog(connection).views() if kept.changes is not None}
    columns = {name: (*kept.shape.columns.names, kept.shape.version.name) for name, kept in served.items()}
    guarded = guard(sql, connection.dialect.name, columns, rights)
    used = [served[name] for name in guarded.views]
    tables = {kept.shape.name: f"{kept.shape.name}__{kept.generation}" for kept in used}
    return Permitted(guarded.sql, tables, state_of(used) if guarded.is_stable else None)
