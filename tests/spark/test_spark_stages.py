"""Queries over queries and joins of streams on Spark, as a stream and as a batch."""

import pytest
from pyspark.sql import SparkSession

from documents import STAGES
from millrace.testing.check import BATCH, STREAM, check_all


@pytest.mark.parametrize("engine", [STREAM, BATCH])
def test_transcripts_with_stages(engine: str, spark: SparkSession) -> None:
    verdicts = list(check_all(STAGES, engine))
    assert [f"{verdict.document.name}: {verdict.failure}" for verdict in verdicts if not verdict.passed] == []
