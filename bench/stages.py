"""Stages and joins on Spark: Millrace beside the jobs that one would write by hand in PySpark, in one run.

The fixed cost of a micro-batch is that of one record, with one, two and three stages; Structured Streaming chains
aggregations in append mode. The join is of rows with a random key, each with the rows of the other side that follow
within a minute, and both write Parquet files. A first run of each, and the first micro-batches of every run, warm up.

    python -m bench.stages 100000
"""

import json
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.figures import Figure, figure
from millrace import Pipeline, agg, files, to_files, window
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.spark import session, stream
from millrace.spark.progress import BatchProgress

ROWS, KEYS, FILES, BATCHES, WARM, ROUNDS = 1_000_000, (10_000, 1_000_000), 10, 30, 8, 2
SCHEMA = "k BIGINT, v BIGINT, at TIMESTAMP"


def run(rows: int = ROWS, rounds: int = ROUNDS) -> list[Figure]:
    """Measure the fixed cost of stages, and joins with few and with many keys."""
    spark = session.start("bench", "local[2]")
    try:
        with TemporaryDirectory(prefix="millrace-stages-") as name:
            folder = Path(name)
            _write(folder / "small", BATCHES, 1, 10)
            figures = [_fixed(spark, folder, levels, rounds) for levels in (1, 2, 3)]
            for keys in KEYS:
                for side in ("left", "right"):
                    _write(folder / side, FILES, rows // FILES, keys)
                figures.append(_join(spark, folder, rows, keys, rounds))
            return figures
    finally:
        session.stop(spark)


def _fixed(spark: SparkSession, folder: Path, levels: int, rounds: int) -> Figure:
    """The milliseconds of a micro-batch of one record; the ratio is ours to theirs, less is better."""
    ours, theirs = [], []
    for turn in range(rounds + 1):
        outs = folder / f"ours {levels} {turn}", folder / f"theirs {levels} {turn}"
        ours.append(_median(_millrace(spark, partial(_chained, folder / "small", levels), outs[0])))
        theirs.append(_median(_by_hand(spark, partial(_chained_by_hand, folder / "small", levels), outs[1])))
    name = f"fixed cost of a micro-batch, {levels} stage{'s' * (levels > 1)}, beside PySpark by hand"
    return figure(name, 1000 * statistics.median(ours[1:]), 1000 * statistics.median(theirs[1:]), "ms")


def _join(spark: SparkSession, folder: Path, rows: int, keys: int, rounds: int) -> Figure:
    ours, theirs = [], []
    for turn in range(rounds + 1):
        outs = folder / f"ours join {keys} {turn}", folder / f"theirs join {keys} {turn}"
        ours.append(_rate(_millrace(spark, partial(_joined, folder), outs[0]), rows))
        theirs.append(_rate(_by_hand(spark, partial(_joined_by_hand, folder), outs[1]), rows))
        _compare(*outs)
        for out in outs:
            shutil.rmtree(out)
    name = f"join of streams, {rows:,} rows a side, {keys:,} keys, beside PySpark by hand"
    return figure(name, statistics.median(ours[1:]), statistics.median(theirs[1:]), "rows/s")


def _write(folder: Path, many: int, rows: int, keys: int) -> None:
    """Files of JSON, a minute of event time each, of which a micro-batch reads one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    draw = random.Random(f"{folder.name} {keys}")
    for number in range(many):
        lines = []
        for place in range(rows):
            at = 1_700_000_000 + 60 * number + 60 * place / rows
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f"{at % 1:.6f}"[1:] + "Z"
            lines.append(json.dumps({"k": draw.randrange(keys), "v": place, "at": stamp}))
        path = folder / f"{number:03}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (number, number))


def _chained(folder: Path, levels: int) -> Query | Stream:
    made: Query | Stream = files(str(folder), SCHEMA, per_batch=1).event_time("at", delay="10s")
    for level in range(levels):
        keys = made.with_columns(g=f"k % {10 ** (3 - level)}") if level == 0 else made.with_columns(g="g % 10")
        made = keys.group_by("g").window(window.fixed("1m")).aggregate(n=agg.count())
    return made


def _chained_by_hand(folder: Path, levels: int, spark: SparkSession) -> DataFrame:
    made = _read(spark, folder).withWatermark("at", "10 seconds").withColumn("w", f.window("at", "1 minute"))
    for level in range(levels):
        keys = made.withColumn("g", f.expr(f"k % {10 ** (3 - level)}" if level == 0 else "g % 10"))
        made = keys.groupBy("w" if level == 0 else f.window("w", "1 minute").alias("w"), "g").agg(
            f.count("*").alias("n")
        )
    return made.drop("w")


def _joined(folder: Path) -> Stream:
    sides = (
        files(str(folder / side), SCHEMA, per_batch=1)
        .select("k", **{f"{side}_v": "v", f"{side}_at": "at"})
        .event_time(f"{side}_at", delay="10s")
        for side in ("left", "right")
    )
    left, right = sides
    return left.join(right, on="k", within=("0s", "1m"))


def _joined_by_hand(folder: Path, spark: SparkSession) -> DataFrame:
    left, right = (
        _read(spark, folder / side)
        .selectExpr(f"k AS {side}_k", f"v AS {side}_v", f"at AS {side}_at")
        .withWatermark(f"{side}_at", "10 seconds")
        for side in ("left", "right")
    )
    near = "right_at BETWEEN left_at AND left_at + INTERVAL 1 MINUTE"
    return left.join(right, f.expr(f"left_k = right_k AND {near}")).selectExpr("left_k AS k", "left_v", "right_v")


def _millrace(spark: SparkSession, made: Callable[[], Query | Stream], out: Path) -> list[float]:
    """The instants at which micro-batches were done."""
    ends: list[float] = []

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        ends.append(time.monotonic())

    pipeline = Pipeline("stages", sinks=[made().to(to_files(str(out / "answers")))])
    stream.start(spark, pipeline, out / "checkpoint", until_caught_up=True, on_batch=listen).wait()
    return ends


def _by_hand(spark: SparkSession, made: Callable[[SparkSession], DataFrame], out: Path) -> list[float]:
    ends: list[float] = []

    def take(frame: DataFrame, number: int) -> None:
        frame.write.mode("append").parquet(str(out / "answers"))
        ends.append(time.monotonic())

    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    writer = made(own).writeStream.outputMode("append").option("checkpointLocation", str(out / "checkpoint"))
    writer.foreachBatch(take).trigger(availableNow=True).start().awaitTermination()
    return ends


def _read(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def _median(ends: list[float]) -> float:
    return statistics.median(b - a for a, b in zip(ends[WARM:], ends[WARM + 1 : BATCHES], strict=False))


def _rate(ends: list[float], rows: int) -> float:
    """Rows of both sides a second, after the first micro-batch."""
    last = min(len(ends), FILES) - 1
    return 2 * rows / FILES * last / (ends[last] - ends[0])


def _compare(ours: Path, theirs: Path) -> None:
    """Refuse pairs that differ."""
    tables = [
        f"SELECT k, left_v, right_v FROM read_parquet('{out / 'answers'}/**/*.parquet')" for out in (ours, theirs)
    ]
    ((wrong,),) = duckdb.execute(
        f"SELECT count(*) FROM (({tables[0]} EXCEPT ALL {tables[1]}) UNION ALL ({tables[1]} EXCEPT ALL {tables[0]}))"
    ).fetchall()
    if wrong:
        raise SystemExit(f"{wrong:,} pairs differ")


if __name__ == "__main__":
    run(int(sys.argv[1]) if sys.argv[1:] else ROWS)
