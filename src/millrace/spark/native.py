"""The native edge: a stream as a Spark plan, and its rows as partials.

The row-wise part of a query runs as an ordinary Spark plan; each task then aggregates its rows into
(key, slice) and sends them to the shards of their keys. This is the edge of every query that cannot be fused.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from millrace.model.arrow import arrow_type
from millrace.model.errors import refuse
from millrace.model.query import Query
from millrace.model.stream import (
    Dedup,
    EventTime,
    Join,
    Select,
    Source,
    Stream,
    Union,
    Where,
    WithColumns,
    find_event_time,
    parents,
)
from millrace.model.watermark import Punctuated
from millrace.model.window import Custom
from millrace.panes.advance import Panes
from millrace.panes.blobs import from_bytes, to_bytes
from millrace.panes.hashing import hash_keys
from millrace.panes.lift import lift
from millrace.panes.store import stack

PARTIALS = "shard INT, place BIGINT, payload BINARY"
"""What tasks send: for a shard, partials as Arrow's own format, in the order of their place."""


def frame_of(spark: SparkSession, stream: Stream, frames: Mapping[str, DataFrame]) -> DataFrame:
    """A stream as a Spark plan over the frames of its sources, by name."""
    if isinstance(stream, Source):
        if stream.name not in frames:
            raise refuse(f"source {stream.name!r} has no rows to read", stream.place)
        return frames[stream.name].select(*map(_column, stream.schema.names))
    first, *more = [frame_of(spark, parent, frames) for parent in parents(stream)]
    match stream:
        case Union():
            for other in more:
                first = first.unionByName(other)
            return first
        case Where(condition=condition):
            return first.where(condition.sql)
        case Select(columns=columns):
            return first.select(*(f.expr(expression.sql).alias(name) for name, expression in columns))
        case WithColumns(columns=columns):
            return first.withColumns({name: f.expr(expression.sql) for name, expression in columns})
        case Join(table=table, on=on, how=how):
            if table.path is not None:
                raise refuse(f"table {table.name!r} is in a file, which is not read yet; give its rows", stream.place)
            schema = ", ".join(f"`{column.name}` {column.type}" for column in table.schema)
            small = spark.createDataFrame([list(row) for row in table.rows], schema)
            return first.join(f.broadcast(small), list(on), how).select(*map(_column, stream.schema.names))
        case EventTime(column=column, estimator=estimator):
            if isinstance(estimator.policy, Punctuated):  # such a row may do nothing but close an epoch
                first = first.where(_column(column).isNotNull() | _column(estimator.policy.column).isNull())
            known = f.coalesce(_column(column), f.raise_error(f.lit(f"event time {column} is NULL")).cast("timestamp"))
            return first.withColumn(column, known)
        case Dedup():
            raise refuse("dedup() does not run on Spark yet", stream.place)
    raise TypeError(f"{type(stream).__name__} is not a kind of stream")


def partials_of(query: Query, rows: DataFrame, shards: int) -> DataFrame:
    """The partials of a query's rows, by shard."""
    if isinstance(query.windowing, Custom):
        raise refuse(f"{query.windowing} does not run on Spark yet", query.place)
    event_time = find_event_time(query.stream)
    at = f.lit(0).cast("bigint") if event_time is None else f.unix_micros(_column(event_time.column))
    columns = [_column(name).alias(key) for name, key in zip(query.keys, query.key_columns, strict=True)]
    for number, computed in enumerate(query.computed):
        for place, argument in enumerate(computed.arguments):
            columns.append(f.expr(argument.sql).alias(f"a{number}_{place}"))
    return rows.select(at.alias("at"), *columns).mapInArrow(_lifting(query, shards), PARTIALS)


def _lifting(query: Query, shards: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    panes = Panes(query)
    wanted = [[(f"a{n}_{p}", arrow_type(argument.type)) for p, argument in enumerate(computed.arguments)]
              for n, computed in enumerate(query.computed)]  # fmt: skip

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        place = (0 if context is None else context.partitionId()) << 32
        for batch in batches:
            if not len(batch):
                continue
            keys = [batch.column(name) for name in panes.keys]
            arguments = [
                [batch.column(name) if kind is None else batch.column(name).cast(kind) for name, kind in each]
                for each in wanted
            ]
            lifted = lift(panes, keys, batch.column("at").to_numpy(), arguments).combine_chunks()
            hashes = hash_keys([lifted[name].chunk(0) for name in panes.keys], len(lifted))
            owners = (hashes % np.uint64(shards)).astype(np.int32)
            for shard in np.unique(owners).tolist():
                place += 1
                payload = to_bytes(lifted.filter(pa.array(owners == shard)))
                yield pa.record_batch(
                    [pa.array([shard], pa.int32()), pa.array([place], pa.int64()), pa.array([payload], pa.binary())],
                    names=["shard", "place", "payload"],
                )

    return run


def unpacked(sent: pa.Table) -> pa.Table:
    """The partials that tasks sent to a shard, in order of arrival."""
    ordered = sent.take(pc.sort_indices(sent, sort_keys=[("place", "ascending")]))
    return stack([from_bytes(payload) for payload in ordered["payload"].to_pylist()])


def _column(name: str) -> Column:
    return f.col(f"`{name}`")
