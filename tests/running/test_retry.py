"""Streams that wait for a store, a log or a file system that went away, and then go on exactly."""

import subprocess
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

import millrace
from millrace import (
    ConflictError,
    CorruptError,
    MachineError,
    MillraceError,
    NotFoundError,
    Pipeline,
    PipelineError,
    Run,
    agg,
    log,
    on,
    to_table,
    window,
)
from millrace.cli import app
from millrace.eventlog.topics import Log
from millrace.eventlog.trouble import UncertainError
from millrace.running import retried
from millrace.running.lease import Lease
from millrace.running.retried import RetriedStream
from millrace.running.settings import Settings, StreamOptions
from millrace.running.shown import RunDisplays
from millrace.running.status import all_under
from millrace.running.waiting import Waiting, backoff, may_pass
from millrace.views import postgresql
from postgres import Postgres

PLAYS = log("plays", "track STRING, at TIMESTAMP")
BY_HOUR = PLAYS.event_time("at", delay="0s").group_by("track").window(window.fixed("1h"), lateness="1d")
HOURLY = BY_HOUR.trigger(on.watermark(early=on.each(), late=on.each())).retracting().aggregate(plays=agg.count())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which a topic is."""
    monkeypatch.chdir(tmp_path)
    Log(".millrace/log.db").create("plays")
    return tmp_path


def send(*tracks: str) -> None:
    with millrace.connect() as connection:
        connection.send("plays", [{"track": track, "at": "2026-01-01T12:05:00Z"} for track in tracks])


def counts(url: str = ".millrace") -> dict[str, int]:
    try:
        with millrace.connect(url) as connection:
            return {row["track"]: row["plays"] for row in connection.view("hourly")}
    except NotFoundError:  # no answer has been written yet
        return {}


def until(condition: Callable[[], object], run: Run | None = None, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, run
        if run is not None:
            run.wait(0.05)
        time.sleep(0.02)


def shown_status(folder: Path) -> str:
    return CliRunner().invoke(app, ["status", "--folder", str(folder), "--log", ".millrace/log.db"]).output


# What is retried, and for how long


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (MachineError("the disk is full", "make room"), True),
        (UncertainError("the disk did not confirm the write", "check it"), False),
        (PipelineError("a mistake"), False),
        (NotFoundError("no topic", "make it"), False),
        (ConflictError("not together", "replay"), False),
        (CorruptError("damaged", "replay"), False),
        (MillraceError("who knows"), False),
        (ValueError("a user's function"), False),
    ],
)
def test_only_trouble_of_the_machine_is_waited_out(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(), "10m"),
        (Settings(until_caught_up=True), "0s"),
        (Settings(until_caught_up=True, retry="1h"), "1h"),
        (Settings(retry="0s"), "0s"),
    ],
)
def test_a_run_that_ends_by_itself_retries_only_if_told_to(settings: Settings, expected: str) -> None:
    assert settings.how.retry == expected


def test_a_retry_that_has_no_effect_or_no_unit_is_refused(place: Path) -> None:
    with pytest.raises(PipelineError, match="retry has no effect with mode batch"):
        Settings(mode="batch", retry="1m")
    with pytest.raises(PipelineError, match="retry 10 has no unit"):
        Pipeline("charts", {"hourly": HOURLY}).run(retry=10)  # type: ignore[arg-type]


class Scripted:
    """A stream that fails as it is told, a start at a time; one without an error goes on."""

    def __init__(self, *errors: Exception | None, refuses: bool = False) -> None:
        self.errors, self.starts, self.refuses = list(errors), 0, refuses

    def start(self, *_: Any, **__: Any) -> "Scripted":
        self.starts += 1
        self.error = self.errors.pop(0)
        if self.refuses and self.error is not None:
            raise self.error
        return self

    def wait(self, timeout: float) -> bool:
        if self.error is not None:
            raise self.error
        return False

    def stop(self, patience: float = 0) -> None:
        pass


@pytest.fixture
def scripted(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RetriedStream, list[Waiting | None]]]:
    """Makes a stream whose starts fail as scripted, and that waits a hundredth of a second."""

    def make(script: Scripted, retry: str = "10m") -> tuple[RetriedStream, list[Waiting | None]]:
        monkeypatch.setattr(retried, "start_stream", script.start)
        monkeypatch.setattr(retried, "check_agreement", lambda *_: 1)
        monkeypatch.setattr(retried, "backoff", lambda *about: None if backoff(*about) is None else 0.01)
        pipeline, home = Pipeline("charts", {"hourly": HOURLY}), Settings().home("charts")
        told: list[Waiting | None] = []
        lease = Lease("charts", "local[1]")
        return (
            RetriedStream(pipeline, home, StreamOptions(retry=retry), lease, lambda *_: None, told.append), told
        )  # fmt: skip

    return make


FULL = MachineError("the disk is full", "make room")


def test_a_stream_is_started_again_until_it_runs(scripted: Any) -> None:
    script = Scripted(FULL, FULL, None)
    stream, told = scripted(script)
    until(lambda: stream.wait(0.01) or script.starts == 3)
    assert [None if each is None else each.problem for each in told] == ["the disk is full", None] * 2
    assert told[0].since == told[2].since, "the trouble is the same one"
    stream.stop()
    assert stream.is_stopped


def test_a_mistake_ends_the_run_also_while_it_is_retried(scripted: Any) -> None:
    script = Scripted(FULL, ConflictError("the checkpoint is of another pipeline", "replay"))
    stream, _ = scripted(script)
    with pytest.raises(ConflictError):
        until(lambda: stream.wait(0.01))
    assert script.starts == 2


def test_without_patience_the_first_trouble_ends_the_run(scripted: Any) -> None:
    stream, told = scripted(Scripted(FULL), "0s")
    with pytest.raises(MachineError) as caught:
        stream.wait(0.01)
    assert (str(caught.value), told) == (str(FULL), [])


def test_a_run_that_gives_up_says_for_how_long_it_tried(scripted: Any) -> None:
    script = Scripted(*[FULL] * 1_000)
    stream, _ = scripted(script, "1s")
    with pytest.raises(MachineError) as caught:
        until(lambda: stream.wait(0.01))
    assert str(caught.value) == "the disk is full, and retries for 1s did not help; make room"
    assert script.starts > 2


def test_trouble_before_the_first_start_is_raised_at_once(scripted: Any) -> None:
    with pytest.raises(MachineError, match="the disk is full; make room"):
        scripted(Scripted(FULL, refuses=True))


def test_trouble_of_a_later_start_is_waited_out(scripted: Any) -> None:
    script = Scripted(None, FULL, FULL, None, refuses=True)
    stream, told = scripted(script)
    script.error = FULL
    until(lambda: stream.wait(0.01) or script.starts == 4)
    assert [each is None for each in told] == [False, False, False, True]


def test_a_run_that_waits_can_be_stopped(scripted: Any) -> None:
    script = Scripted(FULL, None)
    stream, told = scripted(script)
    assert stream.wait(0.01) is False
    assert told[0] is not None
    stream.stop()
    assert stream.wait(60) is True
    assert script.starts == 1


def test_a_file_that_is_gone_is_waited_for_whatever_the_error(scripted: Any, place: Path) -> None:
    script = Scripted(ConflictError("the log is not the one that was read", "replay"), None)
    stream, told = scripted(script)
    kept = Path(".millrace/log.db")
    aside = kept.rename("aside.db")
    for _ in range(5):
        assert stream.wait(0.02) is False
    assert script.starts == 1
    assert told[0].problem == f"{kept.absolute()} is gone"
    assert told[0].advice == "mount its file system again, or put it back"
    aside.rename(kept)
    until(lambda: stream.wait(0.01) or script.starts == 2)


# What is said meanwhile


def test_a_run_shows_what_it_waits_for() -> None:
    now = time.time()
    waiting = Waiting("the disk is full", "make room", now - 60, now + 8)
    for as_json in (False, True):
        out = StringIO()
        display = RunDisplays(Console(file=out, width=200), as_json, several=False).of("charts", lambda: None)
        display.waits(waiting)
        display.waits(None)
        *_, first, last = out.getvalue().splitlines()
        if as_json:
            assert f'"waiting": {{"problem": "the disk is full", "advice": "make room", "since": {now - 60}' in first
            assert last == '{"pipeline": "charts", "waiting": null}'
        else:
            since = time.strftime("%H:%M:%S", time.gmtime(now - 60))
            assert first == f"charts: waiting since {since}Z: the disk is full; retry in 8 s"
            assert last == "charts: running again"


# On Spark


@pytest.fixture
def quick_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that gives up soon by itself."""
    monkeypatch.setattr(postgresql, "_WAITS", (0.1,))


@pytest.mark.spark
def test_a_postgresql_that_is_restarted_is_waited_for(
    spark: SparkSession, place: Path, postgres: Postgres, quick_store: None
) -> None:
    url = postgres.empty()
    pipeline = Pipeline("charts", {"hourly": HOURLY}, [HOURLY.to(to_table("out.db", "changes"))])
    send("Weir", "Weir")
    with pipeline.run(store=url, spark=spark) as run:
        until(lambda: counts(url) == {"Weir": 2}, run)
        postgres.kill()
        try:
            send("Weir")
            until(lambda: run.waiting, run)
            assert "cannot write to database 'postgres'" in run.summary
            assert run.summary.startswith("waiting since ")
            told = shown_status(place / ".millrace")
            assert "│ waiting │" in told
            assert "charts: waiting since " in told
            send("Eddy")
        finally:
            postgres.restart()
        until(lambda: counts(url) == {"Weir": 3, "Eddy": 1}, run)
        assert run.waiting is None
        until(lambda: "│ running │" in shown_status(place / ".millrace"), run)
    assert counts(url) == {"Weir": 3, "Eddy": 1}
    assert run.totals.rows >= 4
    (status,) = all_under(place / ".millrace")
    assert (status.state, status.rows) == ("stopped", run.totals.rows)
    with millrace.connect("out.db") as connection:
        changes = connection.query("SELECT track, sum(diff * plays) FROM changes GROUP BY 1 ORDER BY 1").rows()
    assert [tuple(row.values()) for row in changes] == [("Eddy", 1), ("Weir", 3)], "each change was written once"


def mount(*arguments: str) -> None:
    if subprocess.run(["mount", *arguments], capture_output=True).returncode:
        pytest.skip("only root can mount a file system")


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Path]:
    """A folder on which a test mounts file systems; they are unmounted at the end."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    yield folder
    while str(folder) in Path("/proc/mounts").read_text():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.spark
def test_a_file_system_that_is_not_mounted_is_waited_for(spark: SparkSession, place: Path, mounts: Path) -> None:
    disk = place / "disk"
    disk.mkdir()
    mount("--bind", str(disk), str(mounts))
    send("Weir", "Weir")
    with Pipeline("charts", {"hourly": HOURLY}).run(checkpoint=mounts / "charts", spark=spark) as run:
        until(lambda: counts() == {"Weir": 2}, run)
        subprocess.run(["umount", "--lazy", str(mounts)], check=True)
        send("Weir")
        until(lambda: run.waiting, run)
        assert run.waiting is not None
        assert run.waiting.problem.endswith(" is gone")
        assert run.waiting.advice == "mount its file system again, or put it back"
        send("Eddy")
        mount("--bind", str(disk), str(mounts))
        until(lambda: counts() == {"Weir": 3, "Eddy": 1}, run)
    assert counts() == {"Weir": 3, "Eddy": 1}


@pytest.mark.spark
def test_a_full_disk_is_waited_out_and_said_on_it(spark: SparkSession, place: Path, mounts: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=16m", "none", str(mounts))
    send("Weir", "Weir")
    with Pipeline("charts", {"hourly": HOURLY}).run(checkpoint=mounts / "charts", spark=spark) as run:
        until(lambda: counts() == {"Weir": 2}, run)
        filler = mounts / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(32 << 20))
        send("Weir")
        until(lambda: run.waiting, run)
        assert run.waiting is not None
        assert "the disk is full" in run.waiting.problem
        (status,) = all_under(mounts)
        assert (status.state, status.waiting) == ("waiting", run.waiting)
        filler.unlink()
        until(lambda: counts() == {"Weir": 3}, run)
    assert counts() == {"Weir": 3}
