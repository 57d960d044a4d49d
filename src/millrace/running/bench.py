"""The Yahoo benchmark end to end: files into the log, and the log through Spark into a view."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from millrace.eventlog.topics import Log
from millrace.model.inputs import log as topic
from millrace.model.pipeline import Pipeline
from millrace.running.lease import Lease
from millrace.running.settings import Locations, StreamOptions
from millrace.running.streaming import follow
from millrace.running.views import KeptViews
from millrace.sources.collect import chunks
from millrace.spark.progress import BatchProgress
from millrace.testing import yahoo
from millrace.views.store import open_store

_FILE = 200_000


def measure(rows: int, store: str | None, master: str) -> Iterator[str]:
    """Run the benchmark; yields each measurement as a line."""
    with TemporaryDirectory(prefix="millrace-bench-") as name:
        folder = Path(name)
        files = max(1, rows // _FILE)
        yahoo.write(folder / "events", "json", files, min(rows, _FILE))
        log = Log(folder / "log.db")
        log.create("events", partitions=2)
        began, sent, size = time.monotonic(), 0, 0
        for path in sorted((folder / "events").iterdir()):
            for chunk in chunks(str(path), "json"):
                log.append("events", chunk.values)
                sent, size = sent + len(chunk.values), size + chunk.size
        spent = time.monotonic() - began
        yield f"log: {sent / spent:,.0f} records/s, {size / spent / 1e6:,.0f} MB/s, each append on the disk"
        batches: list[BatchProgress] = []

        def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
            batches.append(progress)

        pipeline = Pipeline("bench", {"views_by_campaign": yahoo.query(topic("events", yahoo.SCHEMA))})
        home = Locations(log.path, store or str(folder / "views.db"), folder / "checkpoint", master)
        views = KeptViews(open_store(home.store), pipeline)
        with Lease(pipeline.name, master) as lease:
            follow(pipeline, home, 1, views, StreamOptions(until_caught_up=True, latency="2s"), lease, listen)
        warm = [each for each in batches[1:] if each.rows] or batches
        taken, seconds = sum(each.rows for each in warm), sum(each.seconds for each in warm)
        yield f"pipeline: {taken / seconds:,.0f} events/s in {len(warm)} micro-batches after the first"
        yield f"a micro-batch: {seconds / len(warm):.2f} s with {taken // len(warm):,} events"
