"""The page about formats with a schema registry: its programs run, on a real broker."""

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import registry
from brokers import Kafka
from millrace import Pipeline
from millrace.views.store import open_store
from pages import ROOT, blocks
from stream_run import run

PAGE = ROOT / "docs" / "kafka-formats.md"


@pytest.mark.spark
def test_the_page_about_formats(spark: SparkSession, kafka_: Kafka, tmp_path: Path) -> None:
    read, written, dead = kafka_.topic(), kafka_.topic(), kafka_.topic()
    with registry.running() as started:
        names: dict[str, object] = {}
        for program in blocks(PAGE, "python"):
            program = program.replace("9092/plays-dead", f"9092/{dead}").replace("9092/plays", f"9092/{read}")
            program = program.replace("9092/totals", f"9092/{written}").replace('produce("plays"', f'produce("{read}"')
            program = program.replace("localhost:9092", kafka_.address).replace("http://localhost:8081", started.url)
            exec(program, names)
        charts = names["charts"]
        assert isinstance(charts, Pipeline)
        run(spark, charts, tmp_path, store=tmp_path / "views.db")
        assert f"{written}-value" in started.subjects
    with closing(open_store(tmp_path / "views.db")) as store:
        rows = store.query("SELECT track, plays, seconds FROM totals ORDER BY plays").rows
    assert rows == [("Millstream", 1, 200.0), ("Undertow", 2, 400.0)]
    assert [each.key() for each in kafka_.messages(written)] == [b"Undertow", b"Millstream"]
    assert [each.value() for each in kafka_.messages(dead)] == [b"no Avro"]
