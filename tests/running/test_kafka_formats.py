"""Pipelines over topics with a schema registry: answers, dead letters and their topic, and a registry that is down."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

import registry
from brokers import Kafka
from millrace import MachineError, Pipeline, PipelineError, agg, kafka, on, to_kafka, window
from millrace.letters.box import box_of
from millrace.plan.compile import compile
from millrace.plan.explain import explain
from millrace.spark import batch
from millrace.views.store import open_store
from registry import SchemaRegistry
from stream_run import run

pytestmark = pytest.mark.spark
PLAY: dict[str, Any] = {
    "type": "record",
    "name": "Play",
    "fields": [{"name": "track", "type": "string"}, {"name": "ms", "type": "long"}],
}
SECRET = {"schema.registry.basic.auth.user.info": "ann:hunter2"}


@pytest.fixture
def registry_() -> Iterator[SchemaRegistry]:
    with registry.running() as started:
        yield started


def avro(of: SchemaRegistry, topic: str, *records: dict[str, Any]) -> list[bytes]:
    serialize = AvroSerializer(of.client(), json.dumps(PLAY))
    return [serialize(record, SerializationContext(topic, MessageField.VALUE)) for record in records]


def headers(message: Message) -> dict[str, str]:
    found: Any = message.headers() or ()
    return {name: value.decode() for name, value in found}


def charts(kafka_: Kafka, of: SchemaRegistry, topic: str, dead: str, expression: str = "ms") -> Pipeline:
    plays = kafka(
        kafka_.url(topic), "track STRING NOT NULL, ms BIGINT", format="avro", registry=of.url, options=SECRET,
        metadata={"offset": "offset"},
    )  # fmt: skip
    totals = plays.group_by("track").window(window.all_time()).trigger(on.each()).accumulating()
    return Pipeline(
        "charts", views={"totals": totals.aggregate(total=agg.sum(expression))}, dead_letters=to_kafka(kafka_.url(dead))
    )


def totals(store: Path) -> list[tuple[Any, ...]]:
    with closing(open_store(store)) as opened:
        return list(opened.query("SELECT track, total FROM totals ORDER BY track").rows)


def test_answers_and_dead_letters(
    spark: SparkSession, kafka_: Kafka, registry_: SchemaRegistry, tmp_path: Path
) -> None:
    topic, dead, store = kafka_.topic(), kafka_.topic(), tmp_path / "views.db"
    good = avro(registry_, topic, {"track": "a", "ms": 1}, {"track": "b", "ms": 2}, {"track": "a", "ms": 4})
    bad = [b"no wire", good[0] + b"x", b"\x00\x00\x01\x00\x00"]
    kafka_.send(topic, [*good[:2], bad[0], good[2], *bad[1:], None])
    registry_.user = "ann:hunter2"
    pipeline = charts(kafka_, registry_, topic, dead)
    run(spark, pipeline, tmp_path, store=store)
    assert totals(store) == [("a", 5), ("b", 2)]
    letters = box_of(tmp_path, "charts").letters()
    assert [(each.rejected.offset, each.rejected.reason) for each in letters] == [
        (2, "its first byte is not 0, so it is not in the wire format of a schema registry: b'no wire'"),
        (4, "it does not decode by schema 1: 1 bytes are left over"),
        (5, "the schema registry has no schema 65536"),
        (6, "it has no value"),
    ]
    sent = kafka_.messages(dead)
    assert [each.value() for each in sent] == [*bad, None]
    assert {name: each for name, each in headers(sent[1]).items() if name != "millrace.time"} == {
        "millrace.pipeline": "charts", "millrace.reason": "it does not decode by schema 1: 1 bytes are left over",
        "millrace.topic": topic, "millrace.partition": "0", "millrace.offset": "4",
    }  # fmt: skip
    assert headers(sent[2])["millrace.hint"].startswith("check that the producers")
    kafka_.send(topic, [*good, b"worse"])
    run(spark, pipeline, tmp_path, store=store)
    assert totals(store) == [("a", 10), ("b", 4)]
    assert [each.value() for each in kafka_.messages(dead)] == [*bad, None, b"worse"]
    found = batch.run(spark, pipeline)
    assert len(found.dead_letters) == 5
    assert [each.value() for each in kafka_.messages(dead)][5:] == [*bad, None, b"worse"]
    shown = explain(pipeline) + repr(pipeline) + json.dumps(compile(pipeline).fingerprint())
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "hunter2" not in shown
    assert b"hunter2" not in stored


def test_a_registry_that_is_down_stops_a_run_and_loses_nothing(
    spark: SparkSession, kafka_: Kafka, registry_: SchemaRegistry, tmp_path: Path
) -> None:
    topic, dead, store = kafka_.topic(), kafka_.topic(), tmp_path / "views.db"
    registry_.register("other", {"type": "record", "name": "Other", "fields": []})
    kafka_.send(topic, avro(registry_, topic, {"track": "a", "ms": 2**62}, {"track": "b", "ms": 7}))
    registry_.stop()
    pipeline = charts(kafka_, registry_, topic, dead, "ms * 4")
    with pytest.raises(MachineError, match=r"the schema registry at .* cannot be used.*nothing was lost"):
        run(spark, pipeline, tmp_path, store=store)
    registry_.start()
    run(spark, pipeline, tmp_path, store=store)
    assert totals(store) == [("b", 28)]
    (letter,) = box_of(tmp_path, "charts").letters()
    assert letter.rejected.value == '{"track": "a", "ms": 4611686018427387904}'
    (sent,) = kafka_.messages(dead)
    assert headers(sent)["millrace.output"] == letter.rejected.output
    assert sent.value() == avro(registry_, topic, {"track": "a", "ms": 2**62})[0]


def test_dead_letters_that_no_topic_can_take(registry_: SchemaRegistry) -> None:
    plays = kafka("kafka://localhost:9092/^plays", "n BIGINT")
    total = plays.window(window.all_time()).aggregate(n=agg.count())
    for sink, problem in (
        (to_kafka("kafka://localhost:9092/plays-dead"), "the pipeline reads topic 'plays-dead'"),
        (to_kafka("kafka://localhost:9092/dead", key="n"), "are for answers"),
        ("kafka://localhost:9092/dead", "takes a topic of Kafka"),
    ):
        with pytest.raises(PipelineError, match=problem):
            Pipeline("p", views={"v": total}, dead_letters=sink)  # type: ignore[arg-type]
