"""What the hub of live queries reads of a store."""

from collections.abc import Mapping

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
from millrace.model.errors import MachineError, MillraceError, NotFoundError
from millrace.views.store import NoViewsError, OpenView, Store

_DATABASES = {"sqlite": Database.SQLITE, "postgres": Database.POSTGRESQL}


def live_views(store: Store) -> Mapping[str, LiveView]:
    """The views of a store, by name."""
    try:
        return {info.name: live_view(info) for info in store.views()}
    except NoViewsError:
        return {}


def snapshot(store: Store, wanted: ReadSnapshot) -> SnapshotRead | ReadFailed:
    """The rows that the hub wants, all of one version. Trouble of the machine is raised: the read is made again."""
    try:
        with store.open_view(wanted.view) as view:
            tables = tuple(_rows(view, read) for read in wanted.reads)
            return SnapshotRead(wanted.view, wanted.number, view.version, view.generation, tables)
    except MachineError:
        raise
    except MillraceError as error:
        return ReadFailed(wanted.view, wanted.number, error)


def missed_changes(store: Store, wanted: ReadChanges) -> ChangesRead:
    """The changes that a client has missed; None if they are no longer kept, or the view no longer exists."""
    try:
        with store.open_view(wanted.view) as view:
            return ChangesRead(wanted.view, wanted.number, view.version, view.changes(wanted.since))
    except NotFoundError:
        return ChangesRead(wanted.view, wanted.number, wanted.since, None)


def new_changes(store: Store, view: str, since: int, watermark: str | None) -> tuple[int, list[Event]]:
    """The version of the store, and what has happened to a view since another one; its generation is always told."""
    try:
        with store.open_view(view) as opened:
            changes = Changes(view, since, opened.version, opened.changes(since), watermark)
            return opened.version, [Replaced(view, opened.generation), changes]
    except NotFoundError:  # the changes or the whole view; the hub reads anew, and finds out which
        return since, [Forgotten(view)]


def _rows(view: OpenView, read: Read) -> pa.Table:
    made = statement(read, view.table, _DATABASES[view.dialect])
    return view.rows(made.sql, made.values, made.columns)
