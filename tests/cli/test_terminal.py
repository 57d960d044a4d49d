"""What values may do to a terminal: nothing. Programs and files get values as they are."""

import json
import os
import pty
import select
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from millrace.cli import app
from millrace.client.result import Result
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.letters.letter import LetterSource, Rejected
from millrace.model.schema import parse_schema
from millrace.running.shown import RunDisplay, RunDisplays

RED, TITLE = "\x1b[31mred", "\x9d0;title\x9c"
SAFE = "\\u001b[31mred\\u009d0;title\\u009c"
SQL = f"SELECT '{RED}{TITLE}' AS \"\x1b[1mcolour\""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with closing(Log(tmp_path / ".millrace" / "log.db")) as log:
        log.create("plays")
        log.append("plays", [f"{RED}{TITLE}\ttab"])
        source = LetterSource("plays", "log", parse_schema("user STRING"), ("view v",), log.uid_of("plays"))
    box = box_of(tmp_path / ".millrace", "charts")
    box.put(
        [Rejected("plays", "plays/0", 0, 0, None, "bad", f"bad: {RED}", None, RED + TITLE)],
        {"plays": source},
        "c",
        0,
        1,
    )
    box.serve("c", {"plays": source}, lambda rejected, uid: False)
    with closing(sqlite3.connect(tmp_path / ".millrace" / "views.db")) as store:
        store.execute("CREATE TABLE some (a)")
    return tmp_path


def on_terminal(*command: str) -> str:
    """What a command writes to a terminal."""
    ours, its = pty.openpty()
    with pytest.MonkeyPatch.context() as patched, os.fdopen(its, "w") as terminal:
        patched.setattr(sys, "stdout", terminal)
        patched.setenv("COLUMNS", "200")
        app([*command], standalone_mode=False)
        terminal.flush()
        written = b""
        while select.select([ours], [], [], 0)[0]:
            written += os.read(ours, 1_000_000)
    os.close(ours)
    return written.decode()


def piped(*command: str) -> str:
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["query", SQL],
        ["query", SQL, "--format", "csv"],
        ["query", SQL, "--format", "json"],
        ["tail", "plays"],
        ["tail", "plays", "--whole"],
        ["dead", "show", "charts"],
        ["dead", "show", "charts", "--values"],
    ],
    ids=["table", "csv", "json", "tail", "whole", "letters", "letter values"],
)
def test_a_terminal_gets_no_control_characters_of_values(command: list[str]) -> None:
    written = on_terminal(*command)
    assert SAFE in written.replace("\\\\", "\\")
    assert "\x1b[31m" not in written
    assert not set(written) & {"\x9d", "\x9c"}


def test_a_program_gets_values_as_they_are() -> None:
    assert piped("query", SQL, "--format", "csv") == f"\x1b[1mcolour\n{RED}{TITLE}\n"
    assert json.loads(piped("query", SQL, "--format", "json")) == {"\x1b[1mcolour": RED + TITLE}
    assert piped("dead", "show", "charts", "--values") == f"{RED}{TITLE}\n"
    assert piped("tail", "plays") == f"{RED}{TITLE}\ttab\n"
    assert json.loads(piped("tail", "plays", "--whole"))["value"] == f"{RED}{TITLE}\ttab"


def test_an_error_shows_what_a_user_gave_without_its_control_characters() -> None:
    result = CliRunner().invoke(app, ["query", f"SELECT `{RED}`"])
    assert "\x1b" not in result.output
    assert "\\u001b[31mred" in result.output


def test_the_table_of_a_run_and_a_result_show_values_as_text() -> None:
    rows = pa.table({"[bold]name": [f"{RED}{TITLE} [green]"]})
    console = Console(width=100, record=True, force_terminal=True)
    shown = RunDisplay(RunDisplays(console, False, several=False), "charts", lambda: None)
    shown._last["view hourly"] = rows
    console.print(*shown._last_answers())
    text = console.export_text()
    assert "[bold]name" in text
    assert f"{SAFE} [green]" in text
    assert SAFE in repr(Result(rows))
