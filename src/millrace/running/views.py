"""The views of a pipeline in a store, as the hosts see them: where answers go, and tables that are looked up."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.arrow import arrow_type
from millrace.model.connectors import Commit
from millrace.model.errors import PipelineError, unknown
from millrace.model.pipeline import Pipeline
from millrace.model.stream import Table
from millrace.spark.snapshots import tables_of
from millrace.views.shape import ViewShape, shape_of
from millrace.views.store import GenerationState, NoViewsError, Store, open_store


def shapes_of(pipeline: Pipeline) -> list[ViewShape]:
    """The shapes of a pipeline's views."""
    return [shape_of(name, query) for name, query in pipeline.views.items()]


def serving(store: Store, pipeline: str) -> int:
    """The generation of a pipeline's views that is read; if there is none, the one that will be."""
    try:
        known = store.generations(pipeline)
    except NoViewsError:
        return 1
    new = max((each.number for each in known), default=0) + 1
    return next((each.number for each in known if each.state is GenerationState.SERVING), new)


class KeptViews:
    """Where the answers of a pipeline's views go; what `millrace.spark.writers.Views` says."""

    def __init__(
        self, store: Store, pipeline: Pipeline, generation: int | None = None, boundary: Path | None = None
    ) -> None:
        """Make what is missing. Refuses views that are there and are others. `boundary` is the file of layers."""
        self._store, self._pipeline, self._generation, self._boundary = store, pipeline, generation, boundary
        if pipeline.views:
            served = generation == serving(store, pipeline.name)
            store.open(pipeline.name, shapes_of(pipeline), None if served else generation)

    def write(self, answers: Mapping[str, pa.Table], commit: Commit, once: bool) -> None:
        """Take in the answers of a micro-batch, in one transaction."""
        boundary = read_boundary(self._boundary)
        if boundary is not None:  # what is over by then is the batch layer's
            answers = {name: _after(rows, boundary) for name, rows in answers.items()}
        self._store.commit(commit.pipeline, commit.checkpoint, commit.batch, answers, once, generation=self._generation)

    def replace(self, answers: Mapping[str, pa.Table]) -> None:
        """Hold the answers of a batch and no others."""
        self._store.replace(self._pipeline.name, answers, generation=self._generation)


def read_boundary(path: Path | None) -> int | None:
    """Up to when windows are the batch layer's, in microseconds; None if there is no such layer."""
    try:
        return None if path is None else int(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _after(rows: pa.Table, boundary: int) -> pa.Table:
    return rows.filter(pc.greater(rows["window_end"].cast(pa.int64()), boundary))


@dataclass(frozen=True, slots=True)
class ViewLookup:
    """A view as a table to join with."""

    store: str
    table: Table

    def stamp(self) -> Hashable:
        """The version of the store."""
        return _opened(self.store).version()

    def read(self) -> pa.Table:
        """The rows, in the columns of the table. Refuses a view without them."""
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
    at = store if "://" in store else str(Path(store).absolute())  # Spark's processes may be elsewhere
    return {name: ViewLookup(at, table) for name, table in joined.items() if table.view is not None}


@lru_cache(4)
def _opened(store: str) -> Store:
    return open_store(store)
