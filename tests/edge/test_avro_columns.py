"""Avro read in columns, compared with fastavro alone: on random records, and on records with wrong bytes."""

import json
from datetime import date
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from millrace.edge.avro import AvroRows
from millrace.edge.held import Columns
from millrace.formats.avro_columns import read_flat
from millrace.model.schema import parse_schema as columns_of

FIELDS: list[tuple[str, Any, st.SearchStrategy[Any], str]] = [
    ("b", "boolean", st.booleans(), "BOOLEAN"),
    ("i", "int", st.integers(-(2**31), 2**31 - 1), "SMALLINT"),
    ("n", "long", st.integers(-(2**63), 2**63 - 1), "BIGINT"),
    ("f", "float", st.floats(width=32), "DOUBLE"),
    ("x", "double", st.floats(), "DOUBLE"),
    ("s", {"type": "string", "avro.java.string": "String"}, st.text(), "STRING"),
    ("y", "bytes", st.binary(), "BINARY"),
    ("t", {"type": "long", "logicalType": "timestamp-millis"}, st.integers(-(10**14), 10**16), "TIMESTAMP"),
    ("d", {"type": "int", "logicalType": "date"}, st.integers(-(2**31), 2**31 - 1), "DATE"),
    ("u", "string", st.text(), ""),
]  # fmt: skip


def schema_of(nulls: list[int | None]) -> dict[str, Any]:
    fields = []
    for (name, kind, _, _), null in zip(FIELDS, nulls, strict=True):
        union = [kind, "null"] if null else ["null", kind]
        fields.append({"name": name, "type": kind if null is None else union})
    return {"type": "record", "name": "R", "fields": fields}


def plain(schema: dict[str, Any]) -> Any:
    """The same schema without logical types, to write numbers of any size."""
    return parse_schema(json.loads(json.dumps(schema).replace('"logicalType"', '"other"')))


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], str, list[bytes]]:
    """A schema, columns, and records, some of them with other bytes, cut off, or longer."""
    nulls = [draw(st.sampled_from([None, 0, 1])) for _ in FIELDS]
    schema = schema_of(nulls)
    required = draw(st.booleans())
    columns = ", ".join(f"{name} {type}{' NOT NULL' if required else ''}" for name, _, _, type in FIELDS if type)
    bodies = []
    for _ in range(draw(st.integers(0, 6))):
        row = {}
        for (name, _, values, _), null in zip(FIELDS, nulls, strict=True):
            row[name] = None if null is not None and draw(st.booleans()) else draw(values)
        file = BytesIO()
        schemaless_writer(file, plain(schema), row)
        body = bytearray(file.getvalue())
        match draw(st.sampled_from(["whole", "whole", "other", "cut", "longer"])):
            case "other":
                body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
            case "cut":
                del body[draw(st.integers(0, len(body) - 1)) :]
            case "longer":
                body += draw(st.binary(min_size=1, max_size=3))
        bodies.append(bytes(body))
    return schema, columns, bodies


def rows_of(schema: dict[str, Any], columns: str) -> AvroRows:
    return AvroRows(Columns(columns_of(columns), False, "it does not decode"), json.dumps(schema), [], None, [])


@given(cases())
def test_columns_are_read_as_fastavro_reads_them(case: tuple[dict[str, Any], str, list[bytes]]) -> None:
    schema, columns, bodies = case
    rows = rows_of(schema, columns)
    table, misfits = rows.read(pa.array(bodies, pa.large_binary()))
    expected, others = rows.parse(bodies)
    assert table.schema == expected.schema
    assert repr(table.to_pylist()) == repr(expected.to_pylist())
    assert misfits == sorted(others, key=lambda each: each.row)


@pytest.mark.parametrize("null", [None, 0, 1])
def test_good_records_need_no_fastavro(null: int | None) -> None:
    schema = schema_of([null] * len(FIELDS))
    row = {"b": True, "i": 1, "n": -5, "f": 0.5, "x": 0.1, "s": "é", "y": b"\xff", "t": 0, "d": 1, "u": ""}
    rows = rows_of(schema, "i SMALLINT, s STRING, d DATE")
    bodies = []
    for each in [row, row if null is None else dict.fromkeys(row)]:
        file = BytesIO()
        schemaless_writer(file, plain(schema), each)
        bodies.append(file.getvalue())
    assert rows._flat is not None
    _, good = read_flat(pa.array(bodies, pa.large_binary()), rows._flat)
    assert good.tolist() == [True, True]
    assert rows.read(pa.array(bodies, pa.large_binary()))[0].to_pylist()[0] == {"i": 1, "s": "é", "d": date(1970, 1, 2)}


def test_a_branch_that_the_union_does_not_have_is_no_value() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "long"]}]}
    table, (misfit,) = rows_of(schema, "x BIGINT").read(pa.array([b"\x04\x06", b"\x02\x06"], pa.large_binary()))
    assert (table.to_pylist(), misfit.row) == ([{"x": 3}], 0)


@pytest.mark.parametrize(
    ("kind", "type"),
    [
        ("long", "DOUBLE"), ("double", "FLOAT"), ({"type": "string", "logicalType": "uuid"}, "STRING"),
        ({"type": "array", "items": "int"}, "STRING"), (["null", "int", "string"], "STRING"), ("long", "TIMESTAMP"),
    ],
)  # fmt: skip
def test_other_types_are_left_to_fastavro(kind: Any, type: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    assert rows_of(schema, f"x {type}")._flat is None
