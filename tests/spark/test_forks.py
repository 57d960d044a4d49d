"""The Python of Spark's processes is the ordinary one, but for its start."""

import gc
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.spark import session
from millrace.spark.forks import Forks

PROGRAM = """
import json, os, sys, time
print(json.dumps({
    "name": __name__, "argv": sys.argv, "path": sys.path, "folder": os.getcwd(), "variables": dict(os.environ),
    "prefix": sys.prefix, "input": sys.stdin.read(), "hash": hash("a"), "zone": time.strftime("%z"),
}))
print("said", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def forks() -> Iterator[Forks]:
    with closing(Forks(("program",))) as started:
        yield started


def ran(python: str | Path, folder: Path, program: str) -> str:
    """What a program prints."""
    (folder / "program.py").write_text(program)
    command = [str(python), "-m", "program", "a"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_forked_process_sees_what_a_started_one_sees(forks: Forks, tmp_path: Path) -> None:
    for folder in ("here", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "other" / "program.py").write_text(PROGRAM)
    other = str(tmp_path / "other")
    environment = {"PYTHONPATH": f"{other}:{other}", "PYTHONHASHSEED": "0", "HOME": "/", "A": "ü", "TZ": "Asia/Tokyo"}

    def told(python: str | Path) -> tuple[dict[str, object], str, int]:
        done = subprocess.run(
            [python, "-m", "program", "a b", "--c"], cwd=tmp_path / "here", env=environment, input="in",
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        found = json.loads(done.stdout)
        for name in ("LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"):  # of the shell, and of Python itself
            found["variables"].pop(name, None)
        return found, done.stderr, done.returncode

    forked = told(forks.program)
    assert forked == told(sys.executable)
    assert forked[1:] == ("said\n", 3)
    assert subprocess.run([forks.program, "-c", "print(1)"], capture_output=True, check=True).stdout == b"1\n"


def test_a_forked_process_ends_with_the_one_that_stands_for_it(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    command = [str(forks.program), "-m", "program"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, env={**os.environ})
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert pid != process.pid
    process.terminate()
    assert process.stdout.read() == b""  # it had the other end
    assert process.wait(30) == 1
    process.stdout.close()


def test_without_the_server_the_process_is_an_ordinary_one(forks: Forks, tmp_path: Path) -> None:
    forks._server.kill()
    forks._server.wait()
    assert ran(forks.program, tmp_path, "import sys\nprint(sys.argv[1:])") == "['a']\n"


def test_one_that_asks_and_leaves_does_not_end_the_server(forks: Forks, tmp_path: Path) -> None:
    for request in (b"no JSON", b"{}", b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.connect(str(forks._socket))
            asking.send(request)
    assert int(ran(forks.program, tmp_path, "import os\nprint(os.getppid())")) == forks._server.pid


def test_processes_draw_different_random_numbers(forks: Forks, tmp_path: Path) -> None:
    draw = "import random, numpy\nprint(random.random(), numpy.random.rand())"
    drawn = [number for _ in range(2) for number in ran(forks.program, tmp_path, draw).split()]
    assert len(set(drawn)) == 4


def test_nothing_is_left_of_a_server_whose_process_was_killed(tmp_path: Path) -> None:
    program = "from millrace.spark.forks import Forks\nprint(Forks().program, flush=True)\ninput()"
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    made = Path(process.stdout.readline().strip())
    assert made.exists()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while made.parent.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_where_no_socket_can_be_python_is_started_as_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(session, "is_active", lambda: False)
    with session._python("local[1]"):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert list(long.iterdir()) == []


def test_the_program_is_named_only_while_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs that this process starts must not depend on its server."""
    monkeypatch.setattr(session, "is_active", lambda: False)
    monkeypatch.setattr(session, "_FORKS", [])
    for before in (None, sys.executable):
        with monkeypatch.context() as patch:
            patch.delenv("PYSPARK_PYTHON", raising=False)
            if before is not None:
                patch.setenv("PYSPARK_PYTHON", before)
            with session._python("local[1]"):
                assert os.environ["PYSPARK_PYTHON"] == str(session._FORKS[0].program)
            assert os.environ["PYSPARK_PYTHON"] == sys.executable
            session._end_forks()
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    with session._python("local[1]"):
        assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3", "the user's own"


@pytest.mark.spark
def test_a_worker_collects_garbage_in_what_its_tasks_left_only(spark: SparkSession) -> None:
    def counted(_: object) -> tuple[int, int]:
        return gc.get_freeze_count(), len(gc.get_objects())

    ((imported, looked_at),) = spark.sparkContext.parallelize([0], 1).map(counted).collect()
    assert imported > 50_000
    assert looked_at < imported / 5
