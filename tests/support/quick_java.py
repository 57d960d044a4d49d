"""A Java that starts in a third of the time, for the many processes of the tests.

The first pipeline writes the classes that its Java loaded to an archive, from which all others load them, and Java's
slower compiler, which pays in long runs only, is off.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from importlib.metadata import version
from inspect import getsource
from pathlib import Path

from millrace.spark.session import _ALONE, make_home

SET = ("SPARK_HOME", "SPARK_SUBMIT_OPTS")
"""The variables that are set: a test that is about how Spark starts leaves them out."""

_PIPELINE = """
from millrace import Pipeline, agg, files, window

events = files("in", "k STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
first = Pipeline("first", views={"counted": events.window(window.fixed("10s")).aggregate(n=agg.count())})
"""


def variables(cache: Path) -> dict[str, str]:
    """The environment of processes that start Spark; the first call makes the archive in a folder of its own."""
    how = hashlib.sha256(f"{getsource(make_home)}{_ALONE}".encode()).hexdigest()[:8]  # on which the home depends
    folder = cache / f"spark-{version('pyspark')}-{how}"
    folder.mkdir(parents=True, exist_ok=True)
    home, archive = folder / "home", folder / "classes.jsa"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of a test run share it
        if not home.exists():
            home.mkdir()
            make_home(home)
        if not archive.exists():
            _make(archive, folder / "first", home)
    share = f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
    return {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": f"{share} -XX:TieredStopAtLevel=1"}


def _make(archive: Path, folder: Path, home: Path) -> None:
    (folder / "in").mkdir(parents=True, exist_ok=True)
    (folder / "in" / "1.json").write_text('{"k": "a", "at": "2026-01-01T00:00:00Z"}\n')
    (folder / "first.py").write_text(_PIPELINE)
    options = {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive}"}
    command = [sys.executable, "-m", "millrace", "run", "first.py", "--until-caught-up"]
    subprocess.run(
        command, cwd=folder, env={**os.environ, **options}, check=True, capture_output=True, timeout=300
    )  # fmt: skip
