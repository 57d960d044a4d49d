"""Pipelines over Kafka: the same answers as over the log, exact after kills, and no secret in what a run stores."""

import json
import random
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from brokers import Kafka
from kills import Process, held_at
from millrace import ConflictError, Pipeline, agg, kafka, log, on, window
from millrace.cli import app
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.model.stream import Source
from millrace.plan.compile import compile
from millrace.plan.explain import explain
from millrace.running.status import all_under, described
from millrace.spark import batch
from millrace.views.store import open_store
from stream_run import run

pytestmark = pytest.mark.spark
SCHEMA = "k STRING, v BIGINT NOT NULL, at TIMESTAMP"


def records(seed: int, many: int) -> list[str]:
    """Records, some of which do not fit."""
    draw = random.Random(seed)
    made = []
    for _ in range(many):
        at = f"2026-01-01T00:{draw.randrange(10):02}:{draw.randrange(60):02}Z"
        good = {"k": f"key {draw.randrange(5)}", "v": draw.randrange(100), "at": at}
        bad = draw.choice(['{"v": "x"}', "no JSON", '{"k": "key 1"}'])
        made.append(json.dumps(good) if draw.random() < 0.95 else bad)
    return made


def pipeline_over(events: Source) -> Pipeline:
    timed = events.event_time("at", delay="20m").group_by("k")
    totals = timed.window(window.fixed("1m")).trigger(on.watermark(early=on.each())).retracting()
    return Pipeline(
        "charts",
        views={
            "totals": totals.aggregate(n=agg.count(), total=agg.sum("v")),
            "ever": timed.window(window.all_time()).trigger(on.each()).accumulating().aggregate(most=agg.max("v")),
        },
    )


def rows_of(store: Path, *views: str) -> list[list[str]]:
    with closing(open_store(store)) as opened:
        return [sorted(map(repr, opened.rows(view).rows.to_pylist())) for view in views]


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
def test_answers_equal_those_over_the_log(spark: SparkSession, kafka_: Kafka, tmp_path: Path, fuse: bool) -> None:
    topic = kafka_.topic(2)
    own = Log(tmp_path / "log.db")
    own.create(topic, partitions=2)
    sources = {"log": log(topic, SCHEMA), "kafka": kafka(kafka_.url(topic), SCHEMA)}
    found: dict[str, list[Any]] = defaultdict(list)
    for round in range(2):
        for partition in range(2):
            sent = records(2 * round + partition, 300)
            kafka_.send(topic, sent, partition=partition)
            own.append(topic, sent)  # without keys, to the partition with the fewest records
        for name, source in sources.items():
            pipeline, folder = pipeline_over(source), tmp_path / name
            batches = run(spark, pipeline, folder, log=own.path, store=folder / "views.db", fuse=fuse)
            assert sum(progress.rows for progress, _ in batches) == 600
            found[name].append(rows_of(folder / "views.db", "totals", "ever"))
            letters = [letter.rejected for letter in box_of(folder, "charts").letters()]
            found[name].append(sorted((each.partition or 0, each.offset or 0, each.reason) for each in letters))
    assert found["kafka"] == found["log"]
    assert len(found["kafka"][-1]) > 30
    answers = batch.collect(spark, pipeline_over(sources["kafka"]), fuse=fuse).answers
    others = batch.collect(spark, pipeline_over(sources["log"]), log=own.path, fuse=fuse).answers
    for view, table in answers.items():
        assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, others[view].to_pylist()))


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
def test_parts_of_records_are_columns_and_event_time(
    spark: SparkSession, kafka_: Kafka, tmp_path: Path, fuse: bool
) -> None:
    topic = kafka_.topic()
    for minute, user in enumerate(("ann", "bob", "ann")):
        at = (1_767_225_600 + 60 * minute) * 1000
        kafka_.send(topic, ['{"v": 1}', "no JSON"], key=user.encode(), timestamp=at, headers={"from": b"web"})
    metadata = {"user": "key", "sent": "timestamp", "h": "headers", "origin": "header from", "at_offset": "offset"}
    events = kafka(kafka_.url(topic), "v BIGINT NOT NULL", metadata=metadata)
    timed = events.event_time("sent", delay="0s").group_by("user", "origin")
    counted = timed.window(window.fixed("1h")).trigger(on.each()).accumulating()
    pipeline = Pipeline("parts", views={"counts": counted.aggregate(n=agg.count(), last=agg.max("at_offset"))})
    run(spark, pipeline, tmp_path, store=tmp_path / "views.db", fuse=fuse)
    with closing(open_store(tmp_path / "views.db")) as store:
        rows = store.rows("counts").rows.to_pylist()
    assert {(row["user"], row["origin"], row["n"], row["last"]) for row in rows} == {
        ("ann", "web", 2, 4), ("bob", "web", 1, 2),
    }  # fmt: skip
    assert len(box_of(tmp_path, "parts").letters()) == 3


def test_new_partitions_are_read_and_another_topic_is_refused(
    spark: SparkSession, kafka_: Kafka, tmp_path: Path
) -> None:
    topic = kafka_.topic()
    events = kafka(kafka_.url(topic), SCHEMA)
    counted = events.window(window.all_time()).trigger(on.each()).accumulating().aggregate(n=agg.count())
    pipeline = Pipeline("counting", views={"counts": counted})
    good = json.dumps({"k": "a", "v": 1})
    kafka_.send(topic, [good] * 5)
    run(spark, pipeline, tmp_path, store=tmp_path / "views.db")
    kafka_.grow(topic, 3)
    kafka_.send(topic, [good] * 7, partition=2)
    batches = run(spark, pipeline, tmp_path, store=tmp_path / "views.db")
    assert sum(progress.rows for progress, _ in batches) == 7
    with closing(open_store(tmp_path / "views.db")) as store:
        assert [row["n"] for row in store.rows("counts").rows.to_pylist()] == [12]
    kafka_.delete(topic)
    kafka_.topic(3, name=topic)
    kafka_.send(topic, [good] * 20)
    with pytest.raises(ConflictError, match=rf"topic '{topic}' of Kafka is not the one that was read before"):
        run(spark, pipeline, tmp_path, store=tmp_path / "views.db")


def test_secrets_are_not_stored(spark: SparkSession, kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    kafka_.send(topic, records(1, 50))
    secret = "hunter2-hunter2"
    events = kafka(kafka_.url(topic), SCHEMA, options={"sasl.password": secret})
    pipeline = pipeline_over(events)
    for fuse in (True, False):
        run(spark, pipeline, tmp_path / str(fuse), store=tmp_path / str(fuse) / "views.db", fuse=fuse)
    said = f"{explain(pipeline)} {compile(pipeline).fingerprint()} {pipeline} {pipeline!r} {events!r}"
    assert secret not in said
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes(), path


PIPELINE = """
from millrace import Pipeline, agg, kafka, on, to_table, window

events = kafka("{url}", "k STRING, v BIGINT NOT NULL, at TIMESTAMP")
timed = events.event_time("at", delay="20m").group_by("k")
totals = timed.window(window.fixed("1m"), lateness="1h").trigger(on.each()).retracting()
totals = totals.aggregate(n=agg.count(), total=agg.sum("v"))
pipeline = Pipeline("killed", views={{"totals": totals}}, sinks=[events.to(to_table("out.db", "rows"))])
"""


def test_a_killed_run_is_exact(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic(2)
    sent = [records(seed, 400) for seed in range(2)]
    for partition in range(2):
        kafka_.send(topic, sent[partition], partition=partition)
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE.format(url=kafka_.url(topic)))
    options = ["--checkpoint", "checkpoint"]
    for point, count in (("bundle read", 1), ("sink during write", 1)):
        marker = tmp_path / "reached"
        process = Process(file, options, held_at(point, count, marker))
        assert process.wait_for(marker), f"it ended before {point}"
        process.kill()
        marker.unlink(missing_ok=True)
    Process(file, [*options, "--until-caught-up"]).wait()
    (status,) = all_under(tmp_path)
    assert described(status, None)["lags"] == {topic: 0}
    totals: dict[tuple[str, str], list[int]] = defaultdict(list)
    bad = 0
    for text in (text for part in sent for text in part):
        if '"at"' in text:
            row = json.loads(text)
            totals[row["k"], row["at"][:16]].append(row["v"])
        else:
            bad += 1
    with closing(open_store(tmp_path / ".millrace" / "views.db")) as store:
        rows = store.rows("totals").rows.to_pylist()
    assert {(row["k"], f"{row['window_start']:%Y-%m-%dT%H:%M}"): (row["n"], row["total"]) for row in rows} == {
        key: (len(values), sum(values)) for key, values in totals.items()
    }
    assert len(box_of(tmp_path, "killed").letters()) == bad
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        assert database.execute("SELECT count(*) FROM rows").fetchone() == (800 - bad,)


COUNTING = """
from millrace import Pipeline, agg, kafka, on, window

events = kafka("{url}", "k STRING")
counted = events.window(window.all_time()).trigger(on.each()).accumulating().aggregate(n=agg.count())
counting = Pipeline("counting", views={{"counts": counted}})
"""


def test_the_advice_leads_on_after_removed_records_and_after_another_topic(
    one_spark: None, kafka_: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = kafka_.topic()
    (tmp_path / "counting.py").write_text(COUNTING.format(url=kafka_.url(topic)))

    def called(*arguments: str) -> str:
        done = CliRunner().invoke(app, list(arguments))
        return "" if done.exit_code == 0 else done.output

    def counted() -> list[int]:
        with closing(open_store(tmp_path / ".millrace" / "views.db")) as store:
            return [row["n"] for row in store.rows("counts").rows.to_pylist()]

    kafka_.send(topic, ['{"k": "a"}'] * 5)
    assert called("run", "counting.py", "--until-caught-up") == ""
    kafka_.send(topic, ['{"k": "a"}'] * 5)
    kafka_.forget(topic, 7)  # of which two were not read
    said = called("run", "counting.py", "--until-caught-up")
    assert "retention removed them before they were read" in said
    assert "millrace replay counting.py" in said
    assert called("replay", "counting.py") == ""
    assert counted() == [3]
    kafka_.delete(topic)
    kafka_.topic(name=topic)
    kafka_.send(topic, ['{"k": "a"}'] * 4)
    said = called("run", "counting.py", "--until-caught-up")
    assert "is not the one that was read before" in said
    assert "millrace replay counting.py" in said
    assert called("replay", "counting.py") == ""
    assert called("run", "counting.py", "--until-caught-up") == ""
    assert counted() == [4]
