"""A store of views: the rows of each view, its changes by version, and its generations.

A view belongs to a pipeline. Every commit that changes a row increments the version of the store. Commits are atomic:
readers see all of a commit or nothing. A row has the version that wrote it; a change has the version at which the row
was added (+1) or removed (-1).

A replay fills a new *generation* of a pipeline's views beside the served one, and `swap` then serves the new one. A
generation records its last commit, and accepts only the one after it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from millrace.model.connectors import Commit
from millrace.model.duration import Duration, to_datetime
from millrace.model.errors import MachineError, NotFoundError, PipelineError, unknown
from millrace.model.extra import extra
from millrace.model.schema import Schema
from millrace.views.rights import EVERYTHING, Rights
from millrace.views.shape import ViewShape

KEEP = "1h"
"""How long changes stay available by default."""

Filter: TypeAlias = tuple[str, str, Any]
"""A column, one of `=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, and a value (several for `in`), which may be text."""
Order: TypeAlias = tuple[str, str]
"""A column, and `asc` or `desc`; NULL is the smallest value, as in Spark."""


class ForgottenError(NotFoundError):
    """The requested changes are no longer available; read the rows, and continue from their version."""


class NoViewsError(NotFoundError):
    """The store does not exist, or holds no views."""


class GenerationState(StrEnum):
    """The state of a generation."""

    FILLING = "filling"
    SERVING = "serving"
    PREVIOUS = "previous"
    """It was served before the present one, and is kept for rollback."""
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of a pipeline's views."""

    number: int
    state: GenerationState


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """The metadata of a served view."""

    name: str
    pipeline: str
    rows: int
    version: int
    """The version of its last change."""
    generation: int
    columns: Schema
    """Its columns; the last is the version that wrote a row."""
    key: tuple[str, ...]
    since: int
    """Its changes after this version are available."""
    began: int | None = None
    """When it was added, in microseconds since 1970, if it has missed the records before that."""

    @property
    def records_since(self) -> str | None:
        """When it was added, as text, if it has missed the records before that."""
        return None if self.began is None else to_datetime(self.began).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows of a view, and the version of the store at which they were read."""

    version: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class ViewRows:
    """The result of an SQL query, with values in the representation of the database."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool = False
    """Whether the limit cut off further rows."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The result of an SQL query, while it is read."""

    columns: tuple[str, ...]
    fetch: Callable[[int], list[tuple[Any, ...]]]
    """The next rows, at most as many as asked for; none at the end."""
    state: str | None = None
    """Equal for two answers of the same query only if they are equal; None if that is not known."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """Rows or changes of a view, while they are read."""

    version: int
    """The version of the store at which they are read."""
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    state: str
    """Equal for two answers of the same request only if their rows are equal."""


@dataclass(frozen=True, slots=True)
class OpenView:
    """A served view in one snapshot of the database."""

    version: int
    """The version of the store."""
    generation: int
    table: str
    """SQL for the table of its rows."""
    dialect: str
    """The name of the database's SQL: sqlite or postgres."""
    rows: Callable[[str, Sequence[Any], Sequence[str]], pa.Table]
    """The rows that an SQL statement selects, given its parameters and the columns of the view that it selects."""
    changes: Callable[[int], pa.Table]
    """The changes after a version, as `Store.changes` gives them."""


class Store(Protocol):
    """A database that stores views. Every failure is a MillraceError with advice."""

    @property
    def url(self) -> str:
        """The URL by which another process opens the store."""

    def open(self, pipeline: str, shapes: Sequence[ViewShape], generation: int | None = None) -> None:
        """Create the missing views of a generation; the default is the served one.

        If none is served yet, a generation that does not exist is created, and served. Refuses a view that exists with
        another shape, or that belongs to another pipeline.
        """

    def check(self, pipeline: str, shapes: Sequence[ViewShape], generation: int | None = None) -> None:
        """Refuse what `open` refuses, and change nothing."""

    def claim(self, pipeline: str, generation: int) -> AbstractContextManager[None]:
        """Keep other runs from writing to a generation of a pipeline's views until the block ends, or the process.

        Raises MachineError if another run has claimed it.
        """

    def id(self) -> str:
        """The id of the store, which no other store has."""

    def last_commit(self, pipeline: str, generation: int) -> Commit | None:
        """The last commit to a generation of a pipeline's views; None if there is none."""

    def commit(
        self,
        commit: Commit,
        answers: Mapping[str, pa.Table],
        once: bool,
        generation: int | None = None,
        newer: bool = False,
    ) -> int | None:
        """Apply the answers of a micro-batch to a generation of views and record the commit, in one transaction.

        The default generation is the served one. Answers are ordered within a view: of several for the same key, the
        last counts. A diff of +1 upserts the row of its key, -1 deletes it. With `once` the commit is idempotent: it
        does nothing if it is recorded already. Returns the version that holds the answers; None if it did nothing.
        Raises ConflictError if the last recorded commit is not the one before. With `newer`, an answer replaces a row
        only if the index of its pane is greater.
        """

    def correct(self, pipeline: str, answers: Mapping[str, pa.Table], generation: int | None = None) -> int:
        """Apply answers as `commit` does, but record no commit."""

    def replace(self, pipeline: str, answers: Mapping[str, pa.Table], generation: int | None = None) -> int:
        """Replace all rows of views by the answers of a batch, in one transaction."""

    def generations(self, pipeline: str) -> list[Generation]:
        """The generations of a pipeline's views, in order, including dropped ones."""

    def begin_generation(self, pipeline: str, shapes: Sequence[ViewShape], least: int = 1) -> int:
        """Create a new generation to fill, with a number of at least `least`; an unfinished one is dropped."""

    def drop_unfinished(self, pipeline: str) -> None:
        """Drop the generation that a stopped replay has not filled, if there is one."""

    def swap(self, pipeline: str, generation: int) -> int:
        """Serve a filled generation, and keep the one before it for rollback. Returns the version.

        The differences are logged as changes of the views. A view whose columns differ loses its earlier changes.
        """

    def rollback(self, pipeline: str) -> int:
        """Serve the previous generation again. Returns the version."""

    def drop(self, pipeline: str) -> None:
        """Drop all views of a pipeline; its next run computes them anew.

        Refuses a pipeline without views.
        """

    def changes(self, view: str, since: int) -> pa.Table:
        """The changes of a view after a version: rows with version and diff, ordered by version, -1 before +1.

        Raises ForgottenError if some of them are no longer available.
        """

    def open_view(self, view: str) -> AbstractContextManager[OpenView]:
        """A served view in one snapshot, for reads that belong together."""

    def version(self) -> int:
        """The version of the last commit that changed something."""

    def views(self) -> list[ViewInfo]:
        """The served views, by name."""

    def query(
        self, sql: str, limit_seconds: float = 10, max_rows: int | None = None, params: Sequence[Any] = ()
    ) -> ViewRows:
        """The result of one read-only SQL query; `$1` is the first parameter.

        Refuses parameters that the query does not use.
        """

    def rows(
        self,
        view: str,
        where: Sequence[Filter] = (),
        order: Sequence[Order] = (),
        limit: int | None = None,
        offset: int = 0,
    ) -> Snapshot:
        """The rows of a view for which all filters hold, sorted by `order` and then by key, with the view's types."""

    def select(
        self, sql: str, limit_seconds: float = 10, params: Sequence[Any] = (), rights: Rights | None = None
    ) -> AbstractContextManager[Selected]:
        """The result of one read-only SQL query, read piece by piece.

        With `rights` the query is that of a client: it may use only what `views.guarded` allows to such a caller.
        """

    def stream(
        self,
        view: str,
        where: Sequence[Filter] = (),
        order: Sequence[Order] = (),
        limit: int | None = None,
        offset: int = 0,
        rights: Rights = EVERYTHING,
    ) -> AbstractContextManager[Streamed]:
        """The rows that `rows` gives, as far as a caller may see them, read piece by piece."""

    def stream_changes(self, view: str, since: int, rights: Rights = EVERYTHING) -> AbstractContextManager[Streamed]:
        """The changes that `changes` gives, as far as a caller may see them, read piece by piece."""

    def history(
        self, view: str, where: Sequence[Filter] = (), last: int = 1_000, rights: Rights = EVERYTHING
    ) -> AbstractContextManager[Streamed]:
        """The last of the available changes of rows for which all filters hold, in the order of `changes`.

        After the columns of `changes` comes `committed`, the time of the commit.
        """

    def trim(self, keep: Duration) -> None:
        """Remove changes that are older than `keep`. Commits do so once a minute."""

    def close(self) -> None:
        """Close the connections to the database."""


def claimed(pipeline: str, where: str) -> MachineError:
    """The error for views that another run writes to."""
    return MachineError(f"another run of {pipeline} writes to its views in {where}", "stop that run first")


def open_store(url: str | Path, keep: Duration = KEEP) -> Store:
    """A store by its URL: `postgresql://...`, `sqlite:///file`, or the path of a file. Changes are kept for `keep`."""
    file = file_of(url)
    if file is None:
        with extra("postgresql", "a PostgreSQL store"):
            from millrace.views.postgresql import PostgresqlStore

        return PostgresqlStore(str(url), keep)
    from millrace.views.sqlite import SqliteStore

    return SqliteStore(file, keep)


def file_of(url: str | Path) -> Path | None:
    """The file of an SQLite store by its URL; None for a PostgreSQL store. Refuses a URL of another kind."""
    text = str(url)
    scheme, separator, rest = text.partition("://")
    if scheme in ("postgresql", "postgres") and separator:
        return None
    if separator and (scheme != "sqlite" or not rest.startswith("/")):
        raise PipelineError(
            f"{unknown('store', scheme, ('sqlite', 'postgresql'))}; write sqlite:///file or postgresql://..."
        )
    return Path(rest[1:] if separator else text)
