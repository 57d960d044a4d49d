"""Decoding the same records as JSON, JSON with a schema, Avro and Protobuf, on one core.

The figures are records a second of CPU, the best of several turns, beside those of plain JSON by turns.
"""

import json
import struct
import time
from base64 import b64encode
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from bench.figures import Figure, figure
from millrace import kafka
from millrace.edge.avro import AvroRows
from millrace.edge.held import Columns
from millrace.edge.records import RecordDecoder
from millrace.formats import compiled
from millrace.formats.texts import as_texts
from millrace.model.schema import parse_schema as parse_columns
from millrace.model.stream import Source
from millrace.sources.bundle import Bundle, Encoded
from millrace.sources.registry import Registered, Registry

MANY, TURNS = 100_000, 5
SCHEMA = "user STRING NOT NULL, track STRING, ms BIGINT, at TIMESTAMP"
_HEAD = struct.pack(">bI", 0, 1)
_ALONE = "avro, by fastavro alone"
_START = 1_767_225_600_000
AVRO = {
    "type": "record",
    "name": "Play",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "track", "type": ["null", "string"]},
        {"name": "ms", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


class _Known(Registry):
    """A registry that needs no server: it knows one schema."""

    def __init__(self, type: str, text: str) -> None:
        super().__init__(["http://localhost"], {})
        self._schemas[1] = Registered(type, text)


def run() -> list[Figure]:
    """Decode all formats by turns."""
    rows = [
        {"user": f"user-{n % 5000}", "track": f"track {n % 100}", "ms": n * 100, "at": _START + n} for n in range(MANY)
    ]
    texts = [json.dumps({**row, "at": _moment(row["at"])}).encode() for row in rows]
    bundles = {
        "json": _plain(texts),
        "json-schema": _encoded(texts, "json-schema", "JSON", "{}"),
        "avro": _encoded(_avro(rows), "avro", "AVRO", json.dumps(AVRO)),
        "protobuf": _encoded(*_protobuf(rows)),
    }
    compiled.kernel()  # else it would be there after some turns
    best = dict.fromkeys([*bundles, _ALONE], float("inf"))
    alone = AvroRows(Columns(parse_columns(SCHEMA), False, "it does not decode"), json.dumps(AVRO), [], None, [])
    bodies = _avro(rows)
    decoders = {format: RecordDecoder(_source(format)) for format in bundles}
    for _ in range(TURNS):
        for format, bundle in bundles.items():
            began = time.process_time()
            decoded, misfits = decoders[format].decode(bundle)
            best[format] = min(best[format], time.process_time() - began)
            assert len(decoded) == MANY, misfits[:1]
        began = time.process_time()
        alone.parse(bodies)
        best[_ALONE] = min(best[_ALONE], time.process_time() - began)
    plain = MANY / best.pop("json")
    return [
        figure(f"decoding four fields: {format}, beside plain JSON", MANY / spent, plain, "records/s of CPU")
        for format, spent in best.items()
    ]


def _moment(at: Any) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")


def _source(format: str) -> Source:
    more = {} if format == "json" else {"format": format, "registry": "http://localhost"}
    return kafka("kafka://localhost:1/plays", SCHEMA, **more)  # type: ignore[arg-type]


def _plain(values: list[bytes]) -> Bundle:
    return Bundle("plays/0", np.arange(MANY), as_texts(pa.array(values, pa.large_binary())))


def _encoded(values: list[bytes], format: str, type: str, text: str) -> Bundle:
    array = pa.array([_HEAD + value for value in values], pa.large_binary())
    return Bundle("plays/0", np.arange(MANY), encoded=Encoded(array, format, _Known(type, text)))


def _avro(rows: list[dict[str, Any]]) -> list[bytes]:
    parsed, made = parse_schema(AVRO), []
    for row in rows:
        file = BytesIO()
        schemaless_writer(file, parsed, row)
        made.append(file.getvalue())
    return made


def _protobuf(rows: list[dict[str, Any]]) -> tuple[list[bytes], str, str, str]:
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="plays.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    play = file.message_type.add(name="Play")
    for number, (name, type) in enumerate(
        [("user", kind.TYPE_STRING), ("track", kind.TYPE_STRING), ("ms", kind.TYPE_INT64)], 1
    ):
        play.field.add(name=name, number=number, type=type, label=1)
    play.field.add(name="at", number=4, type=kind.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Timestamp")
    pool = descriptor_pool.Default()
    pool.FindFileByName(timestamp_pb2.DESCRIPTOR.name)
    pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("Play"))
    values = []
    for row in rows:
        made: Any = message(user=row["user"], track=row["track"], ms=row["ms"])
        made.at.FromMilliseconds(row["at"])
        values.append(b"\x00" + made.SerializeToString())
    return values, "protobuf", "PROTOBUF", b64encode(file.SerializeToString()).decode()
