"""Real-time mode refuses what it does not run, before Spark starts: with the line, the reason and the alternative."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggregates import VALUES
from millrace import (
    Pipeline,
    PipelineError,
    agg,
    kafka,
    log,
    on,
    percentile,
    table,
    to_files,
    to_kafka,
    udf,
    window,
)
from millrace.cli import app
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.plan.realtime import check_real_time, is_supported
from millrace.running.settings import Settings

URL = "kafka://localhost:9092/plays"
PLAYS = kafka(URL, "user STRING, ms BIGINT, x DOUBLE, at TIMESTAMP")
TIMED = PLAYS.event_time("at", delay="10s")
OUT = to_kafka("kafka://localhost:9092/out")


def counted(stream: Stream, of: Any = None, **more: Any) -> Query:
    windowed = stream.group_by("user").window(of or window.fixed("1h"), **more)
    return windowed.trigger(on.each()).retracting().aggregate(n=agg.count())


def triggered(when: Any) -> Query:
    return TIMED.window(window.fixed("1h")).trigger(when).retracting().aggregate(n=agg.count())


def aggregated(aggregate: Any) -> Query:
    return TIMED.window(window.fixed("1h")).trigger(on.each()).retracting().aggregate(n=aggregate)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "session": (lambda: counted(TIMED, window.session("1h")), r"session\(gap=1h\) does not run in real-time mode"),
    "count": (lambda: counted(PLAYS, window.count(3)), "count"),
    "calendar": (lambda: counted(TIMED, window.calendar("month")), "month"),
    "custom": (lambda: counted(TIMED, window.custom(lambda at, row: [])), "custom"),
    "watermark": (lambda: triggered(on.watermark(late=on.each())), r"the trigger watermark\(.*; call .trigger\(on"),
    "every": (lambda: triggered(on.every("10s")), "the trigger every"),
    "default": (lambda: TIMED.window(window.fixed("1h")).aggregate(n=agg.count()), "the trigger"),
    "discarding": (
        lambda: TIMED.window(window.fixed("1h")).trigger(on.each()).discarding().aggregate(n=agg.count()),
        r"discarding\(\) does not run in real-time mode; call .accumulating",
    ),
    "late": (lambda: counted(TIMED, late="keep"), "late='keep'"),
    "key": (
        lambda: TIMED.group_by("x").window(window.fixed("1h")).trigger(on.each()).retracting()
        .aggregate(n=agg.count()), r"group_by\('x'\) of type DOUBLE",
    ),
    "sum of floats": (lambda: aggregated(agg.sum("x")), r"n=sum\(x\) over DOUBLE does not run"),
    "sketch": (lambda: aggregated(agg.approx_distinct("user")), "approx_distinct"),
    "map": (lambda: counted(PLAYS.map(dict, "user STRING"), window.all_time()), "a function in Python does not run"),
    "udf": (lambda: counted(TIMED.with_columns(n=udf(len, "BIGINT")("user"))), "a function in Python"),
    "filter": (lambda: counted(TIMED.filter(bool)), "a function in Python"),
    "dedup": (lambda: counted(TIMED.dedup("user", within="1h")), r"dedup\(\) does not run"),
    "query over query": (
        lambda: counted(counted(TIMED).changes(), window.all_time()), "a query over the answers of another",
    ),
    "answers": (lambda: counted(TIMED).where("n > 3"), "view 'v' of answers with conditions"),
    "join of streams": (
        lambda: counted(TIMED.join(TIMED.select("user", then="at"), on="user", within=("-1m", "1m"))),
        "a join of streams",
    ),
    "view as table": (
        lambda: counted(TIMED.join(table("t", "user STRING, name STRING", view="v"), on="user")), "join with the view",
    ),
    "log": (lambda: counted(log("plays", "user STRING, at TIMESTAMP").event_time("at", delay="1s")), "kind log"),
    "pattern": (
        lambda: counted(kafka("kafka://localhost:9092/^p.*", "user STRING"), window.all_time()), "a pattern of topics",
    ),
    "decimal": (lambda: counted(kafka(URL, "user STRING, d DECIMAL(5,2)"), window.all_time()), "of type DECIMAL"),
    "properties": (
        lambda: counted(kafka(URL, "user STRING", options={"sasl.username": "u"}), window.all_time()),
        "the property 'sasl.username', which Spark's own client does not know",
    ),
    "headers": (
        lambda: counted(kafka(URL, "user STRING", metadata={"h": "headers"}), window.all_time()), "a column of headers",
    ),
    "percentile": (
        lambda: counted(PLAYS.event_time("at", watermark=percentile(0.9))), "the watermark",
    ),
    "idle": (lambda: counted(PLAYS.event_time("at", delay="1s", idle="1m")), r"event_time\(idle=\)"),
    "twice": (
        lambda: counted(TIMED.union(PLAYS.where("ms > 3").event_time("at", delay="1s"))), "reads plays twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_run_is_refused(name: str) -> None:
    make, reason = REFUSED[name]
    pipeline = Pipeline("charts", views={"v": make()})
    with pytest.raises(PipelineError, match=reason) as raised:
        check_real_time(pipeline)
    assert str(raised.value).startswith("test_real_time_refusals.py:")
    assert "--mode micro-batch" in str(raised.value)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: counted(TIMED).to(OUT), "a sink for the answers of a query"),
        (lambda: PLAYS.to(to_files("out")), "the sink parquet files in out"),
        (lambda: PLAYS.to(OUT), "column 'x' of type DOUBLE"),
        (lambda: PLAYS.select("user").to(to_kafka(URL, headers={"u": "user"})), "headers= or timestamp="),
        (lambda: PLAYS.select("user", "ms").to(to_kafka(URL, key="ms")), "other than one STRING column"),
    ],
)
def test_sinks_that_do_not_run_are_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(PipelineError, match=reason):
        check_real_time(Pipeline("charts", sinks=[make()]), "at-least-once")


def test_a_topic_is_not_written_exactly_once() -> None:
    pipeline = Pipeline("charts", sinks=[PLAYS.select("user").to(OUT)])
    check_real_time(pipeline, "at-least-once")
    with pytest.raises(PipelineError, match=r"cannot be written exactly-once in real-time mode.*at-least-once"):
        check_real_time(pipeline)


def test_what_runs_is_not_refused() -> None:
    names = table("names", "user STRING, name STRING", [{"user": "ann", "name": "Ann"}])
    skips = kafka("kafka://localhost:9092/skips", "user STRING, ms BIGINT, x DOUBLE, at TIMESTAMP")
    both = TIMED.union(skips.event_time("at", delay="1m")).where("x > 0").join(names, on="user")
    views = {
        "fixed": counted(both, lateness="1d"),
        "sliding": counted(TIMED.select("user", "at"), window.sliding("1h", "1m")),
        "ever": counted(PLAYS.with_columns(n="ms + 1"), window.all_time()),
    }
    check_real_time(Pipeline("charts", views=views))


def test_every_aggregate_is_known_or_refused() -> None:
    supported = {"count", "count_if", "sum", "mean", "min", "max", "first", "last"}
    found = {type(each).name for each in VALUES if is_supported(each, ["BIGINT"])}
    assert found == supported


def test_settings_without_effect_are_refused() -> None:
    for given in ({"until_caught_up": True}, {"from_here": True}, {"layer": "batch"}, {"guarantee": "at-most-once"}):
        with pytest.raises(PipelineError, match="real-time"):
            Settings(mode="real-time", **given)
    with pytest.raises(PipelineError, match="jars has no effect with mode micro-batch"):
        Settings(jars="jars")


def test_explain_and_run_refuse_before_spark_starts(tmp_path: Path) -> None:
    file = tmp_path / "charts.py"
    file.write_text(
        "from millrace import Pipeline, agg, kafka, on, window\n"
        f"plays = kafka({URL!r}, 'user STRING, at TIMESTAMP').event_time('at', delay='1s')\n"
        "hourly = plays.window(window.session('1h')).trigger(on.each()).retracting().aggregate(n=agg.count())\n"
        "charts = Pipeline('charts', views={'hourly': hourly})\n"
    )
    for command in (["explain", str(file), "--mode", "real-time"], ["run", str(file), "--mode", "real-time"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert "charts.py:3: session(gap=1h) does not run in real-time mode" in result.output
    file.write_text(file.read_text().replace("session", "fixed"))
    shown = CliRunner().invoke(app, ["explain", str(file), "--mode", "real-time"])
    assert "real time: a Spark query from Kafka to Kafka" in shown.output
    assert CliRunner().invoke(app, ["explain", str(file), "--mode", "faster"]).exit_code == 2
