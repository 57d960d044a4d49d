"""A store in an SQL database: the parts that are the same for all databases."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

import pyarrow as pa

from millrace.model.connectors import Commit, is_stored
from millrace.model.duration import SECOND, Duration, parse_duration
from millrace.model.errors import MillraceError, NotFoundError, not_found
from millrace.model.schema import Schema
from millrace.views import generations, reading
from millrace.views.catalog import Catalog, CommittedBatch
from millrace.views.changing import change
from millrace.views.dialect import StoreConnection, quoted
from millrace.views.rights import EVERYTHING, Rights
from millrace.views.shape import ViewShape, check_names
from millrace.views.store import (
    Filter,
    Generation,
    GenerationState,
    NoViewsError,
    OpenView,
    Order,
    Selected,
    Snapshot,
    Streamed,
    ViewInfo,
    ViewRows,
)

T = TypeVar("T")

_TRIM_EVERY = 60 * SECOND
_PIECE = 50_000
"""How many rows of a query are read at a time."""


def wall_clock() -> int:
    """The current time in microseconds since 1970."""
    return time.time_ns() // 1000


class SqlStore(ABC):
    """A store. Subclasses provide connections and transactions of one database."""

    def __init__(self, keep: Duration, clock: Callable[[], int] = wall_clock) -> None:
        """Changes stay available for `keep`."""
        self._keep, self._clock = parse_duration(keep, "keep"), clock
        self._trimmed = clock()

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL by which another process opens the store."""

    @abstractmethod
    def write(self, work: Callable[[StoreConnection, bool], T]) -> T:
        """Run `work` in one exclusive transaction; its flag is True if an earlier attempt may have been committed."""

    @abstractmethod
    def read(self) -> AbstractContextManager[StoreConnection]:
        """A connection that reads one snapshot of the database."""

    @abstractmethod
    def select(
        self, sql: str, limit_seconds: float = 10, params: Sequence[Any] = (), rights: Rights | None = None
    ) -> AbstractContextManager[Selected]:
        """The result of one SQL query, read piece by piece."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections to the database."""

    def open(self, pipeline: str, shapes: Sequence[ViewShape], generation: int | None = None) -> None:
        """Create the missing views."""

        def work(connection: StoreConnection, again: bool) -> None:
            Catalog(connection).create()
            generations.complete(connection, pipeline, shapes, generation)

        self.write(work)

    def check(self, pipeline: str, shapes: Sequence[ViewShape], generation: int | None = None) -> None:
        """Refuse views that cannot be opened."""
        check_names(shapes)
        with suppress(NoViewsError), self.read() as connection:
            generations.check(Catalog(connection), pipeline, shapes, generation)

    def id(self) -> str:
        """The id of the store."""
        with self.read() as connection:
            return Catalog(connection).id()

    def last_commit(self, pipeline: str, generation: int) -> Commit | None:
        """The last commit to a generation."""
        with self.read() as connection:
            found = Catalog(connection).last_commit(pipeline, generation)
        return None if found is None else found.commit

    def commit(
        self,
        commit: Commit,
        answers: Mapping[str, pa.Table],
        once: bool,
        generation: int | None = None,
        newer: bool = False,
    ) -> int | None:
        """Apply the answers of a micro-batch to views."""

        def work(connection: StoreConnection, again: bool) -> int | None:
            catalog = Catalog(connection)
            version = catalog.version(lock=True)
            to = generations.target(catalog, commit.pipeline, generation)
            last = catalog.last_commit(commit.pipeline, to)
            if last and is_stored(last.commit, commit, f"generation {to} of the views of {commit.pipeline}") and once:
                return last.version if again else None
            version = self._change(connection, commit.pipeline, to, answers, version, whole=False, newer=newer)
            catalog.record(to, CommittedBatch(commit, version))
            return version

        version = self.write(work)
        if self._clock() - self._trimmed > _TRIM_EVERY:
            with suppress(MillraceError):  # the commit is done; a later one trims again
                self._trim(self._keep)
        return version

    def correct(self, pipeline: str, answers: Mapping[str, pa.Table], generation: int | None = None) -> int:
        """Apply answers to views."""
        return self._apply(pipeline, answers, generation, whole=False)

    def replace(self, pipeline: str, answers: Mapping[str, pa.Table], generation: int | None = None) -> int:
        """Replace all rows of views."""
        return self._apply(pipeline, answers, generation, whole=True)

    def _apply(self, pipeline: str, answers: Mapping[str, pa.Table], generation: int | None, whole: bool) -> int:
        def work(connection: StoreConnection, again: bool) -> int:
            catalog = Catalog(connection)
            version = catalog.version(lock=True)
            to = generations.target(catalog, pipeline, generation)
            return self._change(connection, pipeline, to, answers, version, whole)

        return self.write(work)

    def generations(self, pipeline: str) -> list[Generation]:
        """The generations of a pipeline's views."""
        with self.read() as connection:
            return Catalog(connection).generations(pipeline)

    def begin_generation(self, pipeline: str, shapes: Sequence[ViewShape], least: int = 1) -> int:
        """Create a new generation to fill."""

        def work(connection: StoreConnection, again: bool) -> int:
            catalog = Catalog(connection)
            catalog.create()
            catalog.version(lock=True)
            return generations.begin(connection, pipeline, shapes, least)

        number = self.write(work)
        self._clear()
        return number

    def drop_unfinished(self, pipeline: str) -> None:
        """Drop the generation that a stopped replay has not filled."""

        def work(connection: StoreConnection, again: bool) -> None:
            Catalog(connection).version(lock=True)
            generations.drop_unfinished(connection, pipeline)

        self.write(work)
        self._clear()

    def swap(self, pipeline: str, generation: int) -> int:
        """Serve a generation, unless it is served already."""

        def work(connection: StoreConnection, again: bool) -> int:
            catalog = Catalog(connection)
            version = catalog.version(lock=True)
            if catalog.in_state(pipeline, GenerationState.SERVING) == generation:
                return version
            generations.serve(connection, pipeline, generation, version + 1)
            catalog.advance(version + 1, self._clock(), pipeline)
            return version + 1

        version = self.write(work)
        self._clear()
        return version

    def rollback(self, pipeline: str) -> int:
        """Serve the previous generation again."""
        with self.read() as connection:
            previous = Catalog(connection).in_state(pipeline, GenerationState.PREVIOUS)
        if previous is None:
            raise NotFoundError(
                f"pipeline {pipeline!r} has no generation before the one that is served",
                "make one with millrace replay",
            )
        return self.swap(pipeline, previous)

    def drop(self, pipeline: str) -> None:
        """Drop all views of a pipeline."""
        self.generations(pipeline)  # refuses a store that does not exist, which a write would create

        def work(connection: StoreConnection, again: bool) -> None:
            catalog = Catalog(connection)
            version = catalog.version(lock=True)
            if again and all(each.state is GenerationState.DROPPED for each in catalog.generations(pipeline)):
                return
            generations.drop(connection, pipeline)
            catalog.advance(version + 1, self._clock(), pipeline)

        self.write(work)
        self._clear()

    def changes(self, view: str, since: int) -> pa.Table:
        """The changes of a view after a version."""
        with self.read() as connection:
            return reading.changes(connection, view, since)

    @contextmanager
    def open_view(self, view: str) -> Iterator[OpenView]:
        """A served view in one snapshot."""
        with self.read() as connection:
            yield reading.open_view(connection, view)

    def version(self) -> int:
        """The version of the last commit that changed something."""
        with self.read() as connection:
            return Catalog(connection).version()

    def views(self) -> list[ViewInfo]:
        """The served views."""
        with self.read() as connection:
            served = [kept for kept in Catalog(connection).views() if kept.changes is not None]
        return [
            ViewInfo(
                kept.shape.name,
                kept.pipeline,
                kept.rows,
                kept.changed,
                kept.generation,
                Schema((*kept.shape.columns, kept.shape.version)),
                kept.shape.key,
                kept.since,
                kept.shape.began,
            )
            for kept in served
        ]

    def rows(
        self,
        view: str,
        where: Sequence[Filter] = (),
        order: Sequence[Order] = (),
        limit: int | None = None,
        offset: int = 0,
    ) -> Snapshot:
        """Rows of a view."""
        with self.read() as connection:
            return reading.rows(connection, view, where, order, limit, offset)

    def query(
        self, sql: str, limit_seconds: float = 10, max_rows: int | None = None, params: Sequence[Any] = ()
    ) -> ViewRows:
        """The result of one SQL query."""
        found: list[tuple[Any, ...]] = []
        most = sys.maxsize if max_rows is None else max_rows + 1
        with self.select(sql, limit_seconds, params) as selected:
            while len(found) < most and (more := selected.fetch(min(_PIECE, most - len(found)))):
                found += more
        return ViewRows(selected.columns, found[:max_rows], max_rows is not None and len(found) > max_rows)

    @contextmanager
    def stream(
        self,
        view: str,
        where: Sequence[Filter] = (),
        order: Sequence[Order] = (),
        limit: int | None = None,
        offset: int = 0,
        rights: Rights = EVERYTHING,
    ) -> Iterator[Streamed]:
        """Rows of a view, read piece by piece."""
        with self.read() as connection:
            yield reading.stream(connection, view, where, order, limit, offset, rights)

    @contextmanager
    def stream_changes(self, view: str, since: int, rights: Rights = EVERYTHING) -> Iterator[Streamed]:
        """Changes of a view, read piece by piece."""
        with self.read() as connection:
            yield reading.stream_changes(connection, view, since, rights)

    @contextmanager
    def history(
        self, view: str, where: Sequence[Filter] = (), last: int = 1_000, rights: Rights = EVERYTHING
    ) -> Iterator[Streamed]:
        """The changes of some rows of a view, with times."""
        with self.read() as connection:
            yield reading.history(connection, view, where, last, rights)

    def trim(self, keep: Duration) -> None:
        """Remove changes that are older than `keep`."""
        self._trim(parse_duration(keep, "keep"))

    def _change(
        self,
        connection: StoreConnection,
        pipeline: str,
        generation: int,
        answers: Mapping[str, pa.Table],
        version: int,
        whole: bool,
        newer: bool = False,
    ) -> int:
        """Apply answers to views; returns the version, which is a new one if any row changed."""
        catalog = Catalog(connection)
        views = generations.of_generation(catalog, pipeline, generation)
        any_changed = False
        for name, table in answers.items():
            if name not in views:
                raise not_found("view", name, views, "open() makes the views of a pipeline")
            changed = change(connection, views[name], table, version + 1, whole, newer)
            if changed:
                catalog.count(views[name], changed.inserted - changed.deleted, version + 1)
                any_changed = True
        if any_changed:
            version += 1
            catalog.advance(version, self._clock(), pipeline)
        return version

    def _clear(self) -> None:
        """Remove the tables of dropped generations; a table that is being read is left for the next call."""
        with suppress(MillraceError):
            self.write(lambda connection, again: generations.clear(connection))

    def _trim(self, keep: int) -> None:
        self._trimmed = self._clock()
        before = self._trimmed - keep

        def work(connection: StoreConnection, again: bool) -> None:
            catalog = Catalog(connection)
            catalog.version(lock=True)
            last = catalog.last_before(before)
            for kept in catalog.views() if last is not None else ():
                if kept.changes is not None:
                    changes, version = quoted(kept.changes), quoted(kept.shape.version.name)
                    sql = f"SELECT max({version}) FROM {changes} WHERE {version} <= $1"
                    (forgotten,) = connection.execute(sql, (last,)).fetchone()
                    if forgotten is not None:
                        connection.execute(f"DELETE FROM {changes} WHERE {version} <= $1", (forgotten,))
                        catalog.forget(kept, forgotten)

        self.write(work)
