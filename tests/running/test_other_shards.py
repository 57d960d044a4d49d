"""A savepoint goes on in another number of shards, with the same answers."""

import json
import random
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli import app
from millrace.spark.checkpoint import Checkpoint
from millrace.views.store import open_store

PIPELINE = """
from millrace import Pipeline, agg, files, on, window

plays = files("in", "id BIGINT, user STRING, track STRING, ms DOUBLE, at TIMESTAMP", per_batch=1)
timed = plays.event_time("at", delay="30s")
often = timed.group_by("track").window(window.fixed("1m"), lateness="10m")
often = often.trigger(on.watermark(early=on.each(), late=on.each())).retracting()
often = often.aggregate(plays=agg.count(), total=agg.sum("ms"), users=agg.approx_distinct("user"))
closed = timed.group_by("user").window(window.fixed("1m")).aggregate(plays=agg.count())
visits = timed.group_by("user", "track").window(window.session("20s")).aggregate(plays=agg.count())
fives = timed.group_by("user").window(window.count(5)).aggregate(most=agg.max("ms"))
once = timed.dedup("id", within="1h").group_by("ms").window(window.all_time()).trigger(on.each())
once = once.accumulating().aggregate(plays=agg.count())
likes = plays.where("ms > 50").select("user", liked="track", since="at").event_time("since", delay="30s")
pairs = timed.join(likes, on="user", within=("0s", "15s"))
paired = pairs.group_by("track").window(window.all_time()).trigger(on.each()).accumulating().aggregate(n=agg.count())
here = often.where("plays > 1").group_by("track", "users").window(window.all_time()).trigger(on.each())
here = here.accumulating().aggregate(n=agg.count())
sums = often.group_by("users").window(window.all_time()).trigger(on.each()).accumulating()
sums = sums.aggregate(n=agg.count(), plays=agg.sum("plays"))
views = {"often": often, "closed": closed, "visits": visits, "fives": fives, "once": once, "paired": paired}
pipeline = Pipeline("elastic", views={**views, "here": here, "sums": sums})
"""
VIEWS = ("often", "closed", "visits", "fives", "once", "paired", "here", "sums")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "elastic.py").write_text(PIPELINE)
    return tmp_path


def arrive(folder: Path, number: int) -> None:
    """One more file of records, some of which came before."""
    draw = random.Random(number)
    lines = []
    for _ in range(80):
        second = max(0, number * 25 + draw.randrange(-40, 25))
        at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
        row = {"id": draw.randrange(60 * number + 60), "user": f"user {draw.randrange(9)}", "at": at}
        more = {"track": f"track {draw.randrange(7)}", "ms": draw.choice([0.0, -0.0, 0.1, 70.0])}
        lines.append(json.dumps(row | more))
    (folder / "in" / f"{number:03}.json").write_text("\n".join(lines))


def called(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def run(checkpoint: str, store: str, *more: str) -> None:
    called("run", "elastic.py", "--until-caught-up", "--checkpoint", checkpoint, "--store", store, *more)


def rows(store: str) -> dict[str, list[str]]:
    with closing(open_store(store)) as opened:
        return {view: sorted(map(repr, opened.rows(view).rows.to_pylist())) for view in VIEWS}


def saved(checkpoint: str, name: str) -> str:
    return called("savepoint", "elastic.py", name, "--checkpoint", checkpoint, "--store", "moved.db").strip()


def test_two_shards_become_five_become_one(one_spark: None, folder: Path) -> None:
    before: list[str] = []
    for step, (shards, checkpoint) in enumerate([(2, "a/c"), (5, "b/c"), (1, "c/c")]):
        for number in (2 * step, 2 * step + 1):
            arrive(folder, number)
        options = ["--shards", str(shards), *(["--from-savepoint", before[-1]] if before else [])]
        run(checkpoint, "moved.db", *options)
        run("same/c", "same.db", "--shards", "2")
        assert rows("moved.db") == rows("same.db")
        run(checkpoint, "moved.db")  # once more, from the checkpoint itself
        assert rows("moved.db") == rows("same.db")
        before.append(saved(checkpoint, str(step)))
    assert all(rows("moved.db").values())
    assert len(json.loads((folder / "c/c/millrace.json").read_text())["labels"]) == 1
    history = Checkpoint(folder / "c/c").history()
    assert history is not None
    assert history.done >= 5


def test_a_batch_in_progress_is_run_again_in_other_shards(one_spark: None, folder: Path) -> None:
    for number in range(2):
        arrive(folder, number)
    for store, checkpoint in (("moved.db", "a/c"), ("same.db", "same/c")):
        run(checkpoint, store, "--shards", "2")
    _forget_last_commit(folder / "a/c")
    savepoint = saved("a/c", "1")
    run("b/c", "moved.db", "--from-savepoint", savepoint, "--shards", "3")
    assert rows("moved.db") == rows("same.db")
    arrive(folder, 2)
    run("b/c", "moved.db")
    run("same/c", "same.db")
    assert rows("moved.db") == rows("same.db")
    # A savepoint of it, of which nothing was run yet, goes on in other shards again.
    _forget_last_commit(folder / "b/c")
    run("d/c", "moved.db", "--from-savepoint", saved("b/c", "2"), "--shards", "2")
    arrive(folder, 3)
    run("d/c", "moved.db")
    run("same/c", "same.db")
    assert rows("moved.db") == rows("same.db")


def _forget_last_commit(checkpoint: Path) -> None:
    """As if the run was killed before Spark committed its last micro-batch."""
    commits = checkpoint / "spark" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)


def test_another_number_without_a_savepoint_is_refused_with_the_way(one_spark: None, folder: Path) -> None:
    arrive(folder, 0)
    run("a/c", "moved.db", "--shards", "2")
    refused = CliRunner().invoke(
        app, ["run", "elastic.py", "--checkpoint", "a/c", "--store", "moved.db", "--shards", "3"]
    )
    assert refused.exit_code == 6
    assert "--from-savepoint FOLDER --shards 3" in refused.output
    (folder / "a/c/.handing-over").touch()
    refused = CliRunner().invoke(app, ["run", "elastic.py", "--checkpoint", "a/c", "--store", "moved.db"])
    assert refused.exit_code == 5
    assert "its start from a savepoint was interrupted; remove its folder" in refused.output
