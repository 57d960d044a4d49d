"""The queries of Nexmark, as a batch and as a stream, against the same queries as Spark SQL over the same events."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import stream_run
from millrace import Pipeline, files, memory, to_function
from millrace.model.duration import END_OF_TIME, SECOND
from millrace.model.stream import Stream
from millrace.plan.compile import sink_id
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import batch
from nexmark import generator, queries
from nexmark_sql import SQL

EVENTS = generator.Settings(events=3_000, seed=3, rate=25, disorder=20)
BY_THE_CLOCK = "q12_bids_by_the_clock"
SCHEMAS = {"person": queries.PERSON, "auction": queries.AUCTION, "bid": queries.BID}

Rows: TypeAlias = Counter[tuple[Any, ...]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The events as files, a folder for each kind."""
    made = tmp_path_factory.mktemp("nexmark")
    generator.write(EVENTS, made, parts=2)
    return made


@pytest.fixture(scope="module")
def expected(spark: SparkSession, folder: Path) -> Mapping[str, tuple[tuple[str, ...], Rows]]:
    """The columns and rows of each query, by Spark SQL."""
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "1")
    own.conf.set("spark.sql.session.timeZone", "UTC")
    for name in ("adaptive.enabled", "codegen.wholeStage"):  # they cost more than they gain with few rows
        own.conf.set(f"spark.sql.{name}", "false")
    for kind, schema in SCHEMAS.items():
        own.read.schema(schema).json(str(folder / kind)).cache().createOrReplaceTempView(kind)
    found = {}
    for name, sql in SQL.items():
        table = own.sql(sql).toArrow()
        found[name] = tuple(table.column_names), counted(table, table.column_names)
    return found


def counted(table: pa.Table, columns: Any) -> Rows:
    """Rows as a multiset; those with a diff of -1 take a row back."""
    diffs = table["diff"].to_pylist() if "diff" in table.column_names else [1] * len(table)
    rows: Rows = Counter()
    for diff, row in zip(diffs, table.select(list(columns)).to_pylist(), strict=True):
        rows[tuple(row.values())] += diff
    return Counter({row: many for row, many in rows.items() if many})


def test_each_query_has_its_sql() -> None:
    assert SQL.keys() == queries.QUERIES.keys()


def test_events_have_the_usual_proportions_and_depend_on_the_seed_only() -> None:
    made = list(generator.events(EVENTS))
    assert Counter(kind for kind, _ in made) == {"person": 60, "auction": 180, "bid": 2760}
    assert made == list(generator.events(EVENTS))
    other = generator.Settings(EVENTS.events, 4, EVENTS.rate, disorder=EVENTS.disorder)
    assert made != list(generator.events(other))
    in_order = generator.Settings(EVENTS.events, EVENTS.seed, EVENTS.rate)
    assert sorted(map(json.dumps, made)) == sorted(map(json.dumps, generator.events(in_order)))


def test_some_auctions_bidders_and_sellers_are_hot() -> None:
    made = list(generator.events(generator.Settings(20_000)))
    for kind, column, share in (("bid", "auction", 0.5), ("bid", "bidder", 0.75), ("auction", "seller", 0.75)):
        ids = [record[column] for each, record in made if each == kind]
        hot = sum(each % 100 == (column == "bidder") for each in ids) / len(ids)
        assert share - 0.02 < hot < share + 0.05, column


def test_the_longest_auction_is_within_the_bound_of_the_queries() -> None:
    auctions = [record for kind, record in generator.events(EVENTS) if kind == "auction"]
    longest = max(moment(each["expires"]) - moment(each["date_time"]) for each in auctions)
    assert longest <= generator.longest_auction(EVENTS)
    assert generator.longest_auction(EVENTS).total_seconds() < 600


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def pipeline_of(person: Stream, auction: Stream, bid: Stream) -> Pipeline:
    """All queries; the sinks write nothing, as the rows are among the answers."""
    made = {name: query(person, auction, bid) for name, query in queries.QUERIES.items()}
    return Pipeline("nexmark", sinks=[of.to(to_function(ignore, name)) for name, of in made.items()])


def ignore(rows: list[Mapping[str, Any]], batch: int) -> None:
    """Write nothing."""


def answers_of(answers: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The answers of each query, by name."""
    return {name: answers[sink_id(to_function(ignore, name))] for name in queries.QUERIES}


def test_a_batch_answers_as_spark_sql(
    spark: SparkSession, folder: Path, expected: Mapping[str, tuple[tuple[str, ...], Rows]]
) -> None:
    pipeline = pipeline_of(*(files(str(folder / kind), schema) for kind, schema in SCHEMAS.items()))
    gathered = batch.collect(spark, pipeline)
    assert gathered.dead_letters.to_pylist() == []
    for name, table in answers_of(gathered.answers).items():
        columns, rows = expected[name]
        assert len(rows) > 0, name
        check(name, counted(table, columns), rows)


def check(name: str, found: Rows, rows: Rows) -> None:
    missing, extra = rows - found, found - rows
    assert found == rows, (
        f"{name}: {len(rows)} rows; missing {list(missing.items())[:3]}, extra {list(extra.items())[:3]}"
    )


def test_a_stream_answers_as_spark_sql(
    spark: SparkSession, expected: Mapping[str, tuple[tuple[str, ...], Rows]], tmp_path: Path
) -> None:
    pipeline = pipeline_of(*(memory(kind, schema) for kind, schema in SCHEMAS.items()))
    bundles = bundles_of(list(generator.events(EVENTS)), 3)
    batches = stream_run.run(spark, pipeline, tmp_path, scripts(bundles))
    said = [answers_of(answers) for _, answers in batches]
    for name, (columns, rows) in expected.items():
        if name != BY_THE_CLOCK:
            found: Rows = Counter()
            for answers in said:
                found.update(counted(answers[name], columns))
            check(name, Counter({row: many for row, many in found.items() if many}), rows)
    arrived = [Counter(record["bidder"] for kind, record in bundle if kind == "bid") for bundle in bundles]
    increments = [{row["bidder"]: row["bids"] for row in answers[BY_THE_CLOCK].to_pylist()} for answers in said]
    assert increments == [*arrived, {}]
    assert len(said) == len(bundles) + 1
    assert all(part.dropped == 0 for progress, _ in batches for part in progress.parts.values())


def bundles_of(made: list[generator.Event], many: int) -> list[list[generator.Event]]:
    size = -(-len(made) // many)
    return [made[first : first + size] for first in range(0, len(made), size)]


def scripts(bundles: list[list[generator.Event]]) -> dict[str, MemoryScript]:
    """The events, 10 seconds by the clock for each bundle; then the end of the input."""
    end = Happening(watermark=END_OF_TIME, now=(len(bundles) + 1) * 10 * SECOND)
    return {
        kind: MemoryScript(
            [
                Happening([with_times(record) for which, record in bundle if which == kind], now=number * 10 * SECOND)
                for number, bundle in enumerate(bundles, 1)
            ]
            + [end]
        )
        for kind in SCHEMAS
    }


def with_times(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, **{name: moment(record[name]) for name in ("date_time", "expires") if name in record}}
