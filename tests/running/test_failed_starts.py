"""Runs that fail before their first commit leave nothing behind that stands in the way of a corrected pipeline."""

import re
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from disks import remount, small_disk
from millrace.cli import app
from millrace.cli.options import EXIT_CODES
from millrace.model.errors import Kind
from millrace.spark import session as sessions
from millrace.views.store import open_store

PIPELINE = """
from millrace import Pipeline, agg, files, on, to_files, to_table, window

rows = files(IN, "k STRING, v TYPE", "parquet")
counted = rows.group_by("k").window(window.all_time()).trigger(on.each()).retracting().aggregate(n=agg.count())
late = Pipeline("late", views={"counts": counted}, sinks=[SINKS])
"""
SINKS = 'counted.to(to_table("out.db", "changes")), counted.to(to_files("out"))'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of texts."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    pq.write_table(pa.table({"k": ["a", "b", "a"], "v": ["1", "2", "x"]}), "in/1.parquet")
    return tmp_path


def write(type: str, sinks: str = SINKS) -> None:
    folder = str(Path("in").absolute())  # Spark's processes have another working folder
    Path("late.py").write_text(f"IN = {folder!r}\n" + PIPELINE.replace("TYPE", type).replace("[SINKS]", f"[{sinks}]"))


def run(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["run", "late.py", "--until-caught-up", *options])
    return done.exit_code, done.output


@pytest.mark.spark
def test_a_run_that_fails_before_its_first_commit_is_no_obstacle_to_a_corrected_pipeline(
    one_spark: None, project: Path
) -> None:
    write("BIGINT")
    code, output = run()
    assert code != 0
    assert "1.parquet" in output
    assert not [path for path in ("out.db", "out") if Path(path).exists()]
    assert not Path(".millrace/views.db").exists(), "no view was created"
    write("STRING", 'counted.to(to_files("out"))')
    assert run()[0] == 0
    rows = open_store(".millrace/views.db").rows("counts").rows.to_pylist()
    assert sorted((row["k"], row["n"]) for row in rows) == [("a", 2), ("b", 1)]


@pytest.mark.spark
@pytest.mark.parametrize("key", ["k", "soundex(k)"], ids=["typed", "typed_by_spark_alone"])
def test_what_a_checkpoint_refuses_is_refused_before_spark_starts(
    project: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, key: str
) -> None:
    write("STRING")
    grouped = Path("late.py").read_text().replace("rows.group_by", f'rows.with_columns(k="{key}").group_by')
    Path("late.py").write_text(grouped)
    request.getfixturevalue("one_spark")
    assert run()[0] == 0

    monkeypatch.setattr(sessions, "start", refuse_to_start)
    Path("late.py").write_text(Path("late.py").read_text().replace("agg.count()", 'agg.max("v")'))
    began = time.monotonic()
    code, output = run()
    assert (code, "cannot go on from checkpoint" in output or "another shape" in output) == (
        EXIT_CODES[Kind.CONFLICT], True
    ), output  # fmt: skip
    Path("other.py").write_text(Path("late.py").read_text().replace('Pipeline("late"', 'Pipeline("other"'))
    other = CliRunner().invoke(app, ["run", "other.py", "--checkpoint", ".millrace/late", "--store", "other.db"])
    assert other.exit_code == EXIT_CODES[Kind.CONFLICT], other.output
    assert "is of pipeline 'late', not of 'other'" in other.output
    assert time.monotonic() - began < 30


def refuse_to_start(*_: object) -> SparkSession:
    raise AssertionError("Spark was started")


@pytest.mark.parametrize(
    ("sinks", "options", "place"),
    [
        ('counted.to(to_files("disk/out/new"))', [], "disk/out/new"),
        ('counted.to(to_table("disk/out.db", "changes"))', [], "disk/out.db"),
        ('counted.to(to_files("out"))', ["--checkpoint", "disk/new/checkpoint"], "disk/new/checkpoint"),
        ('counted.to(to_files("out"))', ["--store", "disk/views.db"], "disk/views.db"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_told_before_spark_starts(
    project: Path, monkeypatch: pytest.MonkeyPatch, sinks: str, options: list[str], place: str
) -> None:
    monkeypatch.setattr(sessions, "start", refuse_to_start)
    write("STRING", sinks)
    with small_disk(project / "disk", "1m") as disk:
        remount(disk, "ro")
        code, output = run(*options)
        assert code == EXIT_CODES[Kind.MACHINE], output
        assert re.search(f"cannot write to (/.*/)?{place}: .*Read-only file system", output)
