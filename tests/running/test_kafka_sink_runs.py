"""Pipelines that write to a real Kafka: killed with SIGKILL, as a batch, and without a topic."""

import json
import os
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from brokers import Kafka
from kills import Process, held_at
from millrace import NotFoundError, Pipeline, agg, files, kafka, on, to_kafka, window
from millrace.spark import batch
from stream_run import run

pytestmark = pytest.mark.spark

PIPELINE = """
from millrace import Pipeline, agg, files, on, to_kafka, window

events = files("in", "k STRING, v BIGINT", per_batch=1)
totals = (
    events.group_by("k").window(window.all_time()).trigger(on.each()).retracting()
    .aggregate(n=agg.count(), total=agg.sum("v"))
)
sinks = [
    events.to(to_kafka("{rows}", key="k")),
    totals.to(to_kafka("{panes}")),
    totals.changes().where("total % 2 = 0").to(to_kafka("{latest}", changelog=True)),
]
pipeline = Pipeline("killed", sinks=sinks)
"""
FILES = 5


def prepared(folder: Path) -> list[dict[str, Any]]:
    """Write the input, the same every time."""
    (folder / "in").mkdir()
    draw = random.Random(3)
    rows = []
    for number in range(FILES):
        made = [{"k": f"key {draw.randrange(4)}", "v": draw.randrange(100)} for _ in range(20)]
        path = folder / "in" / f"{number:03}.json"
        path.write_text("\n".join(map(json.dumps, made)))
        os.utime(path, (number, number))
        rows += made
    return rows


def values(kafka_: Kafka, topic: str, committed: bool = True) -> list[dict[str, Any]]:
    return [json.loads(each.value() or b"") for each in kafka_.messages(topic, committed)]


def test_each_row_is_there_once_after_kills(kafka_: Kafka, tmp_path: Path) -> None:
    topics = {"rows": kafka_.topic(3), "panes": kafka_.topic(2), "latest": kafka_.topic(cleanup_policy="compact")}
    urls = {name: kafka_.url(topic) for name, topic in topics.items()}
    rows = prepared(tmp_path)
    (tmp_path / "pipeline.py").write_text(PIPELINE.format(**urls))
    options = ["--until-caught-up", "--checkpoint", "checkpoint"]
    marker = tmp_path / "reached"
    # Each sink begins with a transaction without rows, so the eighth is the second one of the panes.
    for point, count in (("sink during write", 8), ("sink after write", 2)):
        process = Process(tmp_path / "pipeline.py", options, held_at(point, count, marker))
        assert process.wait_for(marker), f"it ended before {point}"
        process.kill()
        marker.unlink()
    Process(tmp_path / "pipeline.py", options).wait()
    assert Counter(map(json.dumps, values(kafka_, topics["rows"]))) == Counter(map(json.dumps, rows))
    assert len(values(kafka_, topics["panes"], committed=False)) > len(values(kafka_, topics["panes"])), (
        "the kill left rows that no reader should see"
    )
    panes = Counter((row["k"], row["index"], row["diff"]) for row in values(kafka_, topics["panes"]))
    assert set(panes.values()) == {1}
    held: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        held[row["k"]].append(row["v"])
    net: Counter[tuple[str, int, int]] = Counter()
    for row in values(kafka_, topics["panes"]):
        net[row["k"], row["n"], row["total"]] += row["diff"]
    assert {key for key, many in net.items() if many} == {(k, len(vs), sum(vs)) for k, vs in held.items()}
    latest = {row["k"]: row for row in values(kafka_, topics["latest"])}
    even = {k: sum(vs) for k, vs in held.items() if sum(vs) % 2 == 0}
    assert {k: row["total"] for k, row in latest.items() if not row["deleted"]} == even
    sequences = [row["sequence"] for row in values(kafka_, topics["latest"])]
    assert sequences == sorted(set(sequences))


def totals_to(kafka_: Kafka, folder: Path, topic: str, **more: Any) -> Pipeline:
    events = files(str(folder / "in"), "k STRING, v BIGINT")
    totals = events.group_by("k").window(window.all_time()).trigger(on.each()).retracting().aggregate(t=agg.sum("v"))
    return Pipeline("totals", sinks=[totals.to(to_kafka(kafka_.url(topic), **more))])


def test_a_batch_appends_its_answers(spark: SparkSession, kafka_: Kafka, tmp_path: Path) -> None:
    rows, topic = prepared(tmp_path), kafka_.topic()
    expected: Counter[str] = Counter()
    for row in rows:
        expected[row["k"]] += row["v"]
    for times in (1, 2):
        batch.run(spark, totals_to(kafka_, tmp_path, topic))
        found = values(kafka_, topic)
        assert Counter((row["k"], row["t"]) for row in found) == dict.fromkeys(expected.items(), times)


def test_kafka_to_kafka(spark: SparkSession, kafka_: Kafka, tmp_path: Path) -> None:
    read, written = kafka_.topic(), kafka_.topic()
    kafka_.send(read, ['{"n": 1}', '{"n": 2}', '{"n": 3}'])
    source = kafka(kafka_.url(read), "n BIGINT")
    odd = Pipeline("odd", sinks=[source.where("n % 2 = 1").to(to_kafka(kafka_.url(written)))])
    run(spark, odd, tmp_path)
    run(spark, odd, tmp_path)  # nothing is new
    kafka_.send(read, ['{"n": 4}', '{"n": 5}'])
    run(spark, odd, tmp_path)
    assert values(kafka_, written) == [{"n": 1}, {"n": 3}, {"n": 5}]


def test_a_topic_that_does_not_exist_is_refused(spark: SparkSession, kafka_: Kafka, tmp_path: Path) -> None:
    prepared(tmp_path)
    with pytest.raises(NotFoundError, match=r"test_kafka_sink_runs.py:\d+: there is no topic 'nowhere'"):
        run(spark, totals_to(kafka_, tmp_path, "nowhere"), tmp_path)
