"""The Spark home in the user's cache, its class archive, and the daemon that has imported Millrace."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millrace.spark import home
from millrace.spark.cache import cached_folder, caches


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if not request.node.get_closest_marker("spark"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def filled(folder: Path) -> None:
    (folder / "file").write_text("made")


def test_a_folder_is_made_once_by_whoever_comes_first() -> None:
    made: list[Path] = []
    both = threading.Barrier(2)

    def make(folder: Path) -> None:
        both.wait(10)  # until the other one makes it, too
        made.append(folder)
        filled(folder)

    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(cached_folder("one", make))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(made) == 2
    assert found == [caches() / "one"] * 2
    assert cached_folder("one", make) == caches() / "one"  # not made again
    assert len(made) == 2
    assert [entry.name for entry in caches().iterdir()] == ["one"]
    assert (caches() / "one" / "file").read_text() == "made"


def test_a_cache_that_others_can_write_to_is_not_used() -> None:
    cached_folder("mine", filled)
    (caches() / "mine").chmod(0o777)
    found = cached_folder("mine", filled)
    assert found != caches() / "mine"
    assert (found / "file").exists()
    assert found.stat().st_mode & 0o077 == 0


def test_without_a_cache_the_folder_is_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    found = cached_folder("nowhere", filled)
    assert (found / "file").exists()
    assert cached_folder("nowhere", filled) == found
    assert not home.lacks_archive(found)  # an archive would be used by nobody else


def test_another_java_has_another_home(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.touch()
    other.touch()
    assert home.spark_home(one) == home.spark_home(one)
    assert home.spark_home(one) != home.spark_home(other)
    assert home.lacks_archive(home.spark_home(one))


def test_homes_of_environments_that_are_gone_are_removed(tmp_path: Path) -> None:
    gone = cached_folder("spark-gone", lambda folder: (folder / "jars").symlink_to(tmp_path / "gone"))
    stays = home.spark_home(Path(sys.executable))
    home._remove_stale(caches())
    assert not gone.exists()
    assert stays.exists()


def test_an_archive_that_cannot_be_made_is_not_tried_again(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho once >> {tmp_path / 'tried'}\necho no room >&2\nexit 1\n")
    java.chmod(0o755)
    made = home.spark_home(java)
    home.make_archive(made, java)
    home.make_archive(made, java)
    assert (tmp_path / "tried").read_text() == "once\n"
    assert "no room" in (made / "no-archive").read_text()
    assert not home.lacks_archive(made)


@pytest.mark.spark
def test_java_loads_classes_from_the_archive_and_workers_are_forked_with_millrace(tmp_path: Path) -> None:
    program = """
from pathlib import Path
from millrace.spark import session

spark = session.start("archive", "local[1]", Path("spark.log"))
java = spark._jvm.java.lang.ProcessHandle.current().pid()
print("archive" if "classes.jsa" in Path(f"/proc/{java}/maps").read_text() else "no archive")

def imported(batches):
    import sys
    import pyarrow as pa
    yield pa.RecordBatch.from_pydict({"has": ["millrace.panes.advance" in sys.modules]})

print(spark.range(1).mapInArrow(imported, "has BOOLEAN").first().has)
session.stop(spark)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=180
    )
    assert ran.stdout.splitlines() == ["archive", "True"]
