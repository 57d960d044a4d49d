"""The messages from edges to shards, as a Spark DataFrame."""

import uuid
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from millrace.model.schema import backticked
from millrace.spark.datasource import data_source
from millrace.spark.job import PackedJob
from millrace.spark.marks import CARRIED
from millrace.spark.messages import TO_SHARD
from millrace.spark.native import messages_of
from millrace.spark.source import Reads


def read_messages(spark: SparkSession, packed: PackedJob, stream: bool) -> DataFrame:
    """The messages from edges to shards: one Spark source for all fused stages, a Spark plan for each native one."""
    job = packed.job
    cores = spark.sparkContext.defaultParallelism
    frames = []
    if job.plan.fused:
        frames.append(_load(spark, TO_SHARD, Reads(packed, cores, job.plan.fused), stream))
    for number in job.plan.native:
        rows = {}
        for place in job.read_by([number]):
            source = job.sources[place]
            columns = ", ".join(f"{backticked(column.name)} {column.type}" for column in source.schema)
            rows[source.name] = _load(spark, f"{columns}, {CARRIED}", Reads(packed, cores, (number,), place), stream)
        frames.append(messages_of(spark, packed, number, rows))
    return reduce(DataFrame.union, frames)


def _load(spark: SparkSession, schema: str, reads: Reads, stream: bool) -> DataFrame:
    name = f"millrace_{uuid.uuid4().hex}"  # all sessions share the names of data sources
    spark.dataSource.register(data_source(name, schema, reads.sent()))
    return (spark.readStream if stream else spark.read).format(name).load()
