"""A savepoint goes on in another number of shards, with the same answers."""

import json
import os
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

plays = files("FOLDER", "id BIGINT, user STRING, track STRING, ms DOUBLE, at TIMESTAMP", per_batch=1)
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
native = timed.with_columns(part="pmod(hash(user), 4)").group_by("part").window(window.fixed("1m"), lateness="10m")
native = native.trigger(on.watermark(early=on.each(), late=on.each())).retracting().aggregate(plays=agg.count())
views = {"often": often, "closed": closed, "visits": visits, "fives": fives, "once": once, "paired": paired}
pipeline = Pipeline("elastic", views={"native": native, **views, "here": here, "sums": sums})
"""
VIEWS = ("native", "often", "closed", "visits", "fives", "once", "paired", "here", "sums")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "elastic.py").write_text(PIPELINE.replace("FOLDER", str(tmp_path / "in")))
    return tmp_path


def arrive(folder: Path, *numbers: int) -> None:
    """More files of records, some of which came before."""
    for number in numbers:
        draw = random.Random(number)
        lines = []
        for _ in range(80):
            second = max(0, number * 25 + draw.randrange(-40, 25))
            at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
            row = {"id": draw.randrange(60 * number + 60), "user": f"user {draw.randrange(9)}", "at": at}
            more = {"track": f"track {draw.randrange(7)}", "ms": draw.choice([0.0, -0.0, 0.1, 70.0])}
            lines.append(json.dumps(row | more))
        path = folder / "in" / f"{number:03}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (number, number))


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


def test_state_goes_on_in_other_numbers_of_shards(one_spark: None, folder: Path) -> None:
    """With half open windows, sessions, groups of a count, dedups, joins and stages in the same and in other shards."""
    arrive(folder, 0, 1)
    run("a/c", "moved.db", "--shards", "2")
    _forget_last_commit(folder / "a/c")
    saved_a = saved("a/c", "a")
    arrive(folder, 2, 3)
    run("b/c", "moved.db", "--from-savepoint", saved_a, "--shards", "5")
    saved_b = saved("b/c", "b")
    arrive(folder, 4)
    run("c/c", "moved.db", "--from-savepoint", saved_b, "--shards", "1")
    _forget_last_commit(folder / "c/c")  # the first one after the handover
    saved_c = saved("c/c", "c")
    arrive(folder, 5, 6)
    run("d/c", "moved.db", "--from-savepoint", saved_c, "--shards", "3")
    history = Checkpoint(folder / "d/c").history()
    assert history is not None
    assert (history.done, history.committed) == (6, 6)  # as many as there are files
    run("same/c", "same.db", "--shards", "2")
    assert rows("moved.db") == rows("same.db")
    assert all(rows("moved.db").values())
    for checkpoint, shards in (("a/c", 2), ("b/c", 5), ("c/c", 1), ("d/c", 3)):
        assert len(json.loads((folder / checkpoint / "millrace.json").read_text())["labels"]) == shards

    options = ["run", "elastic.py", "--checkpoint", "d/c", "--store", "moved.db"]
    refused = CliRunner().invoke(app, [*options, "--shards", "4"])
    assert refused.exit_code == 6
    assert "--from-savepoint FOLDER --shards 4" in refused.output
    (folder / "d/c/.handing-over").touch()
    refused = CliRunner().invoke(app, options)
    assert refused.exit_code == 5
    assert "its start from a savepoint was interrupted; remove its folder" in refused.output


def _forget_last_commit(checkpoint: Path) -> None:
    """As if the run was killed before Spark committed its last micro-batch."""
    commits = checkpoint / "spark" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
