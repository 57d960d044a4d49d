"""`millrace send` after trouble: it says exactly what was kept, and what it advises leads to every record once."""

import json
import os
import re
import resource
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from disks import remount, small_disk
from millrace.cli import app
from millrace.eventlog.database import Database
from millrace.eventlog.topics import Log

MANY = 40_000


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*command: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, command)
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def write(path: Path, many: int = MANY) -> None:
    """Records that take much space, also when they are compressed."""
    path.write_text("".join(json.dumps({"n": n, "noise": os.urandom(150).hex()}) + "\n" for n in range(many)))


def numbers(topic: str = "plays", log: str = ".millrace/log.db") -> list[int]:
    opened = Log(log)
    read = [opened.read(topic, part, 0, end)["value"] for part, end in enumerate(opened.ends(topic))]
    return [json.loads(value.as_py())["n"] for column in read for value in column]


def followed(command: list[str], said: str) -> list[str]:
    """The command that an advice names, given the one that failed."""
    advised = re.search(r"run the same command( again| with (--skip \d+))", said)
    assert advised, said
    return [*command, *shlex.split(advised[2] or "")]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("named", [[], ["--producer", "import"]], ids=["plain", "producer"])
def test_the_advice_of_a_send_on_a_full_disk_leads_to_every_record_once(named: list[str], here: Path) -> None:
    write(here / "plays.json")
    call("topics", "create", "plays")
    first = command = ["send", "plays", "plays.json", *named]
    kept = 0
    for _ in range(2):  # it fails, the advice is followed, and it fails again
        with files_of_at_most(6_000_000):
            code, said = call(*command)
        assert code == 4, said
        assert kept < len(numbers()) < MANY
        kept = len(numbers())
        assert "nothing of this was kept" not in said
        command = followed(first, said)
    code, said = call(*command)
    assert code == 0, said
    assert numbers() == list(range(MANY))


def test_the_number_of_records_that_were_sent_is_told(here: Path) -> None:
    write(here / "plays.json")
    call("topics", "create", "plays")
    with files_of_at_most(9_000_000):
        _, said = call("send", "plays", "plays.json")
    kept = len(numbers())
    assert f"{kept:,} records were sent; mend that; run the same command with --skip {kept}, which" in said
    with files_of_at_most(1_000_000):
        _, said = call("send", "plays", "plays.json", "--skip", str(kept))
    assert f"0 records were sent; mend that; run the same command with --skip {kept}, which" in said
    assert len(numbers()) == kept


def test_the_advice_holds_on_a_disk_that_is_really_full(here: Path) -> None:
    with small_disk(here / "disk", "12m") as disk:
        write(here / "plays.json")
        command = ["send", "plays", "plays.json", "--log", "disk/log.db"]
        call("topics", "create", "plays", "--log", "disk/log.db")
        ended = subprocess.run([sys.executable, "-m", "millrace", *command], capture_output=True, text=True)
        assert ended.returncode == 4
        assert "the disk is full" in ended.stderr
        assert 0 < len(numbers(log="disk/log.db")) < MANY
        remount(disk, "size=100m")
        code, said = call(*followed(command, ended.stderr))
        assert code == 0, said
        assert numbers(log="disk/log.db") == list(range(MANY))


def test_a_disk_that_does_not_confirm_is_not_said_to_have_kept_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here / "plays.json")
    call("topics", "create", "plays")
    writes, calls = Database.write, []

    @contextmanager
    def failing(self: Database, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Commits, but reports that the third commit could not be fsynced."""
        from millrace.eventlog.trouble import clear

        with clear(self.path, writing=True), writes(self, durable) as connection:
            yield connection
        calls.append(1)
        if len(calls) == 3:
            error: Any = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            with clear(self.path, writing=True):
                raise error

    monkeypatch.setattr(Database, "write", failing)
    code, said = call("send", "plays", "plays.json")
    assert code == 4, said
    kept = len(numbers())
    assert "nothing of this was kept" not in said
    assert f"--skip {kept} if they are there" in said
    call("send", "plays", "plays.json", "--skip", str(kept))
    assert numbers() == list(range(MANY))


@pytest.mark.parametrize("named", [[], ["--producer", "import"]], ids=["plain", "producer"])
def test_after_a_line_that_is_no_object_the_rest_is_sent_once(named: list[str], here: Path) -> None:
    write(here / "plays.json", 5)
    good = (here / "plays.json").read_text().splitlines(keepends=True)
    (here / "plays.json").write_text("".join([*good[:2], "[1]\n", *good[2:]]))
    call("topics", "create", "plays")
    command = ["send", "plays", "plays.json", *named]
    code, said = call(*command)
    assert code == 2
    assert "line 3 of plays.json: it is not a JSON object: '[1]'; 2 records were sent before it" in said
    (here / "plays.json").write_text("".join(good))  # the line is mended
    assert call(*followed(command, said))[0] == 0
    assert numbers() == list(range(5))


def test_records_of_the_input_are_skipped(here: Path) -> None:
    write(here / "plays.json", 5)
    call("topics", "create", "plays")
    code, said = call("send", "plays", "plays.json", "--skip", "3")
    assert (code, numbers()) == (0, [3, 4])
    assert "sent 2 records to plays" in said
    code, said = call("send", "plays", "plays.json", "--skip", "6")
    assert (code, numbers()) == (2, [3, 4])
    assert "--skip 6: the input has only 5 records" in said
    assert call("send", "plays", "plays.json", "--skip", "-1")[0] == 2
    assert call("send", "plays", "plays.json", "--skip", "5")[0] == 0
    assert numbers() == [3, 4]


def test_a_topic_with_a_gap_is_listed_and_printed(here: Path) -> None:
    write(here / "plays.json", 3)
    call("topics", "create", "plays")
    call("send", "plays", "plays.json")
    log = Log(".millrace/log.db")
    with log._database.write() as connection:
        connection.execute("UPDATE contents SET checksum = checksum + 1")
    assert json.loads(call("topics", "--format", "json")[1])["records"] == 3, "damage does not hinder the list"
    log.skip_damaged("plays", 0, 0)
    assert json.loads(call("topics", "--format", "json")[1])["records"] == 0
    assert call("tail", "plays") == (0, "")
    call("send", "plays", "plays.json", "--skip", "2")
    assert len(call("tail", "plays")[1].splitlines()) == 1


def test_several_files_are_sent_in_the_order_in_which_they_are_named(here: Path) -> None:
    for name, numbers_in in (("b", (0, 1)), ("a", (2,)), ("c", (3, 4))):
        (here / f"{name}.json").write_text("".join(f'{{"n": {n}}}\n' for n in numbers_in))
    code, said = call("send", "plays", "b.json", "a.json", "c.json", "--create")
    assert (code, numbers()) == (0, [0, 1, 2, 3, 4])
    assert "sent 5 records of 3 files to plays" in said


def test_the_data_files_of_a_folder_are_sent_by_name(here: Path) -> None:
    folder = here / "plays"
    (folder / "inner.json").mkdir(parents=True)
    for n, name in enumerate(("a.json", "b.csv", "c.jsonl", "d.ndjson")):
        (folder / name).write_text(f"n\n{n}\n" if name == "b.csv" else f'{{"n": {n}}}\n')
    for name in ("README.md", ".hidden.json", "notes.txt"):
        (folder / name).write_text("no records")
    code, said = call("send", "plays", "plays", "--create")
    assert code == 0, said
    assert [int(n) for n in numbers()] == [0, 1, 2, 3]
    assert "sent 4 records of 4 files to plays" in said


def test_a_folder_without_data_files_is_told(here: Path) -> None:
    (here / "empty").mkdir()
    call("topics", "create", "plays")
    code, said = call("send", "plays", "empty")
    assert (code, said) == (3, "folder empty has no data files; name files, or a folder of .json or .csv files\n")


def test_nothing_is_sent_if_one_of_several_files_does_not_exist(here: Path) -> None:
    write(here / "plays.json", 3)
    call("topics", "create", "plays")
    code, said = call("send", "plays", "plays.json", "nowhere.json")
    assert (code, said) == (3, "there is no file nowhere.json; check the path\n")
    assert numbers() == []


@pytest.mark.parametrize("named", [[], ["--producer", "import"]], ids=["plain", "producer"])
def test_the_advice_of_a_send_of_a_folder_leads_to_every_record_once(named: list[str], here: Path) -> None:
    (here / "plays").mkdir()
    write(here / "all.json")
    lines = (here / "all.json").read_text().splitlines(keepends=True)
    for part in range(4):
        (here / "plays" / f"{part}.json").write_text("".join(lines[part * MANY // 4 : (part + 1) * MANY // 4]))
    call("topics", "create", "plays")
    first = command = ["send", "plays", "plays", *named]
    kept = 0
    for _ in range(2):  # it fails, the advice is followed, and it fails again
        with files_of_at_most(6_000_000):
            code, said = call(*command)
        assert code == 4, said
        assert kept < len(numbers()) < MANY
        kept = len(numbers())
        command = followed(first, said)
    code, said = call(*command)
    assert code == 0, said
    assert numbers() == list(range(MANY))
    assert call(*first, "--skip", str(MANY))[0] == 0
    assert len(numbers()) == MANY


def test_a_folder_that_has_grown_is_sent_from_where_it_was(here: Path) -> None:
    (here / "plays").mkdir()
    (here / "plays" / "b.json").write_text('{"n": 0}\n')
    command = ["send", "plays", "plays", "--producer", "import", "--create"]
    call(*command)
    (here / "plays" / "b.json").write_text('{"n": 0}\n{"n": 1}\n')
    (here / "plays" / "a.json").write_text('{"n": 2}\n')
    code, said = call(*command)
    assert "sent 2 records of 2 files to plays" in said
    assert "; 1 were there" in said
    assert (code, numbers()) == (0, [0, 2, 1])


def test_records_without_the_key_are_counted(here: Path) -> None:
    (here / "plays.json").write_text('{"user": "ann"}\n{"user": null}\n{"usr": "bob"}\n')
    code, said = call("send", "plays", "plays.json", "--key", "user", "--create")
    assert code == 0
    told = "warning: 2 of them have no value in field 'user', so that they have no key, and any partition may hold them"
    assert said.splitlines()[1:] == [told]
    assert "warning" not in call("send", "plays", "plays.json", "--create")[1]


@pytest.mark.parametrize(
    ("text", "named", "rows"),
    [
        ("a;b\n1;2,5\n", [], [{"a": "1", "b": "2,5"}]),
        ('"x, y";b\n1;2\n', [], [{"x, y": "1", "b": "2"}]),
        ("a:b\n1:2\n", ["--delimiter", ":"], [{"a": "1", "b": "2"}]),
        ("a\tb\n1\t2\n", ["--delimiter", "\\t"], [{"a": "1", "b": "2"}]),
        ("a,b;c\n1,2;3\n", ["--delimiter", ";"], [{"a,b": "1,2", "c": "3"}]),
        ("a:b\n1:2\n", ["--delimiter", ","], [{"a:b": "1:2"}]),
    ],
)
def test_the_columns_of_csv_are_separated_by_what_the_first_row_or_the_user_says(
    text: str, named: list[str], rows: list[dict[str, str]], here: Path
) -> None:
    (here / "plays.csv").write_text(text)
    code, said = call("send", "plays", "plays.csv", "--create", *named)
    assert code == 0, said
    log = Log(".millrace/log.db")
    assert [json.loads(value) for value in log.read("plays", 0, 0, len(rows))["value"].to_pylist()] == rows


@pytest.mark.parametrize(
    ("text", "named", "said"),
    [
        ("a:b\n1:2\n", [], "plays.csv: the first row names one column, or ':' separates the columns; name it with "),
        ("a,b;c\n1,2;3\n", [], "plays.csv: it is not clear whether ',' or ';' separates the columns; name it with "),
        ("a,b\n", ["--delimiter", ";;"], "--delimiter must be one character, such as ';' or '\\t', not ';;'"),
        (
            "a,b\n",
            ["--delimiter", ";", "--format", "json"],
            "--delimiter has no effect, as no file is CSV; leave it out",
        ),
    ],
)
def test_columns_that_cannot_be_told_apart_are_not_sent_as_one(
    text: str, named: list[str], said: str, here: Path
) -> None:
    (here / "plays.csv").write_text(text)
    call("topics", "create", "plays")
    code, told = call("send", "plays", "plays.csv", *named)
    assert code == 2
    assert said in told
    assert Log(".millrace/log.db").ends("plays") == [0]
