"""The Spark queries of real-time mode: Kafka to Kafka, without Python between.

An output has two queries. The main one computes: a sink gets its rows, and a view gets a record for each change of a
cell, a key with its window, in a topic of its own, the changelog. A record has the count of the elements in the cell,
by which `running.applier` knows which of two is newer. The other query sends what has no value, or may not be read as
Millrace reads it, to another topic, where the applier makes dead letters of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from millrace.model.aggregate import Count, CountIf, First, Last, Max, Mean, Min, Sum
from millrace.model.kafka import SERVERS
from millrace.model.query import Computed, Query
from millrace.model.schema import backticked
from millrace.model.stream import EventTime, Join, Select, Source, Where, WithColumns, event_times
from millrace.model.watermark import BoundedDelay
from millrace.model.window import Calendar, CountWindow, Custom, Fixed, Global, Session, Sliding
from millrace.plan.plan import Plan, Stage
from millrace.plan.realtime import ISOLATION
from millrace.sources.bundle import LOGGED
from millrace.spark.home import compiled_after
from millrace.spark.job import Job
from millrace.spark.marks import BAD, LEFT_OUT, NODE, OFFSET, ORIGIN, TIME
from millrace.spark.native import NativePlan
from millrace.spark.session import streaming
from millrace.spark.sure_json import VALUE, sure_rows
from millrace.spark.tried import SETTINGS

UNTIMELY = "untimely"
"""The mark, in the column BAD, of a row whose event time is NULL or too far ahead."""
CONTEXT = {
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
    "spark.driver.extraJavaOptions": compiled_after(1),
}
"""Settings of Spark's context: a shuffle holds rows back for 2 ms, not 50; Java compiles early what runs often."""
_PRODUCER = {"kafka.linger.ms": "0", "kafka.acks": "all", "kafka.enable.idempotence": "true"}
_AT = "__at"
"""The hidden column with the event time as a TIMESTAMP, which carries Spark's watermark."""
_MILLISECOND = 1_000


@dataclass(frozen=True, slots=True)
class RealTimeOutput:
    """The queries of one output."""

    stage: Stage
    servers: str
    topic: str
    """Where its records go: a changelog, or the topic of a sink."""
    aside_servers: str
    aside: str
    """Where records without a value go."""
    key: str | None = None
    """The column with the key of a sink's records."""

    @property
    def file(self) -> str:
        """The name of its folder in a checkpoint."""
        return self.stage.id.replace(" ", "-").replace("/", "-")


def session_for(spark: SparkSession, shards: int) -> SparkSession:
    """A session of its own for real-time queries, with as many shards of state for each view."""
    own = streaming(spark, shards)
    for name, value in SETTINGS.items():
        own.conf.set(name, value)
    return own


def start(
    spark: SparkSession,
    plan: Plan,
    output: RealTimeOutput,
    starts: Mapping[str, str],
    folder: Path,
    every: str,
    mark: str,
) -> list[StreamingQuery]:
    """Start the queries of an output. `starts` has the first offsets of each source, as Spark reads them.

    A checkpoint is made each time that `every` has passed.
    """
    stage = output.stage
    frames = {
        planned.source.name: sure_rows(_read(spark, planned.source, starts[planned.source.name]), planned.source, mark)
        for planned in plan.sources
        if planned.id in stage.inputs
    }
    rows = RealTimePlan(spark, Job(plan, (0,)), stage, frames)
    main = changelog(stage.query, rows.elements()) if stage.query is not None else rows.records(output.key)
    targets = (
        ("main", main, output.servers, output.topic),
        ("aside", rows.aside(), output.aside_servers, output.aside),
    )
    return [
        frame.writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": servers, "topic": topic, **_PRODUCER})
        .option("checkpointLocation", str(folder / "queries" / f"{output.file}-{name}"))
        .outputMode("update")
        .trigger(realTime=every)  # type: ignore[call-overload]
        .queryName(f"{plan.pipeline} {stage.id} {name}")
        .start()
        for name, frame, servers, topic in targets
    ]


def _read(spark: SparkSession, source: Source, start: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": dict(source.options)[SERVERS], "subscribe": source.name, "startingOffsets": start,
        "failOnDataLoss": "true", f"kafka.{ISOLATION}": dict(source.secrets).get(ISOLATION, "read_committed"),
    }  # fmt: skip
    return spark.readStream.format("kafka").options(**options).load()


class RealTimePlan(NativePlan):
    """The rows of an output as a Spark plan; those without a value are marked, and pass every filter."""

    def elements(self) -> DataFrame:
        """The elements of a query: its keys, its event time and the arguments of its aggregates."""
        query = self._stage.query
        assert query is not None
        rows, values = self._argued()
        keys = [_column(name).alias(key) for name, key in zip(query.keys, query.key_columns, strict=True)]
        times = [_column(name) for name in (_AT, TIME) if name in rows.columns]
        return rows.where(_is_good(rows)).select(*keys, *times, *(value.alias(name) for name, value in values.items()))

    def records(self, key: str | None) -> DataFrame:
        """The rows of a stream as records of Kafka, as `model.plain` writes them."""
        rows = self._frame(self._stage.stream)
        columns = {column.name: column.type for column in self._stage.stream.schema}
        texts = [_plain(type, _column(name)).alias(name) for name, type in columns.items()]
        value = f.to_json(f.struct(*texts), {"ignoreNullFields": "false"})
        keys = [] if key is None else [_column(key).alias("key")]
        return rows.where(_is_good(rows)).select(*keys, value.alias("value"))

    def aside(self) -> DataFrame:
        """What has no value, as records of Kafka, keyed by their origin."""
        rows, _ = self._argued() if self._stage.query is not None else (self._frame(self._stage.stream), {})
        given = [name for name in (NODE, TIME) if name in rows.columns]
        about = f.struct(
            f.lit(self._stage.id).alias("output"), _column(ORIGIN).alias("origin"), _column(OFFSET).alias("offset"),
            _column(LOGGED).alias("logged"), _column(BAD).alias("bad"), f.base64(_column(VALUE)).alias("value"),
            *(_column(name).alias(name.strip("_")) for name in given),
        )  # fmt: skip
        return rows.where(_column(BAD).isNotNull()).select(
            _column(ORIGIN).alias("key"), f.to_json(about).alias("value")
        )

    def _argued(self) -> tuple[DataFrame, dict[str, Column]]:
        """The rows, and the arguments of the aggregates."""
        query = self._stage.query
        assert query is not None
        arguments = {
            f"a{n}_{place}": argument
            for n, computed in enumerate(query.computed)
            for place, argument in enumerate(computed.arguments)
        }
        return self._computed(self._frame(query.stream), arguments)

    def _step(self, step: Where | Select | WithColumns | Join | EventTime, above: DataFrame) -> DataFrame:
        rows = super()._step(step, above)
        if not isinstance(step, EventTime):
            return rows
        node = [id(each) for each in event_times(self._stage.stream)].index(id(step))
        is_timely = _column(TIME).isNotNull()
        if step.ahead is not None:
            is_timely &= _column(TIME) - f.lit(step.ahead) <= _column(LOGGED)
        untimely = f.when((_column(NODE) == node) & ~is_timely, f.lit(UNTIMELY))
        rows = rows.withColumn(BAD, f.coalesce(_column(BAD), untimely))
        query = self._stage.query
        if query is None or isinstance(query.windowing, Global):
            return rows
        policy = step.estimator.policy
        assert isinstance(policy, BoundedDelay)
        # Spark's watermark expires state: a window is kept for its lateness. It counts whole milliseconds.
        delay = -(-(policy.delay + query.lateness) // _MILLISECOND)
        at = f.when(is_timely, f.timestamp_micros(_column(TIME)))
        return rows.withColumn(_AT, at).withWatermark(_AT, f"{delay} milliseconds")


def changelog(query: Query, elements: DataFrame) -> DataFrame:
    """The changes of the cells of a query as records of Kafka: an element makes one for each of its windows.

    The key has the keys of the cell and the bounds of its window. The value is the count of elements, a space, and the
    partial answers.
    """
    keys = [_column(key) for key in query.key_columns]
    bounds = _window(query)
    grouped = elements.groupBy(*keys, *bounds)
    counted = grouped.agg(f.count(f.lit(1)).alias("n"), *_partials(query))
    types = [query.stream.schema.type_of(name) for name in query.keys]
    cell = [encoded(type, key).alias(f"k{n}") for n, (type, key) in enumerate(zip(types, keys, strict=True))]
    if bounds:
        cell += [f.unix_micros(f"window.{end}").alias(end) for end in ("start", "end")]
    parts = [_column(name) for name in counted.columns if name.startswith("p")]
    whole = {"ignoreNullFields": "false"}
    key = f.to_json(f.struct(*cell), whole) if cell else f.lit("{}")
    value = f.concat(f.col("n").cast("string"), f.lit(" "), f.to_json(f.struct(*parts), whole))
    return counted.select(key.alias("key"), value.alias("value"))


def _window(query: Query) -> list[Column]:
    match query.windowing:
        case Fixed(size=size, offset=offset):
            return [f.window(_AT, _interval(size), None, _interval(offset))]
        case Sliding(size=size, every=every, offset=offset):
            return [f.window(_AT, _interval(size), _interval(every), _interval(offset))]
        case Global():
            return []
        case Session() | CountWindow() | Calendar() | Custom():
            raise AssertionError(f"{query.windowing} is refused in real-time mode")
        case never:
            assert_never(never)


def _interval(length: int) -> str:
    return f"{length} microseconds"


def _partials(query: Query) -> list[Column]:
    """The partials of the aggregates, each in columns of its own, as `answers` reads them."""
    return [
        part.alias(f"p{number}_{place}")
        for number, computed in enumerate(query.computed)
        for place, part in enumerate(_parts(number, computed))
    ]


def _parts(number: int, computed: Computed) -> list[Column]:
    given = [_column(f"a{number}_{place}") for place in range(len(computed.arguments))]
    types = [argument.type for argument in computed.arguments]
    kind = type(computed.aggregate)
    if kind is Count:
        return [f.count(given[0] if given else f.lit(1))]
    if kind is CountIf:
        return [f.count(f.when(given[0], f.lit(1)))]
    if kind in (Sum, Mean):  # as decimals, sums do not overflow
        return [f.sum(given[0].cast("decimal(20,0)")).cast("string"), f.count(given[0])]
    if kind in (Min, Max):
        return [encoded(types[0], (f.min if kind is Min else f.max)(given[0]))]
    if kind in (First, Last):
        pair = f.when(given[0].isNotNull(), f.struct(_column(TIME).alias("at"), given[0].alias("v")))
        chosen = (f.min if kind is First else f.max)(pair)
        return [chosen["at"], encoded(types[0], chosen["v"])]
    raise AssertionError(f"{computed.aggregate} is refused in real-time mode")


def encoded(type: str, value: Column) -> Column:
    """A value as JSON has it without loss."""
    if type == "TIMESTAMP":
        return f.unix_micros(value)
    return f.unix_date(value) if type == "DATE" else value


def _plain(type: str, value: Column) -> Column:
    """A value as `model.plain` writes it: a time in ISO form, with six digits of a second if it needs them."""
    if type != "TIMESTAMP":
        return value.cast("string") if type == "DATE" else value
    whole = f.date_format(value, "yyyy-MM-dd'T'HH:mm:ss")
    fraction = f.when(f.unix_micros(value) % 1_000_000 != 0, f.date_format(value, ".SSSSSS")).otherwise(f.lit(""))
    return f.concat(whole, fraction, f.lit("+00:00"))


def _is_good(rows: DataFrame) -> Column:
    good = _column(BAD).isNull()
    if TIME in rows.columns:
        good &= _column(TIME).isNotNull()
    return good & ~f.coalesce(_column(LEFT_OUT), f.lit(False)) if LEFT_OUT in rows.columns else good


def _column(name: str) -> Column:
    return f.col(backticked(name))
