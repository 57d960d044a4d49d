"""Events far ahead of the log time of their records: set aside alike by streams, batches, fused and native edges."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millrace import CustomSource, Pipeline, agg, files, layers, log, memory, source, window
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.model.duration import to_instant
from millrace.model.stream import Stream
from millrace.running.archive import archive
from millrace.sources.bundle import LOGGED, Bundle
from millrace.sources.files import Files
from millrace.sources.memory import Happening, MemoryScript, Scripted
from millrace.spark import batch
from millrace.testing import Script, run_script
from stream_run import run

SCHEMA = "k STRING, at TIMESTAMP"
NOON = datetime.fromisoformat("2026-01-01T12:00:00+00:00")


def counted(stream: Stream, ahead: str | None = "1h") -> Pipeline:
    timed = stream.event_time("at", delay="0s", ahead=ahead)
    return Pipeline("p", {"counts": timed.group_by("k").window(window.fixed("1h")).aggregate(n=agg.count())})


def record(k: str, at: datetime) -> str:
    return json.dumps({"k": k, "at": at.isoformat()})


def letters(folder: Path) -> list[tuple[str, int | None, str]]:
    found = [letter.rejected for letter in box_of(folder, "p").letters()]
    return sorted((each.origin, each.offset, each.reason) for each in found)


@pytest.mark.spark
def test_a_topic_is_judged_by_the_time_of_each_record_however_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    hours = [timedelta(hours=each) for each in (0, 0, 5, 9)]
    kept = Log(path)
    kept.create("plays")
    values = [record("a", NOON), record("a", NOON + timedelta(hours=5)), record("a", NOON + timedelta(hours=5))]
    kept.append("plays", [*values, record("a", NOON)], timestamps=[NOON + each for each in hours])
    pipeline = counted(log("plays", SCHEMA))
    reason = "event time at is 2026-01-01 17:00:00, more than 1h after its record was logged, 2026-01-01 12:00:00"
    for fuse in (True, False):
        found = batch.run(spark, pipeline, log=path, fuse=fuse, letters=box_of(tmp_path / f"batch {fuse}", "p"))
        assert [(row["window_start"].hour, row["n"]) for row in found.answers["view counts"].to_pylist()] == [
            (12, 2), (17, 1)
        ]  # fmt: skip
        assert letters(tmp_path / f"batch {fuse}") == [("plays/0", 1, reason)]
        run(spark, pipeline, tmp_path / f"stream {fuse}", log=path, fuse=fuse)
        assert letters(tmp_path / f"stream {fuse}") == [("plays/0", 1, reason)]
        for kind in ("batch", "stream"):
            problems = [each.problem for each in box_of(tmp_path / f"{kind} {fuse}", "p").problems()]
            assert problems == ["event time at is more than 1h after its record was logged"], "counted by this reason"


def spoken(row: dict[str, Any]) -> dict[str, Any]:
    """The key and the hours of a text such as "a 12 17"."""
    key, *hours = row["text"].split()
    return {"k": key, "at": [NOON.replace(hour=int(each)) for each in hours]}


def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    assert row["at"].hour < 20, "no row that is too far ahead passes event_time"
    return [row, row]


@pytest.mark.spark
def test_a_row_that_functions_made_is_judged_by_the_time_of_its_record(spark: SparkSession) -> None:
    rows = memory("texts", "text STRING").map(spoken, "k STRING, at ARRAY<TIMESTAMP>").explode("at")
    timed = rows.filter(lambda row: row["k"] != "c").event_time("at", delay="9h", ahead="1h")
    query = timed.flat_map(twice, SCHEMA).group_by("k").window(window.fixed("1h")).aggregate(n=agg.count())
    pipeline = Pipeline("p", {"counts": query})
    early = [{"text": "a 12 13"}, {"text": "a 12 22 23"}, {"text": "b 17"}, {"text": "c 23"}, {"text": "d x"}]
    late = [{"text": "b 17"}, {"text": "b 23"}]
    answers = run_script(pipeline, Script(start=NOON).rows("texts", *early).clock("5h").rows("texts", *late).end())
    assert [(row["k"], row["window_start"].hour, row["n"]) for row in answers.view("counts")] == [
        ("a", 12, 4), ("a", 13, 2), ("b", 17, 2)
    ]  # fmt: skip
    line, after = spoken.__code__.co_firstlineno + 3, "more than 1h after its record was logged"
    expected = {
        "a 12 22 23": f"event time at is 2026-01-01 22:00:00, {after}, 2026-01-01 12:00:00",
        "b 17": f"event time at is 2026-01-01 17:00:00, {after}, 2026-01-01 12:00:00",
        "d x": f"test_time_guard.py:{line}: map(spoken): ValueError: invalid literal for int() with base 10: 'x'",
        "b 23": f"event time at is 2026-01-01 23:00:00, {after}, 2026-01-01 17:00:00",
    }
    told = {str(each.row): each.reason for each in answers.dead_letters}
    assert told == {str({"text": text}): reason for text, reason in expected.items()}
    happenings = [Happening(early, now=to_instant(NOON.replace(hour=17))), Happening(late)]
    script = MemoryScript(happenings, start=to_instant(NOON))
    for fuse in (True, False):
        found = batch.collect(spark, pipeline, scripts={"texts": script}, fuse=fuse)
        assert [(row["k"], row["window_start"].hour, row["n"]) for row in found.answers["view counts"].to_pylist()] == [
            ("a", 12, 4), ("a", 13, 2), ("b", 17, 2)
        ]  # fmt: skip
        rejected = found.dead_letters.to_pylist()
        assert {json.loads(each["value"])["text"]: each["reason"] for each in rejected} == expected
        assert {(each["output"], each["hint"]) for each in rejected} == {
            ("view counts", "if such times are right, allow them with ahead= of event_time"), ("view counts", None)
        }  # fmt: skip


class Table(CustomSource):
    """A source of two rows: one of now, and one of the year 2999."""

    def start(self) -> int:
        return 0

    def end(self) -> int:
        return 1

    def splits(self, start: int, end: int) -> list[int]:
        return list(range(start, end))

    def read(self, split: int) -> list[dict[str, Any]]:
        return [{"k": "a", "at": NOON}, {"k": "a", "at": NOON.replace(year=2999)}]


@pytest.mark.spark
def test_a_custom_source_is_judged_by_the_clock_of_the_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = counted(source("rows", SCHEMA, Table()))
    run(spark, pipeline, tmp_path)
    assert [offset for _, offset, _ in letters(tmp_path)] == [1]
    found = batch.collect(spark, pipeline)
    assert (len(found.answers["view counts"]), len(found.dead_letters)) == (1, 1)


def test_a_file_is_judged_by_when_it_was_written_also_when_it_is_touched_later(tmp_path: Path) -> None:
    folder, journal = tmp_path / "in", tmp_path / "journal"
    folder.mkdir()
    (folder / "a.json").write_text("{}\n")
    written = (folder / "a.json").stat().st_mtime_ns // 1_000
    read = files(str(folder), SCHEMA)
    assert Files(read, journal).end() == 1
    (folder / "a.json").touch()
    (split,) = Files(read, journal).splits(0, 1)
    assert split.read().logged == written


def test_an_archive_keeps_the_times_of_its_records(tmp_path: Path) -> None:
    kept = Log(tmp_path / "log.db")
    kept.create("plays")
    times = [NOON, NOON, NOON + timedelta(days=1)]
    kept.append("plays", [record("a", NOON), "no JSON", record("b", NOON)], timestamps=times)
    folder = tmp_path / "archive"
    archive(kept, layers(batch=files(str(folder), SCHEMA, "parquet"), speed=log("plays", SCHEMA)), "run it")
    (path,) = folder.iterdir()
    assert pq.read_table(path)[LOGGED].to_pylist() == [to_instant(NOON), to_instant(times[2])]
    found = Files(files(str(folder), SCHEMA, "parquet"), tmp_path / "journal")
    (split,) = found.splits(0, found.end())
    bundle = split.read({"k"})
    assert bundle.rows is not None
    assert bundle.rows.column_names == ["k"]
    assert bundle.log_times(0).tolist() == [to_instant(NOON), to_instant(times[2])]


def test_rows_of_a_script_are_logged_when_they_arrive() -> None:
    script = MemoryScript([Happening([{"k": "a"}], now=9), Happening([{"k": "b"}])], start=5)
    splits = Scripted(script, memory("rows", SCHEMA)).splits(0, 2)
    assert [split.logged for split in splits] == [5, 9]
    assert MemoryScript([Happening()], timed=False).logged(0) is None


def test_a_clock_that_was_never_set_judges_nothing() -> None:
    offsets, noon = np.arange(2), to_instant(NOON)
    far = 2**63 - 1
    assert Bundle("t", offsets, pa.array(["{}", "{}"]), logged=np.array([7, noon])).log_times(1).tolist() == [far, noon]
    assert Bundle("t", offsets, pa.array(["{}", "{}"]), logged=0).log_times(noon).tolist() == [far, far]
    assert Bundle("t", offsets, pa.array(["{}", "{}"])).log_times(noon).tolist() == [noon, noon]
