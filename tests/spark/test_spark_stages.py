"""Queries over queries and joins of streams on Spark, as a stream and as a batch."""

from typing import Any

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from documents import STAGES
from graphs import SOURCES, graphs, micro_batches_of_graphs, source
from graphs import MicroBatch as GraphBatch
from millrace import agg, window
from millrace.model.duration import END_OF_TIME, SECOND, to_datetime
from millrace.model.graph import GraphEngine
from millrace.model.pane import Pane
from millrace.model.reference import Reference
from millrace.testing.answers import plain_value
from millrace.testing.check import BATCH, STREAM, check_all
from millrace.testing.stage_steps import MicroBatch, StagesTranscript
from millrace.testing.stages_on_spark import RecordedStages, batch_differences, record_stages
from strategies import drawn


@pytest.mark.parametrize("engine", [STREAM, BATCH])
def test_transcripts_with_stages(engine: str, spark: SparkSession) -> None:
    verdicts = list(check_all(STAGES, engine))
    assert [f"{verdict.document.name}: {verdict.failure}" for verdict in verdicts if not verdict.passed] == []


@pytest.fixture(scope="module")
def cases() -> list[StagesTranscript]:
    """Random graphs of two to four stages, with random micro-batches."""
    parts = st.tuples(graphs(), micro_batches_of_graphs(), st.booleans())
    plays = source("plays").group_by("k").window(window.fixed("10s")).aggregate(n=agg.sum("v"))
    alike = plays.select("k", one="n").join(plays.select("k", other="n"), on="k", within=("0s", "0s"))
    rows = [{"k": key, "v": 3, "at": to_datetime(SECOND)} for key in "aab"]
    same = ({"alike": alike}, [GraphBatch({"plays": rows}, {"plays": 60 * SECOND}, 0)], False)
    return [transcript(*each) for each in [same, *drawn(parts, 25)]]


def test_random_graphs_say_what_the_reference_says(cases: list[StagesTranscript], spark: SparkSession) -> None:
    for case, found in zip(cases, record_stages(cases), strict=True):
        assert isinstance(found, RecordedStages), (case, found)
        slow = GraphEngine(case.stages, Reference)
        read = {source for stage in slow.stages for reader in stage.readers for source in reader.sources}
        now = 0
        for number, step in enumerate(case.steps):
            assert isinstance(step, MicroBatch)
            now = now if step.clock is None else step.clock
            marks = {name: at for name, at in step.watermarks.items() if name in read}
            expected = slow.step(step.rows, None if case.derived else marks, now, case.derived)
            got = found.step(step.rows, step.watermarks, now, case.derived)
            for name in case.stages:
                wrong = (number, name, case)
                assert comparable(got[name]) == comparable(expected[name]), wrong
                assert (found.dropped(name), found.event_time(name)) == (slow[name].dropped, slow[name].time[0]), wrong


def test_random_graphs_in_a_batch(cases: list[StagesTranscript], spark: SparkSession) -> None:
    assert [found for found in batch_differences(cases) if found] == []


def transcript(stages: Any, batches: Any, derived: bool) -> StagesTranscript:
    """A graph and its micro-batches, then the end of all input."""
    steps = [
        MicroBatch(
            {name: tuple(rows) for name, rows in each.rows.items()}, {} if derived else each.watermarks, each.now
        )
        for each in batches
    ]
    end = MicroBatch({}, {} if derived else dict.fromkeys(SOURCES, END_OF_TIME), 1_000 * SECOND)
    return StagesTranscript(stages, tuple(stages), (*steps, end), derived)


def comparable(said: Any) -> list[str]:
    """What a stage said in a micro-batch, in an order of its own. Rows on Spark do not have their event time."""
    return sorted(
        repr((each.key, each.window, each.diff, each.index, str(each.timing), each.last, plain_value(each.values)))
        if isinstance(each, Pane)
        else repr((sorted(plain_value(each.row).items()), each.diff))
        for each in said
    )
