"""A log where nothing may be written can be read, whether or not its last writer ended well."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace import ConflictError, MachineError
from millrace.cli import app
from millrace.eventlog import opening
from millrace.eventlog.topics import Log

KILLED = """
import os, sys
from millrace.eventlog.topics import Log
log = Log(sys.argv[1])
log.create("plays", partitions=2)
for number in range(10):
    log.append("plays", [f"{number}"], [f"{number}"])
log.report("charts", "plays", [1, 1])
os._exit(0)
"""
STATES = {
    "closed": (False, ()),
    "killed": (True, ()),
    "killed, without its index": (True, ("-shm",)),
}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a log whose writer was killed."""
    path = tmp_path_factory.mktemp("left") / "log.db"
    subprocess.run([sys.executable, "-c", KILLED, path], check=True)
    assert Path(f"{path}-wal").stat().st_size > 0
    return path.parent


def make(left: Path, folder: Path, killed: bool, missing: tuple[str, ...]) -> Path:
    """A copy of the log in a folder of its own, in one of the states."""
    shutil.copytree(left, folder)
    path = folder / "log.db"
    if not killed:
        with Log(path) as log:
            log.topics()
        assert not Path(f"{path}-wal").exists()
    for suffix in missing:
        Path(f"{path}{suffix}").unlink()
    return path


def read_all(path: Path) -> None:
    """All that readers ask of a log, and what a writer is told."""
    log = Log(path)
    for _ in range(2):
        assert [topic.name for topic in log.topics()] == ["plays"]
        assert sum(log.ends("plays")) == 10
        found = [log.read("plays", part, 0, end)["value"].to_pylist() for part, end in enumerate(log.ends("plays"))]
        assert sorted(value for part in found for value in part) == [b"%d" % number for number in range(10)]
        assert log.lag("plays") == {"charts": 8}
        assert (log.clock_jump(), log.damaged("plays"), log.gaps("plays")) == (None, [], [])
        assert None not in log.marks("plays", log.ends("plays"))
        assert len(log.id) == len(log.uid_of("plays")) == 32
        with pytest.raises(MachineError, match="it is read-only; nothing of this was kept"):
            log.append("plays", ["more"])
    log.close()


def warm_up(beside: Path) -> None:
    """Load what is loaded late, while this process may still read Python's own files."""
    with tempfile.TemporaryDirectory(dir=beside.parent) as folder, Log(Path(folder) / "log.db") as log:
        log.create("plays")
        log.append("plays", ["a"])
        log.read("plays", 0, 0, 1)["value"].to_pylist()


@pytest.fixture(params=list(STATES.values()), ids=list(STATES))
def mounted(request: pytest.FixtureRequest, left: Path, tmp_path: Path) -> Iterator[Path]:
    """A log on a read-only disk."""
    folder = tmp_path / "disk"
    path = make(left, folder, *request.param)
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield path
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_log_on_a_read_only_disk_is_read(mounted: Path) -> None:
    read_all(mounted)


def test_commands_that_only_look_work_on_a_read_only_disk(mounted: Path) -> None:
    for command, says in ((["topics"], "plays"), (["tail", "plays"], "9")):
        result = CliRunner().invoke(app, [*command, "--log", str(mounted)])
        assert (result.exit_code, says in result.output) == (0, True), result.output
    result = CliRunner().invoke(app, ["send", "plays", "--log", str(mounted)], input="{}\n")
    assert result.exit_code == 4
    assert "it is read-only; 0 records were sent" in result.output


def test_a_log_in_a_folder_of_someone_else_is_read(left: Path) -> None:
    program = "import os, sys, pathlib, test_read_only as t; paths = [*map(pathlib.Path, sys.argv[1:])];"
    program += "t.warm_up(paths[0].parent); os.getuid() or os.setuid(65534); [t.read_all(path) for path in paths]"
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o755)
        paths = [make(left, Path(outer) / name, *state) for name, state in STATES.items()]
        for path in paths:
            for each in path.parent.iterdir():
                each.chmod(0o444)
            path.parent.chmod(0o555)
        ended = subprocess.run(
            [sys.executable, "-c", program, *paths], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        )  # fmt: skip
        for path in paths:
            path.parent.chmod(0o755)
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_way_to_read_without_writing(
    state: tuple[bool, tuple[str, ...]], left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on machines where this test may neither mount nor become someone else."""
    path = make(left, tmp_path / "log", *state)

    def forbidden(*_: object) -> sqlite3.Connection:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    access: Callable[[Path, int], bool] = os.access
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    monkeypatch.setattr("millrace.eventlog.database.connect", forbidden)
    monkeypatch.setattr(opening, "connect", forbidden)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    read_all(path)
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before


def test_a_read_only_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(ConflictError, match="is empty, and no log can be created there"):
        opening.connect_to_read(tmp_path / "empty.db")
