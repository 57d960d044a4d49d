"""Queries over queries and joins of streams on Spark, as a stream and as a batch."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from documents import STAGES
from graphs import SOURCES, graphs, micro_batches_of_graphs, source
from graphs import MicroBatch as GraphBatch
from millrace import Pipeline, agg, memory, on, to_function, window
from millrace.model.duration import END_OF_TIME, SECOND, to_datetime
from millrace.model.graph import GraphEngine, inputs_of
from millrace.model.pane import Pane
from millrace.model.reference import Reference
from millrace.testing import Script, run_script
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
    agree(cases, fuse=True)


def test_answers_that_pass_through_a_spark_plan(cases: list[StagesTranscript], spark: SparkSession) -> None:
    """Edges run in Spark instead of DuckDB, also those between stages."""
    chained = [case for case in cases if any(inputs_of(of) for of in case.stages.values())]
    agree(chained[:2], fuse=False)


def agree(cases: list[StagesTranscript], fuse: bool) -> None:
    """Compare each step of graphs on Spark with the reference."""
    for case, found in zip(cases, record_stages(cases, fuse), strict=True):
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


def test_functions_that_only_spark_has_over_answers(spark: SparkSession) -> None:
    hour = window.fixed("1h")
    plays = memory("plays", "track STRING, at TIMESTAMP").event_time("at", delay="0s")
    soon = on.watermark(early=on.each(), late=on.each())
    counts = plays.group_by("track").window(hour).trigger(soon).retracting().aggregate(n=agg.count())
    loud = counts.where("upper(track) <> 'C'").with_columns(about="named_struct('n', n, 'name', upper(track))")
    by_name = counts.with_columns(name="upper(track)").group_by("name").window(hour).trigger(soon).retracting()
    totals = by_name.aggregate(n=agg.sum("n"), best=agg.max("named_struct('n', n, 'track', track)"))
    failing = counts.with_columns(rest="raise_error(track)").where("rest IS NULL")
    likes = memory("likes", "track STRING, fan STRING, liked TIMESTAMP").event_time("liked", delay="0s")
    named = plays.select("at", name="upper(track)"), likes.select("liked", "fan", name="upper(track)")
    pairs = named[0].where("soundex(name) <> ''").join(named[1], on="name", how="left", within=("0s", "1m"))
    fans = pairs.group_by("name").window(hour).trigger(soon).retracting().aggregate(n=agg.count(), f=agg.count("fan"))
    views = {"loud": loud, "totals": totals, "fans": fans}
    pipeline = Pipeline("p", views, [failing.to(to_function(keep))])

    def play(*tracks: str) -> list[dict[str, Any]]:
        return [{"track": track, "at": to_datetime(SECOND)} for track in tracks]

    script = Script().rows("plays", *play("a", "A", "c")).rows("plays", *play("A", "b"))
    liked = [{"track": "a", "fan": "ann", "liked": to_datetime(2 * SECOND)}]
    found = run_script(pipeline, script.rows("likes", *liked).end(), "spark", spark=spark)
    assert remains(found["loud"], "track", "about") == [
        "('A', {'n': 2, 'name': 'A'})", "('a', {'n': 1, 'name': 'A'})", "('b', {'n': 1, 'name': 'B'})",
    ]  # fmt: skip
    assert remains(found["totals"], "name", "n", "best") == [
        "('A', 3, {'n': 2, 'track': 'A'})", "('B', 1, {'n': 1, 'track': 'b'})", "('C', 1, {'n': 1, 'track': 'c'})",
    ]  # fmt: skip
    assert remains(found["fans"], "name", "n", "f") == ["('A', 3, 3)", "('B', 1, 0)", "('C', 1, 0)"]
    rows = [each.row for step in found.steps for each in step.dead_letters]
    # Each answer, early and on time; a micro-batch that takes one back and gives an equal one has one letter.
    assert Counter(row["track"] for row in rows if isinstance(row, dict)) == {"A": 4, "a": 2, "b": 2, "c": 2}


def remains(rows: Any, *names: str) -> list[str]:
    """The rows that were added and not taken back, in order."""
    left: Counter[str] = Counter()
    for row in rows:
        left[repr(tuple(row[name] for name in names))] += row["diff"]
    return sorted(left.elements())


def keep(rows: list[Any], batch: int) -> None:
    """Write nothing."""


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
