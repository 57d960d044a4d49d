"""Pipelines on a cluster of separate processes: exact after kills of any of them in the middle of a micro-batch."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from brokers import Kafka
from clusters import LocalCluster, until
from kills import Process, kill
from millrace.views.store import open_store
from postgres import Postgres

pytestmark = pytest.mark.spark

HELPER = """
import time
from pathlib import Path


def held(row):
    "Waits while the test says so, in the middle of a micro-batch."
    while Path("{folder}/gate").exists():
        Path("{folder}/holding").touch()
        time.sleep(0.02)
    return {{"v": row["v"], "k": row["k"], "at": row["at"]}}
"""
PIPELINE = """
from beside import held

from millrace import Pipeline, agg, kafka, on, window

events = kafka("{url}", "id BIGINT, k STRING, v BIGINT NOT NULL, at TIMESTAMP")
once = events.event_time("at", delay="1h").dedup("id", within="1h").map(held, "v BIGINT, k STRING, at TIMESTAMP")
totals = once.group_by("k").window(window.fixed("1m"), lateness="1h").trigger(on.each()).retracting()
pipeline = Pipeline("faults", views={{"totals": totals.aggregate(n=agg.count(), total=agg.sum("v"))}})
"""
Totals = dict[tuple[str, str], tuple[int, int]]


class World:
    """A pipeline that runs on a cluster, from Kafka to PostgreSQL."""

    def __init__(self, folder: Path, kafka_: Kafka, cluster_: LocalCluster, store: str) -> None:
        self.folder, self.kafka, self.cluster, self.store = folder, kafka_, cluster_, store
        self.topic = kafka_.topic(2)
        self.file = folder / "faults.py"
        (folder / "beside.py").write_text(HELPER.format(folder=folder))
        self.file.write_text(PIPELINE.format(url=kafka_.url(self.topic)))
        self.sent: dict[int, dict[str, Any]] = {}
        self._draw = random.Random(5)

    def start(self) -> None:
        self.run = Process(self.file, ["--store", self.store, *self.cluster.options()], master=self.cluster.url)

    def send(self) -> None:
        """Append records, some of which come twice."""
        for partition in range(2):
            made = []
            for _ in range(60):
                at = f"2026-01-01T00:{self._draw.randrange(10):02}:{self._draw.randrange(60):02}Z"
                row = {
                    "id": len(self.sent),
                    "k": f"key {self._draw.randrange(7)}",
                    "v": self._draw.randrange(9),
                    "at": at,
                }
                self.sent[len(self.sent)] = row
                made.append(row)
                if self._draw.random() < 0.2:
                    made.append(self.sent[self._draw.randrange(len(self.sent))])
            self.kafka.send(self.topic, [json.dumps(row) for row in made], partition=partition)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Send records, and hold a task in the middle of them."""
        (self.folder / "holding").unlink(missing_ok=True)
        (self.folder / "gate").touch()
        self.send()
        until((self.folder / "holding").exists, self.run.is_over)
        try:
            yield
        finally:
            (self.folder / "gate").unlink()

    def waits(self) -> int:
        """How often the run has waited for something that went away."""
        return self.run.output.read_text().count('"waiting": {')

    def expected(self) -> Totals:
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row in self.sent.values():
            groups[row["k"], row["at"][:16]].append(row["v"])
        return {key: (len(values), sum(values)) for key, values in groups.items()}

    def wait(self) -> None:
        """Wait until the view has all that was sent, and compare it."""
        until(lambda: sum(n for n, _ in view(self.store).values()) >= len(self.sent), self.run.is_over)
        assert view(self.store) == self.expected()


def view(store: str) -> Totals:
    try:
        with closing(open_store(store)) as opened:
            rows = opened.rows("totals").rows.to_pylist()
    except Exception:  # the store does not run, or has no view yet
        return {}
    return {(row["k"], f"{row['window_start']:%Y-%m-%dT%H:%M}"): (row["n"], row["total"]) for row in rows}


def test_a_run_is_exact_whatever_is_killed(
    kafka_: Kafka, cluster_: LocalCluster, postgres: Postgres, tmp_path: Path
) -> None:
    world = World(tmp_path, kafka_, cluster_, postgres.empty())
    world.send()
    world.start()
    world.wait()

    with world.held():
        before = cluster_.executors()
        assert len(before) == 2
        kill(before[0])  # an executor, whose worker starts another one
    world.wait()

    with world.held():
        cluster_.kill_worker(1)
    world.wait()
    cluster_.start_worker(1)

    waited = world.waits()
    with world.held():
        postgres.kill()
    until(lambda: world.waits() > waited, world.run.is_over)
    postgres.restart()
    world.wait()

    with world.held():
        kafka_.kill_and_start()
    world.wait()

    with world.held():
        world.run.kill()
        until(lambda: not cluster_.executors())
    world.start()
    world.wait()
    world.run.tell(2)
    world.run.wait()

    again = tmp_path / "batch"
    batch = ["--mode", "batch", "--store", str(again / "views.db"), "--checkpoint", str(again / "c")]
    Process(world.file, [*batch, *cluster_.options()], master=cluster_.url).wait()
    assert view(str(again / "views.db")) == world.expected()
