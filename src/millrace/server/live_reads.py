"""What the hub of live queries reads of a store."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from millrace.live.events import (
    Changes,
    ChangesRead,
    Event,
    Forgotten,
    Read,
    ReadChanges,
    ReadFailed,
    ReadSnapshot,
    Replaced,
    SnapshotRead,
)
from millrace.live.query import LiveView, live_view
from millrace.live.statement import Database, statement
from millrace.model.errors import MachineError, MillraceError
from millrace.views.store import ForgottenError, NoViewsError, OpenView, Store

_DATABASES = {"sqlite": Database.SQLITE, "postgres": Database.POSTGRESQL}


def live_views(store: Store) -> Mapping[str, LiveView]:
    """The views of a store, by name."""
    try:
        return {info.name: live_view(info) for info in store.views()}
    except NoViewsError:
        return {}


def snapshot(store: Store, wanted: ReadSnapshot) -> SnapshotRead | ReadFailed:
    """The rows that the hub wants, all of one version. Raises MachineError if the store is away."""
    try:
        with store.open_view(wanted.view) as view:
            tables = tuple(_rows(view, read) for read in wanted.reads)
            return SnapshotRead(wanted.view, wanted.number, view.version, view.generation, tables)
    except MachineError:
        raise
    except MillraceError as error:
        return ReadFailed(wanted.view, wanted.number, error)


def missed_changes(store: Store, wanted: ReadChanges) -> ChangesRead:
    """The changes that a client has missed; None if they are no longer kept. Raises MachineError if the store is away.

    Of a view that is gone there are none: the snapshot that follows says so.
    """
    try:
        with store.open_view(wanted.view) as view:
            with _forgetting() as found:
                found.append(view.changes(wanted.since))
            return ChangesRead(wanted.view, wanted.number, view.version, found[0] if found else None)
    except MachineError:
        raise
    except MillraceError:
        return ChangesRead(wanted.view, wanted.number, wanted.since, None)


def new_changes(store: Store, view: str, since: int, watermark: str | None) -> tuple[int, list[Event]]:
    """The version of the store, and what has happened to a view since another one; its generation is always told.

    Raises MachineError if the store is away. A view that is gone is forgotten: the snapshot that follows says so.
    """
    try:
        with store.open_view(view) as opened:
            with _forgetting() as found:
                found.append(opened.changes(since))
            changes = Changes(view, since, opened.version, found[0], watermark) if found else Forgotten(view)
            return opened.version, [Replaced(view, opened.generation), changes]
    except MachineError:
        raise
    except MillraceError:
        return since, [Forgotten(view)]


@contextmanager
def _forgetting() -> Iterator[list[pa.Table]]:
    found: list[pa.Table] = []
    try:
        yield found
    except ForgottenError:
        found.clear()


def _rows(view: OpenView, read: Read) -> pa.Table:
    made = statement(read, view.table, _DATABASES[view.dialect])
    return view.rows(made.sql, made.values, made.columns)
