"""A pipeline that is started before its first record waits for it, and then says what it would have said anyway."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millrace import Pipeline, agg, files, log, memory, on, table, window
from millrace.eventlog.topics import Log
from millrace.model.duration import SECOND, to_datetime
from millrace.model.query import Query
from millrace.model.stream import Source, Stream
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import batch, stream
from millrace.spark.progress import BatchProgress

pytestmark = pytest.mark.spark

COLUMNS = "k STRING, v BIGINT, at TIMESTAMP"
KINDS = ("log", "json", "parquet", "memory")
EDGES = pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])


class Place:
    """Empty sources in a folder, and how rows come to them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scripts = folder, dict[str, MemoryScript]()
        Log(folder / "log.db").create("plays")

    def source(self, kind: str) -> Source:
        if kind == "log":
            return log("plays", COLUMNS)
        if kind == "memory":
            self.scripts["rows"] = MemoryScript([], timed=False)
            return memory("rows", COLUMNS)
        (self.folder / kind).mkdir()
        return files(str(self.folder / kind), COLUMNS, kind)

    def send(self, kind: str, key: str, second: int) -> None:
        at = to_datetime(second * SECOND)
        row = {"k": key, "v": 1, "at": at}
        text = json.dumps({**row, "at": at.isoformat()})
        beside = self.folder / "beside"
        if kind == "log":
            Log(self.folder / "log.db").append("plays", [text])
        elif kind == "memory":
            before = self.scripts["rows"].happenings
            self.scripts["rows"] = MemoryScript([*before, Happening([row])], timed=False)
        else:
            if kind == "json":
                beside.write_text(text)
            else:
                pq.write_table(pa.Table.from_pylist([row]), beside)
            beside.rename(self.folder / kind / f"{key} {second}")

    def start(
        self, spark: SparkSession, asked: Query, on_batch: stream.OnBatch | None = None, **how: Any
    ) -> stream.StreamRun:
        return stream.start(
            spark, Pipeline("p", {"n": asked}), self.folder / "checkpoint", log=self.folder / "log.db",
            scripts=self.scripts, on_batch=on_batch, **how,
        )  # fmt: skip

    def run(self, spark: SparkSession, asked: Query, **how: Any) -> list[tuple[BatchProgress, list[tuple[str, int]]]]:
        """Run until caught up; how each micro-batch went, with its answers."""
        said: list[tuple[BatchProgress, list[tuple[str, int]]]] = []
        run = self.start(
            spark,
            asked,
            lambda progress, answers: said.append((progress, counts(answers))),
            until_caught_up=True,
            **how,
        )
        try:
            run.wait()
        finally:
            run.stop()
        return said


def counts(answers: Mapping[str, pa.Table]) -> list[tuple[str, int]]:
    return [(row["k"], row["n"]) for row in answers["view n"].to_pylist()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def each(rows: Stream) -> Query:
    return rows.group_by("k").window(window.all_time()).trigger(on.each()).accumulating().aggregate(n=agg.count())


def by_watermark(rows: Stream) -> Query:
    return rows.event_time("at", delay="0s").group_by("k").window(window.fixed("10s")).aggregate(n=agg.count())


@EDGES
@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_after_an_empty_start_is_answered(kind: str, fuse: bool, spark: SparkSession, place: Place) -> None:
    asked = by_watermark(place.source(kind))
    ((progress, said),) = place.run(spark, asked, fuse=fuse)
    assert (progress.batch, progress.rows, said) == (0, 0, [])
    assert place.run(spark, asked, fuse=fuse) == [], "nothing came, and nothing is due"
    place.send(kind, "a", 1)
    place.send(kind, "a", 30)
    found = place.run(spark, asked, fuse=fuse)
    assert [answer for _, said in found for answer in said] == [("a", 1)]
    assert sum(progress.rows for progress, _ in found) == 2


@pytest.mark.parametrize("empty", [("log",), ("json", "memory"), ("log", "json", "memory")])
@EDGES
def test_sources_that_are_empty_beside_others(
    empty: tuple[str, ...], fuse: bool, spark: SparkSession, place: Place
) -> None:
    kinds = ("log", "json", "memory")
    first, *more = (place.source(kind) for kind in kinds)
    asked = each(first.union(*more))
    for kind in kinds:
        if kind not in empty:
            place.send(kind, "a", 1)
    before = len(kinds) - len(empty)
    found = place.run(spark, asked, fuse=fuse)
    assert [answer for _, said in found for answer in said] == ([("a", before)] if before else [])
    for kind in empty:
        place.send(kind, "a", 2)
    found = place.run(spark, asked, fuse=fuse)
    assert [answer for _, said in found for answer in said][-1] == ("a", len(kinds))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_over_nothing_answers_nothing(kind: str, spark: SparkSession, place: Place) -> None:
    pipeline = Pipeline("p", {"n": each(place.source(kind))})
    for fuse in (True, False):
        found = batch.collect(spark, pipeline, log=place.folder / "log.db", scripts=place.scripts, fuse=fuse)
        assert (counts(found.answers), found.progress(0, {}).rows) == ([], 0)


@pytest.mark.parametrize("trigger", [on.each(), on.every("1s"), on.after("1s")], ids=str)
def test_a_stream_waits_for_its_first_record(trigger: Any, spark: SparkSession, place: Place) -> None:
    asked = (
        place.source("log")
        .group_by("k")
        .window(window.all_time())
        .trigger(trigger)
        .accumulating()
        .aggregate(n=agg.count())
    )
    batches, said = list[int](), list[tuple[str, int]]()

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        batches.append(progress.rows)
        said.extend(counts(answers))

    run = place.start(spark, asked, listen)
    try:
        until(run, lambda: batches)
        assert not run.wait(3)
        assert batches == [0], "the clock alone asks for no micro-batch while nothing waits for it"
        place.send("log", "a", 1)
        until(run, lambda: said)
        assert not run.wait(3)
    finally:
        run.stop()
    assert said == [("a", 1)]
    assert batches in ([0, 1], [0, 1, 0]), "one for the record, and one for its timer if that was not due at once"


def test_a_source_that_never_says_anything_is_idle(spark: SparkSession, place: Place) -> None:
    timed = [place.source(kind).event_time("at", delay="0s", idle="1s") for kind in ("log", "json")]
    asked = timed[0].union(timed[1]).group_by("k").window(window.fixed("10s")).aggregate(n=agg.count())
    said: list[tuple[str, int]] = []
    run = place.start(spark, asked, lambda _, answers: said.extend(counts(answers)))
    try:
        place.send("json", "a", 1)
        place.send("json", "a", 30)
        until(run, lambda: said)
    finally:
        run.stop()
    assert said[0] == ("a", 1)


def fail_as_before(checkpoint: Path) -> None:
    """Make of a checkpoint what a start on nothing once left: a first batch, planned without a time, that failed."""
    logged = checkpoint / "spark" / "offsets" / "0"
    version, metadata, *offsets = logged.read_text().splitlines()
    old = [json.dumps({"now": None, "at": json.loads(offset)["at"]}) for offset in offsets]
    logged.write_text("\n".join([version, metadata, *old]))
    logged.with_name(".0.crc").unlink(missing_ok=True)
    for path in (checkpoint / "spark" / "commits").glob("*0*"):
        path.unlink()


@EDGES
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_failed_on_nothing_goes_on(kind: str, fuse: bool, spark: SparkSession, place: Place) -> None:
    names = place.folder / "names.csv"
    names.write_text("k,name\na,Ann\n")
    rows = place.source(kind).join(table("names", "k STRING, name STRING", path=str(names)), on="k")
    asked = by_watermark(rows)
    place.run(spark, asked, fuse=fuse)
    fail_as_before(place.folder / "checkpoint")
    place.send(kind, "a", 1)
    place.send(kind, "a", 30)
    found = place.run(spark, asked, fuse=fuse)
    assert (found[0][0].batch, found[0][0].rows) == (0, 0), "the batch that was planned is run as it was"
    assert [answer for _, said in found for answer in said] == [("a", 1)]


def until(run: stream.StreamRun, condition: Callable[[], object]) -> None:
    """Wait for something that a stream does."""
    deadline = time.monotonic() + 60
    while not condition():
        assert not run.wait(1)
        assert time.monotonic() < deadline
