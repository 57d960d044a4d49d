"""The interface of a connection, to a local store and log or to a server."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from millrace.client.dead import DeadLetters
from millrace.client.live_async import AsyncLiveRows
from millrace.client.live_link import Link
from millrace.client.live_rows import LiveRows
from millrace.client.live_session import LiveSession
from millrace.client.records import Records, texts_of
from millrace.client.result import Result


class Connection(ABC):
    """Views to read and topics to send to. `millrace.connect` makes one. Reading creates no files."""

    @abstractmethod
    def query(self, sql: str, params: Sequence[Any] = (), *, seconds: float = 10.0) -> Result:
        """The answer to one SQL query that reads, in the SQL of the store; `$1` is the first of `params`.

        Values have the types of the store: SQLite stores times as text. `view` and `changes` return typed columns. A
        query that takes longer than `seconds` is cancelled.
        """

    @abstractmethod
    def view(self, name: str) -> Result:
        """All rows of a view, with the version of the view."""

    @abstractmethod
    def changes(self, name: str, since: int) -> Result:
        """The rows that were added (diff +1) and removed (diff -1) after a version, in order.

        Pass the `version` of the result to the next call. Raises ForgottenError if the store no longer holds all
        changes since then: read the rows with `view`, and continue from their version.
        """

    def live(
        self, sql: str, params: Sequence[Any] = (), *, min_interval: float = 0.0, up_to: int | None = None
    ) -> LiveRows:
        """The rows of a query as they are now, and their changes; returns when the first rows are there.

        `sql` is `SELECT columns FROM view`, with WHERE, ORDER BY, LIMIT and OFFSET as far as docs/live.md says; `$1` is
        the first of `params`. Between two states at least `min_interval` seconds pass. The query ends by itself with
        the version `up_to`. It connects again when the connection breaks.
        """
        return LiveRows(LiveSession(sql, params, min_interval, up_to), *self._link())

    def live_async(
        self, sql: str, params: Sequence[Any] = (), *, min_interval: float = 0.0, up_to: int | None = None
    ) -> AsyncLiveRows:
        """The same as `live` for asyncio: `async with db.live_async(sql) as rows:`."""
        return AsyncLiveRows(LiveSession(sql, params, min_interval, up_to), *self._link())

    @abstractmethod
    def _link(self) -> tuple[Link, str]:
        """The way of live queries, and the name of its end."""

    @abstractmethod
    def views(self) -> Result:
        """The views: view, pipeline, rows, version, generation, columns."""

    @abstractmethod
    def topics(self) -> Result:
        """The topics: topic, partitions, number of stored records, and the lag of each consumer group."""

    @abstractmethod
    def dead(self, pipeline: str) -> DeadLetters:
        """The dead letters of a pipeline, to read, fix, send again and drop."""

    def send(self, topic: str, records: Records, key: str | None = None) -> int:
        """Append records to a topic, and return how many, when they are on the disk.

        Records are dicts, an Arrow table, or JSON text: lines of objects or an array of them. `key` is the field whose
        value assigns a record to a partition.
        """
        values = texts_of(records)
        if len(values):
            self._append(topic, values, key)
        return len(values)

    @abstractmethod
    def _append(self, topic: str, values: pa.Array, key: str | None) -> None:
        """Append the texts of JSON objects."""

    @abstractmethod
    def close(self) -> None:
        """Close the store and the log."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
