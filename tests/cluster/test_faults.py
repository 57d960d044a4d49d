"""Pipelines on a cluster of separate processes: exact after kills of any of them in the middle of a micro-batch."""

import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from brokers import Kafka
from clusters import CONF, LocalCluster, until
from kills import PATIENCE, Process, kill
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
CHECKED = """
import sys
from pathlib import Path

from millrace.model.errors import ConflictError
from millrace.running.load import load
from millrace.spark import session
from millrace.spark.executors import check_executors

master, file, folder, *conf = sys.argv[1:]
spark = session.start("checked", master, Path(folder, "checked.log"), dict(each.split("=", 1) for each in conf))
right = spark.sparkContext.pythonExec
for python, shared in (("/nowhere/python", folder), (sys._base_executable, folder), (right, "/proc/self")):
    spark.sparkContext.pythonExec = python
    try:
        check_executors(spark, [Path(folder), Path(shared)])
    except ConflictError as error:
        print(error)
spark.sparkContext.pythonExec = right
run = load(Path(file)).run(mode="batch", spark=spark, store=f"{folder}/batch.db", checkpoint=f"{folder}/batch")
run.wait()
print(run.summary)
session.stop(spark)
"""
"""What is wrong with executors is told; then a batch on the same session."""
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

    checked = [sys.executable, "-c", CHECKED, cluster_.url, str(world.file), str(tmp_path), *CONF]
    said = subprocess.run(checked, capture_output=True, text=True, timeout=PATIENCE, check=True, cwd=tmp_path).stdout
    lacks_program, lacks_millrace, not_shared, done = said.splitlines()
    assert "of an executor has no program /nowhere/python; give executors the same environment" in lacks_program
    assert "of an executor has no millrace; give executors the same environment" in lacks_millrace
    assert "does not share the folder /proc/self with this machine; mount one file system" in not_shared
    assert done.startswith("done:")
    assert view(str(tmp_path / "batch.db")) == world.expected()
