"""JSON that Spark reads in real-time mode: what it surely reads has the value that Millrace's decoder gives it."""

import json
import random
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.edge.decode import JsonDecoder
from millrace.formats.texts import as_texts
from millrace.model.kafka import kafka
from millrace.spark.session import separate
from millrace.spark.sure_json import sure_rows

SCHEMA = "user STRING NOT NULL, n BIGINT, small INT, x DOUBLE, ok BOOLEAN, day DATE, at TIMESTAMP"
USUAL = {
    "user": ['"ann"', '"caf\\u00e9"', '"\\ud83d\\ude00"', '"a\\"b"', '"{"', '"naïve"', '"5"', '""', '"1.50"'],
    "n": ["5", "-17", '"12"', "0", "9223372036854775807", "null"],
    "small": ["5", "-2147483648", '"7"', "null"],
    "x": ["1.5", "2", "-0.0", "1e300", '"3.25"', "0.1", "12345678901234567890.5"],
    "ok": ["true", "false", '"true"', "null"],
    "day": ['"2026-01-31"', '"1999-12-31"'],
    "at": ['"2026-01-01T12:00:00Z"', '"2026-01-01T12:00:00.123456Z"', '"2026-06-01T01:02:03.5+02:00"', "null",
           '"2026-01-01T12:00:00"', '"2026-01-01"', '"2026-01-01 12:00:00.25"'],
}  # fmt: skip
ODD = {
    "user": ["5", "1.50", "1e2", "true", "[1, 2]", '{"a": 1}', '"\\ud800"', "null", '"a\\u0000b"', '" 5 "', "-0",
             '{ "b":[ 1.50 ,"x\\u00e9"]}', "-1.5E3", "[]", "0.10", "1e400", "-0.0"],
    "n": ["5.0", "1e2", '"5 "', '" 5"', '"5\\n"', '"0x5"', "9223372036854775808", '"007"', "true", '""', '"+5"', "{}"],
    "small": ["2147483648", '"5L"', "5.5", '"1_000"', "[]"],
    "x": ['"NaN"', "1e999", '"1d"', '"0x1p3"', '"Infinity"', '"1."', '".5"', "true", '" 1.5"', '"inf"', '"1f"'],
    "ok": ['"TRUE"', "1", '"yes"', '"t"', '"true "'],
    "day": ['"2026-02-30"', '"2026-1-1"', '"2026-01-01T00:00:00"', "20260101", '"1899-12-31"', '"0000-01-01"',
            '"today"', '" 2026-01-01"', '"2026-01-01\\n"'],
    "at": ['"2026-02-30T12:00:00Z"', '"2026-01-01"', '"2026-01-01 12:00:00"', "1767268800", '"now"', '"epoch"',
           '"2026-01-01T24:00:00Z"', '"2026-01-01T12:00:60Z"', '"2026-01-01T12:00:00+99:00"', '"12:00:00"',
           '"2026-01-01T12:00:00.1234567Z"', '"2026-01-01T12:00:00 UTC"', '"1850-01-01T00:00:00Z"',
           '"2026-01-01T12:00:00Z\\n"', '"10000-01-01T00:00:00Z"', '"2026-01-01T12:00:00+18:00"'],
}  # fmt: skip
BROKEN = [
    b"", b"null", b"[]", b"5", b'"a"', b"{", b"{}", b"[{}]", b'{"user":"a"', b'{"user":"a",}', b'{"user":"a"} x',
    b'{"user":"a"} {"user":"b"}', b'{"user":"a"}{}', b'{"user":"a"}] {}', b'{"user":"a"},{"user":"b"}',
    b'{"user":"a"}}', b"{'user':'a'}", b'{user:"a"}', b'{"user":"a","x":NaN}', b'{"user":"a" /* no */}',
    b'{"user":"a","user":"b"}', b'{"user":"a","\\u0075ser":"b"}', b'{"n":1,"n":2,"user":"a"}', b'\xff{"user":"a"}',
    b'{"user":"\xff"}', b'{"user":"\xed\xa0\x80"}', b' \t\r\n{"user":"a"} \n', b'\x0c{"user":"a"}', b'{"user":"a"}\x00',
    b'{"user":"a\nb"}', b'{"user":"a","other":{"user":"b","n":7}}', b'{"user":"a","n":05}', b'{"user":"a","n":+5}',
    b'\xef\xbb\xbf{"user":"a"}', b'{"User":"a"}', b'{"USER":"b","user":"a"}', b'{"user":"a","x":[1,2,{"n":3}]}',
    b'{"user":"a","n":1,"__end":"b"}', b'{"user":"\\q"}', b'{"user":"a","n":' + b"1" * 2000 + b"}",
    b'{"user":"a","deep":' + b"[" * 1500 + b"]" * 1500 + b"}",
]  # fmt: skip


def records(many: int, seed: int) -> list[bytes | None]:
    random_ = random.Random(seed)
    made: list[bytes | None] = [None, *BROKEN]
    for _ in range(many):
        fields = []
        for name in USUAL:
            pool = ODD if random_.random() < 0.08 else USUAL
            if random_.random() < 0.9 or name == "user":
                fields.append(f'"{name}": {random_.choice(pool[name])}')
        random_.shuffle(fields)
        text = "{" + ", ".join(fields) + "}"
        made.append(text.encode() if random_.random() < 0.95 else text[: random_.randrange(len(text))].encode())
    return made


def test_what_spark_surely_reads_is_what_millrace_reads(spark: SparkSession) -> None:
    values = records(1500, seed=17)
    for strict in (False, True):
        source = kafka("kafka://localhost:9092/plays", SCHEMA, strict=strict)
        own = separate(spark)
        rows = [(None, value, "plays", 0, offset, datetime.now(UTC), 0) for offset, value in enumerate(values)]
        kind = (
            "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
            "timestampType INT"
        )
        found = sure_rows(own.createDataFrame(rows, kind), source, "no record has this").toArrow()
        texts = as_texts(pa.array(values, pa.large_binary()))
        decoded, misfits = JsonDecoder(source.value_schema, strict=strict).decode(texts)
        wrong = {misfit.row for misfit in misfits}
        fitting = iter(decoded.to_pylist())
        expected = {row: None if row in wrong else next(fitting) for row in range(len(values))}
        sure = 0
        for row in found.to_pylist():
            if row["__bad"] is None:
                sure += 1
                given = {name: row[name] for name in source.schema.names}
                assert given == expected[row["__offset"]], (values[row["__offset"]], json.dumps(given, default=str))
        usual = sum(each is not None for each in expected.values())
        assert sure > usual * 0.9  # most records that fit are sure
