"""Backups: one consistent set while pipelines run, and a restored set goes on exactly from there."""

import fcntl
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from millrace import (
    ConflictError,
    CorruptError,
    MachineError,
    MillraceError,
    NotFoundError,
    Pipeline,
    PipelineError,
    agg,
    log,
    on,
    to_topic,
    window,
)
from millrace.cli.app import app
from millrace.eventlog.sealed import sealed
from millrace.eventlog.topics import Log
from millrace.model.query import Query
from millrace.running import backup as backups
from millrace.running import savepoint, status
from millrace.running.backup import back_up
from millrace.running.manifest import SavedCheckpoint, read_manifest
from millrace.running.project import Project
from millrace.running.replay import replay
from millrace.running.restore import restore
from millrace.running.run import run_stream
from millrace.running.settings import Locations, StreamOptions
from millrace.running.status import note
from millrace.spark import stream
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.gate import passing
from millrace.spark.gather import gather
from millrace.spark.history import FORMAT
from millrace.views.store import open_store

PLAYS = log("plays", "track STRING, at TIMESTAMP")
QUIET = Console(quiet=True)
ONCE = StreamOptions(until_caught_up=True)
COUNTED = "SELECT track, sum(plays) FROM minutes GROUP BY track ORDER BY track"


def project_in(folder: Path, store: str | None = None) -> Project:
    return Project(folder, folder / "log.db", store or str(folder / "views.db"))


def home_of(project: Project) -> Locations:
    return Locations(project.log, project.store, project.folder / "charts")


def play(number: int) -> str:
    second = number % 600
    at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
    return json.dumps({"track": f"track {number % 7}", "at": at})


def by_minute() -> Query:
    timed = PLAYS.event_time("at", delay="5s").group_by("track").window(window.fixed("1m"), lateness="1h")
    return timed.trigger(on.each()).retracting().aggregate(plays=agg.count())


def each_play() -> Query:
    timed = PLAYS.event_time("at", delay="5s").group_by("track").window(window.fixed("1m"), lateness="1h")
    return timed.trigger(on.each()).discarding().aggregate(plays=agg.count())


CHARTS = Pipeline("charts", {"minutes": by_minute()}, sinks=[each_play().to(to_topic("answers"))])


def values(path: Path, topic: str) -> list[dict[str, Any]]:
    """All records of a topic."""
    with closing(Log(path)) as opened:
        ends = opened.ends(topic)
        tables = [opened.read(topic, partition, 0, end) for partition, end in enumerate(ends)]
    return [json.loads(value) for table in tables for value in table["value"].to_pylist()]


def expected(path: Path) -> list[tuple[str, int]]:
    """The answers by plain Python, for the records that the log holds."""
    return sorted(Counter(record["track"] for record in values(path, "plays")).items())


def viewed(store: str) -> list[tuple[Any, ...]]:
    with closing(open_store(store)) as opened:
        return [(track, int(plays)) for track, plays in opened.query(COUNTED).rows]


def sent_on(path: Path) -> list[tuple[str, int]]:
    """The sums of the answers in the topic that is a sink."""
    sums: Counter[str] = Counter()
    for record in values(path, "answers"):
        sums[record["track"]] += record["plays"]
    return sorted(sums.items())


def reach(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not reached in time"
        time.sleep(0.005)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder that a restore could replace."""
    skipped = ("lock", ".backup.lock", "gate")
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in skipped)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if ".db" not in path.suffix}


@pytest.fixture
def shared(spark: SparkSession, one_spark: None) -> SparkSession:
    """The one Spark of all tests, also for runs that would start their own."""
    return spark


@contextmanager
def appending(path: Path) -> Iterator[None]:
    """A producer that appends until the block ends."""
    end = threading.Event()

    def work() -> None:
        with closing(Log(path)) as opened:
            number = 0
            while not end.wait(0.05):
                opened.append("plays", [play(number + each) for each in range(20)], [b"%d" % number] * 20)
                number += 20

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_backups_of_a_running_pipeline_go_on_exactly_elsewhere(tmp_path: Path, shared: SparkSession) -> None:
    project = project_in(tmp_path / "here")
    with closing(Log(project.log)) as opened:
        opened.create("plays", 2)
        opened.create("answers")
    run = CHARTS.run(checkpoint=home_of(project).checkpoint, log=project.log, store=project.store, spark=shared)
    saved = []
    with run, appending(project.log):
        for number in range(4):
            before = run.totals.batches
            reach(lambda before=before: run.totals.batches >= before + 2)  # type: ignore[misc]
            back_up(project, tmp_path / f"backup{number}")
            saved.append(tmp_path / f"backup{number}")
        before = run.totals.batches
        reach(lambda: run.totals.batches >= before + 2)
    for folder in (saved[0], saved[-1]):
        (checkpoint,) = read_manifest(folder).checkpoints
        assert checkpoint.sinks == ("sink topic answers",)
        other = project_in(tmp_path / f"{folder.name}-restored")
        restore(other, folder)
        held = len(values(other.log, "plays"))
        assert held < len(values(project.log, "plays"))
        run_stream(QUIET, CHARTS, home_of(other), ONCE)
        assert viewed(other.store) == expected(other.log)
        assert sent_on(other.log) == expected(other.log)
        with closing(Log(other.log)) as opened:
            opened.append("plays", [play(number) for number in range(50)])
        run_stream(QUIET, CHARTS, home_of(other), ONCE)
        assert viewed(other.store) == sent_on(other.log) == expected(other.log)
        assert len(values(other.log, "plays")) == held + 50


def test_a_micro_batch_holds_the_gate_until_its_answers_are_written(
    tmp_path: Path, shared: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_in(tmp_path / "here")
    with closing(Log(project.log)) as opened:
        opened.create("plays")
        opened.create("answers")
        opened.append("plays", [play(0)])
    seen = []

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*given: Any, **named: Any) -> Any:
            with (project.folder / "charts" / "gate").open("ab") as gate:
                try:
                    fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    seen.append(name)
            return function(*given, **named)

        return watch

    # The first and the last step of a micro-batch.
    monkeypatch.setattr(stream, "gather", watched("gather", gather))
    monkeypatch.setattr(status, "note", watched("note", note))
    run_stream(QUIET, CHARTS, home_of(project), ONCE)
    assert seen == ["gather", "note"]
    with (project.folder / "charts" / "gate").open("ab") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_restore_in_place_goes_on_exactly(tmp_path: Path, shared: SparkSession) -> None:
    project = project_in(tmp_path / "here")
    home = home_of(project)
    opened = Log(project.log)
    opened.create("plays", 2)
    opened.create("answers")
    for first in (0, 40):
        opened.append("plays", [play(number) for number in range(first, first + 40)])
        run_stream(QUIET, CHARTS, home, ONCE)
    back_up(project, tmp_path / "backup")
    then = viewed(project.store)
    for first in (80, 90):
        opened.append("plays", [play(number) for number in range(first, first + 13)])
        run_stream(QUIET, CHARTS, home, ONCE)
    assert viewed(project.store) != then
    aside = restore(project, tmp_path / "backup").aside
    assert aside is not None
    assert viewed(project.store) == then == expected(project.log)
    assert len(values(aside / "log.db", "plays")) == 106
    opened.append("plays", [play(number) for number in range(200, 230)])
    run_stream(QUIET, CHARTS, home, ONCE)
    assert len(values(project.log, "plays")) == 110
    assert viewed(project.store) == sent_on(project.log) == expected(project.log)


def test_a_postgresql_store_that_is_newer_than_a_restored_set_is_refused_until_a_replay(
    tmp_path: Path, shared: SparkSession, request: pytest.FixtureRequest
) -> None:
    project = project_in(tmp_path / "here", request.getfixturevalue("postgres").empty())
    pipeline, home = Pipeline("charts", {"minutes": by_minute()}), home_of(project)
    opened = Log(project.log)
    opened.create("plays")
    opened.append("plays", [play(number) for number in range(20)])
    run_stream(QUIET, pipeline, home, ONCE)
    manifest = back_up(project, tmp_path / "backup")
    assert manifest.postgresql is not None
    (commit,) = manifest.postgresql.commits
    assert (commit.pipeline, commit.generation, commit.batch, manifest.has_views) == ("charts", 1, 0, False)
    restore(project, tmp_path / "backup")
    opened.append("plays", [play(number) for number in range(20, 30)])
    run_stream(QUIET, pipeline, home, ONCE)
    assert viewed(project.store) == expected(project.log)
    restore(project, tmp_path / "backup")
    with pytest.raises(ConflictError, match="millrace replay"):
        run_stream(QUIET, pipeline, home, ONCE)
    replay(QUIET, pipeline, home, ONCE)
    assert viewed(project.store) == expected(project.log)


def fake_checkpoint(folder: Path, generation: int = 1) -> None:
    """A checkpoint that has run no micro-batch, made without Spark."""
    about = {
        "format": FORMAT, "id": "0123abcd", "generation": generation, "labels": [0], "pipeline": "charts",
        "spark_sources": [], "stages": {}, "words": {}, "outputs": {"views": 0, "file sink": 0}, "left": [],
    }  # fmt: skip
    (folder / "spark" / "state" / "0").mkdir(parents=True)
    (folder / "spark" / "state" / "0" / "1.delta").write_bytes(bytes(range(256)))
    (folder / "millrace.json").write_text(json.dumps(sealed(about)))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with ten records, an empty store and a checkpoint."""
    made = project_in(tmp_path / "project")
    with closing(Log(made.log)) as opened:
        opened.create("plays")
        opened.append("plays", [play(number) for number in range(10)])
    with closing(open_store(made.store)) as store:
        store.open("charts", [])
    fake_checkpoint(made.folder / "charts")
    (made.folder / "charts.boundary").write_text("12")
    return made


def test_a_second_backup_into_the_same_folder_is_refused(project: Project, tmp_path: Path) -> None:
    back_up(project, tmp_path / "backup")
    before = content(tmp_path / "backup")
    with pytest.raises(ConflictError, match=r"there is a backup in .* already; choose another folder"):
        back_up(project, tmp_path / "backup")
    assert content(tmp_path / "backup") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(ConflictError, match="is not empty"):
        back_up(project, tmp_path / "mine")
    (tmp_path / "empty").mkdir()
    back_up(project, tmp_path / "empty")


@pytest.mark.parametrize(
    "file",
    ["log.db", "views.db", "checkpoints/charts/spark/state/0/1.delta", "checkpoints/charts.boundary", "manifest.json"],
)
def test_a_damaged_backup_is_refused_and_nothing_is_changed(project: Project, tmp_path: Path, file: str) -> None:
    back_up(project, tmp_path / "backup")
    before = content(project.folder)
    damaged = tmp_path / "backup" / file
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(CorruptError, match=rf"{file} of backup .* is damaged; .*nothing was changed"):
        restore(project, tmp_path / "backup")
    damaged.unlink()
    with pytest.raises(MillraceError, match=r"is missing|is not a backup, or one that was not completed"):
        restore(project, tmp_path / "backup")
    assert content(project.folder) == before
    assert len(values(project.log, "plays")) == 10


def test_a_backup_is_independent_of_the_files_that_it_was_made_from(project: Project, tmp_path: Path) -> None:
    back_up(project, tmp_path / "backup")
    state = "charts/spark/state/0/1.delta"
    (project.folder / state).write_bytes(b"damaged in place")
    restore(project, tmp_path / "backup")
    assert (project.folder / state).read_bytes() == bytes(range(256))
    assert not (project.folder / ".backup").exists()
    assert not (project.folder / ".restore").exists()


def test_a_restore_moves_everything_aside_that_the_backup_does_not_know(project: Project, tmp_path: Path) -> None:
    back_up(project, tmp_path / "backup")
    fake_checkpoint(project.folder / "charts@2", 2)
    (project.folder / "charts" / "spark" / "state" / "0" / "2.delta").touch()
    (project.folder / "charts.boundary").write_text("13")
    (project.folder / "notes.txt").write_text("mine")
    done = restore(project, tmp_path / "backup")
    assert done.aside is not None
    assert done.aside.parent == project.folder
    assert not (project.folder / "charts@2").exists()
    assert (project.folder / "charts.boundary").read_text() == "12"
    assert (project.folder / "notes.txt").exists()
    assert not (project.folder / "charts" / "spark" / "state" / "0" / "2.delta").exists()
    moved = {str(path.relative_to(done.aside)) for path in done.aside.rglob("*") if path.is_file()}
    assert {"log.db", "views.db", "checkpoints/charts.boundary", "checkpoints/charts@2/millrace.json",
            "checkpoints/charts/spark/state/0/2.delta"} <= moved  # fmt: skip
    again = restore(project, tmp_path / "backup")
    assert again.aside not in (None, done.aside)


def test_a_restore_is_refused_while_a_pipeline_runs(project: Project, tmp_path: Path) -> None:
    back_up(project, tmp_path / "backup")
    before = content(project.folder)
    with Checkpoint(project.folder / "charts").lock(), pytest.raises(MachineError, match="stop that run first"):
        restore(project, tmp_path / "backup")
    assert content(project.folder) == before


def test_a_backup_waits_for_the_micro_batch_that_runs(project: Project, tmp_path: Path) -> None:
    thread = threading.Thread(target=back_up, args=(project, tmp_path / "backup"))

    def has_begun() -> bool:
        try:
            with project.alone():
                return False
        except MachineError:
            return True

    with passing(project.folder / "charts"):
        thread.start()
        reach(has_begun)
        with closing(Log(project.log)) as opened:
            opened.append("plays", [play(10)])
        (project.folder / "charts" / "begun").write_text(json.dumps(sealed({"batch": -1})))
    thread.join(60)
    other = project_in(tmp_path / "other")
    restore(other, tmp_path / "backup")
    assert len(values(other.log, "plays")) == 11
    assert (other.folder / "charts" / "begun").exists()


def test_writes_after_the_pause_are_not_in_the_backup(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The databases are copied from read transactions, whatever is written before and during the copy."""
    monkeypatch.setattr("millrace.running.backup._PAGES", 16)
    opened, store = Log(project.log), open_store(project.store)
    opened.append("plays", [random.randbytes(3000).hex() for _ in range(400)])
    reports: list[tuple[int, int]] = []

    def write() -> None:
        opened.append("plays", [random.randbytes(3000).hex()])
        store.open(f"pipeline {len(reports)}", [])

    def saving(stage: Path) -> Iterator[SavedCheckpoint]:
        write()
        return saved(stage)

    def report(done: int, total: int) -> None:
        reports.append((done, total))
        write()

    saved = backups._saved
    monkeypatch.setattr(backups, "_saved", saving)
    back_up(project, tmp_path / "backup", report=report)
    assert len(reports) > 10
    assert reports[-1][0] == reports[-1][1]
    with closing(Log(tmp_path / "backup" / "log.db")) as copy:
        assert copy.ends("plays") == [410]
    with closing(open_store(tmp_path / "backup" / "views.db")) as copied:
        assert len(copied.generations("charts")) == 1
        assert copied.generations("pipeline 0") == []
    assert len(store.generations("pipeline 0")) == 1
    store.close()


def test_a_checkpoint_that_appears_during_the_pause_is_in_the_backup(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, copy = project.folder / "other", savepoint.copy_checkpoint

    def copying(source: Path, to: Path, *rest: Any, **named: Any) -> None:
        copy(source, to, *rest, **named)
        if not other.exists():
            fake_checkpoint(other)

    monkeypatch.setattr("millrace.running.backup.copy_checkpoint", copying)
    manifest = back_up(project, tmp_path / "backup")
    assert [each.name for each in manifest.checkpoints] == ["charts", "other"]


def test_a_backup_of_the_log_replaces_only_the_log(project: Project, tmp_path: Path) -> None:
    manifest = back_up(project, tmp_path / "backup", log_only=True)
    assert [file.path for file in manifest.files] == ["log.db"]
    with closing(Log(project.log)) as opened:
        opened.append("plays", [play(10)])
    before = content(project.folder)
    done = restore(project, tmp_path / "backup")
    assert done.aside is not None
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in done.aside.iterdir()} == {"log.db"}
    assert len(values(project.log, "plays")) == 10
    assert content(project.folder).items() >= before.items()


def test_an_open_log_follows_a_restore(project: Project, tmp_path: Path) -> None:
    """Processes that have the log open must not go on with the file that was moved aside."""
    back_up(project, tmp_path / "backup")
    opened = Log(project.log)
    opened.append("plays", [play(10)])
    assert opened.ends("plays") == [11]
    done = restore(project, tmp_path / "backup")
    assert opened.ends("plays") == [10]
    opened.append("plays", [play(10), play(11)])
    assert len(values(project.log, "plays")) == 12
    assert done.aside is not None
    assert len(values(done.aside / "log.db", "plays")) == 11


def test_a_restore_waits_for_no_writer_that_does_not_end(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.running.restore._PATIENCE", 0.1)
    back_up(project, tmp_path / "backup")
    opened = Log(project.log)
    with opened._database.write(), pytest.raises(MachineError, match="another process writes to"):
        restore(project, tmp_path / "backup")
    assert opened.ends("plays") == [10]


def test_a_damaged_log_is_moved_aside_by_a_restore(project: Project, tmp_path: Path) -> None:
    back_up(project, tmp_path / "backup")
    project.log.write_bytes(b"rubbish" * 1000)
    done = restore(project, tmp_path / "backup")
    assert done.aside is not None
    assert (done.aside / "log.db").read_bytes().startswith(b"rubbish")
    assert len(values(project.log, "plays")) == 10


def test_a_restore_that_was_killed_half_way_is_done_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(project, tmp_path / "backup")
    before = content(project.folder)
    with closing(Log(project.log)) as opened:
        opened.append("plays", [play(10)])

    def killed(stage: Path, to: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("millrace.running.restore._put", killed)
        with pytest.raises(KeyboardInterrupt):
            restore(project, tmp_path / "backup")
    assert not project.log.exists()
    restore(project, tmp_path / "backup")
    assert content(project.folder).items() >= before.items()
    assert len(values(project.log, "plays")) == 10
    (aside,) = project.folder.glob("before-restore-*")
    assert len(values(aside / "log.db", "plays")) == 11


def test_the_commands_say_what_they_did(project: Project, tmp_path: Path) -> None:
    where = ["--folder", str(project.folder), "--log", str(project.log), "--store", project.store]
    to = str(tmp_path / "backup")
    done = CliRunner().invoke(app, ["backup", to, *where])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"saved the log, the views and 1 checkpoint to {to}: 5 files, ")
    assert done.output.endswith("; not saved: file sink of charts\n")
    assert CliRunner().invoke(app, ["backup", to, *where]).exit_code == 6
    done = CliRunner().invoke(app, ["backup", str(tmp_path / "log"), "--log-only", *where])
    assert (done.exit_code, done.output) == (2, "--folder has no effect with --log-only; leave it out\n")
    done = CliRunner().invoke(app, ["backup", str(tmp_path / "log"), "--log-only", "--log", str(project.log)])
    assert done.output.startswith(f"saved the log to {tmp_path / 'log'}: 1 file, ")
    done = CliRunner().invoke(app, ["restore", to, *where])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("restored the log, the views and 1 checkpoint of 20")
    assert "; moved aside to " in done.output
    done = CliRunner().invoke(app, ["restore", to, *where[:4], "--store", "postgresql://nowhere/x"])
    assert (done.exit_code, done.output) == (
        2, "the backup holds an SQLite store; name the file to restore it to: --store FILE\n",
    )  # fmt: skip


def test_backups_need_a_log_and_restores_a_backup(project: Project, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="--log FILE"):
        back_up(project_in(tmp_path / "nothing"), tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    with pytest.raises(NotFoundError, match=r"there is no folder .*--folder"):
        back_up(Project(tmp_path / "typo", project.log, project.store), tmp_path / "backup")
    with pytest.raises(NotFoundError, match=r"there is no store .*--store URL"):
        back_up(Project(project.folder, project.log, "typo.db"), tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    assert not (tmp_path / "typo").exists()
    with pytest.raises(NotFoundError, match="is not a backup"):
        restore(project, tmp_path)
    with pytest.raises(PipelineError, match="write sqlite:///file or postgresql://"):
        back_up(Project(project.folder, project.log, "mysql://x"), tmp_path / "backup")
