"""A Java that does not start is one line: the likely reason, and the file with Java's own output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import sys
from pathlib import Path
from millrace.model.errors import MachineError
from millrace.spark import session
try:
    session.start("test", "local[1]", Path(sys.argv[1]))
except MachineError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (
            "ulimit -n 64",
            "Java did not start: the limit of open files is 64; Spark needs about 1024: raise it with ulimit",
        ),
        (
            f"ulimit -v {3 << 20}",
            "Java did not start: the limit of memory is 3,072 MB; raise it with ulimit -v unlimited",
        ),
        ("true", "Java did not start; check that JAVA_HOME names a Java that runs"),
    ],
)
def test_a_java_that_ends_at_once_is_one_line(tmp_path: Path, limit: str, says: str) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2 && exit\nexit 7\n')
    java.chmod(0o755)
    log = tmp_path / "spark.log"
    ran = subprocess.run(
        ["sh", "-c", f'{limit} && exec "$0" "$@"', sys.executable, "-c", START, str(log)],
        capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "JAVA_HOME": str(tmp_path / "jdk"), "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    assert ran.stdout.startswith(says)
    assert ran.stdout.endswith(f"; its own output is in {log}\n")
    assert ran.stdout.count("\n") == 1
    assert ran.stderr == ""
