"""Cases that once gave wrong answers with exit code 0; each is now refused, and the advice leads to exact answers.

The numbers are those of the list in which they were found. 4 is in tests/cli, 6 in tests/spark/test_clock.py, and 7 in
tests/eventlog.
"""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import chdir, closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli import app
from millrace.views.store import open_store

pytestmark = pytest.mark.spark

PIPELINE = """
from millrace import Pipeline, agg, log, on, to_files, to_table, window

plays = log("plays", "k STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
hourly = plays.window(window.fixed("1h"), lateness="1000d").trigger(on.each())
panes = hourly.discarding().aggregate(n=agg.count())
sinks = [hourly.retracting().aggregate(n=agg.count()).to(to_table("out.db", "out"))]
charts = Pipeline("charts", {"counts": hourly.accumulating().aggregate(n=agg.count()), "panes": panes}, sinks)
"""
LOG, STORE, CHECKPOINT = Path(".millrace/log.db"), Path(".millrace/views.db"), Path(".millrace/charts")


@pytest.fixture(scope="module")
def made(one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has run twice, on the one Spark of all tests."""
    folder = tmp_path_factory.mktemp("made")
    with chdir(folder):
        Path("charts.py").write_text(PIPELINE)
        typed("topics", "create", "plays")
        for keys in ("ab", "bc"):
            send(keys)
            typed("run", "charts.py", "--until-caught-up")
    return folder


@pytest.fixture(autouse=True)
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the project, as the working folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def typed(*command: str) -> str:
    """The last line of a command that works."""
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 0, result.output
    return ["", *result.output.splitlines()][-1]


def refused() -> str:
    """The line with which a run is refused."""
    result = CliRunner().invoke(app, ["run", "charts.py", "--until-caught-up"])
    assert result.exit_code in (5, 6), result.output
    return result.output.splitlines()[-1]


def send(keys: str) -> None:
    Path("send.json").write_text("\n".join(json.dumps({"k": key, "at": "2026-01-01T00:00:00Z"}) for key in keys))
    typed("send", "plays", "send.json")


def counted() -> list[dict[str, int]]:
    """The counts by key in the view, in the panes, and in the table of changes."""
    with closing(open_store(STORE)) as store:
        view = {row["k"]: row["n"] for row in store.rows("counts").rows.to_pylist()}
        panes = store.query("SELECT k, sum(n) FROM panes GROUP BY k").rows
    with closing(sqlite3.connect("out.db")) as database:
        table = database.execute("SELECT k, sum(n * diff) FROM out GROUP BY k").fetchall()
    return [view, dict(panes), dict(table)]


def follow(line: str, expected: dict[str, int]) -> None:
    """Do what a line advises, and see that answers are exact, now and after more records."""
    advice = "; compute it again from the log: millrace replay charts.py"
    assert line.endswith(advice), line
    typed("replay", "charts.py")
    typed("run", "charts.py", "--until-caught-up")
    assert counted() == [expected] * 3
    send("a")
    typed("run", "charts.py", "--until-caught-up")
    assert counted() == [{**expected, "a": expected.get("a", 0) + 1}] * 3


def test_1_a_replay_never_takes_up_a_checkpoint_that_an_earlier_one_left() -> None:
    with_copy(STORE, lambda: typed("replay", "charts.py"))
    assert typed("replay", "charts.py").startswith("4 rows computed again")
    typed("run", "charts.py", "--until-caught-up")
    assert counted() == [{"a": 1, "b": 2, "c": 1}] * 3


def with_copy(part: Path, work: Callable[[], object]) -> None:
    """Put a part back as it was before some work."""
    parts = [part] if part.is_dir() else [Path(f"{part}{suffix}") for suffix in ("", "-wal", "-shm")]
    for path in parts:
        if path.is_dir():
            shutil.copytree(path, f"{path}.copy")
        elif path.exists():
            shutil.copy2(path, f"{path}.copy")
    work()
    for path in parts:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if Path(f"{path}.copy").exists():
            Path(f"{path}.copy").rename(path)


def more() -> None:
    send("ccc")
    typed("run", "charts.py", "--until-caught-up")


@pytest.mark.parametrize("part", [STORE, CHECKPOINT, CHECKPOINT / "spark", Path("out.db")], ids=str)
def test_2_an_older_copy_is_refused(part: Path) -> None:
    with_copy(part, more)
    follow(refused(), {"a": 1, "b": 2, "c": 4})


@pytest.mark.parametrize("part", [STORE, CHECKPOINT, Path("out.db")], ids=str)
def test_2_a_deleted_part_is_refused(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    else:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{part}{suffix}").unlink(missing_ok=True)
    follow(refused(), {"a": 1, "b": 2, "c": 1})


def test_3_an_older_log_with_new_records_is_refused() -> None:
    with_copy(LOG, more)
    send("xyzxyz")
    follow(refused(), {"a": 1, "b": 2, "c": 1, "x": 2, "y": 2, "z": 2})


def test_3_a_topic_that_was_made_again_is_refused() -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{LOG}{suffix}").unlink(missing_ok=True)
    typed("topics", "create", "plays")
    send("xyzxyz")
    follow(refused(), {"x": 2, "y": 2, "z": 2})


def test_5_another_checkpoint_does_not_double_what_is_there() -> None:
    result = CliRunner().invoke(app, ["run", "charts.py", "--until-caught-up", "--checkpoint", "other"])
    assert result.exit_code == 6
    *_, line = result.output.splitlines()
    assert line.endswith("; compute it again from the log: millrace replay charts.py --checkpoint other")
    assert counted() == [{"a": 1, "b": 2, "c": 1}] * 3
    typed("replay", "charts.py", "--checkpoint", "other")
    typed("run", "charts.py", "--until-caught-up", "--checkpoint", "other")
    assert counted() == [{"a": 1, "b": 2, "c": 1}] * 3


def test_a_moved_project_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    moved = tmp_path.with_name(f"{tmp_path.name} moved")
    tmp_path.rename(moved)
    monkeypatch.chdir(moved)
    send("a")
    typed("run", "charts.py", "--until-caught-up")
    assert counted() == [{"a": 2, "b": 2, "c": 1}] * 3


def test_a_replay_after_the_loss_of_store_and_checkpoint_replaces_what_sinks_have() -> None:
    shutil.rmtree(".millrace")
    typed("topics", "create", "plays")
    send("xy")
    follow(refused(), {"x": 1, "y": 1})


def test_a_table_that_was_dropped_is_refused() -> None:
    with closing(sqlite3.connect("out.db")) as database:
        database.execute("DROP TABLE out")
    follow(refused(), {"a": 1, "b": 2, "c": 1})


def test_a_refused_run_does_not_put_an_older_generation_of_a_sink_in_place() -> None:
    typed("replay", "charts.py")
    with_copy(STORE, lambda: None)
    send("a")
    typed("run", "charts.py", "--until-caught-up")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{STORE}{suffix}").unlink(missing_ok=True)
    line = refused()
    with closing(sqlite3.connect("out.db")) as database:
        assert dict(database.execute("SELECT k, sum(n * diff) FROM out GROUP BY k")) == {"a": 2, "b": 2, "c": 1}
    follow(line, {"a": 2, "b": 2, "c": 1})
