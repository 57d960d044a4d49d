"""Queries of Nexmark on Spark: Millrace beside the jobs that one would write by hand in PySpark, in one run.

Both read the same JSON files, divided into micro-batches in the same way, and write Parquet files, in turns. A first
run of each, and the first micro-batch of every run, warm up and do not count. Answers must be the same, apart from
windows near the end of the events, which one of them may not have closed.

Structured Streaming has no append mode for query 4, which averages the results of another aggregate while they are
corrected: its peer is Spark SQL as a batch over all files.

    python -m bench.nexmark 200000 q3 q4
"""

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.figures import Figure, figure
from millrace import Pipeline, files, to_files
from millrace.spark import session, stream
from millrace.spark.progress import BatchProgress

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from nexmark import generator, queries

EVENTS, RATE, FILES, PER_BATCH, WARM, ROUNDS = 1_000_000, 1_000, 20, 4, 1, 3
SCHEMAS = {"person": queries.PERSON, "auction": queries.AUCTION, "bid": queries.BID}
Frames = Mapping[str, DataFrame]


@dataclass(frozen=True, slots=True)
class Case:
    """A query, and how it is written by hand."""

    query: queries.Nexmark
    by_hand: Callable[[Frames], DataFrame] | None
    """The frames are streams with event time; None if there is no such job."""
    columns: str
    """The columns that are compared."""
    before: str = "true"
    """The answers that both must have, where `cut` is a time near the end of the events."""


def run(events: int = EVENTS, chosen: tuple[str, ...] = (), rounds: int = ROUNDS) -> list[Figure]:
    """Measure the queries, or those that are chosen by their numbers, such as `q3`."""
    settings = generator.Settings(events, rate=RATE)
    spark = session.start("bench", "local[2]")
    try:
        with TemporaryDirectory(prefix="millrace-nexmark-") as name:
            folder = Path(name)
            generator.write(settings, folder / "events", FILES)
            cases = {key: case for key, case in CASES.items() if key in chosen or not chosen}
            return [_beside(spark, key, case, folder, settings, rounds) for key, case in cases.items()]
    finally:
        session.stop(spark)


def _beside(
    spark: SparkSession, key: str, case: Case, folder: Path, settings: generator.Settings, rounds: int
) -> Figure:
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(rounds + 1):
        outs = {name: folder / f"{key} {name} {turn}" for name in rates}
        rates["ours"].append(_rate(_millrace(spark, case.query, folder, outs["ours"]), settings))
        if case.by_hand is None:
            rates["theirs"].append(settings.events / _batch(spark, folder, outs["ours"]))
        else:
            rates["theirs"].append(_rate(_by_hand(spark, case.by_hand, folder, outs["theirs"]), settings))
            _compare(key, case, outs, settings)
        print(f"{key}, run {turn}: {rates['ours'][-1]:,.0f} beside {rates['theirs'][-1]:,.0f}", flush=True)
        for out in outs.values():
            shutil.rmtree(out, ignore_errors=True)
    peer = "PySpark by hand" if case.by_hand else "Spark SQL as a batch"
    ours, theirs = (statistics.median(each[1:]) for each in rates.values())
    return figure(f"Nexmark {key}, {settings.events:,} events, stream, beside {peer}", ours, theirs, "events/s")


def _rate(ends: list[float], settings: generator.Settings) -> float:
    """Events a second from the end of the last micro-batch that warms up to the end."""
    many = settings.events * PER_BATCH / FILES
    return many * (len(ends) - WARM) / (ends[-1] - ends[WARM - 1])


def _millrace(spark: SparkSession, query: queries.Nexmark, folder: Path, out: Path) -> list[float]:
    ends: list[float] = []

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        ends.append(time.monotonic())

    person, auction, bid = (
        files(str(folder / "events" / kind), schema, per_batch=PER_BATCH) for kind, schema in SCHEMAS.items()
    )
    pipeline = Pipeline("nexmark", sinks=[query(person, auction, bid).to(to_files(str(out / "answers")))])
    stream.start(spark, pipeline, out / "checkpoint", until_caught_up=True, on_batch=listen).wait()
    return ends


def _by_hand(spark: SparkSession, job: Callable[[Frames], DataFrame], folder: Path, out: Path) -> list[float]:
    ends: list[float] = []

    def take(frame: DataFrame, number: int) -> None:
        frame.write.mode("append").parquet(str(out / "answers"))
        ends.append(time.monotonic())

    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    frames = {
        kind: own.readStream.schema(schema).option("maxFilesPerTrigger", PER_BATCH).json(str(folder / "events" / kind))
        for kind, schema in SCHEMAS.items()
    }
    timed = {kind: frame.withWatermark("date_time", "4 seconds") for kind, frame in frames.items()}
    writer = job(timed).writeStream.outputMode("append").option("checkpointLocation", str(out / "checkpoint"))
    writer.foreachBatch(take).trigger(availableNow=True).start().awaitTermination()
    return ends[: FILES // PER_BATCH]  # the last one, without data, only closes windows


def _batch(spark: SparkSession, folder: Path, ours: Path) -> float:
    """The seconds of query 4 over all files. Refuses answers of the stream that differ."""
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    began = time.monotonic()
    frames = {kind: own.read.schema(schema).json(str(folder / "events" / kind)) for kind, schema in SCHEMAS.items()}
    pairs = (
        frames["auction"]
        .alias("a")
        .join(frames["bid"].alias("b"), f.expr("a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires"))
    )
    final = pairs.groupBy("id", "category").agg(f.max("price").alias("final"))
    rows = final.groupBy("category").agg(f.avg("final").alias("average")).orderBy("category").collect()
    spent = time.monotonic() - began
    answers = f"read_parquet('{ours / 'answers'}/**/*.parquet')"
    left = f"SELECT category, average FROM {answers} GROUP BY ALL HAVING sum(diff) <> 0 ORDER BY category"
    if duckdb.execute(left).fetchall() != [tuple(row) for row in rows]:
        raise SystemExit("q4: the answers of the stream are not those of the batch")
    return spent


def _compare(key: str, case: Case, outs: Mapping[str, Path], settings: generator.Settings) -> None:
    """Refuse answers that differ."""
    cut = settings.start + timedelta(seconds=settings.events / settings.rate - 30)
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    tables = [
        f"SELECT {case.columns} FROM read_parquet('{out / 'answers'}/**/*.parquet') "
        f"WHERE {case.before.replace('cut', repr(cut.isoformat()) + '::TIMESTAMPTZ')}"
        for out in outs.values()
    ]
    counts: list[Any] = [connection.execute(f"SELECT count(*) FROM ({table})").fetchall()[0][0] for table in tables]
    wrong = connection.execute(f"SELECT count(*) FROM ({tables[0]} EXCEPT ALL {tables[1]})").fetchall()[0][0]
    if wrong or counts[0] != counts[1] or not counts[0]:
        raise SystemExit(f"{key}: {counts[0]:,} and {counts[1]:,} answers, of which {wrong:,} differ")


def _q0(frames: Frames) -> DataFrame:
    return frames["bid"]


def _q3(frames: Frames) -> DataFrame:
    offers = frames["auction"].where("category = 10").alias("a")
    sellers = frames["person"].where("state IN ('OR', 'ID', 'CA')").alias("p")
    near = "p.date_time BETWEEN a.date_time - INTERVAL 1 HOUR AND a.date_time + INTERVAL 1 HOUR"
    return offers.join(sellers, f.expr(f"a.seller = p.id AND {near}")).select("p.name", "p.city", "p.state", "a.id")


def _q5(frames: Frames) -> DataFrame:
    ten = f.window("date_time", "10 seconds", "2 seconds")
    counted = frames["bid"].groupBy("auction", ten.alias("of")).agg(f.count("*").alias("bids"))
    listed = counted.groupBy("of").agg(f.collect_list(f.struct("bids", "auction")).alias("all"))
    most = listed.selectExpr("of", "all", "array_max(all).bids AS bids")
    hot = most.selectExpr("of", "bids", "explode(filter(all, each -> each.bids = bids)) AS each")
    return hot.selectExpr("each.auction", "bids", "of.start AS starts", "of.end AS ends")


def _q7(frames: Frames) -> DataFrame:
    highest = frames["bid"].groupBy(f.window("date_time", "10 seconds").alias("of")).agg(f.max("price").alias("price"))
    bids = frames["bid"].select("auction", "bidder", "price", "date_time", "extra").alias("b")
    inside = "b.price = m.price AND b.date_time >= m.of.start AND b.date_time < m.of.end"
    return bids.join(highest.alias("m"), f.expr(inside)).select("b.*")


def _q8(frames: Frames) -> DataFrame:
    persons = frames["person"].withColumn("of", f.window("date_time", "10 seconds")).alias("p")
    sellers = frames["auction"].withColumn("of", f.window("date_time", "10 seconds")).alias("a")
    joined = persons.join(sellers, f.expr("p.id = a.seller AND p.of = a.of"), "leftsemi")
    return joined.selectExpr("id", "name", "of.start AS starts")


CASES = {
    "q0": Case(queries.q0_pass_through, _q0, "*"),
    "q3": Case(queries.q3_local_items, _q3, "name, city, state, id"),
    "q4": Case(queries.q4_average_price_by_category, None, "category, average"),
    "q5": Case(queries.q5_hot_items, _q5, "auction, bids, starts, ends", "ends < cut"),
    "q7": Case(queries.q7_highest_bid, _q7, "auction, bidder, price, date_time, extra", "date_time < cut"),
    "q8": Case(queries.q8_new_users, _q8, "id, name, starts", "starts < cut"),
}


if __name__ == "__main__":
    many, *wanted = sys.argv[1:] or [str(EVENTS)]
    run(int(many), tuple(wanted), rounds=1 if int(many) < EVENTS else ROUNDS)
