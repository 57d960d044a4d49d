"""Random walks: after any trouble the answers are exact, or a command is refused and its advice leads to exact ones."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import small_disk
from walking import Walk

pytestmark = pytest.mark.spark

WALKS = int(os.environ.get("WALKS", "8"))
STEPS = 4
HAPPENINGS = (
    "copy", "put_back", "put_back", "delete", "damage", "damage_database", "move", "topic_again", "savepoint",
    "from_savepoint", "replay", "crash", "jump", "fill", "beside", "send", "send",
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(one_spark: None) -> Iterator[None]:
    """Return to the working folder after a walk."""
    before = os.getcwd()
    yield
    os.chdir(before)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk, which is also a fast one."""
    with small_disk(tmp_path_factory.mktemp("disk") / "mounted", "200m") as mounted:
        yield mounted


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Projects that have run, with and without a topic sink; the first walk of each kind fills them."""
    folder = tmp_path_factory.mktemp("begun")
    return {with_topic: folder / f"project {with_topic}" for with_topic in (False, True)}


@pytest.mark.parametrize("seed", range(WALKS))
def test_the_advice_leads_to_exact_answers(
    seed: int, disk: Path, begun: dict[bool, Path], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_sink = seed % 4 == 3
    ahead = disk / "ahead"
    project = begun[topic_sink]
    if not project.exists():
        _begin(Walk(project, seed, ahead, topic_sink))
    if seed % 10 == 9:  # a database cannot be copied as a folder can
        walk = Walk(disk / str(seed) / "project", seed, ahead, topic_sink, request.getfixturevalue("postgres").empty())
        _begin(walk)
    else:
        shutil.copytree(project, disk / str(seed) / "project")
        walk = Walk(disk / str(seed) / "project", seed, ahead, topic_sink)
    for _ in range(walk.draw.randint(1, STEPS)):
        happening = walk.draw.choice(HAPPENINGS)
        if happening == "crash":
            walk.crash(monkeypatch)
        else:
            getattr(walk, happening)()
        if walk.draw.random() < 0.2:
            walk.settle()
    walk.send()
    walk.settle()
    shutil.rmtree(disk / str(seed))  # kept if the walk failed


def _begin(walk: Walk) -> None:
    walk.create()
    walk.send()
    walk.settle()
    walk.savepoint()
    walk.send()
    walk.settle()
