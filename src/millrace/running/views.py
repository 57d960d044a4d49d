"""The views of a pipeline in a store: writes answers to them, and reads them as joined tables."""

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.arrow import arrow_type
from millrace.model.connectors import Commit
from millrace.model.errors import PipelineError, unknown
from millrace.model.pipeline import Pipeline
from millrace.model.stream import Table
from millrace.plan.compile import view_id
from millrace.running.preflight import serving
from millrace.spark.snapshots import tables_of
from millrace.views.shape import ViewShape, shape_of
from millrace.views.store import Store, open_store

_LOGGER = logging.getLogger("millrace")


def shapes_of(pipeline: Pipeline, began: Mapping[str, int] | None = None) -> list[ViewShape]:
    """The shapes of a pipeline's views. `began` has the ids of those that missed earlier records."""
    missed = began or {}
    shapes = [shape_of(name, query) for name, query in pipeline.views.items()]
    return [replace(shape, began=missed.get(view_id(shape.name))) for shape in shapes]


class KeptViews:
    """Writes the answers of a pipeline's views to a store; implements `millrace.spark.writers.Views`."""

    def __init__(
        self,
        store: Store,
        pipeline: Pipeline,
        generation: int | None = None,
        boundary: Path | None = None,
        began: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Refuse views that exist with another shape; the first answers create missing ones.

        So a run that fails before its first commit leaves nothing in the store. `boundary` is the batch layer's file;
        `began` returns when the outputs that missed earlier records were added, by id.
        """
        self._began = began
        self._store, self._pipeline, self._generation, self._boundary = store, pipeline, generation, boundary
        self._is_open = False
        self._is_served = False
        """Whether the generation was served at the last commit."""
        store.check(pipeline.name, shapes_of(pipeline), generation)

    def write(self, answers: Mapping[str, pa.Table], commit: Commit, once: bool) -> None:
        """Commit the answers of a micro-batch in one transaction."""
        boundary = read_boundary(self._boundary)
        if boundary is not None:  # earlier windows belong to the batch layer
            answers = {name: _after(rows, boundary) for name, rows in answers.items()}
        self.open()
        self._store.commit(commit, answers, once, generation=self._generation)
        if self._is_served and self._generation != serving(self._store, self._pipeline.name):
            self._is_served = False
            _LOGGER.warning(
                "a replay has replaced the views that this run of %s writes to: stop it, and run it again",
                self._pipeline.name,
            )

    def correct(self, answers: Mapping[str, pa.Table]) -> None:
        """Apply answers of the batch layer, which are no micro-batch."""
        self.open()
        self._store.correct(self._pipeline.name, answers, generation=self._generation)

    def replace(self, answers: Mapping[str, pa.Table]) -> None:
        """Replace all rows of the views by the answers of a batch."""
        self.open()
        self._store.replace(self._pipeline.name, answers, generation=self._generation)

    def open(self) -> None:
        """Create the missing views; every write does it first."""
        if not self._is_open:
            self._store.open(self._pipeline.name, shapes_of(self._pipeline, self._began()), self._generation)
            self._is_open = True
            self._is_served = bool(self._pipeline.views) and self._generation == serving(
                self._store, self._pipeline.name
            )


def read_boundary(path: Path | None) -> int | None:
    """The instant up to which windows belong to the batch layer, in microseconds; None if there is no such layer."""
    try:
        return None if path is None else int(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _after(rows: pa.Table, boundary: int) -> pa.Table:
    return rows.filter(pc.greater(rows["window_end"].cast(pa.int64()), boundary))


@dataclass(frozen=True, slots=True)
class ViewLookup:
    """A view as a joined table."""

    store: str
    table: Table

    def stamp(self) -> Hashable:
        """The version of the store, which changes when the rows may have changed."""
        return _opened(self.store).version()

    def read(self) -> pa.Table:
        """The rows, with the columns of the table. Refuses a view that lacks one of them."""
        view = str(self.table.view)
        rows = _opened(self.store).rows(view).rows
        columns = {}
        for column in self.table.schema:
            if column.name not in rows.column_names:
                raise PipelineError(f"table {self.table.name!r}: " + unknown("column", column.name, rows.column_names))
            columns[column.name] = rows[column.name].cast(arrow_type(column.type))
        return pa.table(columns)


def lookups(pipeline: Pipeline, store: str) -> dict[str, ViewLookup]:
    """The tables of a pipeline that are views of a store, by name."""
    joined = tables_of(pipeline.streams)
    at = store if "://" in store else str(Path(store).absolute())  # Spark's processes may have another working folder
    return {name: ViewLookup(at, table) for name, table in joined.items() if table.view is not None}


@lru_cache(4)
def _opened(store: str) -> Store:
    return open_store(store)
