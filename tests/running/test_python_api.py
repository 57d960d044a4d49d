"""Running a pipeline from Python: `Pipeline.run` and the run that it gives."""

import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millrace
from millrace import MillraceError, Pipeline, Run, agg, files, layers, log, on, to_function, window
from millrace.cli.pipelines import run as command
from millrace.eventlog.topics import Log
from millrace.running import lease, notebook
from millrace.running.settings import Settings
from millrace.spark import session as sessions
from millrace.spark.progress import BatchProgress, PartProgress

PLAYS = log("plays", "track STRING, at TIMESTAMP")
BY_HOUR = PLAYS.event_time("at", delay="0s").group_by("track").window(window.fixed("1h"), lateness="1d")
HOURLY = BY_HOUR.trigger(on.watermark(early=on.each(), late=on.each())).retracting().aggregate(plays=agg.count())
CHARTS = Pipeline("charts", {"hourly": HOURLY})


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
    with millrace.connect(url) as connection:
        return {row["track"]: row["plays"] for row in connection.view("hourly")}


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# The settings


def test_the_settings_are_those_of_the_command_line() -> None:
    """Names, order and defaults: of `millrace run`, of `Pipeline.run`, and of `Settings`."""
    ours = inspect.signature(Pipeline.run).parameters
    theirs = inspect.signature(command).parameters
    settings = inspect.signature(Settings).parameters
    assert [*ours] == ["self", *settings, "spark"]
    assert [*theirs] == ["files", "pipeline", *settings, "json", "serve", "host", "port", "watch"]
    for name, setting in settings.items():
        assert plain(ours[name].default) == plain(theirs[name].default) == plain(setting.default), name
        assert ours[name].kind is inspect.Parameter.KEYWORD_ONLY


def plain(default: object) -> object:
    return str(default) if isinstance(default, Path) else default


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "stream"}, "unknown mode 'stream' (known: micro-batch, real-time, batch)"),
        ({"layer": "bach"}, "unknown layer 'bach'; did you mean 'batch'?"),
        ({"guarantee": "exactly"}, "unknown guarantee"),
        ({"latency": "fast"}, "latency"),
        ({"interval": 10}, "interval 10 has no unit"),
        ({"shards": 0}, "shards is a whole number of at least 1, not 0"),
        ({"until_caught_up": True, "interval": "1s"}, "leave the interval out"),
        ({"mode": "batch", "until_caught_up": True}, "until_caught_up has no effect with mode batch; leave it out"),
        ({"mode": "batch", "interval": "10s"}, "interval has no effect with mode batch"),
        ({"layer": "batch", "shards": 3}, "shards has no effect with layer batch"),
        ({"layer": "batch"}, "the batch layer needs every source to be layers("),
        ({"spark": "local"}, "spark= takes a SparkSession of this process, not Spark Connect nor 'local'"),
    ],
)
def test_a_mistake_in_a_setting_is_told_before_spark_is_started(
    settings: dict[str, Any], said: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "start", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.setattr(sessions, "is_active", lambda: False)
    with pytest.raises(MillraceError) as raised:
        CHARTS.run(**settings)
    assert said in str(raised.value)


def test_an_unknown_setting_is_an_error_of_python(place: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'until_caugth_up'"):
        CHARTS.run(until_caugth_up=True)  # type: ignore[call-arg]


def test_a_topic_that_is_missing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sessions, "start", lambda *_: pytest.fail("Spark was started"))
    with pytest.raises(MillraceError, match="millrace topics create plays"):
        CHARTS.run()


# The handle, with work that is not Spark's


class Fake:
    """Work that ends when it is told to, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.over, self.patience = error, threading.Event(), 0.0

    def finish(self) -> str:
        assert self.over.wait(60)
        if self.error is not None:
            raise self.error
        return "stopped: all is well"

    def stop(self, patience: float) -> None:
        self.patience = patience
        self.over.set()


def begun(work: Fake) -> tuple[Run, list[str]]:
    left: list[str] = []
    held = ExitStack()
    held.callback(left.append, "left")
    run = Run("charts")
    run.begin(work, held)
    return run, left


def test_a_run_is_waited_for_and_stopped() -> None:
    work = Fake()
    run, left = begun(work)
    assert run.is_running
    assert run.wait(0.01) is False
    assert repr(run).startswith("<run of charts: running: 0 rows in 0 micro-batches")
    run.stop(patience=7)
    assert (run.is_running, work.patience, left) == (False, 7, ["left"])
    assert run.wait() is True
    assert repr(run) == "<run of charts: stopped: all is well>"
    run.stop()


def test_an_error_is_raised_by_wait_and_at_the_end_of_a_block(caplog: pytest.LogCaptureFixture) -> None:
    work = Fake(MillraceError("the disk is full"))
    run, left = begun(work)
    work.over.set()
    with pytest.raises(MillraceError, match="the disk is full"):
        run.wait(60)
    assert (run.is_running, left, str(run.error)) == (False, ["left"], "the disk is full")
    run.stop()
    with pytest.raises(MillraceError, match="the disk is full"), begun(Fake(MillraceError("the disk is full")))[0]:
        pass
    assert [each.getMessage() for each in caplog.records] == ["pipeline charts failed: the disk is full"] * 2
    assert caplog.records[0].levelno == logging.ERROR


def test_an_error_of_the_block_is_not_hidden_by_that_of_the_run() -> None:
    run, _ = begun(Fake(MillraceError("the disk is full")))
    with pytest.raises(KeyError), run:
        raise KeyError("mine")
    assert not run.is_running


def test_ctrl_c_stops_the_run() -> None:
    work = Fake()
    run, left = begun(work)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run.wait(60)
    assert (run.is_running, left) == (False, ["left"])


def test_progress_is_counted_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handle:
        shown: list[dict[str, str]]

        def update(self, bundle: Any, **options: Any) -> None:
            self.shown.append(bundle)

    handle = Handle()
    handle.shown = []
    monkeypatch.setattr("millrace.running.handle.live_display", lambda: notebook.LiveDisplay(handle))
    monkeypatch.setattr(notebook, "_EVERY", 0)
    work = Fake()
    run, _ = begun(work)
    run._ipython_display_()
    assert run.progress is None
    part = PartProgress(1_767_269_100_000_000, 5_000_000, 2, 1_000, 1, 3)
    for batch in range(2):
        run.on_batch(BatchProgress(batch, 10, 0.5, 1, {"view <hourly>": part}), {})
    assert run.progress is not None
    assert (run.progress.batch, run.totals.batches, run.totals.rows, run.totals.dead_letters) == (1, 2, 20, 2)
    work.stop(0)
    run.wait(60)
    until(lambda: "all is well" in handle.shown[-1]["text/html"])
    html = handle.shown[-1]["text/html"]
    assert "<td>view &lt;hourly&gt;</td><td>2026-01-01 12:05:00</td><td>5s</td><td>2</td>" in html
    assert [("<table>" in each["text/html"]) for each in handle.shown] == [False, True, True, True]


def test_a_notebook_that_is_gone_does_not_fail_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def update(self, bundle: Any, **options: Any) -> None:
            raise OSError("the kernel is gone")

    monkeypatch.setattr("millrace.running.handle.live_display", lambda: notebook.LiveDisplay(Broken()))
    work = Fake()
    run, _ = begun(work)
    run._ipython_display_()
    run.on_batch(BatchProgress(0, 10, 0.5, 1, {}), {})
    run.stop()
    assert run.error is None


# The session


class FakeSession:
    """A session that says whether it was stopped."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is done to Spark, with sessions that are none."""
    done: list[str] = []

    def start(name: str, master: str, log: Path, config: Mapping[str, str]) -> FakeSession:
        done.append(f"start {name} {master}")
        return FakeSession()

    monkeypatch.setattr(sessions, "start", start)
    monkeypatch.setattr(sessions, "stop", lambda _: done.append("stop"))
    monkeypatch.setattr(sessions, "is_stopped", lambda _: False)
    yield done
    assert lease._shared.session is None


def test_runs_share_a_session_that_stops_with_the_last(counted: list[str], tmp_path: Path) -> None:
    one, two = lease.Lease("one", "local[1]"), lease.Lease("two", "local[1]")
    with one:
        held = one.session(tmp_path)
        assert one.session(tmp_path) is held
        assert two.session(tmp_path) is held
    assert counted == ["start millrace one local[1]"]
    two.release()
    two.release()
    assert counted == ["start millrace one local[1]", "stop"]
    with lease.Lease("three", "local[2]") as three:
        three.session(tmp_path)
    assert counted[2:] == ["start millrace three local[2]", "stop"]


def test_a_run_in_real_time_mode_does_not_share_a_session_of_another(counted: list[str], tmp_path: Path) -> None:
    with lease.Lease("one", "local[1]") as one, lease.Lease("two", "local[1]", conf=[("spark.jars", "a.jar")]) as two:
        one.session(tmp_path)
        with pytest.raises(MillraceError, match="a pipeline in real-time mode needs a process of its own"):
            two.session(tmp_path)
    assert counted == ["start millrace one local[1]", "stop"]


def test_a_lease_that_was_never_used_starts_nothing(counted: list[str]) -> None:
    lease.Lease("one", "local[1]").release()
    assert counted == []


def test_a_second_run_cannot_have_another_master(counted: list[str], tmp_path: Path) -> None:
    with lease.Lease("one", "local[1]") as one:
        one.session(tmp_path)
        with pytest.raises(MillraceError, match=r"runs on master local\[1\]; use the same, not local\[2\]"):
            lease.Lease("two", "local[2]").session(tmp_path)
    assert counted[-1] == "stop"


def test_a_session_that_the_user_stopped_is_started_anew(
    counted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lease.Lease("two", "local[1]") as two:
        with lease.Lease("one", "local[1]") as one:
            first = one.session(tmp_path)
            monkeypatch.setattr(sessions, "is_stopped", lambda spark: spark is first)
            assert two.session(tmp_path) is not first
        assert counted == ["start millrace one local[1]", "start millrace two local[1]"], "two still holds its own"
    assert counted[2:] == ["stop"]


def test_spark_is_started_in_the_main_thread_only(counted: list[str], tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as other:
        tried = other.submit(lease.Lease("one", "local[1]").session, tmp_path)
    with pytest.raises(MillraceError, match="in the main thread"):
        tried.result()
    assert counted == []


def test_a_session_that_is_active_must_be_passed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "is_active", lambda: True)
    with pytest.raises(MillraceError, match=r"pass it, as in charts.run\(spark=spark\)"):
        CHARTS.run()


# On Spark


@contextmanager
def going(run: Run) -> Iterator[Run]:
    """A run that ends with the test."""
    try:
        yield run
    finally:
        run.stop()


@pytest.mark.spark
def test_a_run_catches_up_and_another_goes_on(spark: SparkSession, place: Path) -> None:
    send("Hey", "Hey", "Yo")
    run = CHARTS.run(until_caught_up=True, spark=spark)
    assert isinstance(run, Run)
    assert run.wait(120)
    assert run.progress is not None
    assert (run.totals.rows, run.progress.parts["view hourly"].groups) == (3, 2)
    assert run.summary.startswith("caught up: 3 rows in 1 micro-batch")
    assert counts() == {"Hey": 2, "Yo": 1}
    with CHARTS.run(spark=spark) as run:
        send("Hey")
        until(lambda: run.totals.rows == 1)
        assert run.is_running
        assert not run.wait(0.01)
    assert run.summary.startswith("stopped: 1 row in 1 micro-batch")
    assert counts() == {"Hey": 3, "Yo": 1}
    assert spark.range(3).count() == 3, "the session is left running"


@pytest.mark.spark
def test_a_batch_computes_once(spark: SparkSession, place: Path) -> None:
    send("Hey", "Yo", "Hey")
    run = CHARTS.run(mode="batch", store="once.db", spark=spark)
    assert run.wait(120)
    assert run.summary.startswith("done: 3 rows, 2 answers")
    assert (run.totals.rows, run.totals.answers) == (3, 2)
    assert counts("once.db") == {"Hey": 2, "Yo": 1}


@pytest.mark.spark
def test_an_error_while_it_runs_ends_it(spark: SparkSession, place: Path) -> None:
    def refuse(rows: object, batch: int) -> None:
        raise MillraceError("the sink is full")

    send("Hey")
    failing = Pipeline("failing", {"hourly": HOURLY}, sinks=[HOURLY.to(to_function(refuse))])
    run = failing.run(spark=spark)
    with pytest.raises(MillraceError, match="the sink is full"):
        run.wait(120)
    assert not run.is_running
    assert run.summary == "failed: the sink is full"
    again = failing.run(until_caught_up=True, spark=spark)  # the checkpoint is free again
    with pytest.raises(MillraceError, match="the sink is full"), again:
        again.wait(120)


@pytest.mark.spark
def test_two_pipelines_run_side_by_side(spark: SparkSession, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[object] = []
    monkeypatch.setattr(sessions, "is_active", lambda: False)
    monkeypatch.setattr(sessions, "start", lambda *_: spark)
    monkeypatch.setattr(sessions, "stop", stopped.append)
    other = Pipeline("other", {"totals": BY_HOUR.aggregate(plays=agg.count())})
    with going(CHARTS.run()) as one, going(other.run()) as two:
        send("Hey")
        until(lambda: one.totals.rows == two.totals.rows == 1)
        with pytest.raises(MillraceError, match="charts"):
            CHARTS.run()
        one.stop()
        assert stopped == []
        send("Yo")
        until(lambda: two.totals.rows == 2)
    assert stopped == [spark]
    assert one.totals.rows == 1


@pytest.mark.spark
def test_the_batch_layer_from_python(spark: SparkSession, place: Path) -> None:
    plays = layers(batch=files(str(place / "archive"), "track STRING, at TIMESTAMP", format="parquet"), speed=PLAYS)
    by_hour = plays.event_time("at", delay="0s").group_by("track").window(window.fixed("1h"))
    layered = Pipeline("layered", {"hourly": by_hour.aggregate(plays=agg.count())})
    with millrace.connect() as connection:
        connection.send("plays", [{"track": "Hey", "at": f"2026-01-01T{hour}:05:00Z"} for hour in (12, 13)])
    run = layered.run(layer="batch", spark=spark)
    assert run.wait(120)
    assert run.summary.startswith("2 records archived; 1 rows put right")
    assert counts() == {"Hey": 1}


PROGRAM = """
import json, sys, time
import millrace
from millrace import Pipeline, agg, log, on, window

plays = log("plays", "track STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("track")
hourly = plays.window(window.fixed("1h")).trigger(on.each()).accumulating().aggregate(plays=agg.count())
charts = Pipeline("charts", {"hourly": hourly})

run = charts.run(master="local[2]")
once = Pipeline("once", {"once": hourly}).run(mode="batch", master="local[2]")
once.wait()
deadline = time.monotonic() + 120
while run.totals.rows < 2:
    assert time.monotonic() < deadline
    time.sleep(0.05)
print(json.dumps([once.totals.rows, run.totals.rows]), flush=True)
sys.exit(3)
"""


@pytest.mark.spark
def test_a_program_that_ends_without_stop_ends_cleanly(place: Path) -> None:
    """With a Spark of its own, which both runs share."""
    send("Hey", "Yo")
    Path("program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "[2, 2]\n", "")
    assert counts() == {"Hey": 1, "Yo": 1}


FAKE_CELLS = (
    "import time\n"
    "from contextlib import ExitStack\n"
    "from millrace import Run\n"
    "from millrace.spark.progress import BatchProgress, PartProgress\n"
    "class Work:\n"
    "    def finish(self):\n"
    "        part = PartProgress(None, None, 1, 1, 0, 1)\n"
    "        run.on_batch(BatchProgress(0, 10, 0.5, 0, {'view hourly': part}), {})\n"
    "        return 'caught up: 10 rows'\n"
    "run = Run('charts')\n"
    "run",
    "run.begin(Work(), ExitStack())\nrun.wait()",
)


def executed(cells: tuple[str, ...]) -> list[list[Any]]:
    """The outputs of the cells of a notebook, executed by a real kernel."""
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        nbclient.NotebookClient(book, timeout=200).execute()
    return [[output.get("data", {}) for output in cell.outputs] for cell in book.cells]


def test_an_output_of_a_notebook_changes_from_another_cell() -> None:
    shown, waited = executed(FAKE_CELLS)
    assert len(shown) == 1
    assert "caught up: 10 rows" in shown[0]["text/html"]
    assert "<td>view hourly</td>" in shown[0]["text/html"]
    assert [each["text/plain"] for each in waited] == ["True"]


CELLS = (
    "import millrace, time\n"
    "from millrace import Pipeline, agg, log, on, window\n"
    'plays = log("plays", "track STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("track")\n'
    'hourly = plays.window(window.fixed("1h")).trigger(on.each()).accumulating().aggregate(plays=agg.count())\n'
    'charts = Pipeline("charts", {"hourly": hourly})\n'
    "charts",
    'run = charts.run(until_caught_up=True, master="local[2]")\nrun',
    "run.wait(120)",
    'millrace.connect().view("hourly")',
)


@pytest.mark.spark
def test_a_notebook_shows_the_pipeline_a_run_that_changes_in_place_and_a_view(place: Path) -> None:
    send("Hey", "Yo", "Hey")
    pipeline, run, waited, view = executed(CELLS)
    assert pipeline[0]["image/svg+xml"].startswith("<svg")
    assert len(run) == 1, "one output, which changes in place"
    assert "caught up: 3 rows in 1 micro-batch" in run[0]["text/html"]
    assert "<td>view hourly</td>" in run[0]["text/html"]
    assert waited[-1]["text/plain"] == "True"
    assert "<td>Hey</td>" in view[0]["text/html"]


@pytest.mark.spark
def test_the_settings_of_a_session_that_is_passed_do_not_change_answers(spark: SparkSession, place: Path) -> None:
    theirs = spark.newSession()
    theirs.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    theirs.conf.set("spark.sql.ansi.enabled", "false")
    by_day = PLAYS.select(day="date_format(at, 'yyyy-MM-dd HH')", at="at").event_time("at", delay="0s").group_by("day")
    days = Pipeline("days", {"days": by_day.window(window.fixed("1d")).aggregate(plays=agg.count())})
    send("Hey")
    days.run(mode="batch", spark=theirs).wait(120)
    with millrace.connect() as connection:
        assert [(row["day"], row["plays"]) for row in connection.view("days")] == [("2026-01-01 12", 1)]
    assert theirs.conf.get("spark.sql.session.timeZone") == "America/Los_Angeles"
