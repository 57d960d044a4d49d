"""Spark starts on the machine's Java, and on the packaged one where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import quick_java
from millrace.spark.java import java_home


def fake_java(folder: Path, says: str) -> str:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_a_java_that_is_recent_enough_is_used(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path, f'openjdk version "{version}" 2025-04-15')
    assert java_home({"JAVA_HOME": home}) is None
    assert java_home({"PATH": f"{home}/bin"}) is None


@pytest.mark.parametrize("says", ['java version "1.8.0_401"', 'openjdk version "11.0.2"', "what is this"])
def test_an_old_java_is_passed_over(tmp_path: Path, says: str) -> None:
    home = java_home({"JAVA_HOME": fake_java(tmp_path, says)})
    assert home is not None
    assert Path(home, "bin", "java").exists()


def test_a_java_home_without_java_is_passed_over(tmp_path: Path) -> None:
    assert java_home({"JAVA_HOME": str(tmp_path)}) is not None
    assert java_home({"PATH": str(tmp_path)}) is not None


@pytest.mark.spark
def test_spark_starts_on_the_packaged_java(tmp_path: Path) -> None:
    # No `java` on this PATH; Spark's own scripts need the rest.
    for tool in ("bash", "dirname", "env", "nice", "ps", "uname", "readlink", "sh", "cat", "sed", "grep", "head"):
        found = next((place for place in ("/bin", "/usr/bin") if Path(place, tool).exists()), None)
        if found:
            (tmp_path / tool).symlink_to(Path(found, tool))
    program = (
        "from millrace.spark.session import start\n"
        "spark = start('java', 'local[1]')\n"
        "print('counted', spark.range(10).count())\n"
        "print('java', spark._jvm.System.getProperty('java.version'))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", *quick_java.SET)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert "counted 10" in done.stdout, done.stderr
    assert "java 21" in done.stdout
