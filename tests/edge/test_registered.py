"""Records with schemas in a registry, as Confluent's own serializers write them: what is decoded, and what is not."""

import json
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

import registry
from millrace.edge.decode import Misfit
from millrace.edge.records import RecordDecoder, text_of
from millrace.model.errors import MachineError
from millrace.model.kafka import kafka
from millrace.model.registry import FORMAT, READER
from millrace.sources.bundle import Bundle, Encoded
from millrace.sources.kafka_cluster import opened, remember
from registry import SchemaRegistry

VALUE = SerializationContext("plays", MessageField.VALUE)
PLAY: dict[str, Any] = {
    "type": "record",
    "name": "Play",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "ms", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def registry_() -> Iterator[SchemaRegistry]:
    with registry.running() as started:
        yield started


def bundle_of(of: SchemaRegistry, values: Sequence[bytes | None], schema: str, format: str, **more: Any) -> Bundle:
    source = kafka("kafka://localhost:1/plays", schema, format=format, registry=of.url, **more)
    known, options = opened(remember(source)).registry, dict(source.options)
    assert known is not None
    encoded = Encoded(pa.array(values, pa.large_binary()), options[FORMAT], known, options.get(READER))
    return Bundle("plays/0", np.arange(len(values)), encoded=encoded)


def decoded(
    of: SchemaRegistry, values: Sequence[bytes | None], schema: str, format: str = "avro", **more: Any
) -> tuple[list[dict[str, Any]], list[Misfit]]:
    source = kafka("kafka://localhost:1/plays", schema, format=format, registry=of.url, **more)
    rows, misfits = RecordDecoder(source).decode(bundle_of(of, values, schema, format, **more))
    return rows.to_pylist(), misfits


def avro(of: SchemaRegistry, schema: Any, *records: dict[str, Any]) -> list[bytes]:
    """Records as Confluent's serializer writes them."""
    serialize = AvroSerializer(of.client(), json.dumps(schema))
    return [serialize(record, VALUE) for record in records]


def of_field(name: str, type: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Only", "fields": [{"name": name, "type": type, **more}]}


def test_avro_of_several_schemas(registry_: SchemaRegistry) -> None:
    longer = {**PLAY, "fields": [*PLAY["fields"], {"name": "track", "type": ["null", "string"], "default": None}]}
    longer["fields"][1] = {"name": "ms", "type": "long"}
    shorter = {**PLAY, "fields": PLAY["fields"][:1]}
    first = avro(registry_, PLAY, {"user": "ann", "ms": 1, "at": NOON}, {"user": "bob", "ms": 2, "at": NOON})
    second = avro(registry_, longer, {"user": "cid", "ms": 2**40, "at": NOON, "track": "Undertow"})
    third = avro(registry_, shorter, {"user": "dan"})
    rows, misfits = decoded(
        registry_, [first[0], *second, *third, first[1]], "user STRING NOT NULL, track STRING, ms BIGINT, at TIMESTAMP"
    )
    assert misfits == []
    assert rows == [
        {"user": "ann", "track": None, "ms": 1, "at": NOON},
        {"user": "cid", "track": "Undertow", "ms": 2**40, "at": NOON},
        {"user": "dan", "track": None, "ms": None, "at": None},
        {"user": "bob", "track": None, "ms": 2, "at": NOON},
    ]


@pytest.mark.parametrize(
    ("avro_type", "given", "type", "expected"),
    [
        ("boolean", True, "BOOLEAN", True),
        ("int", -5, "INT", -5),
        ("int", 5, "BIGINT", 5),
        ("int", 5, "DOUBLE", 5.0),
        ("long", 5, "INT", 5),
        ("long", 2**62, "DECIMAL(20, 0)", Decimal(2**62)),
        ("float", 0.5, "DOUBLE", 0.5),
        ("double", 0.1, "DOUBLE", 0.1),
        ("double", 0.5, "FLOAT", 0.5),
        ("string", "été", "STRING", "été"),
        ("bytes", b"\x00\xff", "BINARY", b"\x00\xff"),
        ("bytes", b"abc", "STRING", "abc"),
        (["null", "long"], None, "BIGINT", None),
        (["long", "null"], 7, "BIGINT", 7),
        (["null", "long", "string"], "x", "STRING", "x"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "STRING", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "BINARY", b"ab"),
        ({"type": "long", "logicalType": "timestamp-millis"}, NOON, "TIMESTAMP", NOON),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOON, "TIMESTAMP", NOON),
        (["null", {"type": "long", "logicalType": "timestamp-micros"}], None, "TIMESTAMP", None),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, NOON.replace(tzinfo=None), "TIMESTAMP", NOON),
        ({"type": "long", "logicalType": "timestamp-millis"}, NOON, "STRING", "2026-01-01T12:00:00+00:00"),
        ({"type": "int", "logicalType": "date"}, date(1969, 12, 31), "DATE", date(1969, 12, 31)),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("-12.50"), "DECIMAL(12, 3)", Decimal("-12.500"),
        ),
        ({"type": "string", "logicalType": "uuid"}, UUID(int=5), "STRING", str(UUID(int=5))),
        ({"type": "array", "items": "int"}, [1, 2], "ARRAY<BIGINT>", [1, 2]),
        ({"type": "array", "items": "int"}, [1, 2], "STRING", "[1, 2]"),
        ({"type": "map", "values": "long"}, {"a": 1}, "MAP<STRING, BIGINT>", [("a", 1)]),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]},
            {"a": 1, "b": "x"}, "STRUCT<a: INT, c: INT>", {"a": 1, "c": None},
        ),
    ],
)  # fmt: skip
def test_types_of_avro(registry_: SchemaRegistry, avro_type: Any, given: Any, type: str, expected: Any) -> None:
    values = avro(registry_, of_field("x", avro_type), {"x": given})
    assert decoded(registry_, values, f"x {type}") == ([{"x": expected}], [])


@pytest.mark.parametrize(
    ("avro_type", "given", "type", "reason", "hint"),
    [
        ("long", 2**40, "INT", "x is not INT: 1099511627776", "declare it BIGINT"),
        ("long", 1_767_268_800_000, "TIMESTAMP", "x is not TIMESTAMP: 1767268800000",
         "declare it BIGINT and use timestamp_millis(x)"),
        ("string", "5", "BIGINT", "x is not BIGINT: '5'", "declare it STRING, and convert it: CAST(x AS BIGINT)"),
        ("double", 5.0, "BIGINT", "x is not BIGINT: 5.0", "declare it DOUBLE"),
        ("boolean", True, "BIGINT", "x is not BIGINT: True", "declare it BOOLEAN"),
        ("bytes", b"\xff", "STRING", "x is not STRING: b'\\xff'", "declare it BINARY"),
        ({"type": "long", "logicalType": "timestamp-millis"}, NOON, "BIGINT",
         "x is not BIGINT: 2026-01-01T12:00:00+00:00", "declare it TIMESTAMP"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.25"), "DECIMAL(3, 1)",
         "x is not DECIMAL(3, 1): 1.25", "declare it DECIMAL(3, 2), or wider"),
        (["null", "long"], None, "BIGINT NOT NULL", "x is missing", None),
    ],
)  # fmt: skip
def test_values_of_avro_that_do_not_fit(
    registry_: SchemaRegistry, avro_type: Any, given: Any, type: str, reason: str, hint: str | None
) -> None:
    values = avro(registry_, of_field("x", avro_type), {"x": given})
    rows, (misfit,) = decoded(registry_, values, f"x {type}")
    assert rows == []
    assert misfit.reason.startswith(reason)
    assert misfit.hint == hint


def test_records_that_do_not_decode(registry_: SchemaRegistry) -> None:
    (good,) = avro(registry_, PLAY, {"user": "ann", "ms": 1, "at": NOON})
    protobuf = registry_.register("other", "syntax", "PROTOBUF")
    values = [
        None, b"", b"\x00\x00", b'{"user": "ann"}', struct.pack(">bI", 0, 99_999) + good[5:], good[:-1], good + b"x",
        struct.pack(">bI", 0, protobuf), good, good[:5] + b"\x02\xff" + good[7:],
    ]  # fmt: skip
    rows, misfits = decoded(registry_, values, "user STRING, ms BIGINT, at TIMESTAMP")
    assert rows == [{"user": "ann", "ms": 1, "at": NOON}]
    id = int.from_bytes(good[1:5], "big")
    assert [(each.row, each.problem, each.hint) for each in misfits] == [
        (0, "it has no value", None),
        (1, "it is too short for the wire format of a schema registry", None),
        (2, "it is too short for the wire format of a schema registry", None),
        (3, "its first byte is not 0, so it is not in the wire format of a schema registry",
         'read plain JSON with format="json"'),
        (4, "the schema registry has no schema 99999",
         "check that the producers use the schema registry that registry= names"),
        (5, f"it does not decode by schema {id}", None),
        (6, f"it does not decode by schema {id}", None),
        (7, f"its schema {protobuf} is PROTOBUF, not AVRO", 'read the topic with format="protobuf"'),
        (9, f"it does not decode by schema {id}", None),
    ]  # fmt: skip
    assert misfits[6].found == "1 bytes are left over"


def test_avro_read_by_a_version_of_a_subject(registry_: SchemaRegistry) -> None:
    newer = {
        "type": "record", "name": "Play",
        "fields": [
            {"name": "listener", "type": "string", "aliases": ["user"]}, {"name": "ms", "type": "double"},
            {"name": "country", "type": "string", "default": "DE"},
        ],
    }  # fmt: skip
    registry_.register("reading", PLAY)
    registry_.register("reading", newer)
    values = avro(registry_, PLAY, {"user": "ann", "ms": 1, "at": NOON})
    schema = "listener STRING, ms DOUBLE, country STRING"
    assert decoded(registry_, values, schema, reader="reading:2") == (
        [{"listener": "ann", "ms": 1.0, "country": "DE"}], [],
    )  # fmt: skip
    assert decoded(registry_, values, schema)[0] == [{"listener": None, "ms": 1.0, "country": None}]
    _, (misfit,) = decoded(registry_, values, schema, reader="reading:3")
    assert "has no version 3 of subject 'reading'" in misfit.reason


def test_avro_with_types_of_other_subjects(registry_: SchemaRegistry) -> None:
    place = {"type": "record", "name": "Place", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
    registry_.register("place", place)
    order = {"type": "record", "name": "Order", "fields": [{"name": "at", "type": "shop.Place"}]}
    content = {"schema": json.dumps(order), "references": [{"name": "shop.Place", "subject": "place", "version": 1}]}
    _, made = registry_.answer("POST", "/subjects/orders/versions", content)
    value = struct.pack(">bI", 0, made["id"]) + b"\x0aGhent"
    assert decoded(registry_, [value], "at STRUCT<city: STRING>") == ([{"at": {"city": "Ghent"}}], [])


def test_a_strict_source_refuses_unknown_fields(registry_: SchemaRegistry) -> None:
    values = avro(registry_, PLAY, {"user": "ann", "ms": 1, "at": NOON})
    rows, (misfit,) = decoded(registry_, values, "user STRING, m INT, at TIMESTAMP", strict=True)
    assert rows == []
    assert misfit.problem.startswith("unknown field 'ms'")


def test_json_with_a_schema(registry_: SchemaRegistry) -> None:
    schema = {"title": "Play", "type": "object", "properties": {"user": {"type": "string"}, "ms": {"type": "integer"}}}
    serialize = JSONSerializer(json.dumps(schema), registry_.client())
    values = [serialize({"user": "ann", "ms": 5}, VALUE), serialize({"user": "bob"}, VALUE)]
    broken = values[0][:-1]
    rows, (misfit,) = decoded(registry_, [values[0], broken, values[1]], "user STRING, ms BIGINT", "json-schema")
    assert rows == [{"user": "ann", "ms": 5}, {"user": "bob", "ms": None}]
    assert (misfit.row, misfit.problem) == (1, "it is not a JSON object")
    assert text_of(bundle_of(registry_, values, "user STRING", "json-schema"), 0) == '{"user":"ann","ms":5}'


def _protobuf() -> Any:
    """The classes of a file with an import, nested messages, a map, an enum and optional fields."""
    file = descriptor_pb2.FileDescriptorProto(
        name="plays.proto", syntax="proto3", package="music",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
    )  # fmt: skip
    kind = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Skip").field.add(name="why", number=1, type=kind.TYPE_STRING, label=1)
    play = file.message_type.add(name="Play")
    play.enum_type.add(name="Kind").value.add(name="SONG", number=0)
    play.enum_type[0].value.add(name="TALK", number=1)
    play.oneof_decl.add(name="_stars")
    inner = play.nested_type.add(name="Place")
    inner.field.add(name="city", number=1, type=kind.TYPE_STRING, label=1)
    fields: list[tuple[str, Any, dict[str, Any]]] = [
        ("user", kind.TYPE_STRING, {}),
        ("ms", kind.TYPE_INT64, {}),
        ("stars", kind.TYPE_INT32, {"proto3_optional": True, "oneof_index": 0}),
        ("at", kind.TYPE_MESSAGE, {"type_name": ".google.protobuf.Timestamp"}),
        ("price", kind.TYPE_MESSAGE, {"type_name": ".google.protobuf.DoubleValue"}),
        ("kind", kind.TYPE_ENUM, {"type_name": ".music.Play.Kind"}),
        ("place", kind.TYPE_MESSAGE, {"type_name": ".music.Play.Place"}),
        ("big", kind.TYPE_UINT64, {}),
    ]  # fmt: skip
    for number, (name, type, more) in enumerate(fields, 1):
        play.field.add(name=name, number=number, type=type, label=1, **more)
    play.field.add(name="tags", number=20, type=kind.TYPE_STRING, label=3)
    pool = descriptor_pool.DescriptorPool()
    for needed in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(needed.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClassesForFiles(["plays.proto"], pool)


def test_protobuf(registry_: SchemaRegistry) -> None:
    classes = _protobuf()
    play, skip = classes["music.Play"], classes["music.Skip"]
    place = message_factory.GetMessageClass(play.DESCRIPTOR.nested_types_by_name["Place"])
    client = registry_.client()
    conf = {"use.deprecated.format": False, "skip.known.types": True}
    full = play(user="ann", ms=5, stars=0, kind=1, place={"city": "Ghent"}, tags=["a", "b"], big=2**63)
    full.at.FromDatetime(NOON)
    full.price.value = 1.5
    values = [ProtobufSerializer(play, client, conf)(each, VALUE) for each in (full, play(ms=7))]
    values += [ProtobufSerializer(skip, client, conf)(skip(why="dull"), VALUE)]
    values += [ProtobufSerializer(place, client, conf)(place(city="Bruges"), VALUE)]
    schema = (
        "user STRING, ms BIGINT, stars INT, at TIMESTAMP, price DOUBLE, kind STRING, place STRUCT<city: STRING>, "
        "tags ARRAY<STRING>, why STRING, city STRING"
    )
    rows, misfits = decoded(registry_, values, schema, "protobuf")
    assert misfits == []
    assert rows == [
        {"user": "ann", "ms": 5, "stars": 0, "at": NOON, "price": 1.5, "kind": "TALK", "place": {"city": "Ghent"},
         "tags": ["a", "b"], "why": None, "city": None},
        {"user": "", "ms": 7, "stars": None, "at": None, "price": None, "kind": "SONG", "place": None, "tags": [],
         "why": None, "city": None},
        {**dict.fromkeys(rows[0]), "why": "dull"},
        {**dict.fromkeys(rows[0]), "city": "Bruges"},
    ]  # fmt: skip
    wrong = [values[0][:-1], values[0][:5] + b"\x02\x08" + values[0][7:], values[0][:5] + b"\x02", values[0][:5]]
    _, misfits = decoded(registry_, wrong, schema, "protobuf")
    assert [each.problem[:26] for each in misfits] == ["it does not decode by sche"] * 4
    _, (misfit,) = decoded(registry_, values[:1], "big BIGINT", "protobuf")
    assert misfit.reason == f"big is not BIGINT: {2**63}"
    shown = text_of(bundle_of(registry_, values, "user STRING", "protobuf"), 0)
    assert shown is not None
    assert json.loads(shown)["at"] == "2026-01-01T12:00:00+00:00"


def test_a_column_that_no_schema_has_is_seen(registry_: SchemaRegistry) -> None:
    values = [*avro(registry_, PLAY, {"user": "ann", "ms": 1, "at": NOON}), b"x"]
    source = kafka("kafka://localhost:1/plays", "usr STRING, ms INT", format="avro", registry=registry_.url)
    looked = RecordDecoder(source).look(bundle_of(registry_, values, "usr STRING, ms INT", "avro"))
    assert looked.never == ["usr"]
    assert looked.unknown == {"user": 1, "at": 1}


def test_a_dead_letter_shows_the_record(registry_: SchemaRegistry) -> None:
    values = [*avro(registry_, PLAY, {"user": "ann", "ms": 1, "at": NOON}), b"\x00\x00\x00\x00\x01"]
    bundle = bundle_of(registry_, values, "user BIGINT", "avro")
    assert text_of(bundle, 0) == '{"user": "ann", "ms": 1, "at": "2026-01-01T12:00:00+00:00"}'
    assert text_of(bundle, 1) is None


def test_trouble_of_the_registry_is_no_misfit() -> None:
    with registry.running("ann:secret") as started:
        value = struct.pack(">bI", 0, 1)
        with pytest.raises(MachineError, match="refuses the client: 401"):
            decoded(started, [value], "x INT")
        right = {"schema.registry.basic.auth.user.info": "ann:secret"}
        assert decoded(started, [value], "x INT", options=right)[1][0].problem == "the schema registry has no schema 1"
        url = started.url
    with pytest.raises(MachineError, match=r"cannot be used: .*refused") as trouble:
        decoded(started, [struct.pack(">bI", 0, 2)], "x INT", options=right)
    assert url in str(trouble.value)
    assert "secret" not in str(trouble.value)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((500, {"error_code": 50001}), "cannot be used: it answers 500"),
        ((404, {"error_code": 404}), "cannot be used: it answers 404"),
        ((301, {"to": "http://127.0.0.1:1/"}), "cannot be used: it answers 301"),
        ((200, ["no schema"]), "answers with something that is no schema"),
        ((200, {"id": 1}), "answers with something that is no schema"),
    ],
)
def test_a_registry_in_trouble(answer: tuple[int, Any], problem: str) -> None:
    with registry.running() as started:
        started.refuses = answer
        with pytest.raises(MachineError, match=problem):
            decoded(started, [struct.pack(">bI", 0, 1)], "x INT")


def test_a_schema_is_asked_for_once(registry_: SchemaRegistry) -> None:
    values = avro(registry_, of_field("once", "int"), {"once": 1})
    id = int.from_bytes(values[0][1:5], "big")
    for _ in range(3):
        assert decoded(registry_, values * 3, "once INT") == ([{"once": 1}] * 3, [])
    assert registry_.asked.count(f"GET /schemas/ids/{id}") == 1
