"""The Spark session that everything runs in."""

import logging
import os
import sys

from pyspark.sql import SparkSession

from millrace.spark.java import java_home


def start(name: str, master: str = "local[*]") -> SparkSession:
    """Start Spark, or take the session that is there, on a Java that it can run on."""
    home = java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    # The workers must be this Python, with what is installed in it, not the first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # PySpark writes every failed query there once more, as JSON, beside the exception it raises.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return (
        SparkSession.builder.appName(name)
        .master(master)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "FATAL")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def streaming(spark: SparkSession, shards: int) -> SparkSession:
    """A session of its own for a stream, which shares the workers; decision 006 has what each setting brings."""
    own = spark.newSession()
    for name, value in _STREAMING.items():
        own.conf.set(name, value)
    own.conf.set("spark.sql.shuffle.partitions", str(shards))
    return own


_STREAMING = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def labels_of(spark: SparkSession, shards: int) -> tuple[int, ...]:
    """A number for each shard, such that Spark puts each into a partition of its own."""
    found = spark.sql(
        f"SELECT pmod(hash(CAST(id AS INT)), {shards}) AS part, min(id) AS label "
        f"FROM range({200 * shards}) GROUP BY part ORDER BY part"
    ).collect()
    return tuple(row.label for row in found)
