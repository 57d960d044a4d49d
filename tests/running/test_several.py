"""Several pipelines in one process and on one Spark: `millrace run a.py b.py`."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import ClassVar

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

import millrace
from millrace import CorruptError, MachineError, NotFoundError, Pipeline, PipelineError
from millrace.cli import app
from millrace.eventlog.topics import Log
from millrace.running.load import load_all
from millrace.running.shown import RunDisplays
from millrace.running.status import all_under
from millrace.spark import session as sessions
from millrace.spark.progress import BatchProgress

COUNTED = """
from millrace import Pipeline, agg, {source}, on, window

rows = {rows}
counted = rows.group_by("k").window(window.all_time()).trigger(on.each()).accumulating().aggregate(n=agg.count())
pipeline = Pipeline("{name}", views={{"{name}": counted}})
"""


def write(path: Path, name: str, source: str = "log", rows: str = 'log("events", "k STRING")') -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(COUNTED.format(source=source, rows=rows, name=name))
    return path


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder; the modules that a test imports from it are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_each_file_gives_its_pipeline_and_one_file_those_that_are_named() -> None:
    one, other = write(Path("one.py"), "one"), write(Path("other.py"), "other")
    assert [pipeline.name for _, pipeline in load_all([one, other])] == ["one", "other"]
    both = Path("both.py")
    both.write_text(one.read_text() + 'second = Pipeline("second", views={"again": counted})\n')
    assert [pipeline.name for _, pipeline in load_all([both], ["second", "one"])] == ["second", "one"]
    with pytest.raises(PipelineError, match="holds several pipelines; choose one with --pipeline: one, second"):
        load_all([both, other])
    with pytest.raises(NotFoundError, match=r"choose one that both\.py holds"):
        load_all([both], ["one", "third"])
    with pytest.raises(PipelineError, match="--pipeline chooses from one file"):
        load_all([both, other], ["second"])


def test_two_pipelines_of_one_name_are_refused() -> None:
    one, other = write(Path("one.py"), "charts"), write(Path("other.py"), "charts")
    with pytest.raises(PipelineError, match=r"one\.py and other\.py both hold a pipeline 'charts'; rename one of them"):
        load_all([one, other])


@pytest.mark.parametrize("module", ["pipe", "rules"])
def test_modules_that_would_take_each_others_place_are_refused(place: Path, module: str) -> None:
    files = [write(place / name / f"{'pipe' if module == 'pipe' else name}.py", name) for name in ("shop", "bank")]
    for file in files:
        (file.parent / "rules.py").touch()
        if module == "rules":
            file.write_text(f"import rules\n{file.read_text()}")
    with pytest.raises(PipelineError, match=f"both have a module {module}; rename one of them"):
        load_all(files)
    if module == "rules":  # which only one of them imports, and the other has
        files[1].write_text(files[1].read_text().replace("import rules\n", ""))
        with pytest.raises(PipelineError, match="both have a module rules"):
            load_all(files)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--checkpoint", "kept"], "--checkpoint is of one pipeline; leave --checkpoint out, or name one pipeline"),
        (["--mode", "batch"], "--mode batch runs one pipeline; run the pipelines in commands of their own"),
        (["--layer", "batch"], "--layer batch runs one pipeline"),
        (["--from-savepoint", "kept"], "--from-savepoint is of one pipeline"),
    ],
)
def test_settings_of_one_pipeline_are_refused_for_several(options: list[str], said: str) -> None:
    write(Path("one.py"), "one")
    write(Path("other.py"), "other")
    result = CliRunner().invoke(app, ["run", "one.py", "other.py", *options])
    assert result.exit_code == 2
    assert said in result.output


def test_each_pipeline_has_a_line_of_the_terminal() -> None:
    console = Console(force_terminal=True, width=100, record=True, file=StringIO())
    with RunDisplays(console, as_json=False, several=True) as displays:
        one, other = (displays.of(name, lambda: None) for name in ("one", "other"))
        for number in range(3):
            one.batch(BatchProgress(number, 10, 0.5, 0, {}), {})
        other.failed(PipelineError("it does not compute"))
    last = console.export_text().splitlines()[-2:]
    assert last[0].startswith("one: batch 2: 20 rows/s; 30 rows in 3 micro-batches")
    assert last[1].startswith("other: failed: it does not compute")


class Scripted:
    """A stream that goes on until it is stopped, or fails at once if its pipeline is in `FAILS`."""

    FAILS: ClassVar[dict[str, Exception]] = {}
    looked: ClassVar[list[str]] = []
    stopped: ClassVar[list[str]] = []

    def __init__(self, pipeline: Pipeline, *_: object) -> None:
        self._name = pipeline.name

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self, timeout: float) -> bool:
        if self._name in self.FAILS:
            raise self.FAILS[self._name]
        if not self.looked:  # a second signal would end the process at once
            os.kill(os.getpid(), signal.SIGTERM)
        self.looked.append(self._name)
        return False

    def stop(self) -> None:
        self.stopped.append(self._name)


@pytest.mark.parametrize(
    ("fails", "code", "stopped"),
    [
        ({}, 0, {"one", "two", "three"}),
        ({"two": CorruptError("it is damaged", "mend it")}, 5, {"one", "three"}),
        ({"two": MachineError("it is away", "wait"), "one": CorruptError("it is damaged", "mend it")}, 5, {"three"}),
        ({"one": ValueError("a bug")}, 1, {"two", "three"}),
        ({name: MachineError("it is away", "wait") for name in ("one", "two", "three")}, 4, set()),
    ],
)
def test_the_first_that_fails_decides_the_exit_code_and_a_signal_stops_the_others(
    fails: dict[str, Exception], code: int, stopped: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Log(".millrace/log.db").create("events")
    monkeypatch.setattr("millrace.running.run.RetriedStream", Scripted)
    monkeypatch.setattr(Scripted, "FAILS", fails)
    monkeypatch.setattr(Scripted, "looked", [])
    monkeypatch.setattr(Scripted, "stopped", [])
    names = ("one", "two", "three")
    result = CliRunner().invoke(app, ["run", *(str(write(Path(f"{name}.py"), name)) for name in names)])
    assert result.exit_code == code
    assert set(Scripted.stopped) == stopped
    ended = [line for line in result.output.splitlines() if line.partition(": ")[2].startswith(("stopped", "failed"))]
    assert {line.partition(": ")[0] for line in ended if ": failed: " in line} == set(fails)
    assert [line.partition(": ")[0] for line in ended[-3:]] == list(names)


@pytest.mark.spark
def test_a_pipeline_that_fails_leaves_the_others_and_decides_the_exit_code(
    spark: SparkSession, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    def start(name: str, *_: object) -> SparkSession:
        starts.append(name)
        return spark

    monkeypatch.setattr(sessions, "start", start)
    monkeypatch.setattr(sessions, "stop", lambda _: None)
    log = Log(".millrace/log.db")
    log.create("events")
    log.append("events", [json.dumps({"k": "a"})] * 3)
    write(Path("one.py"), "one")
    write(Path("other.py"), "other")
    Path("broken").mkdir()
    Path("broken/1.parquet").write_bytes(b"no Parquet at all")
    write(Path("bad.py"), "bad", "files", f"files({str(place / 'broken')!r}, 'k STRING', 'parquet')")

    def counts() -> dict[str, int]:
        with millrace.connect() as connection:
            return {name: row["n"] for name in ("one", "other") for row in connection.view(name)}

    def stop_them() -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            states = {status.pipeline: status.state for status in all_under(place / ".millrace")}
            if states == {"one": "running", "other": "running"} and counts() == {"one": 3, "other": 3}:
                break
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop_them)
    handler = signal.signal(signal.SIGTERM, lambda *_: None)  # in case that the command has ended by itself
    try:
        stopping.start()
        result = CliRunner().invoke(app, ["run", "one.py", "bad.py", "other.py", "--json"])
    finally:
        stopping.join()
        signal.signal(signal.SIGTERM, handler)
    assert result.exit_code == 5, result.output
    assert starts == ["millrace one, bad, other"]
    lines = result.stderr.splitlines()
    assert [line.partition(" in ")[0] for line in (lines[0], lines[2])] == [
        "one: stopped: 3 rows", "other: stopped: 3 rows",
    ]  # fmt: skip
    assert lines[1].startswith("bad: failed: ")
    assert "1.parquet cannot be read" in lines[1]
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert {each["pipeline"] for each in told if "batch" in each} == {"one", "other"}
    assert [each["pipeline"] for each in told if "failed" in each] == ["bad"]
    assert counts() == {"one": 3, "other": 3}
