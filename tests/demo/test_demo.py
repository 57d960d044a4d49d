import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from millrace.cli import app
from millrace.demo import paper


def test_the_demo_shows_the_figures_of_the_paper() -> None:
    console = Console(width=100, record=True, force_terminal=False)
    paper.show(console)
    text = console.export_text()
    for sums in (
        "51",
        "12 | 22 | 33 | 51",
        "12 | 10 | 11 | 18",
        "12 | 7 | 11 | 12 | 9",
        "14 22 3 12",
        "5 | 22 3 | 14 (late) 12",
        "+5 +7 | +10 | -7 -10 +25 +3 | -5 -25 +39 -3 +12",
    ):
        assert re.search(rf"│ {re.escape(sums)} +│", text), sums


def test_the_command_runs_in_a_narrow_terminal() -> None:
    result = CliRunner().invoke(app, ["demo", "--paper"], env={"COLUMNS": "60"})
    assert result.exit_code == 0
    assert "-5 -25 +39" in result.output


@pytest.mark.spark
def test_the_demo_counts_what_a_batch_counts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millrace", "demo"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "DEMO_SECONDS": "35"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The view equals a batch recomputation of the same log: " in done.stdout
    said = " ".join(done.stdout.split())
    assert re.search(
        r"First answers [\d.]+ s after the start. Answers: [\d,]+ early, [\d,]+ on-time, [\d,]+ late;", said
    )
    assert list(tmp_path.iterdir()) == []


def test_help_and_version() -> None:
    assert "check" in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["--version"]).output.startswith("millrace ")
