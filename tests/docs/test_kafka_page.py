"""The page about Kafka: its programs run, on a real broker."""

import re
import runpy
import shlex
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from brokers import Kafka
from millrace import Pipeline
from millrace.cli import app
from millrace.views.store import open_store
from pages import ROOT, blocks
from stream_run import run

PAGE = ROOT / "docs" / "kafka.md"


@pytest.mark.spark
def test_the_kafka_page(spark: SparkSession, kafka_: Kafka, tmp_path: Path) -> None:
    pipeline, producer, *others = (block.replace("localhost:9092", kafka_.address) for block in blocks(PAGE, "python"))
    (create,) = re.findall(r"^    millrace (kafka create .*)$", PAGE.read_text(), re.MULTILINE)
    assert CliRunner().invoke(app, [*shlex.split(create), "--folder", str(kafka_.folder)]).exit_code == 0
    for number, program in enumerate((pipeline, producer, *others)):
        (tmp_path / f"{number}.py").write_text(program)
    charts = runpy.run_path(str(tmp_path / "0.py"))["charts"]
    assert isinstance(charts, Pipeline)
    runpy.run_path(str(tmp_path / "1.py"))
    run(spark, charts, tmp_path, store=tmp_path / "views.db")
    with closing(open_store(tmp_path / "views.db")) as store:
        rows = store.query("SELECT track, plays FROM hourly_plays ORDER BY plays DESC").rows
    assert rows == [("Undertow", 2), ("Millstream", 1)]
    names: dict[str, object] = {}
    for program in (pipeline, *others):
        exec(program, names)
