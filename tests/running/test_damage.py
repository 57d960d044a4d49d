"""Every file of a checkpoint, damaged in every way: the next run is right, or refuses in one line with the way on."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from millrace import ConflictError, CorruptError, Pipeline, agg, log, on, to_files, window
from millrace.eventlog.topics import Log
from millrace.running.replay import replay
from millrace.running.run import run_stream
from millrace.running.savepoint import save, start_from
from millrace.running.settings import Locations, StreamOptions
from millrace.spark import session as sessions
from millrace.views.store import open_store

pytestmark = pytest.mark.spark

QUIET = Console(quiet=True)
ONCE = StreamOptions(until_caught_up=True)
PLAYS = log("plays", "user STRING")
COUNTED = PLAYS.group_by("user").window(window.all_time()).trigger(on.each()).accumulating()
PIPELINE = Pipeline("charts", {"counts": COUNTED.aggregate(plays=agg.count())})
RIGHT = [("ann", 3), ("bob", 2)]


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "flipped": flipped,
    "another": lambda data: b'{"a": [1, 2]}\n',
}
WAYS = ["deleted", *DAMAGES]
NEEDED = [
    "millrace.json", "sources/*.json", "spark/metadata", "spark/offsets/0", "spark/offsets/1",
    "spark/state/0/_metadata/v2/1", "spark/state/0/0/1.zip", "spark/state/0/0/2.changelog",
    "spark/state/0/0/SSTs/*.sst", "spark/state/0/_stateSchema/default/*",
]  # fmt: skip
NOT_MISSED = ["spark/state/0/_metadata/v2/1"]
"""If these are deleted, Spark writes them again."""
NOT_NEEDED = [
    "status.json", "spark/commits/0", "spark/state/0/_metadata/v2/0", "spark/state/0/0/1.changelog",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose pipeline has run twice, with one shard, and has a record to read."""
    folder = tmp_path_factory.mktemp("made")
    home = home_in(folder)
    with closing(Log(home.log)) as kept:
        kept.create("plays")
        for users in (["ann", "bob"], ["ann", "bob"]):
            kept.append("plays", [json.dumps({"user": user}) for user in users])
            run_stream(QUIET, PIPELINE, home, StreamOptions(until_caught_up=True, shards=1))
        kept.append("plays", [json.dumps({"user": "ann"})])
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Locations:
    """A copy of the project."""
    shutil.copytree(made, tmp_path / "project")
    return home_in(tmp_path / "project")


def home_in(folder: Path) -> Locations:
    return Locations(folder / "log.db", str(folder / "views.db"), folder / "checkpoint")


def damage(checkpoint: Path, pattern: str, way: str) -> Path:
    (file,) = (path for path in checkpoint.glob(pattern) if not path.name.startswith("."))
    if way == "deleted":
        file.unlink()
    else:
        file.write_bytes(DAMAGES[way](file.read_bytes()))
    return file


def answers(home: Locations) -> list[tuple[str, int]]:
    with closing(open_store(home.store)) as store:
        return [(user, plays) for user, plays in store.query("SELECT user, plays FROM counts ORDER BY user").rows]


def check_line(error: CorruptError, checkpoint: Path, way: str = "millrace replay FILE") -> None:
    text = str(error)
    assert text.startswith(f"checkpoint {checkpoint} is damaged: ")
    assert text.endswith(way)
    assert not {"\n", "{"} & set(text)
    assert len(text) - len(str(checkpoint)) < 200


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pattern", NEEDED)
def test_a_damaged_checkpoint_is_refused_in_one_line_with_the_way_on(home: Locations, pattern: str, way: str) -> None:
    file = damage(home.checkpoint, pattern, way)
    if way == "deleted" and pattern in NOT_MISSED:
        run_stream(QUIET, PIPELINE, home, ONCE)
        assert answers(home) == RIGHT
        return
    with pytest.raises(CorruptError) as caught:
        run_stream(QUIET, PIPELINE, home, ONCE)
    check_line(caught.value, home.checkpoint)
    assert str(file.relative_to(home.checkpoint)) in caught.value.problem


@pytest.mark.parametrize("way", WAYS)
def test_files_that_a_run_does_not_need_may_be_damaged(home: Locations, way: str) -> None:
    for pattern in NOT_NEEDED:
        damage(home.checkpoint, pattern, way)
    run_stream(QUIET, PIPELINE, home, ONCE)
    assert answers(home) == RIGHT


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_whose_commit_is_damaged_is_run_again(home: Locations, way: str) -> None:
    """The store recognizes it by its digest."""
    damage(home.checkpoint, "spark/commits/1", way)
    run_stream(QUIET, PIPELINE, home, ONCE)
    assert answers(home) == RIGHT


def test_the_way_on_works_and_sparks_text_is_in_its_log(home: Locations, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = home.checkpoint / "spark.log"
    monkeypatch.setattr(sessions, "printed_to", lambda: printed)
    for sums in home.checkpoint.rglob(".*.crc"):  # a backup may omit hidden files
        sums.unlink()
    damage(home.checkpoint, "spark/state/0/0/2.changelog", "cut")
    with pytest.raises(CorruptError) as caught:
        run_stream(QUIET, PIPELINE, home, ONCE)
    check_line(caught.value, home.checkpoint)
    assert "spark/state" in caught.value.problem
    assert "CANNOT_LOAD_STATE_STORE" in printed.read_text()
    replay(QUIET, PIPELINE, home, ONCE)
    assert answers(home) == RIGHT


@pytest.mark.parametrize("gone", ["spark", "spark/offsets", "spark/state", "sources"])
def test_a_missing_folder_of_a_checkpoint_is_refused(home: Locations, gone: str) -> None:
    shutil.rmtree(home.checkpoint / gone)
    with pytest.raises(CorruptError, match="is missing") as caught:
        run_stream(QUIET, PIPELINE, home, ONCE)
    check_line(caught.value, home.checkpoint)


@pytest.mark.parametrize("pattern", ["millrace.json", "spark/offsets/1"])
def test_a_pipeline_without_views_is_told_the_way_on(home: Locations, tmp_path: Path, pattern: str) -> None:
    damage(home.checkpoint, pattern, "cut")
    alone = Pipeline("charts", sinks=[PIPELINE.views["counts"].to(to_files(str(tmp_path / "out")))])
    with pytest.raises(CorruptError) as caught:
        run_stream(QUIET, alone, home, ONCE)
    check_line(caught.value, home.checkpoint)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pattern", ["millrace.json", "spark/offsets/1", "sources/*.json"])
def test_a_savepoint_is_not_made_of_a_damaged_checkpoint(
    home: Locations, tmp_path: Path, pattern: str, way: str
) -> None:
    save(home.checkpoint, tmp_path / "good")
    damage(home.checkpoint, pattern, way)
    if (pattern, way) != ("millrace.json", "deleted"):  # then there is no checkpoint
        with pytest.raises(CorruptError) as caught:
            save(home.checkpoint, tmp_path / "bad")
        check_line(caught.value, home.checkpoint)
        damage(tmp_path / "good", pattern, way)
        with pytest.raises(CorruptError) as caught:
            start_from(tmp_path / "good", replace(home, checkpoint=tmp_path / "new"))
        check_line(caught.value, tmp_path / "good")
    assert not (tmp_path / "bad").exists()
    assert not (tmp_path / "new").exists()


def test_another_number_of_shards_is_refused_and_a_replay_takes_it(home: Locations) -> None:
    five = StreamOptions(until_caught_up=True, shards=5)
    with pytest.raises(ConflictError) as caught:
        run_stream(QUIET, PIPELINE, home, five)
    assert caught.value.problem == f"checkpoint {home.checkpoint} has 1 shard, which its first run fixed"
    assert caught.value.advice == (
        "leave --shards out; or go on from a savepoint: millrace savepoint FILE, then millrace run FILE "
        "--checkpoint OTHER --from-savepoint FOLDER --shards 5; or compute it again from the log: "
        "millrace replay FILE --shards 5"
    )
    replay(QUIET, PIPELINE, home, five)
    assert answers(home) == RIGHT
    assert len(json.loads((home.generation(2) / "millrace.json").read_text())["labels"]) == 5
    run_stream(QUIET, PIPELINE, home, five)
    assert answers(home) == RIGHT
