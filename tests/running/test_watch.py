"""`millrace run --watch`: the pipeline is started again when its files change."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.eventlog.topics import Log
from millrace.running.load import load
from millrace.running.watching import sources_of

PIPELINE = """
from millrace import Pipeline, agg, log, on, window
from rules import LEAST

plays = log("plays", "track STRING, ms BIGINT")
counted = plays.where(f"ms >= {LEAST}").group_by("track").window(window.all_time()).trigger(on.each()).accumulating()
charts = Pipeline("charts", views={"plays": counted.aggregate(plays=agg.count())})
"""
WATCH = """
import sys
from pathlib import Path
from millrace.running.watching import watch

watch(sys.argv[1:], [Path("charts.py")], lambda line: print(line, flush=True))
"""


class Watched:
    """A process with its output, which tests wait for."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._output = folder / "output.txt"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen([sys.executable, *command], cwd=folder, stdout=output, stderr=output)
        self._read = 0

    def wait_for(self, text: str) -> None:
        """Wait until a text comes after the last one that was waited for."""
        self._until(lambda: text in self.output[self._read :], text)
        self._read = self.output.index(text, self._read) + len(text)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 180
        while not condition():
            assert self.process.poll() is None, f"{what}: {self.output}"
            assert time.monotonic() < deadline, f"{what}: {self.output}"
            time.sleep(0.05)

    @property
    def output(self) -> str:
        return self._output.read_text()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "charts.py").write_text(PIPELINE)
    (tmp_path / "rules.py").write_text("LEAST = 1\n")
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[Watched]]:
    begun: list[Watched] = []
    yield begun
    for each in begun:
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(60)


def test_the_files_of_a_pipeline_are_those_that_it_imports_from_its_folder(place: Path) -> None:
    (place / "unused.py").touch()
    (place / "shop").mkdir()
    (place / "shop" / "__init__.py").write_text("from . import prices\nfrom shop.taxes import VAT\n")
    (place / "shop" / "taxes.py").touch()
    (place / "shop" / "prices.py").write_text("PRICE = \n")  # which is no Python
    (place / "rules.py").write_text("import json\nimport shop\nLEAST = 1\n")
    found = {str(path.relative_to(place)) for path in sources_of(place / "charts.py")}
    assert found == {"charts.py", "rules.py", "shop/__init__.py", "shop/prices.py", "shop/taxes.py"}
    (place / "charts.py").write_text("from rules import (\n")
    assert sources_of(place / "charts.py") == {place / "charts.py"}


def test_a_change_starts_it_again_and_an_error_is_waited_out(place: Path, started: list[Watched]) -> None:
    watched = Watched(place, "-c", WATCH, "explain", "charts.py")
    started.append(watched)
    watched.wait_for("ms >= 1")
    watched.wait_for("ended with exit code 0; waiting for a change of charts.py")
    (place / "rules.py").write_text("LEAST = 20\n")
    watched.wait_for("ms >= 20")
    watched.wait_for("ended with exit code 0")
    (place / "charts.py").write_text(PIPELINE.replace("charts =", "charts ="[:-1]))
    watched.wait_for("charts.py:7: invalid syntax")
    watched.wait_for("ended with exit code 2; waiting for a change of charts.py")
    (place / "charts.py").write_text(PIPELINE.replace("ms >=", "ms >"))
    watched.wait_for("ms > 20")
    watched.process.send_signal(signal.SIGINT)
    assert watched.process.wait(60) == 0
    assert watched.output.count("pipeline charts") == 3


def test_what_runs_is_stopped_before_it_is_started_again(place: Path, started: list[Watched]) -> None:
    Log(place / ".millrace" / "log.db").create("plays")
    watched = Watched(place, "-c", WATCH, "tail", "plays", "-f")
    started.append(watched)
    log = Log(place / ".millrace" / "log.db")
    log.append("plays", ['{"n": 1}'])
    watched.wait_for('{"n": 1}')
    before = children(watched.process.pid)
    (place / "rules.py").write_text("LEAST = 20\n")
    watched.wait_for("rules.py has changed: starting again")
    log.append("plays", ['{"n": 2}'])
    watched.wait_for('{"n": 2}')
    assert not set(before) & set(children(watched.process.pid))
    watched.process.terminate()
    watched.process.wait(60)
    assert children(watched.process.pid) == []


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


@pytest.mark.spark
def test_a_pipeline_that_its_checkpoint_refuses_is_said_and_watched(
    spark: SparkSession, place: Path, started: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    log = Log(".millrace/log.db")
    log.create("plays")
    log.append("plays", [json.dumps({"track": "Weir", "ms": 5})])
    load(Path("charts.py")).run(until_caught_up=True, spark=spark).wait()
    for name in ("charts", "rules"):
        sys.modules.pop(name)
    (place / "rules.py").write_text("LEAST = 20\n")
    watched = Watched(place, "-m", "millrace", "run", "charts.py", "--watch", "--json")
    started.append(watched)
    watched.wait_for("compute it again from the log: millrace replay")
    watched.wait_for("ended with exit code 6; waiting for a change of charts.py")
    (place / "rules.py").write_text("LEAST = 1\n")
    log.append("plays", [json.dumps({"track": "Weir", "ms": 5})])
    watched.wait_for('{"pipeline": "charts", "batch": 1, "rows": 1,')
    watched.process.send_signal(signal.SIGINT)
    assert watched.process.wait(60) == 0
    assert "stopped: 1 row in 1 micro-batch" in watched.output
