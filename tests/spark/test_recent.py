"""The recent micro-batches of a checkpoint, and the flow of its pipeline."""

import json
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace import Pipeline, agg, log, to_table, window
from millrace.eventlog.topics import Log
from millrace.plan.flow import flow_of
from millrace.running.status import Report
from millrace.spark import recent as files
from millrace.spark.progress import BatchProgress
from millrace.spark.recent import Recent, flow, recent, write_flow
from stream_run import run

PLAYS = log("plays", "k STRING, at TIMESTAMP").event_time("at", delay="0s").where("k <> 'x'")
COUNTS = PLAYS.group_by("k").window(window.fixed("10s")).aggregate(n=agg.count())


def batch(number: int) -> BatchProgress:
    return BatchProgress(number, 10, 0.5, 0, {})


def test_the_oldest_micro_batches_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "KEPT", 5)
    kept = Recent(tmp_path)
    for number in range(33):
        kept.add(batch(number), 1_000.0 + number)
        found = [each["batch"] for each in recent(tmp_path)]
        assert found == list(range(number + 1))[-len(found) :]
        assert min(5, number + 1) <= len(found) <= 10
    assert [each["at"] for each in recent(tmp_path, 30)] == [1_031.0, 1_032.0]


def test_a_line_that_a_crash_has_cut_costs_no_other(tmp_path: Path) -> None:
    Recent(tmp_path).add(batch(0), 1.0)
    with (tmp_path / "progress.jsonl").open("ab") as file:
        file.write(b'{"at": 2.0, "ba')
    assert [each["batch"] for each in recent(tmp_path)] == [0]
    Recent(tmp_path).add(batch(1), 3.0)
    assert [each["batch"] for each in recent(tmp_path)] == [0, 1]


def test_no_file_is_no_micro_batch_and_no_flow(tmp_path: Path) -> None:
    assert recent(tmp_path) == []
    assert flow(tmp_path) is None
    (tmp_path / "flow.json").write_text("{")
    assert flow(tmp_path) is None


def test_a_flow_has_each_step_once_and_the_names_of_sources_and_outputs(tmp_path: Path) -> None:
    made = flow_of(Pipeline("charts", views={"counts": COUNTS}, sinks=[COUNTS.to(to_table("out.db", "t"))]))
    write_flow(tmp_path, made)
    assert flow(tmp_path) == made
    steps = made["steps"]
    assert [step["verb"] for step in steps] == [
        "source", "event time", "where", "group by", "window", "trigger", "panes", "aggregate", "view", "sink",
    ]  # fmt: skip
    assert [step["source"] for step in steps if step["source"]] == ["plays"]
    assert [step["output"] for step in steps[-2:]] == ["view counts", "sink table out.db t"]
    assert made["lines"] == [*([number, number + 1] for number in range(8)), [7, 9]]


def test_a_stream_reports_its_records_by_source_and_how_long_they_took(spark: SparkSession, tmp_path: Path) -> None:
    topics = Log(tmp_path / "log.db")
    topics.create("plays")
    before = time.time()
    topics.append("plays", ['{"k": "a", "at": "2026-01-01T00:00:00Z"}'] * 50)
    pipeline = Pipeline("charts", views={"counts": COUNTS})
    progress = [each for each, _ in run(spark, pipeline, tmp_path, log=tmp_path / "log.db")]
    first = progress[0]
    assert first.sources == {"plays": 50}
    assert first.latency is not None
    assert 0 < first.latency.p50 <= first.latency.p99 <= time.time() - before
    report = Report(pipeline)
    for each in progress:
        report.batch(tmp_path, each)
    read = recent(tmp_path)
    assert [each["batch"] for each in read] == [each.batch for each in progress]
    assert (read[0]["sources"], read[0]["latency"]["p50"]) == ({"plays": 50}, first.latency.p50)
    assert json.loads((tmp_path / "flow.json").read_text()) == flow_of(pipeline)
