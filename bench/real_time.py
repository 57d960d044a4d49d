"""Real-time mode: milliseconds from a record in Kafka to its row in a view, beside bare Spark and micro-batches.

Bare Spark reads the same records in real-time mode, counts them in the same windows, and writes to a topic: it has no
view. Each record changes a row of its own, so that no change is hidden by a later one. All is on one machine, and the
brokers, Spark and both clients share its cores.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import functions as f

from bench.figures import Figure, figure
from millrace.broker import broker
from millrace.broker.jars import CONNECTOR, fetched
from millrace.model.errors import NotFoundError
from millrace.spark import session
from millrace.spark.java import java_in
from millrace.spark.realtime import CONTEXT, session_for
from millrace.views.store import open_store

RATES = (1_000, 10_000)
SECONDS = int(os.environ.get("BENCH_SECONDS", "20"))
"""For how long records are sent at each rate."""
KEYS = 20_000
PARTITIONS, SHARDS = 2, 2
SCHEMA = "k BIGINT NOT NULL, sent BIGINT NOT NULL, at TIMESTAMP"
_PATIENCE = 120.0
_JIT = 2_000, 30.0
"""The rate and the seconds of records that warm up Java."""
_WARM = 3.0
"""The seconds before records count."""


def run() -> list[Figure]:
    """Measure the three, one after the other, on one broker."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder, _broker(Path(folder)) as address:
        ours = _millrace(Path(folder), address, "real-time")
        bare = _bare(Path(folder), address)
        micro = _millrace(Path(folder), address, "micro-batch")
    figures = []
    for rate in RATES:
        for name, found in (("real-time, record to view", ours), ("micro-batch, record to view", micro)):
            for share in (50, 99, 99.9):
                if not found[rate] or not bare[rate]:
                    continue  # none came in time, which was printed
                mine, theirs = (float(np.percentile(each[rate], share)) for each in (found, bare))
                what = f"{name}, p{share:g}, {rate:,} events/s; peer: bare Spark real-time, to a topic"
                figures.append(figure(what, mine, theirs, "ms"))
    return figures


Latencies = dict[int, list[float]]
"""Milliseconds for each record, by rate."""


PIPELINE = """
from millrace import Pipeline, agg, kafka, on, window

events = kafka("kafka://{address}/{topic}", "{schema}").event_time("at", delay="10s", ahead=None)
counted = events.group_by("k").window(window.fixed("1h")).trigger(on.each()).accumulating()
bench = Pipeline("bench", views={{"counts": counted.aggregate(n=agg.count(), newest=agg.max("sent"))}})
"""


def _millrace(folder: Path, address: str, mode: str) -> Latencies:
    topic = _topic(address, f"events-{mode}")
    home = folder / mode
    home.mkdir()
    file = home / "bench.py"
    file.write_text(PIPELINE.format(address=address, topic=topic, schema=SCHEMA))
    command = [sys.executable, "-m", "millrace", "run", str(file), "--mode", mode, "--shards", str(SHARDS)]
    output = home / "output.txt"
    with output.open("wb") as said:
        process = subprocess.Popen(command, cwd=home, stdout=said, stderr=said)
    store = open_store(home / ".millrace" / "views.db")
    seen = 0

    def arrived() -> list[int]:
        nonlocal seen
        assert process.poll() is None, output.read_text()
        try:
            version = store.version()
            if version == seen:
                return []
            rows = store.changes("counts", seen)
        except NotFoundError:  # the store is made with the first commit
            return []
        seen = version
        return rows.filter(pc.equal(rows["diff"], 1))["newest"].to_pylist()  # type: ignore[no-any-return]

    with closing(store):
        try:
            return _measured(address, topic, arrived)
        finally:
            process.terminate()
            process.wait(60)


def _bare(folder: Path, address: str) -> Latencies:
    topic, out = _topic(address, "events-bare"), _topic(address, "counts-bare")
    jars = ",".join(map(str, fetched(java_in(os.environ), of=CONNECTOR)))
    spark = session.start("bare", "local[8]", folder / "bare.log", {"spark.jars": jars, **CONTEXT})
    own = session_for(spark, SHARDS)
    read = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
    rows = own.readStream.format("kafka").options(**read).load()
    rows = rows.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")
    counted = rows.withWatermark("at", "10 seconds").groupBy("k", f.window("at", "1 hour"))
    value = counted.agg(f.count("*").alias("n"), f.max("sent").alias("newest"))
    query = (
        value.select(f.col("k").cast("string").alias("key"), f.to_json(f.struct("*")).alias("value"))
        .writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": address, "topic": out, "kafka.linger.ms": "0"})
        .option("checkpointLocation", str(folder / "bare"))
        .outputMode("update")
        .trigger(realTime="2 minutes")  # type: ignore[call-overload]
        .start()
    )
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(out, number, 0) for number in range(PARTITIONS)])

    def arrived() -> list[int]:
        first = consumer.poll(0.01)
        taken = [] if first is None else [first, *consumer.consume(10_000, 0.001)]
        return [json.loads(each.value() or b"")["newest"] for each in taken if each.error() is None]

    try:
        return _measured(address, topic, arrived)
    finally:
        consumer.close()
        query.stop()
        session.stop(spark)


def _measured(address: str, topic: str, arrived: Callable[[], list[int]]) -> Latencies:
    """Send records until the first arrives, then at each rate; `arrived` has when those were sent that came since."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0})
    _send(producer, topic, 100, 1.0)
    deadline = time.monotonic() + _PATIENCE
    while not arrived():
        assert time.monotonic() < deadline, "nothing arrives"
        time.sleep(0.01)
    _send(producer, topic, *_JIT)  # until Java has compiled what runs for each row
    deadline = time.monotonic() + _PATIENCE
    while not any(sent / 1e6 > time.time() - 1 for sent in arrived()):
        assert time.monotonic() < deadline, "records take longer than a second"
        _send(producer, topic, 1_000, 0.1)
    found: Latencies = {}
    for rate in RATES:
        began = time.time()
        sender = threading.Thread(target=_send, args=(producer, topic, rate, SECONDS + _WARM))
        sender.start()
        times: list[float] = []
        until = began + SECONDS + _WARM + 10
        while time.time() < until and (sender.is_alive() or len(times) < rate * SECONDS):
            came, now = arrived(), time.time()
            times += [now * 1e3 - sent / 1e3 for sent in came if sent / 1e6 >= began + _WARM]
            if not came:
                time.sleep(0.0005)
        sender.join()
        found[rate] = times
        print(f"{topic}: {len(times):,} of {rate * SECONDS:,} records at {rate:,} a second came in time", flush=True)
    return found


def _send(producer: Producer, topic: str, rate: int, seconds: float) -> None:
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        while time.perf_counter() < began + number / rate:
            producer.poll(0)
            time.sleep(0.0002)
        value = f'{{"k": {number % KEYS}, "sent": {time.time_ns() // 1000}, "at": "2026-01-01T12:00:00Z"}}'
        producer.produce(topic, value, partition=number % PARTITIONS)
    producer.flush()


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    started = broker.start(folder / "kafka", 0)
    try:
        yield started.address
    finally:
        broker.stop(folder / "kafka")


def _topic(address: str, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(30)
    return name
