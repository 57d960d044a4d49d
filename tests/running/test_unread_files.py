"""Files that a pipeline cannot read: the advice lets it go on without them, and what it goes on without is counted."""

import gzip
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from millrace import Pipeline, files, to_function
from millrace.cli import app
from millrace.eventlog.sealed import sealed
from millrace.model.connectors import Commit
from millrace.plan.compile import source_id
from millrace.running.agreement import Parts
from millrace.running.unread import unreadable_files
from millrace.sources.files import Files
from millrace.spark.checkpoint import FUSED, journal_of
from millrace.spark.history import History

PROGRAM = """
from millrace import Pipeline, agg, files, on, window
plays = files("in", "user STRING")
counted = plays.group_by("user").window(window.all_time()).trigger(on.each()).accumulating()
charts = Pipeline("charts", {"counts": counted.aggregate(plays=agg.count())})
"""


@pytest.fixture
def here(tmp_path: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that runs on the one Spark of all tests."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "charts.py").write_text(PROGRAM.replace('"in"', repr(str(tmp_path / "in"))))
    return tmp_path


def put(name: str, *users: str, cut: bool = False) -> None:
    whole = gzip.compress("".join(json.dumps({"user": user}) + "\n" for user in users).encode())
    Path("in", name).write_bytes(whole[:-9] if cut else whole)


def command(text: str) -> Result:
    result = CliRunner().invoke(app, shlex.split(text))
    assert "Traceback" not in result.output
    return result


def advised(result: Result) -> str:
    """The command that an advice names."""
    found = re.search(r"millrace (repair \S+ --yes)", result.output)
    assert found, result.output
    return found[1]


def counts() -> dict[str, int]:
    shown = command('query --format json "SELECT user, plays FROM counts"')
    assert shown.exit_code == 0, shown.output
    return {row["user"]: row["plays"] for row in map(json.loads, shown.output.splitlines())}


@pytest.mark.parametrize("moved", [False, True], ids=["damaged", "moved away"])
def test_the_advice_for_a_file_that_is_cut_off_is_to_go_on_without_it(moved: bool, here: Path) -> None:
    put("a.json.gz", "ann", "bob")
    assert command("run charts.py --until-caught-up").exit_code == 0
    put("b.json.gz", "ann", "ann", cut=True)
    put("c.json.gz", "bob")
    stopped = command("run charts.py --until-caught-up")
    assert stopped.exit_code == 5
    bad = here / "in" / "b.json.gz"
    assert f"{bad} cannot be read: Compressed file ended before" in stopped.output
    assert "mend the file, or move it away and go on without it: millrace repair charts.py --yes" in stopped.output
    if moved:
        bad.rename(here / "b.json.gz")
        stopped = command("run charts.py --until-caught-up")
        assert stopped.exit_code == 3
        assert f"file {bad} no longer exists, but the pipeline still needs it; restore the file, or" in stopped.output
    looked = command("repair charts.py")
    assert looked.exit_code == 6
    assert "go on without it (its rows are lost): millrace repair charts.py --yes" in looked.output
    assert counts() == {"ann": 1, "bob": 1}, "nothing has changed yet"
    repaired = command(advised(stopped))
    assert (repaired.exit_code, repaired.output) == (0, f"skipped file {bad}\nnothing is wrong any more\n")
    assert command("run charts.py --until-caught-up").exit_code == 0
    assert counts() == {"ann": 1, "bob": 2}
    put("d.json.gz", "ann")
    assert command("run charts.py --until-caught-up").exit_code == 0
    assert counts() == {"ann": 2, "bob": 2}
    status = json.loads(command("status --format json").output)
    assert (status["skipped"], status["files skipped"]) == (0, 1)


def test_a_file_that_was_read_is_not_missed(here: Path) -> None:
    put("a.json.gz", "ann")
    assert command("run charts.py --until-caught-up").exit_code == 0
    Path("in/a.json.gz").unlink()
    assert command("repair charts.py").output == "nothing is wrong\n"


def test_a_file_that_an_output_may_have_the_answers_of_is_not_skipped(tmp_path: Path) -> None:
    """Batch 0 is committed and has read one file; batch 1 has read two more, and is run again."""
    source = files(str(tmp_path / "in"), "user STRING")
    pipeline = Pipeline("rows", sinks=[source.to(to_function(print))])
    (tmp_path / "in").mkdir()
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    for number, name in enumerate("abcd"):
        (tmp_path / "in" / name).write_text("{}\n")
        os.utime(tmp_path / "in" / name, (number, number))
    Files(source, journal_of(tmp_path, FUSED, source.name, "jsonl")).end()
    (tmp_path / "millrace.json").write_text(json.dumps(sealed({"spark_sources": [FUSED]})))
    for batch, position in ((0, 1), (1, 3)):
        offset = json.dumps({"at": {source_id(source): position}})
        (tmp_path / "spark" / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")
    for name in "acd":
        (tmp_path / "in" / name).unlink()
    history = History("id", 1, {"sink": 0}, committed=0, digests={0: "a", 1: "b"})

    def found(commits: dict[str, Commit | None]) -> list[tuple[str, bool]]:
        parts = Parts(tmp_path, history, commits)
        return [(Path(file.path).name, file.is_written) for file in unreadable_files(pipeline, parts)]

    assert found({"sink": Commit("rows", "id", 0, "a")}) == [("c", False), ("d", False)]
    assert found({"sink": Commit("rows", "id", 1, "b")}) == [("c", True), ("d", False)]
    assert found({}) == [("c", True), ("d", False)], "a function may have got the rows"
