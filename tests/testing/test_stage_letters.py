"""Dead letters of pipelines with several stages, on every engine: of records, and of answers that cannot be read."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from millrace import Pipeline, agg, log, memory, on, window
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.testing import Script, run_script
from millrace.testing.run import EngineName

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = window.fixed("1h")

plays = log("plays", "track STRING, at TIMESTAMP").event_time("at", delay="10s")
counts = plays.group_by("track").window(HOUR).trigger(on.each()).retracting().aggregate(n=agg.count())
shares = counts.with_columns(share="10 / (n - 1)")
most = counts.window(HOUR).aggregate(most=agg.max("n"))

seen = memory("seen", "ad STRING, at TIMESTAMP").event_time("at", delay="1m")
clicked = memory("clicked", "ad STRING, clicked_at TIMESTAMP").event_time("clicked_at", delay="1m")
pairs = seen.join(clicked, on="ad", how="full", within=("0s", "1h"), unmatched="early").event_time("at")
total = pairs.window(HOUR).trigger(on.each()).retracting().aggregate(n=agg.count())


def check(engine: EngineName, spark: SparkSession | None = None) -> None:
    untimed = {"track": "x", "at": None}
    script = Script().rows("plays", untimed, {"track": "y", "at": "2026-01-01T12:00:00Z"}, "not JSON")
    answers = run_script(Pipeline("charts", {"shares": shares, "most": most}), script, engine, spark=spark)
    assert [(each.source, each.row) for each in answers.dead_letters[:2]] == [("plays", "not JSON"), ("plays", untimed)]
    (letter,) = answers.dead_letters[2:]
    hour = {"window_start": NOON, "window_end": NOON.replace(hour=13)}
    assert (letter.source, letter.output, letter.row) == (None, "shares", {"track": "y", **hour, "n": 1})

    script = Script().rows("clicked", {"ad": "x", "clicked_at": NOON}).rows("seen", {"ad": "x", "at": NOON})
    answers = run_script(Pipeline("ads", {"total": total}), script, engine, spark=spark)
    alone = {"ad": "x", "at": None, "clicked_at": NOON}
    for step in answers.steps:  # the click without an impression has no time, neither added nor taken back
        assert [(each.output, each.row) for each in step.dead_letters] == [("total", alone)]
        assert step.dead_letters[0].reason == "event time at is NULL"
    assert [row["n"] for row in answers["total"]] == [1]

    kept = seen.join(clicked, on="ad", within=("0s", "1h"), lateness=("1m", "0s"), late="keep")
    script = Script().rows("seen", {"ad": "x", "at": NOON})  # the watermark is 11:59, and 11:58 is not too late
    for at in (NOON - timedelta(minutes=2), NOON - timedelta(minutes=3)):
        script = script.rows("seen", {"ad": "y", "at": at})
    answers = run_script(Pipeline("ads", {"n": per_ad(kept)}), script, engine, spark=spark)
    (letter,) = answers.dead_letters
    assert letter.row == {"ad": "y", "at": NOON - timedelta(minutes=3)}
    assert letter.reason == (
        "too late for the left side of the join on ad, by 1m: its event time is 2026-01-01 11:57:00, and the watermark "
        "of the side was 2026-01-01 11:59:00, with a lateness of 1m"
    )


def per_ad(joined: Stream) -> Query:
    return joined.group_by("ad").window(HOUR).aggregate(n=agg.count())


@pytest.mark.parametrize("engine", ["reference", "panes"])
def test_letters_of_records_and_of_answers(engine: EngineName) -> None:
    check(engine)


def test_letters_of_records_and_of_answers_on_spark(spark: SparkSession) -> None:
    check("spark", spark)
