"""The sections about the Kafka sink: their programs run, on a real broker."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from brokers import Kafka
from millrace import Pipeline
from pages import ROOT, blocks
from stream_run import run

PAGE = ROOT / "docs" / "kafka.md"


@pytest.mark.spark
def test_the_sections_about_the_sink(spark: SparkSession, kafka_: Kafka, tmp_path: Path) -> None:
    """Their pipelines, over the records of the page."""
    read = kafka_.topic()
    programs = [
        program.replace("localhost:9092/plays", f"{kafka_.address}/{read}")
        .replace("localhost:9092", kafka_.address)
        .replace('produce("plays"', f'produce("{read}"')
        for program in blocks(PAGE, "python")
    ]
    names: dict[str, object] = {}
    for number, program in enumerate(programs):
        exec(program, names)
        if "to_kafka(" not in program:
            continue
        for topic in ("panes", "long") if "panes" in program else ("hourly-plays",):
            kafka_.topic(name=topic)
        charts = names["charts"]
        assert isinstance(charts, Pipeline)
        run(spark, charts, tmp_path / str(number))
    panes = [json.loads(each.value() or b"") for each in kafka_.messages("panes")]
    assert sum(row["diff"] * row["plays"] for row in panes) == 3
    assert [each.key() for each in kafka_.messages("long")] == [b"ann"] * 3
    latest = {each.key(): json.loads(each.value() or b"") for each in kafka_.messages("hourly-plays")}
    assert {row["track"]: (row["plays"], row["deleted"]) for row in latest.values()} == {
        "Undertow": (2, False), "Millstream": (1, False),
    }  # fmt: skip
    (statement,) = blocks(PAGE, "sql")
    spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)
