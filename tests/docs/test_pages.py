"""Pages that are one session: their commands print what the pages show."""

import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli import app
from millrace.spark import session
from pages import ROOT, blocks


def printed_by(command: str) -> str:
    """What a command prints; Millrace runs in this process, and all else in bash."""
    first, _, last = command.rpartition(" | ")
    if not last.startswith("millrace "):
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    done = CliRunner().invoke(app, shlex.split(last)[1:], input=printed_by(first) if first else None)
    assert done.exit_code == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.mark.spark
def test_the_tutorial(tmp_path: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command prints what the page shows below it."""
    monkeypatch.chdir(tmp_path)
    commands = [
        each.partition("\n")
        for block in blocks(ROOT / "docs" / "tutorial.md", "console")
        for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    ]
    assert len(commands) > 10
    for command, _, shown in commands:
        if command.startswith("cd "):
            monkeypatch.chdir(command.removeprefix("cd "))
        else:
            assert printed_by(command) == shown, command


@pytest.mark.spark
def test_the_running_page(
    tmp_path: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it says is printed, by the commands that it names, over the files that it shows."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "running.md"
    (tmp_path / "plays.json").write_text(blocks(page, "json")[0])
    pipeline, snippet = blocks(page, "python")
    (tmp_path / "charts.py").write_text(pipeline)
    (tmp_path / "snippet.py").write_text(snippet)
    flow, printed = blocks(page, "text")

    assert printed_by("millrace explain charts.py") == flow
    shown = blocks(page, "console")[0].splitlines()
    for line in (line for line in shown if line.startswith("$ millrace ")):
        printed_last = printed_by(line.removeprefix("$ "))
    assert printed_last.splitlines() == [line for line in shown if not line.startswith("$ ")]
    assert "ms is not BIGINT" in printed_by("millrace dead list charts")
    monkeypatch.setattr(session, "is_active", lambda: False)  # as in a program that has started no Spark
    capsys.readouterr()
    runpy.run_path("snippet.py", run_name="__main__")
    assert capsys.readouterr().out == printed


@pytest.mark.spark
def test_the_python_page(
    tmp_path: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its programs, run as one, print what it says they print."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "is_active", lambda: False)  # as in a program that has started no Spark
    page = ROOT / "docs" / "python.md"
    for line in blocks(page, "console")[0].splitlines():
        printed_by(line.removeprefix("$ "))
    Path("page.py").write_text("".join(blocks(page, "python")))
    capsys.readouterr()
    runpy.run_path("page.py", run_name="__main__")
    assert capsys.readouterr().out == "".join(blocks(page, "text"))
