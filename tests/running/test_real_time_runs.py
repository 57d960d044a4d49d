"""Real-time mode over a real Kafka: views equal the batch answers, also after a kill; each change counts once."""

import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from brokers import Kafka
from kills import Process
from millrace import ConflictError, Pipeline, PipelineError, agg, kafka, on, window
from millrace.letters.box import box_of
from millrace.model.connectors import Commit
from millrace.plan.compile import compile
from millrace.running.applier import Applied, AppliedView, Applier, digest_of, offsets_in
from millrace.running.load import load
from millrace.running.realtime_checkpoint import RealTimeCheckpoint, check_not_real_time
from millrace.running.realtime_letters import Asides
from millrace.running.status import all_under
from millrace.running.views import KeptViews
from millrace.sources.changelog import Changelogs
from millrace.spark import batch
from millrace.views.shape import shape_of
from millrace.views.store import Store, open_store

PATIENCE = 400.0
PIPELINE = """
from millrace import Pipeline, agg, kafka, on, table, to_kafka, window

SCHEMA = "user STRING NOT NULL, track STRING, ms BIGINT, at TIMESTAMP"
plays = kafka("kafka://{address}/{plays}", SCHEMA, metadata={{"shard": "partition"}})
skips = kafka("kafka://{address}/{skips}", SCHEMA, metadata={{"shard": "partition"}})
titles = table("titles", "track STRING, title STRING", [{{"track": f"t{{n}}", "title": f"T{{n}}"}} for n in range(4)])
both = plays.event_time("at", delay="10s").union(skips.event_time("at", delay="10s"))
hourly = (
    both.where("ms >= 0").join(titles, on="track").group_by("title").window(window.fixed("1h"), lateness="1d")
    .trigger(on.each()).retracting()
    .aggregate(n=agg.count(), seconds=agg.sum("ms DIV 1000"), inverse=agg.mean("1000 DIV ms"), last=agg.last("user"))
)
long = plays.where("ms > 150000").select("user", "ms").to(to_kafka("kafka://{address}/{out}", key="user"))
charts = Pipeline("charts", views={{"hourly": hourly}}, sinks=[long])
"""


def records(seed: int, many: int) -> list[str]:
    draw = random.Random(seed)
    made = []
    for number in range(many):
        track = draw.choice(["t0", "t1", "t2", "t9", None])
        at = f"2026-01-01T{draw.randrange(10, 13)}:{draw.randrange(60):02}:00Z"
        good = {"user": f"u{seed}-{number:04}", "track": track, "ms": draw.choice([0, 1, 999, 200_000]), "at": at}
        bad = draw.choice(['{"ms": "x"}', "no JSON", '{"track": "t1"}', '{"user": "a", "at": "soon"}'])
        made.append(json.dumps(good) if draw.random() < 0.97 else bad)
    return made


def until(holds: Callable[[], bool], process: Process | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert process is None or not process.is_over()
        assert time.monotonic() < deadline, None if process is None else process.output.read_text()[-3000:]
        time.sleep(0.1)


def rows_of(store: Path, view: str) -> list[str]:
    with closing(open_store(store)) as opened:
        return plain(opened.rows(view).rows.to_pylist())


def plain(rows: list[dict[str, Any]]) -> list[str]:
    about = {"timing", "index", "last_", "version", "diff", "pane_last", "pane_index"}
    about |= {"last"} if rows and isinstance(rows[0].get("last"), bool) else set()
    return sorted(repr({name: value for name, value in row.items() if name not in about}) for row in rows)


@pytest.mark.spark
def test_views_equal_the_batch_answers_after_a_kill(spark: SparkSession, kafka_: Kafka, tmp_path: Path) -> None:
    plays, skips, out = kafka_.topic(2), kafka_.topic(), kafka_.topic()
    file = tmp_path / "charts.py"
    file.write_text(PIPELINE.format(address=kafka_.address, plays=plays, skips=skips, out=out))
    charts, store = load(file), tmp_path / ".millrace" / "views.db"
    options = ["--mode", "real-time", "--interval", "15s", "--shards", "1", "--guarantee", "at-least-once"]

    def counted() -> int:
        try:
            with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
                return int(database.execute("SELECT coalesce(sum(n), 0) FROM hourly").fetchone()[0])
        except sqlite3.OperationalError:
            return 0

    for number, topic in enumerate((plays, skips)):
        kafka_.send(topic, records(number, 150))
    process = Process(file, options)
    checkpoints = tmp_path / ".millrace" / "charts" / "queries" / "view-hourly-main" / "commits"
    process.wait_for(checkpoints / "0")
    until(lambda: counted() > 0, process)
    before = counted()
    kafka_.send(plays, records(2, 150), partition=1)
    until(lambda: counted() > before, process)  # some of these records are in the view, and in no checkpoint of Spark's
    process.kill()
    before = counted()
    kafka_.send(skips, records(3, 150))
    answers = batch.collect(spark, charts).answers
    expected = {name: plain(answers[f"view {name}"].to_pylist()) for name in charts.views}
    process = Process(file, options)
    until(lambda: all(rows_of(store, name) == expected[name] for name in charts.views), process)
    assert counted() >= before
    (status,) = all_under(tmp_path / ".millrace")
    assert (status.pipeline, status.state) == ("charts", "running")
    letters = [letter.rejected for letter in box_of(tmp_path / ".millrace", "charts").letters()]
    wanted = answers_letters(spark, charts)
    until(lambda: letters_of(tmp_path) == wanted, process)
    assert any("has no value" in reason or "no value" in reason for *_, reason in letters_of(tmp_path)), letters
    sent = [json.loads(message.value() or b"") for message in kafka_.messages(out)]
    long = [json.loads(text) for text in (*records(0, 150), *records(2, 150)) if text.startswith('{"user": "u')]
    assert {row["user"] for row in sent} == {row["user"] for row in long if row["ms"] > 150_000}
    assert all(message.key() == json.loads(message.value() or b"")["user"].encode() for message in kafka_.messages(out))
    with closing(open_store(store)) as opened:
        versions = opened.changes("hourly", 0).to_pylist()
    newest: dict[Any, int] = {}
    for change in versions:  # no change takes a row back to an earlier state
        cell = change["title"], change["window_start"]
        if change["diff"] == 1:
            assert change["index"] > newest.get(cell, -1)
            newest[cell] = change["index"]
    with pytest.raises(ConflictError, match=r"was made in real-time mode.*--mode real-time; or .*millrace replay"):
        check_not_real_time(tmp_path / ".millrace" / "charts")
    process.tell(2)
    process.wait()


def letters_of(folder: Path) -> list[tuple[str, int, str]]:
    letters = [letter.rejected for letter in box_of(folder / ".millrace", "charts").letters()]
    return sorted((each.origin, each.offset or 0, each.reason) for each in letters)


def answers_letters(spark: SparkSession, charts: Pipeline) -> list[tuple[str, int, str]]:
    rows = batch.collect(spark, charts).dead_letters.to_pylist()
    return sorted((row["origin"], row["offset"], row["reason"]) for row in rows)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / "views.db")) as opened:
        yield opened


PLAYS = kafka("kafka://localhost:9092/plays", "user STRING NOT NULL, ms BIGINT, at TIMESTAMP")
HOURLY = (
    PLAYS.event_time("at", delay="1s").group_by("user").window(window.fixed("1h")).trigger(on.each()).retracting()
    .aggregate(total=agg.sum("ms"), latest=agg.max("at"))
)  # fmt: skip
CHARTS = Pipeline("charts", views={"hourly": HOURLY})
HOUR = 1_767_225_600_000_000
"""The first hour of 2026."""


def change(user: str, count: int, total: int, latest: int = 0) -> tuple[str, str]:
    key = json.dumps({"k0": user, "start": HOUR, "end": HOUR + 3_600_000_000})
    return key, f"{count} " + json.dumps({"p0_0": str(total), "p0_1": count, "p1_0": HOUR + latest})


class World:
    """A changelog, and an applier of it."""

    def __init__(self, kafka_: Kafka, store: Store, tmp_path: Path) -> None:
        name = kafka_.topic()
        self.kafka, self.store, self.tmp_path = kafka_, store, tmp_path
        self.topic, self.topics = f"{name}.hourly", {f"{name}.hourly": 1, f"{name}.aside": 1}
        self.logs = Changelogs(kafka_.address)
        self.logs.make(self.topics)
        self.logs.make(self.topics)  # those that exist are left alone
        KeptViews(store, CHARTS).open()
        self.seen: list[Applied] = []

    def send(self, *changes: tuple[str, str]) -> None:
        for key, value in changes:
            self.kafka.send(self.topic, [value], key=key.encode())

    def aside(self, **about: Any) -> None:
        self.kafka.send(f"{self.topic.removesuffix('.hourly')}.aside", [json.dumps(about)])

    def applier(self) -> Applier:
        last = self.store.last_commit("charts", 1) or Commit("charts", "id", -1, digest_of(self.topics, {}))
        view = AppliedView("hourly", HOURLY, shape_of("hourly", HOURLY))
        asides = Asides(box_of(self.tmp_path, "charts"), compile(CHARTS))
        return Applier(self.logs, {self.topic: view}, self.topics, asides, self.store, last, 1, self.seen.append)

    def applied(self, enough: Callable[[], bool]) -> Applier:
        applier = self.applier()
        applier.start()
        until(lambda: applier.error is not None or enough())
        applier.stop()
        return applier

    def rows(self) -> dict[str, tuple[int, int]]:
        return {row["user"]: (row["total"], row["index"]) for row in self.store.rows("hourly").rows.to_pylist()}


def test_a_repeated_change_never_takes_a_view_back(kafka_: Kafka, store: Store, tmp_path: Path) -> None:
    world = World(kafka_, store, tmp_path)
    world.send(change("ann", 1, 5), change("ann", 2, 7), change("bob", 1, 3, latest=60_000_000))
    world.applied(lambda: world.rows() == {"ann": (7, 1), "bob": (3, 0)})
    first = store.last_commit("charts", 1)
    assert first is not None
    assert offsets_in(first.digest)[world.topic, 0] == 3
    # Spark was killed, and repeats from its checkpoint on, in another order of rows; then a new one comes
    world.send(change("ann", 1, 2), change("ann", 2, 6), change("bob", 1, 3), change("ann", 3, 8))
    world.applied(lambda: world.rows()["ann"] == (8, 2))
    assert world.rows() == {"ann": (8, 2), "bob": (3, 0)}
    changes = store.changes("hourly", 0).to_pylist()
    assert [(row["user"], row["total"], row["diff"]) for row in changes if row["user"] == "bob"] == [("bob", 3, 1)]
    assert [row["total"] for row in changes if row["user"] == "ann" and row["diff"] == -1] in ([7], [5, 7])
    latest = {row["user"]: row["latest"] for row in store.rows("hourly").rows.to_pylist()}
    assert latest["bob"] == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    # an applier that starts again reads nothing twice
    many = len(world.seen)
    world.send(change("bob", 2, 9))
    world.applied(lambda: world.rows()["bob"] == (9, 1))
    assert sum(each.records for each in world.seen[many:]) == 1
    world.logs.trim({(world.topic, 0): 8})
    world.logs.close()


def test_what_is_set_aside_becomes_a_dead_letter_with_the_reason_of_the_decoder(
    kafka_: Kafka, store: Store, tmp_path: Path
) -> None:
    world = World(kafka_, store, tmp_path)
    about = {"output": "view hourly", "origin": "plays/0", "logged": HOUR}
    for _ in range(2):  # Spark may repeat it
        world.aside(**about, offset=3, bad="unsure", value="bm8gSlNPTg==")  # no JSON
        world.aside(**about, offset=4, bad="untimely", value="e30=", node=0)
        world.aside(**about, offset=5, bad="ms DIV 0 has no value", value="e30=")
        world.aside(**about, offset=6, bad="unsure")
    box = box_of(tmp_path, "charts")
    world.applied(lambda: len(box.letters()) == 4 if box.file.exists() else False)
    found = {letter.rejected.offset: letter.rejected.reason for letter in box.letters()}
    assert found == {
        3: "it is not a JSON object: 'no JSON'", 4: "event time at is NULL", 5: "ms DIV 0 has no value",
        6: "it is not text in UTF-8",
    }  # fmt: skip
    # a record that Millrace reads, but Spark does not surely read, ends the run: it must not be left out
    world.aside(**about, offset=7, bad="unsure", value="eyJ1c2VyIjogImEiLCAiYXQiOiAiMjAyNi0xLTEifQ==")
    ended = world.applied(lambda: False)
    assert isinstance(ended.error, PipelineError)
    assert "offset 7 of plays/0 is one that micro-batches read" in str(ended.error)
    assert len(box.letters()) == 4
    world.logs.close()


def test_a_sum_that_its_type_cannot_hold_ends_the_run(kafka_: Kafka, store: Store, tmp_path: Path) -> None:
    world = World(kafka_, store, tmp_path)
    world.send(change("ann", 2, 2**63))
    ended = world.applied(lambda: False)
    assert "view hourly has no answer: sum(ms) is 9223372036854775808, which BIGINT cannot hold" in str(ended.error)
    world.logs.close()


def test_a_checkpoint_is_of_one_pipeline_and_one_mode(tmp_path: Path) -> None:
    checkpoint = RealTimeCheckpoint(tmp_path / "charts")
    opened = checkpoint.open(compile(CHARTS), 2)
    assert checkpoint.open(compile(CHARTS), 5) == opened  # the first run fixes the shards
    other = Pipeline("charts", views={"hourly": CHARTS.views["hourly"], "more": HOURLY})
    with pytest.raises(ConflictError, match="view more is not as it was when checkpoint"):
        checkpoint.open(compile(other), 2)
    with pytest.raises(ConflictError, match="is of pipeline 'charts', not of 'tops'"):
        checkpoint.open(compile(Pipeline("tops", views=CHARTS.views)), 2)
    micro = tmp_path / "micro"
    micro.mkdir()
    (micro / "millrace.json").write_text("{}")
    with pytest.raises(ConflictError, match="was made by micro-batches, and real-time mode cannot go on from it"):
        RealTimeCheckpoint(micro).open(compile(CHARTS), 2)
    check_not_real_time(micro)
    check_not_real_time(tmp_path / "charts")  # it was never started
    (tmp_path / "charts" / "queries").mkdir()
    with pytest.raises(ConflictError, match=r"was made in real-time mode.*go on with --mode real-time"):
        check_not_real_time(tmp_path / "charts")
