"""Values that a Kafka sink writes with a schema registry: Confluent's own deserializers read them."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

import registry
from brokers import Kafka
from millrace import MachineError, PipelineError, memory, to_kafka
from millrace.model.arrow import arrow_schema
from millrace.model.connectors import Commit
from millrace.spark.kafka_records import AnswerRecords
from millrace.spark.kafka_values import Values
from millrace.spark.kafkasink import KafkaWriter
from millrace.spark.sent import Sent
from registry import SchemaRegistry

ROWS = memory(
    "rows",
    "s STRING, n BIGINT, i SMALLINT, x DOUBLE, f FLOAT, b BOOLEAN, y BINARY, d DATE, t TIMESTAMP, p DECIMAL(9, 2), "
    "a ARRAY<INT>, m MAP<STRING, ARRAY<MAP<STRING, INT>>>, r STRUCT<c: STRING, q: STRUCT<z: INT>>",
)
FULL: dict[str, Any] = {
    "s": "été", "n": 2**62, "i": -3, "x": 0.1, "f": 0.5, "b": True, "y": b"\x00\xff", "d": date(1969, 12, 31),
    "t": datetime(2026, 1, 1, 12, 0, 0, 1, UTC), "p": Decimal("-12.50"), "a": [1, None], "m": [("k", [[("z", 1)]])],
    "r": {"c": "x", "q": {"z": 1}},
}  # fmt: skip
EMPTY: dict[str, Any] = dict.fromkeys(FULL)


@pytest.fixture(scope="module")
def registry_() -> Iterator[SchemaRegistry]:
    with registry.running() as started:
        yield started


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), arrow_schema(ROWS.schema))


def written(kafka_: Kafka, of: SchemaRegistry, format: str, folder: Path) -> tuple[str, list[bytes]]:
    topic = kafka_.topic()
    sink = to_kafka(kafka_.url(topic), key="s", format=format, registry=of.url)
    writer = KafkaWriter(sink, "sink", AnswerRecords(sink, ROWS), "p", Sent.beside(folder / "c"))
    writer.write(table(FULL, EMPTY), Commit("p", "c", 0, "d"), True)
    writer.write(table(FULL), Commit("p", "c", 1, "d"), True)
    messages = kafka_.messages(topic)
    assert [each.key() for each in messages] == ["été".encode(), None, "été".encode()]
    return topic, [each.value() or b"" for each in messages]


def test_avro_as_others_read_it(kafka_: Kafka, registry_: SchemaRegistry, tmp_path: Path) -> None:
    topic, values = written(kafka_, registry_, "avro", tmp_path)
    read = AvroDeserializer(registry_.client())
    found = [read(value, SerializationContext(topic, MessageField.VALUE)) for value in values]
    assert found == [{**FULL, "m": {"k": [{"z": 1}]}}, EMPTY, {**FULL, "m": {"k": [{"z": 1}]}}]
    assert len(registry_.subjects[f"{topic}-value"]) == 1


def test_json_with_a_schema_as_others_read_it(kafka_: Kafka, registry_: SchemaRegistry, tmp_path: Path) -> None:
    topic, values = written(kafka_, registry_, "json-schema", tmp_path)
    schema = registry_.schemas[registry_.subjects[f"{topic}-value"][0] - 1]["schema"]
    read = JSONDeserializer(schema, schema_registry_client=registry_.client())
    full, empty, _ = [read(value, SerializationContext(topic, MessageField.VALUE)) for value in values]
    assert empty == EMPTY
    assert (full["n"], full["t"], full["p"]) == (2**62, "2026-01-01T12:00:00.000001+00:00", "-12.50")
    assert json.loads(schema)["properties"]["n"] == {"type": ["integer", "null"]}


def test_a_registry_that_refuses_a_schema(registry_: SchemaRegistry) -> None:
    sink = to_kafka("kafka://localhost:1/refused", format="avro", registry=registry_.url)
    values = Values(sink, arrow_schema(ROWS.schema))
    registry_.refuses = 409, {"error_code": 409, "message": "incompatible with version 1"}
    try:
        with pytest.raises(PipelineError, match=r"refuses the schema of 'refused-value': incompatible with version 1"):
            values.of(table(FULL))
        registry_.refuses = 503, {}
        with pytest.raises(MachineError, match="it answers 503"):
            values.of(table(FULL))
    finally:
        registry_.refuses = None


@pytest.mark.parametrize(
    ("schema", "arguments", "problem"),
    [
        ("`a b` INT", {}, "Avro has no field with the name 'a b'"),
        ("m MAP<INT, INT>", {}, "Avro has no type for 't_m'"),
        ("n INT", {"format": "protobuf"}, "does not write Protobuf"),
        ("n INT", {"registry": None}, "needs a schema registry"),
        ("n INT", {"registry": "http://ann:hunter2@there"}, "has no user"),
        ("n INT", {"options": {"schema.registry.token": "hunter2"}}, "unknown property of a schema registry"),
    ],
)
def test_what_cannot_be_written(schema: str, arguments: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"format": "avro", "registry": "http://there", **arguments}
    with pytest.raises(PipelineError, match=problem) as refused:
        AnswerRecords(to_kafka("kafka://localhost:1/t", **given), memory("rows", schema))
    assert "hunter2" not in str(refused.value)
