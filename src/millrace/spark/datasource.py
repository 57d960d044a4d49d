"""The classes by which Spark reads the sources of a plan.

Spark starts processes that only ask for the schema or pickle the reader, at each start of a stream. So this module
imports nothing but PySpark; the first call that reads something imports the rest of Millrace.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.spark.source import Reader, Reads

SentReads: TypeAlias = tuple[bytes, int, tuple[int, ...], int | None]
"""The fields of a `Reads`, with the job as bytes."""


def data_source(called: str, columns: str, sent: SentReads) -> type[DataSource]:
    """A data source of this name, with these columns."""

    class Sources(DataSource):
        """The sources of a plan."""

        @classmethod
        def name(cls) -> str:
            return called

        def schema(self) -> str:
            return columns

        def reader(self, schema: Any) -> DataSourceReader:
            return BatchReader(sent)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return StreamReader(sent)

    return Sources


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The sources of a plan as a stream reader, on the driver and in tasks."""

    def __init__(self, sent: SentReads) -> None:
        """Open nothing yet, because the reader is also sent to tasks."""
        self._sent = sent
        self._opened: Reader | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802, D102
        with _reporting():
            return self._reader().start()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, D102
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, D102
        with _reporting():
            self._reader().stop_at_the_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, D102
        from millrace.spark.crash import reach

        with _reporting():
            latest = self._reader().latest(start)
            if latest is start:
                self._reader().wait_for_input(start)
            reach("offsets planned")
            return latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: D102
        with _reporting():
            return self._reader().tasks(start, end)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":  # noqa: D102
        return _read(self._sent, partition)

    def commit(self, end: dict[str, Any]) -> None:  # noqa: D102
        from millrace.spark.crash import reach

        reach("offsets committed")

    def _reader(self) -> "Reader":
        from millrace.spark.source import Reader

        if self._opened is None:
            self._opened = Reader(_reads(self._sent))
        return self._opened


class BatchReader(DataSourceReader):
    """The sources of a plan as a batch reader."""

    def __init__(self, sent: SentReads) -> None:
        """Open nothing yet, because the reader is also sent to tasks."""
        self._sent = sent

    def partitions(self) -> Sequence[InputPartition]:  # noqa: D102
        from millrace.spark.source import Reader

        with _reporting():
            return Reader(_reads(self._sent)).tasks_of_all()

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":  # noqa: D102
        return _read(self._sent, partition)


def _reads(sent: SentReads) -> "Reads":
    from millrace.spark.job import PackedJob
    from millrace.spark.source import Reads

    packed, cores, stages, source = sent
    return Reads(PackedJob(packed), cores, stages, source)


def _read(sent: SentReads, task: InputPartition) -> "Iterator[pa.RecordBatch]":
    from millrace.spark.reading import read

    return read(_reads(sent), task)


def _reporting() -> AbstractContextManager[None]:
    from millrace.spark.envelope import reporting

    return reporting()
