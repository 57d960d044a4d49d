"""The Spark plan of real-time mode: on the same records, its cells hold the answers of the reference."""

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace import Pipeline, agg, kafka, on, table, to_kafka, window
from millrace.model.query import Query, Windowed
from millrace.plan.compile import PlanSettings, compile
from millrace.plan.realtime import check_real_time
from millrace.running.applier import AppliedView
from millrace.running.realtime_letters import Asides
from millrace.spark.job import Job
from millrace.spark.realtime import RealTimePlan, changelog
from millrace.spark.session import separate
from millrace.spark.sure_json import sure_rows
from millrace.spark.tried import SETTINGS
from millrace.testing import Answers, Script, run_script
from millrace.views.shape import shape_of

RAW = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
SCHEMA = "k STRING, v BIGINT NOT NULL, day DATE, ok BOOLEAN, at TIMESTAMP"
LOGGED = datetime(2026, 1, 2, tzinfo=UTC)
PLAYS = kafka("kafka://localhost:9092/plays", SCHEMA)
SKIPS = kafka("kafka://localhost:9092/skips", SCHEMA)
NAMES = table("names", "k STRING, name STRING", [{"k": "a", "name": "Ann"}, {"k": "b", "name": None}])


def records(seed: int, many: int) -> list[str]:
    draw = random.Random(seed)
    made = []
    for _ in range(many):
        at = f"2026-01-01T00:{draw.randrange(30):02}:{draw.randrange(60):02}.{draw.randrange(4)}Z"
        good: dict[str, Any] = {"k": draw.choice(["a", "b", "c", None]), "v": draw.choice([0, 5, -7, 2**62, 12])}
        good |= {"day": draw.choice(["2026-01-31", None]), "ok": draw.choice([True, False, None]), "at": at}
        if draw.random() < 0.05:
            good["at"] = draw.choice([None, "2027-01-01T00:00:00Z"])
        made.append(json.dumps(good) if draw.random() < 0.95 else draw.choice(['{"v": "x"}', "no", '{"k": "a"}', ""]))
    return made


def aggregated(windowed: Windowed) -> Query:
    return windowed.trigger(on.each()).retracting().aggregate(
        n=agg.count(), some=agg.count("day"), yes=agg.count_if("ok"), total=agg.sum("v % 1000"),
        mean=agg.mean("v"), low=agg.min("k"), high=agg.max("at"), latest=agg.max("day"),
        first=agg.first("v"), last=agg.last("k"), inverse=agg.sum("100 DIV v"),
    )  # fmt: skip


TIMED = PLAYS.where("v > -100").event_time("at", delay="5s")
QUERIES = {
    "fixed": aggregated(TIMED.where("v <> 12").group_by("k", "ok").window(window.fixed("5m", "2m"))),
    "sliding": aggregated(TIMED.with_columns(k="upper(k)").group_by("k").window(window.sliding("10m", "4m"))),
    "ever": aggregated(TIMED.group_by("day").window(window.all_time())),
    "joined": aggregated(
        TIMED.union(SKIPS.event_time("at", delay="1m")).join(NAMES, on="k").group_by("name").window(window.fixed("7m"))
    ),
}


@pytest.fixture(scope="module")
def own(spark: SparkSession) -> SparkSession:
    session = separate(spark)
    for name, value in {**SETTINGS, "spark.sql.shuffle.partitions": "1"}.items():
        session.conf.set(name, value)
    return session


def frame(spark: SparkSession, topic: str, values: list[str]) -> DataFrame:
    rows = [(None, value.encode(), topic, 0, offset, LOGGED, 0) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, RAW)


def planned(spark: SparkSession, pipeline: Pipeline, sent: dict[str, list[str]]) -> RealTimePlan:
    plan = compile(pipeline, PlanSettings(fuse=False))
    frames = {
        each.source.name: sure_rows(frame(spark, each.source.name, sent[each.source.name]), each.source, "a mark")
        for each in plan.sources
    }
    return RealTimePlan(spark, Job(plan, (0,)), plan.stages[0], frames)


def expected(pipeline: Pipeline, sent: dict[str, list[str]]) -> Answers:
    script = Script(LOGGED)
    for source in pipeline.sources:
        script = script.rows(source.name, *sent[source.name])
    return run_script(pipeline, script)


@pytest.mark.parametrize("name", QUERIES)
def test_cells_hold_the_answers_of_the_reference(own: SparkSession, name: str) -> None:
    query = QUERIES[name]
    pipeline = Pipeline("charts", views={name: query})
    check_real_time(pipeline)
    sent = {"plays": records(1, 150), "skips": records(2, 80)}
    plan = planned(own, pipeline, sent)
    view = AppliedView(name, query, shape_of(name, query))
    cells = {}
    for row in changelog(query, plan.elements()).collect():
        count, _, parts = row["value"].partition(" ")
        cells[row["key"].encode()] = int(count), parts.encode()
    found = view.table(cells).to_pylist()
    names = query.schema.names
    answers = expected(pipeline, sent)
    assert in_order(found, names) == in_order(answers.view(name), names)
    assert len(found) >= 2
    letters = {}
    aside = Asides(None, compile(pipeline))  # type: ignore[arg-type]
    for row in plan.aside().collect():
        letter = aside._rejected(json.loads(row["value"]))
        letters[letter.source, letter.offset] = letter.reason
    assert sorted(letters.values()) == sorted(letter.reason for letter in answers.dead_letters)
    assert len(letters) > 10


def in_order(rows: list[Any], names: tuple[str, ...]) -> list[str]:
    return sorted(repr([in_utc(row[name]) for name in names]) for row in rows)


def in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def test_rows_of_a_sink_are_written_as_in_micro_batches(own: SparkSession) -> None:
    rows = PLAYS.where("v > 0").select("k", "v", "day", "ok", "at")
    output = rows.to(to_kafka("kafka://localhost:9092/out", key="k"))
    pipeline = Pipeline("charts", sinks=[output])
    check_real_time(pipeline, "at-least-once")
    sent = {"plays": records(3, 40)}
    found = planned(own, pipeline, sent).records("k").collect()
    answers = expected(pipeline, sent)["Kafka topic out"]
    wanted = [{**row, "day": row["day"] and str(row["day"])} for row in answers]
    for row in wanted:
        row["at"] = row["at"] and row["at"].isoformat()
    assert in_order([json.loads(row["value"]) for row in found], rows.schema.names) == in_order(
        wanted, rows.schema.names
    )
    assert sorted(map(str, (row["key"] for row in found))) == sorted(str(row["k"]) for row in wanted)
