"""Examples as tests run them: their commands, their records, and windows computed from those."""

import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from millrace.cli import app
from millrace.views.store import open_store

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = EXAMPLES / "data"
MINUTE, HOUR, DAY = 60, 3600, 86_400

Record: TypeAlias = dict[str, Any]


def blocks(example: str) -> list[list[str]]:
    """The commands in the docstring of an example, as they are written, in groups with words between them."""
    found: list[list[str]] = [[]]
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{example}.py").read_text(encoding="utf-8")))
    for line in (text or "").splitlines():
        if line.startswith("        "):
            found[-1][-1] += f"\n{line}"
        elif line.startswith("    "):
            found[-1].append(line.strip())
        elif line and found[-1]:
            found.append([])
    return [block for block in found if block]


def try_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands of a test run in a folder, as if it were the root of the repository, and in this process."""
    (folder / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(folder)
    for name in ("MILLRACE_LOG", "MILLRACE_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to run a file adds its folder
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def do(commands: Iterable[str]) -> None:
    for command in commands:
        if command.startswith("millrace "):
            assert not app(as_words(command)[1:], standalone_mode=False), command
        else:
            subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)


def as_words(command: str) -> list[str]:
    """What a shell makes of it."""
    told = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], check=True, stdout=subprocess.PIPE, text=True)
    return told.stdout.split("\0")[:-1]


def asked(sql: str) -> list[tuple[Any, ...]]:
    with closing(open_store(os.environ.get("MILLRACE_STORE", ".millrace/views.db"))) as store:
        return store.query(sql).rows


def sent(*files: str) -> list[Record]:
    """The records of some files, with their time in seconds."""
    return timed(raw(*files))


def shown(second: int) -> str:
    """A time as the store shows it."""
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M:%S}.000000Z"


def newest(records: Iterable[Record]) -> int:
    return max(int(record["at"]) for record in records)


def by(records: Iterable[Record], key: Callable[[Record], Iterable[Any]]) -> dict[Any, list[Record]]:
    """The records of each of the keys that a record has."""
    found = defaultdict(list)
    for record in records:
        for each in key(record):
            found[each].append(record)
    return found


def raw(*files: str) -> list[Record]:
    """The records of some files as they are."""
    return [json.loads(line) for name in files for line in (DATA / f"{name}.json").read_text().splitlines()]


def timed(records: list[Record]) -> list[Record]:
    """Records with their time in seconds."""
    return [{**each, "at": second_of(each["at"])} for each in records]


def second_of(time: str | datetime) -> int:
    return int((datetime.fromisoformat(time) if isinstance(time, str) else time).timestamp())
