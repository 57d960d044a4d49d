"""The Python of Spark's processes is the ordinary one, but for its start."""

import gc
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.spark.forks import Forks

PROGRAM = """
import json, os, sys
print(json.dumps({
    "name": __name__, "argv": sys.argv, "path": sys.path, "folder": os.getcwd(), "variables": dict(os.environ),
    "prefix": sys.prefix, "input": sys.stdin.read(), "hash": hash("a"),
}))
print("said", file=sys.stderr)
"""


def test_a_forked_process_sees_what_a_started_one_sees(tmp_path: Path) -> None:
    for folder in ("here", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "other" / "program.py").write_text(PROGRAM)
    environment = {"PYTHONPATH": str(tmp_path / "other"), "PYTHONHASHSEED": "0", "HOME": "/", "A": "ü"}

    def ran(python: str | Path) -> tuple[dict[str, object], str]:
        done = subprocess.run(
            [python, "-m", "program", "a b", "--c"], cwd=tmp_path / "here", env=environment, input="in",
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        found = json.loads(done.stdout)
        for name in ("LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"):  # of the shell, and of Python itself
            found["variables"].pop(name, None)
        return found, done.stderr

    with closing(Forks(("program",))) as forks:
        forked = ran(forks.program)
        assert forked == ran(sys.executable)
        assert forked[1] == "said\n"
        assert subprocess.run([forks.program, "-c", "print(1)"], capture_output=True, check=True).stdout == b"1\n"


def test_a_forked_process_ends_with_the_one_that_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    with closing(Forks(("program",))) as forks:
        process = subprocess.Popen(
            [forks.program, "-m", "program"], cwd=tmp_path, stdout=subprocess.PIPE, env={**os.environ}
        )
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert pid != process.pid
        process.terminate()
        assert process.stdout.read() == b""  # it had the other end
        process.wait(30)
        process.stdout.close()


def test_without_the_server_the_process_is_an_ordinary_one(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv[1:])")
    with closing(Forks(("program",))) as forks:
        forks._server.kill()
        forks._server.wait()
        command = [str(forks.program), "-m", "program", "a"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == "['a']\n"


@pytest.mark.spark
def test_a_worker_collects_garbage_in_what_its_tasks_left_only(spark: SparkSession) -> None:
    def counted(_: object) -> tuple[int, int]:
        return gc.get_freeze_count(), len(gc.get_objects())

    ((imported, looked_at),) = spark.sparkContext.parallelize([0], 1).map(counted).collect()
    assert imported > 50_000
    assert looked_at < imported / 5
