"""The catalog of a store: its metadata, in tables whose names start with `millrace_`."""

import uuid
from dataclasses import dataclass

from millrace.model.connectors import Commit
from millrace.model.errors import ConflictError, not_found
from millrace.views.dialect import Dialect, StoreConnection
from millrace.views.shape import ViewShape, shape_from_json
from millrace.views.store import Generation, GenerationState
from millrace.views.tables import Tables

FORMAT = 2
"""The format of these tables; another release wrote a store with another format."""

_TABLES = (
    "millrace_store (format INTEGER NOT NULL, version BIGINT NOT NULL, id TEXT NOT NULL)",
    "millrace_versions (version BIGINT PRIMARY KEY, at BIGINT NOT NULL, pipeline TEXT NOT NULL)",
    "millrace_generations (pipeline TEXT, generation INTEGER, state TEXT NOT NULL, PRIMARY KEY (pipeline, generation))",
    "millrace_views (view TEXT, generation INTEGER, pipeline TEXT NOT NULL, shape TEXT NOT NULL, "
    "row_count BIGINT NOT NULL, changed BIGINT NOT NULL, changes TEXT, changes_since BIGINT, "
    "PRIMARY KEY (view, generation))",
    "millrace_commits (pipeline TEXT, generation INTEGER, checkpoint_id TEXT NOT NULL, last_batch BIGINT NOT NULL, "
    "digest TEXT NOT NULL, version BIGINT NOT NULL, PRIMARY KEY (pipeline, generation))",
)


@dataclass(frozen=True, slots=True)
class ViewGeneration:
    """A generation of a view."""

    shape: ViewShape
    generation: int
    pipeline: str
    rows: int
    changed: int
    """The version of its last change."""
    changes: str | None = None
    """The name of its table of changes; None if it is not served."""
    since: int = 0
    """Changes after this version are available."""

    def tables(self, dialect: Dialect) -> Tables:
        """Its tables."""
        return Tables(self.shape, self.generation, dialect)


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The last commit to a generation of a pipeline's views, and the version that it made."""

    commit: Commit
    version: int


class Catalog:
    """The catalog tables, within a transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    def create(self) -> None:
        """Create the tables if they do not exist. Refuses those of another release."""
        if self._connection.dialect.alone:
            self._connection.execute(self._connection.dialect.alone)
        for table in _TABLES:
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        found = self._connection.execute("SELECT format FROM millrace_store").fetchone()
        if found is None:
            self._connection.execute("INSERT INTO millrace_store VALUES ($1, 0, $2)", (FORMAT, uuid.uuid4().hex))
        elif found[0] != FORMAT:
            raise ConflictError(
                f"the store is of another release of Millrace (format {found[0]}, not {FORMAT})",
                "run that release, or compute the views again into another store: millrace replay FILE --store NEW",
            )

    def version(self, lock: bool = False) -> int:
        """The version of the store; `lock` blocks other writers until the end of the transaction."""
        suffix = self._connection.dialect.for_update if lock else ""
        found: int = self._connection.execute(f"SELECT version FROM millrace_store{suffix}").fetchone()[0]
        return found

    def advance(self, version: int, at: int, pipeline: str) -> None:
        """Advance the store to a version."""
        self._connection.execute("UPDATE millrace_store SET version = $1", (version,))
        self._connection.execute("INSERT INTO millrace_versions VALUES ($1, $2, $3)", (version, at, pipeline))

    def generations(self, pipeline: str) -> list[Generation]:
        """The generations of a pipeline's views, including dropped ones."""
        sql = "SELECT generation, state FROM millrace_generations WHERE pipeline = $1 ORDER BY generation"
        return [
            Generation(number, GenerationState(state))
            for number, state in self._connection.execute(sql, (pipeline,)).fetchall()
        ]

    def in_state(self, pipeline: str, state: GenerationState) -> int | None:
        """The generation in a state that at most one generation has; None if there is none."""
        return next((each.number for each in self.generations(pipeline) if each.state is state), None)

    def id(self) -> str:
        """The id of the store, which no other store has."""
        return str(self._connection.execute("SELECT id FROM millrace_store").fetchone()[0])

    def add_generation(self, pipeline: str, state: GenerationState, least: int = 1) -> int:
        """Add a generation; returns its number: at least `least`, and never one that was used before."""
        number = max([least - 1, *(each.number for each in self.generations(pipeline))]) + 1
        self._connection.execute("INSERT INTO millrace_generations VALUES ($1, $2, $3)", (pipeline, number, str(state)))
        return number

    def set_state(self, pipeline: str, generation: int, state: GenerationState) -> None:
        """Set the state of a generation."""
        sql = "UPDATE millrace_generations SET state = $1 WHERE pipeline = $2 AND generation = $3"
        self._connection.execute(sql, (str(state), pipeline, generation))

    def views(self) -> list[ViewGeneration]:
        """All generations of all views."""
        sql = (
            "SELECT shape, generation, pipeline, row_count, changed, changes, changes_since FROM millrace_views "
            "ORDER BY view, generation"
        )
        return [
            ViewGeneration(shape_from_json(shape), *rest) for shape, *rest in self._connection.execute(sql).fetchall()
        ]

    def of_generation(self, pipeline: str, generation: int) -> dict[str, ViewGeneration]:
        """The views of a generation, by name."""
        return {
            kept.shape.name: kept
            for kept in self.views()
            if kept.pipeline == pipeline and kept.generation == generation
        }

    def dropped(self) -> list[ViewGeneration]:
        """The views of dropped generations."""
        sql = "SELECT pipeline, generation FROM millrace_generations WHERE state = $1"
        numbers = set(map(tuple, self._connection.execute(sql, (str(GenerationState.DROPPED),)).fetchall()))
        return [kept for kept in self.views() if (kept.pipeline, kept.generation) in numbers]

    def served(self, view: str) -> ViewGeneration:
        """The served generation of a view."""
        served = {kept.shape.name: kept for kept in self.views() if kept.changes is not None}
        if view not in served:
            raise not_found("view", view, served, "millrace views lists the views")
        return served[view]

    def put(self, kept: ViewGeneration) -> None:
        """Insert or replace a generation of a view."""
        key = (kept.shape.name, kept.generation)
        self.remove(kept)
        values = (*key, kept.pipeline, kept.shape.to_json(), kept.rows, kept.changed, kept.changes, kept.since)
        marks = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        self._connection.execute(f"INSERT INTO millrace_views VALUES ({marks})", values)

    def count(self, kept: ViewGeneration, added: int, version: int) -> None:
        """Record a change of a generation of a view: the rows added, and the version."""
        sql = "UPDATE millrace_views SET row_count = row_count + $1, changed = $2 WHERE view = $3 AND generation = $4"
        self._connection.execute(sql, (added, version, kept.shape.name, kept.generation))

    def forget(self, kept: ViewGeneration, version: int) -> None:
        """Record that the changes of a view up to a version were removed."""
        sql = "UPDATE millrace_views SET changes_since = $1 WHERE view = $2 AND generation = $3"
        self._connection.execute(sql, (version, kept.shape.name, kept.generation))

    def remove(self, kept: ViewGeneration) -> None:
        """Delete a generation of a view from the catalog."""
        key = (kept.shape.name, kept.generation)
        self._connection.execute("DELETE FROM millrace_views WHERE view = $1 AND generation = $2", key)

    def last_commit(self, pipeline: str, generation: int) -> CommittedBatch | None:
        """The last commit to a generation; None if there is none."""
        sql = (
            "SELECT checkpoint_id, last_batch, digest, version FROM millrace_commits "
            "WHERE pipeline = $1 AND generation = $2"
        )
        found = self._connection.execute(sql, (pipeline, generation)).fetchone()
        return None if found is None else CommittedBatch(Commit(pipeline, *found[:3]), found[3])

    def record(self, generation: int, done: CommittedBatch) -> None:
        """Record the last commit to a generation."""
        key = (done.commit.pipeline, generation)
        self._connection.execute("DELETE FROM millrace_commits WHERE pipeline = $1 AND generation = $2", key)
        sql = "INSERT INTO millrace_commits VALUES ($1, $2, $3, $4, $5, $6)"
        values = (*key, done.commit.checkpoint, done.commit.batch, done.commit.digest, done.version)
        self._connection.execute(sql, values)

    def last_before(self, at: int) -> int | None:
        """The last version committed before an instant; the commit times of versions up to it are deleted."""
        found: int | None = self._connection.execute(
            "SELECT max(version) FROM millrace_versions WHERE at < $1", (at,)
        ).fetchone()[0]
        if found is not None:
            self._connection.execute("DELETE FROM millrace_versions WHERE version <= $1", (found,))
        return found
