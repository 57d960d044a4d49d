"""Random walks: after any trouble the answers are exact, or a command is refused and its advice leads to exact ones."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.spark import session as sessions
from walking import Walk

pytestmark = pytest.mark.spark

WALKS = int(os.environ.get("WALKS", "8"))
STEPS = 4
HAPPENINGS = ("copy", "put_back", "put_back", "delete", "damage", "move", "topic_again", "savepoint", "from_savepoint",
              "replay", "crash", "send", "send")  # fmt: skip


@pytest.fixture(autouse=True)
def one_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run all commands on the one Spark of all tests."""
    here = os.getcwd()
    monkeypatch.setattr(sessions, "start", lambda *_: spark)
    monkeypatch.setattr(sessions, "stop", lambda _: None)
    yield
    os.chdir(here)


@pytest.mark.parametrize("seed", range(WALKS))
def test_the_advice_leads_to_exact_answers(
    seed: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = request.getfixturevalue("postgres").empty() if seed % 6 == 5 else ".millrace/views.db"
    walk = Walk(tmp_path / "project", store, seed, topic_sink=seed % 4 == 3)
    walk.send()
    walk.settle()
    for _ in range(STEPS):
        happening = walk.draw.choice(HAPPENINGS)
        if happening == "crash":
            walk.crash(monkeypatch)
        else:
            getattr(walk, happening)()
        if walk.draw.random() < 0.6:
            walk.settle()
    walk.send()
    walk.settle()
