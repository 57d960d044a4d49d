"""The batch host: a query over a bounded input, on Spark.

All input, then the watermark at the end of time (rule 11): the same `advance` as in a stream, once for each
shard, in a grouped map. The answer is the last pane of each key and window.
"""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millrace.model.arrow import arrow_type
from millrace.model.duration import END_OF_TIME
from millrace.model.errors import refuse
from millrace.model.query import WINDOW_COLUMNS, Query
from millrace.model.window import Count, Global
from millrace.panes.advance import TIMINGS, Panes, State
from millrace.panes.grouping import identify
from millrace.panes.store import stack
from millrace.spark.native import frame_of, partials_of, unpacked


def run(spark: SparkSession, query: Query, frames: Mapping[str, DataFrame], shards: int | None = None) -> DataFrame:
    """The answers of a query over the frames of its sources: the columns of its schema, then the pane's own."""
    parallel = shards or spark.sparkContext.defaultParallelism
    partials = partials_of(query, frame_of(spark, query.stream, frames), parallel)
    return partials.groupBy("shard").applyInArrow(_answering(query), answers_schema(query))


def answers_schema(query: Query) -> str:
    """The columns of the answers."""
    unknown = [column.name for column in query.schema if column.type == "UNKNOWN"]
    if unknown:
        raise refuse(f"the type of {unknown[0]!r} is not known; cast its argument, or give the fold type=", query.place)
    columns = ", ".join(f"`{column.name}` {column.type}" for column in query.schema)
    return f"{columns}, `timing` STRING, `index` BIGINT, `last` BOOLEAN"


def _answering(query: Query) -> Callable[[pa.Table], pa.Table]:
    panes = Panes(query)

    def answer(sent: pa.Table) -> pa.Table:
        _, said = panes.advance(State(), unpacked(sent), END_OF_TIME, 0)
        return _answers(query, _last(stack(said), panes.keys))

    return answer


def _last(said: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """The last pane of each key and window; what was taken back is not an answer."""
    standing = said.filter(pc.greater(said["diff"], 0)).combine_chunks()
    same = identify([standing[name].combine_chunks() for name in (*keys, "start", "end")], len(standing))
    return standing.take(pa.array(same.lasts))


def _answers(query: Query, said: pa.Table) -> pa.Table:
    """Panes as rows of the answer's schema."""
    columns: dict[str, pa.Array] = {}
    for name, key in zip(query.keys, query.key_columns, strict=True):
        columns[name] = said[key]
    for column, bound in zip(WINDOW_COLUMNS, ("start", "end"), strict=True):
        kind = pa.timestamp("us", "UTC")
        bounds = said[bound]
        if isinstance(query.windowing, Global):
            bounds = pa.nulls(len(said), kind)
        columns[column.name] = bounds if isinstance(query.windowing, Count) else bounds.cast(kind)
    for number, computed in enumerate(query.computed):
        columns[computed.name] = said[f"value{number}"].cast(arrow_type(computed.column.type))
    columns["timing"] = pa.array(map(str, TIMINGS)).take(said["timing"].combine_chunks())
    columns["index"], columns["last"] = said["index"], said["last"]
    return pa.table(columns)
