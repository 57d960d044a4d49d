"""A store of views: the rows of each, their changes by version, and what replays put in their place.

A view belongs to a pipeline. Every commit that changes something has a version, counted up in a store, and all that it
changes has it at once: whoever reads sees all of a commit or nothing. A row tells which version wrote it, and a change
at which version the row came (+1) or went (-1).

A replay fills a new *generation* of a pipeline's views beside the one that is served, and takes its place by `swap`.
The answers of a checkpoint go to one generation for good: the one that was served at its first commit, or that it
named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from millrace.model.duration import Duration
from millrace.model.errors import NotFoundError, PipelineError, unknown
from millrace.model.extra import extra
from millrace.model.schema import Schema
from millrace.views.shape import ViewShape

KEEP = "1h"
"""For how long changes are kept, if nothing else is said."""

Filter: TypeAlias = tuple[str, str, Any]
"""A column, one of `=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, and a value, or several for `in`; the value may be text."""
Order: TypeAlias = tuple[str, str]
"""A column, and `asc` or `desc`; NULL comes before all else, as in Spark."""


class ForgottenError(NotFoundError):
    """The changes that are asked for are not kept; take the rows, and go on from their version."""


class NoViewsError(NotFoundError):
    """Nothing was ever kept there."""


class GenerationState(StrEnum):
    """What a generation is."""

    FILLING = "filling"
    SERVING = "serving"
    PREVIOUS = "previous"
    """It was served before, and can be again."""
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of a pipeline's views."""

    number: int
    state: GenerationState


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """What is known of a view that is served."""

    name: str
    pipeline: str
    rows: int
    version: int
    """The version of its last change."""
    generation: int
    columns: Schema
    """Its columns; the last says which version wrote a row."""
    key: tuple[str, ...]
    since: int
    """Its changes after this version are kept."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows of a view, and the version of the store that they are of."""

    version: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class ViewRows:
    """What an SQL query gives, with values as the database has them."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool = False
    """Whether there are more rows than were asked for."""


class Store(Protocol):
    """Somewhere that views are kept. All that goes wrong is a MillraceError that says what to do."""

    def open(self, pipeline: str, shapes: Sequence[ViewShape], generation: int | None = None) -> None:
        """Make the views that are missing, in a generation, or in the one that is served.

        Refuses a view that is there with another shape, or that is another pipeline's.
        """

    def commit(
        self,
        pipeline: str,
        checkpoint: str,
        batch: int,
        answers: Mapping[str, pa.Table],
        once: bool,
        generation: int | None = None,
    ) -> int | None:
        """Change views by the answers of a micro-batch, and record that, in one transaction.

        Answers come by view, in order: of several for the same key the last counts. +1 puts a row in the place of that
        of its key, -1 removes that. If `once`, nothing is done if this batch of the checkpoint is recorded already, or
        a later one. Gives the version that has the answers; None if nothing was done.
        """

    def replace(self, pipeline: str, answers: Mapping[str, pa.Table], generation: int | None = None) -> int:
        """Make views have these rows and no others, in one transaction: the answers of a batch."""

    def generations(self, pipeline: str) -> list[Generation]:
        """The generations of a pipeline's views, in order, also those that were dropped."""

    def begin_generation(self, pipeline: str, shapes: Sequence[ViewShape]) -> int:
        """Make a new generation, to be filled; one that was not finished is dropped."""

    def swap(self, pipeline: str, generation: int) -> int:
        """Serve a generation that was filled, and keep the one before it. Gives the version.

        The changes of views say what differs. Where the columns do, changes from before are not kept.
        """

    def rollback(self, pipeline: str) -> int:
        """Serve the generation again that was served before. Gives the version."""

    def drop(self, pipeline: str) -> None:
        """Let go of all views of a pipeline, which are computed anew when it is run again.

        Refuses a pipeline that has none.
        """

    def changes(self, view: str, since: int) -> pa.Table:
        """What changed after a version: rows with their version and a diff, in order of versions, -1 before +1.

        Raises ForgottenError if changes from then on are not kept.
        """

    def version(self) -> int:
        """The version of the last commit that changed something."""

    def views(self) -> list[ViewInfo]:
        """The views that are served, by name."""

    def query(
        self, sql: str, limit_seconds: float = 10, max_rows: int | None = None, params: Sequence[Any] = ()
    ) -> ViewRows:
        """The answer to one SQL query, which reads and cannot do anything else; `$1` is the first parameter.

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
        """Rows of a view for which all filters hold, sorted as told and then by key, typed as its columns are."""

    def trim(self, keep: Duration) -> None:
        """Forget changes that are older. Commits do so now and then by themselves."""

    def close(self) -> None:
        """Let go of the database."""


def open_store(url: str | Path, keep: Duration = KEEP) -> Store:
    """A store by its URL: `postgresql://...`, `sqlite:///file`, or the path of a file. Changes are kept for `keep`."""
    text = str(url)
    scheme, separator, rest = text.partition("://")
    if scheme in ("postgresql", "postgres") and separator:
        with extra("postgresql", "a PostgreSQL store"):
            from millrace.views.postgresql import PostgresqlStore

        return PostgresqlStore(text, keep)
    if separator and (scheme != "sqlite" or not rest.startswith("/")):
        raise PipelineError(
            f"{unknown('store', scheme, ('sqlite', 'postgresql'))}; write sqlite:///file or postgresql://..."
        )
    from millrace.views.sqlite import SqliteStore

    return SqliteStore(Path(rest[1:] if separator else text), keep)
