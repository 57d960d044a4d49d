"""A store and a log that this process opens itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.client.connection import Connection
from millrace.client.dead import DeadLetters, LocalDead
from millrace.client.live_link import Link
from millrace.client.live_local import LocalLink
from millrace.client.result import Result
from millrace.eventlog.topics import Log, existing_log
from millrace.letters.box import find_box
from millrace.model.errors import PipelineError
from millrace.sources.collect import keys_of
from millrace.views.store import Store
from millrace.views.tabular import table_of


class LocalConnection(Connection):
    """A connection to a store and to the log beside it, if there is one."""

    def __init__(self, store: Store, log: Path | None, folder: Path | None = None) -> None:
        """`log` is the file of the log. It is opened when it is used. `folder` is that of the checkpoints."""
        self._store, self._path, self._folder = store, log, folder
        self._log: Log | None = None

    def query(self, sql: str, params: Sequence[Any] = (), *, seconds: float = 10.0) -> Result:
        """The answer to one SQL query."""
        return Result(table_of(self._store.query(sql, seconds, params=params)))

    def view(self, name: str) -> Result:
        """All rows of a view."""
        found = self._store.rows(name)
        return Result(found.rows, found.version)

    def changes(self, name: str, since: int) -> Result:
        """The changes of a view after a version."""
        return changed(self._store.changes(name, since), since)

    def views(self) -> Result:
        """The views."""
        rows = [
            {
                "view": view.name, "pipeline": view.pipeline, "rows": view.rows, "version": view.version,
                "generation": view.generation, "records_since": view.records_since,
                "columns": ", ".join(f"{column.name} {column.type}" for column in view.columns),
            }
            for view in self._store.views()
        ]  # fmt: skip
        return Result(pa.Table.from_pylist(rows, VIEWS))

    def topics(self) -> Result:
        """The topics."""
        log = self._opened()
        rows = [
            {
                "topic": topic.name, "partitions": topic.partitions,
                "records": sum(log.ends(topic.name)) - sum(log.starts(topic.name)),
                "behind": lags(log.lag(topic.name)),
            }
            for topic in log.topics()
        ]  # fmt: skip
        return Result(pa.Table.from_pylist(rows, TOPICS))

    def dead(self, pipeline: str) -> DeadLetters:
        """The dead letters of a pipeline."""
        if self._folder is None:
            advice = "connect to the folder of its checkpoint: connect('.millrace')"
            raise PipelineError("a connection to a store has no dead letters", advice)
        return LocalDead(find_box(self._folder, pipeline), self._opened)

    def _link(self) -> tuple[Link, str]:
        return LocalLink(self._store), self._store.url

    def close(self) -> None:
        """Close the store and the log."""
        self._store.close()
        if self._log is not None:
            self._log.close()

    def _append(self, topic: str, values: pa.Array, key: str | None) -> None:
        self._opened().append(topic, values, None if key is None else keys_of(values, key))

    def _opened(self) -> Log:
        if self._log is None:
            if self._path is None:
                advice = "pass the file of the log: connect(..., log='.millrace/log.db')"
                raise PipelineError("the connection has no log", advice)
            self._log = existing_log(self._path)
        return self._log


VIEWS = pa.schema(
    [
        ("view", pa.string()), ("pipeline", pa.string()), ("rows", pa.int64()), ("version", pa.int64()),
        ("generation", pa.int64()), ("records_since", pa.string()), ("columns", pa.string()),
    ]
)  # fmt: skip
TOPICS = pa.schema(
    [
        ("topic", pa.string()), ("partitions", pa.int64()), ("records", pa.int64()),
        ("behind", pa.list_(pa.struct([("pipeline", pa.string()), ("records", pa.int64())]))),
    ]
)  # fmt: skip


def lags(behind: Mapping[str, int]) -> list[dict[str, str | int]]:
    """The lag of each consumer group, as a value of the column `behind` of topics."""
    return [{"pipeline": pipeline, "records": records} for pipeline, records in behind.items()]


def changed(changes: pa.Table, since: int) -> Result:
    """Changes with the version to continue from. The last two columns are the version and the diff under any name."""
    versions = changes.columns[-2]
    return Result(changes, versions[len(changes) - 1].as_py() if len(changes) else since)
