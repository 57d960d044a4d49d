"""The Yahoo benchmark on Spark: Millrace beside the job that one would write by hand in PySpark, in one run.

Both read the same files, divided into micro-batches in the same way, in turns: the figure is the median of several
runs. A first run of each, and the first micro-batch of every run, warm up and do not count.
"""

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.figures import Figure, figure
from millrace import Pipeline, agg, files, on, window
from millrace.spark import batch, session, stream
from millrace.spark.progress import BatchProgress
from millrace.testing import yahoo

FILES, ROWS, PER_BATCH, WARM, ROUNDS = 60, 200_000, 20, 1, 3


def run() -> list[Figure]:
    """Beside PySpark by hand."""
    return _with_spark(_beside)


def run_growth() -> list[Figure]:
    """With more and more keys."""
    return _with_spark(_growth)


def _with_spark(work: Callable[[SparkSession, Path], list[Figure]]) -> list[Figure]:
    spark = session.start("bench", "local[2]")
    try:
        with TemporaryDirectory(prefix="millrace-bench-") as folder:
            return work(spark, Path(folder))
    finally:
        session.stop(spark)


def _beside(spark: SparkSession, folder: Path) -> list[Figure]:
    figures = []
    for format in ("json", "parquet"):
        yahoo.write(folder / format, format, FILES, ROWS)
        ours, theirs = _in_turns(
            lambda out, format=format: rate(millrace(spark, folder / format, format, out)),  # type: ignore[misc]
            lambda out, format=format: rate(_by_hand(spark, folder / format, format, out)),  # type: ignore[misc]
            folder / f"{format} runs",
        )
        figures.append(figure(f"Yahoo, {format}, stream, beside PySpark by hand", ours, theirs, "rows/s"))
    figures.append(_batch(spark, folder / "json"))
    figures += _modes(spark, folder)
    figures += _latency(spark, folder)
    return figures


def _in_turns(ours: Callable[[Path], float], theirs: Callable[[Path], float], folder: Path) -> tuple[float, float]:
    """The median rate of each, run by turns after a run of each to warm up: Java compiles what it runs often."""
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(ROUNDS + 1):
        for name, work in (("ours", ours), ("theirs", theirs)):
            rates[name].append(work(folder / f"{name} {turn}"))
            print(f"{name}, run {turn}: {rates[name][-1]:,.0f}", flush=True)
    return statistics.median(rates["ours"][1:]), statistics.median(rates["theirs"][1:])


def rate(ends: list[float]) -> float:
    """Rows a second from the end of the last batch that warms up to the end."""
    return ROWS * PER_BATCH * (len(ends) - WARM) / (ends[-1] - ends[WARM - 1])


def millrace(spark: SparkSession, folder: Path, format: str, out: Path, mode: str = "on time") -> list[float]:
    """Run a stream until it has caught up; when each micro-batch ended."""
    ends: list[float] = []

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        ends.append(time.monotonic())
        print(progress.to_json(), flush=True)

    pipeline = Pipeline("yahoo", {"views": yahoo.query(files(str(folder), yahoo.SCHEMA, format, PER_BATCH), mode)})
    started = stream.start(spark, pipeline, out, until_caught_up=True, on_batch=listen)
    started.wait()
    print(f"resident: {_resident()}", flush=True)
    return ends


def _by_hand(spark: SparkSession, folder: Path, format: str, out: Path) -> list[float]:
    ends: list[float] = []

    def take(frame: DataFrame, number: int) -> None:
        frame.collect()
        ends.append(time.monotonic())

    own = _tuned(spark)
    reader = own.readStream.schema(yahoo.SCHEMA).option("maxFilesPerTrigger", PER_BATCH)
    counted = _counted(own, reader.format(format).load(str(folder)), "10 seconds")
    writer = counted.writeStream.outputMode("append").option("checkpointLocation", str(out)).foreachBatch(take)
    writer.trigger(availableNow=True).start().awaitTermination()
    return ends[: FILES // PER_BATCH]  # the last one, without data, only closes windows


def _tuned(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


def _counted(spark: SparkSession, events: DataFrame, delay: str | None) -> DataFrame:
    ads = spark.createDataFrame([list(ad.values()) for ad in yahoo.ADS], "ad_id STRING, campaign_id STRING")
    views = events.where("event_type = 'view'").join(f.broadcast(ads), "ad_id")
    timed = views if delay is None else views.withWatermark("event_time", delay)
    return timed.groupBy("campaign_id", f.window("event_time", "10 seconds")).count()


def _batch(spark: SparkSession, folder: Path) -> Figure:
    def ours() -> None:
        batch.collect(spark, Pipeline("yahoo", {"views": yahoo.query(files(str(folder), yahoo.SCHEMA))}))

    def theirs() -> None:
        own = _tuned(spark)
        _counted(own, own.read.schema(yahoo.SCHEMA).json(str(folder)), None).collect()

    many = FILES * ROWS
    return figure("Yahoo, json, batch, beside PySpark by hand", many / _best(ours), many / _best(theirs), "rows/s")


def _best(work: Callable[[], None]) -> float:
    """Seconds, the better of two runs after one to warm up."""
    spent = []
    for _ in range(3):
        began = time.monotonic()
        work()
        spent.append(time.monotonic() - began)
    return min(spent[1:])


def _modes(spark: SparkSession, folder: Path) -> list[Figure]:
    retracting, accumulating = _in_turns(
        lambda out: rate(millrace(spark, folder / "json", "json", out, "retracting")),
        lambda out: rate(millrace(spark, folder / "json", "json", out, "accumulating")),
        folder / "modes",
    )
    name = "Yahoo, json, early and late answers, retracting beside accumulating"
    return [figure(name, retracting, accumulating, "rows/s")]


def _growth(spark: SparkSession, folder: Path) -> list[Figure]:
    """What an event costs on Spark as keys grow; the peer is the smallest."""
    figures: list[Figure] = []
    for keys in (1_000, 100_000, 1_000_000, 10_000_000):
        rate, held = _grown(spark, folder, keys)
        name = f"stream, a million events of {keys:,} keys a micro-batch, retracting; {held:.0f} bytes of state a key"
        figures.append(figure(name, rate, figures[0]["millrace"] if figures else rate, "events/s"))
    return figures


def _grown(spark: SparkSession, folder: Path, keys: int) -> tuple[float, float]:
    """Events a second once every key is there, each event correcting an answer; and bytes of state a key."""
    events, measured = 1_000_000, 4
    inbox = folder / f"{keys} keys"
    inbox.mkdir()
    filling = max(1, keys // events)
    for number in range(filling + measured):
        is_filling = number < filling
        key = f"{number * events} + i" if is_filling else f"(hash(i, {number}) % {keys})::BIGINT"
        duckdb.sql(
            f"COPY (SELECT printf('user-%09d', {key}) AS k, i AS v, TIMESTAMPTZ '2026-01-01 00:00:00Z' AS at "
            f"FROM range({min(keys, events) if is_filling else events}) r(i)) TO '{inbox}/{number:04}.parquet'"
        )
    seen: list[BatchProgress] = []
    query = (
        files(str(inbox), "k STRING, v BIGINT, at TIMESTAMP", "parquet", per_batch=1)
        .event_time("at", delay="0s")
        .group_by("k")
        .window(window.fixed("1d"))
        .trigger(on.watermark(early=on.each()))
        .retracting()
        .aggregate(n=agg.count(), total=agg.sum("v"))
    )

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        seen.append(progress)

    pipeline = Pipeline("growth", {"totals": query})
    stream.start(spark, pipeline, folder / f"growth {keys}", until_caught_up=True, on_batch=listen).wait()
    shutil.rmtree(inbox)
    spent = statistics.median(each.seconds for each in seen[-measured:])
    print(f"growth, {keys:,} keys: {[round(each.seconds, 2) for each in seen]} s", flush=True)
    return events / spent, seen[-1].parts["view totals"].bytes / keys


def _latency(spark: SparkSession, folder: Path) -> list[Figure]:
    """Seconds from a small file's arrival to the answers of its micro-batch, on streams that answer early."""
    yahoo.write(folder / "small", "json", 40, 500)
    seen = threading.Event()

    def ours(inbox: Path) -> Callable[[], None]:
        def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
            if len(answers["view views"]):
                seen.set()

        pipeline = Pipeline("latency", {"views": yahoo.query(files(str(inbox), yahoo.SCHEMA), "accumulating")})
        return stream.start(spark, pipeline, folder / "latency-ours", on_batch=listen).stop

    def theirs(inbox: Path) -> Callable[[], None]:
        def take(frame: DataFrame, number: int) -> None:
            if frame.collect():
                seen.set()

        own = _tuned(spark)
        counted = _counted(own, own.readStream.schema(yahoo.SCHEMA).json(str(inbox)), "10 seconds")
        writer = counted.writeStream.outputMode("update").option("checkpointLocation", str(folder / "latency-theirs"))
        return writer.foreachBatch(take).start().stop

    measured: dict[str, list[float]] = {}
    for name, begin in (("millrace", ours), ("by hand", theirs)):
        inbox = folder / f"inbox {name}"
        inbox.mkdir()
        stop = begin(inbox)
        measured[name] = []
        for number in range(40):
            seen.clear()
            shutil.copy(folder / "small" / f"{number:04}.json", inbox / f".{number:04}.json")
            began = time.monotonic()
            (inbox / f".{number:04}.json").rename(inbox / f"{number:04}.json")
            assert seen.wait(60), f"{name} did not answer"
            measured[name].append(time.monotonic() - began)
        stop()
        measured[name] = sorted(measured[name][8:])
    figures = []
    for what, pick in (("p50", statistics.median), ("p99", lambda spent: spent[-1])):
        spent = {name: pick(times) for name, times in measured.items()}
        name = f"latency, file to answer, {what}: {spent['millrace']:.2f} s beside {spent['by hand']:.2f} s by hand"
        figures.append(figure(name, 1 / spent["millrace"], 1 / spent["by hand"], "1/s"))
    return figures


def _resident() -> str:
    """Megabytes of this process, of its Java and of the Python workers."""
    listed = subprocess.run(["ps", "-eo", "rss=,args="], capture_output=True, text=True, check=True).stdout
    sizes = {"java": 0, "workers": 0, "driver": 0}
    for line in listed.splitlines():
        size, _, command = line.strip().partition(" ")
        kind = "java" if "SparkSubmit" in command else "workers" if "pyspark.daemon" in command else None
        kind = "driver" if " -m bench" in command else kind
        if kind is not None:
            sizes[kind] += int(size) // 1024
    return ", ".join(f"{kind} {size} MB" for kind, size in sizes.items())
