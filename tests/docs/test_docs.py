"""What the documentation says is true: its programs run, and print what it says they print."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

import millrace
from millrace import agg, on, window
from millrace.cli import app
from millrace.cli.options import EXIT_CODES
from millrace.model.errors import Kind
from millrace.running.settings import Settings
from millrace.testing.check import check
from millrace.testing.transcript import Document
from pages import ROOT, blocks

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


REFERENCE = ROOT / "docs" / "reference"
"""Generated when the site is built, which checks links to it (tests/docs/test_site.py)."""
PAGES = [page for page in PAGES if not page.is_relative_to(REFERENCE)]


def without_spark(page: Path) -> list[str]:
    """The programs of a page but for those that run a pipeline, which a test of their own runs."""
    return [program for program in blocks(page, "python") if "charts.run(" not in program]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a program may write files
    if page.name in ("running.md", "python.md", "kafka.md", "kafka-formats.md"):
        pytest.skip(f"test_the_{page.stem}_page runs it")
    names: dict[str, object] = {"print": lambda *args: None}
    for program in without_spark(page):
        exec(program, names)


@pytest.mark.parametrize("page", ["README.md", "docs/model.md", "docs/how-to/send-records.md"])
def test_what_a_page_says_is_printed_is_printed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    names: dict[str, object] = {"print": lambda text: printed.append(str(text))}
    for program in without_spark(ROOT / page):
        exec(program, names)
    shown = blocks(ROOT / page, "text")
    assert "\n".join(printed) == shown[-1].strip()
    for text in shown[:-1]:
        charts = names["charts"]
        assert isinstance(charts, millrace.Pipeline)
        assert str(charts) == text.strip()


@pytest.mark.spark
def test_the_readme(tmp_path: Path) -> None:
    """Its commands, then its pipeline with the lines that run it from Python."""
    page = ROOT / "README.md"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def ran(folder: Path, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    ran(tmp_path, "-m", "millrace", "init", "charts")
    commands = re.findall(
        r"^    (millrace (?:try|topics|send|run|query) .*?)(?:  +#.*)?$", page.read_text(), re.MULTILINE
    )
    assert len(commands) == 5
    for command in commands:
        printed = ran(tmp_path / "charts", "-m", *shlex.split(command))
    assert "Millstream" in printed
    pipeline, *others = blocks(page, "python")
    (running,) = [program for program in others if "charts.run(" in program]
    *first, last = running.strip().splitlines()
    (tmp_path / "charts" / "page.py").write_text("\n".join([pipeline, *first, f"print({last})", ""]))
    assert "Millstream" in ran(tmp_path / "charts", "page.py")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_transcripts_pass(page: Path) -> None:
    for text in blocks(page, "yaml"):
        verdict = check(Document(str(page), 1, yaml.safe_load(text)))
        assert verdict.passed, verdict.failure


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        target = (page.parent / link).resolve()
        assert target.exists() or target.is_relative_to(REFERENCE) or link.startswith("https://"), link


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"`(?:\w+=\S+ )?make ([a-z-]+)`|^    make ([a-z-]+)", page.read_text(), re.MULTILINE)
        assert {one or other for one, other in named} <= targets, page


def test_the_model_page_names_everything_there_is() -> None:
    page = (ROOT / "docs" / "model.md").read_text()
    for namespace in (agg, on, window):
        for name in namespace.__all__:
            assert re.search(rf"\b{name}\b", page), f"{namespace.__name__}.{name}"


def test_the_python_page_names_every_setting() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert named == [*inspect.signature(Settings).parameters, "spark"]


def test_the_service_is_not_restarted_after_an_error_that_does_not_pass() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    found = re.search(r"^RestartPreventExitStatus=(.*)$", page, re.MULTILINE)
    assert found is not None
    passing = {EXIT_CODES[Kind.MACHINE], EXIT_CODES[Kind.UNKNOWN]}
    assert {int(code) for code in found[1].split()} == set(EXIT_CODES.values()) - passing
    table = dict(re.findall(r"^\| (\d) \| .* \| (yes|no)\b", page, re.MULTILINE))
    assert {int(code) for code, again in table.items() if again == "yes"} == passing
    assert {int(code) for code in table} == {0, *EXIT_CODES.values()}


def test_every_command_is_described_by_its_help() -> None:
    text = (ROOT / "docs" / "running.md").read_text() + (ROOT / "README.md").read_text()
    for command in set(re.findall(r"millrace ([a-z]+)(?=[ `])", text)) - {"import"}:
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0


@pytest.mark.parametrize("command", sorted(get_command(app).commands))  # type: ignore[attr-defined]
def test_the_docs_name_every_command(command: str) -> None:
    text = "".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    assert f"millrace {command}" in text


def test_nothing_names_a_package_index() -> None:
    for page in [*PAGES, ROOT / "requirements.lock", ROOT / "pyproject.toml", ROOT / "Makefile"]:
        text = page.read_text()
        assert "index-url" not in text.replace("--no-emit-index-url", ""), page
        assert "/simple" not in text, page
