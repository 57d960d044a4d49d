"""The embedded log as an ordinary Spark source, with the schema of Spark's Kafka source.

    spark.dataSource.register(LogSource)
    rows = spark.readStream.format("millrace").option("log", ".millrace/log.db").option("subscribe", "plays").load()

Beside `log`, options are those of Spark's Kafka source: `subscribe`, one topic or several separated by commas;
`startingOffsets` and `endingOffsets`, `earliest`, `latest` or JSON by topic and partition; for a stream,
`maxOffsetsPerTrigger`. Pipelines do not use this source: their edge reads the log in a source of its own.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from millrace.eventlog.topics import DEFAULT_LOG, existing_log
from millrace.model.errors import PipelineError, unknown
from millrace.sources.admission import share

SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_OPTIONS = ("log", "subscribe", "startingOffsets", "endingOffsets", "maxOffsetsPerTrigger")
_STEP = 100_000
"""The maximum number of records in one record batch."""
Offsets = dict[str, list[int]]


@dataclass(slots=True)
class Span(InputPartition):
    """The records of a partition that one task reads."""

    topic: str
    partition: int
    start: int
    end: int


class LogSource(DataSource):
    """Topics of an embedded log."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "millrace"

    def schema(self) -> str:
        """The schema of Spark's Kafka source, with headers."""
        return SCHEMA

    def reader(self, schema: Any) -> "BatchRecords":
        """All records, or those between two offsets."""
        return BatchRecords(self.options)

    def streamReader(self, schema: Any) -> "StreamRecords":  # noqa: N802
        """The records as they are appended."""
        return StreamRecords(self.options)


class _Records:
    """The code that the batch reader and the stream reader share."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _OPTIONS}
        for name in given:
            if name not in known and name != "path":
                raise PipelineError(unknown("option", name, _OPTIONS))
        if "subscribe" not in given:
            raise PipelineError("option subscribe is missing: the topic, or several with commas between")
        self._options = given
        self._log = existing_log(given.get("log", DEFAULT_LOG))
        self._topics = [name.strip() for name in given["subscribe"].split(",")]

    def bounds(self, option: str, default: str) -> Offsets:
        """The offsets that an option names, by topic."""
        text = self._options.get(option.lower(), default)
        if text in ("earliest", "latest"):
            ask = self._log.starts if text == "earliest" else self._log.ends
            return {topic: ask(topic) for topic in self._topics}
        try:
            named = json.loads(text)
            found = {}
            for topic in self._topics:
                pairs = zip(self._log.starts(topic), self._log.ends(topic), strict=True)
                asked = [named[topic][str(partition)] for partition in range(len(self._log.ends(topic)))]
                found[topic] = [
                    {-2: start, -1: end}.get(offset, offset) for offset, (start, end) in zip(asked, pairs, strict=True)
                ]  # -2 and -1 are Kafka's numbers for the earliest and the latest
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PipelineError(
                f'{option} is earliest, latest or JSON such as {{"plays": {{"0": 23, "1": -2}}}}, not {text!r}'
            ) from None
        return found

    def spans(self, start: Offsets, end: Offsets) -> list[Span]:
        """The spans between two offsets."""
        return [
            Span(topic, partition, first, last)
            for topic in end
            for partition, (first, last) in enumerate(zip(start[topic], end[topic], strict=True))
            if first < last
        ]

    def records(self, span: Span) -> Iterator[pa.RecordBatch]:
        """The rows of a span."""
        for start in range(span.start, span.end, _STEP):
            found = self._log.read(span.topic, span.partition, start, min(span.end, start + _STEP))
            many = len(found)
            columns = {
                "key": found["key"],
                "value": found["value"],
                "topic": pa.array([span.topic] * many, pa.string()),
                "partition": pa.array([span.partition] * many, pa.int32()),
                "offset": found["offset"],
                "timestamp": found["timestamp"],
                "timestampType": pa.array([0] * many, pa.int32()),
                "headers": found["headers"],
            }
            yield from pa.table(columns).combine_chunks().to_batches()


class BatchRecords(DataSourceReader):
    """Reads topics once."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options and open the log."""
        self._records = _Records(options)

    def partitions(self) -> Sequence[InputPartition]:  # noqa: D102
        starts, ends = (
            self._records.bounds("startingOffsets", "earliest"),
            self._records.bounds("endingOffsets", "latest"),
        )
        return self._records.spans(starts, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: D102
        assert isinstance(partition, Span)
        return self._records.records(partition)


class StreamRecords(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as records are appended."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options and open the log."""
        self._records = _Records(options)
        limit = {name.lower(): value for name, value in options.items()}.get("maxoffsetspertrigger")
        self._most = None if limit is None else int(limit)
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802, D102
        return self._records.bounds("startingOffsets", "latest")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, D102
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, D102
        self._target = self._records.bounds("", "latest")

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802, D102
        ends = self._target or self._records.bounds("", "latest")
        if self._most is None:
            return ends
        places = [(topic, partition) for topic in ends for partition in range(len(ends[topic]))]
        taken = share([max(0, ends[topic][part] - start[topic][part]) for topic, part in places], self._most)
        after = {topic: list(offsets) for topic, offsets in start.items()}
        for (topic, partition), many in zip(places, taken, strict=True):
            after[topic][partition] += many
        return after

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:  # noqa: D102
        return self._records.spans(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: D102
        assert isinstance(partition, Span)
        return self._records.records(partition)

    def commit(self, end: Offsets) -> None:  # noqa: D102
        pass
