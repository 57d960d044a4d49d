"""Hints of dead letters: following one literally makes the record fit."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from millrace.edge.decode import JsonDecoder
from millrace.model.evaluate import evaluate
from millrace.model.expression import parse_expression
from millrace.model.schema import parse_schema

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECONDS = int(AT.timestamp())


def hint_of(type: str, text: str) -> str | None:
    _, (misfit,) = JsonDecoder(parse_schema({"x": type})).decode(pa.array([text]))
    return misfit.hint


@pytest.mark.parametrize(
    ("type", "value", "hint", "meant"),
    [
        ("TIMESTAMP", SECONDS, "declare it BIGINT and use timestamp_seconds(x)", AT),
        ("TIMESTAMP", SECONDS * 1000, "declare it BIGINT and use timestamp_millis(x)", AT),
        ("TIMESTAMP", str(SECONDS * 1000), "declare it BIGINT and use timestamp_millis(x)", AT),
        ("TIMESTAMP", SECONDS * 1_000_000, "declare it BIGINT and use timestamp_micros(x)", AT),
        ("BOOLEAN", 1, "declare it BIGINT and use x = 1", True),
        ("INT", 5_000_000_000, "declare it BIGINT", 5_000_000_000),
        ("TINYINT", 300, "declare it SMALLINT", 300),
        ("BIGINT", 2**63, "declare it DECIMAL(38,0)", 2**63),
        ("BIGINT", 5.5, "declare it DOUBLE", 5.5),
        ("BIGINT", "5.5", "declare it DOUBLE", 5.5),
        ("BIGINT", "5 s", "declare it STRING to keep the text", "5 s"),
        ("DOUBLE", "n/a", "declare it STRING to keep the text", "n/a"),
        (
            "TIMESTAMP",
            SECONDS + 0.5,
            "declare it DOUBLE and use timestamp_micros(CAST(x * 1000000 AS BIGINT)), if it is in seconds",
            AT.replace(microsecond=500_000),
        ),
    ],
)
def test_a_hint_says_what_to_declare_and_how_to_use_it(type: str, value: object, hint: str, meant: Any) -> None:
    text = json.dumps({"x": value})
    assert hint_of(type, text) == hint
    (declared,) = re.findall(r"declare it (\S+)", hint)
    schema = parse_schema({"x": declared})
    rows, misfits = JsonDecoder(schema).decode(pa.array([text]))
    assert misfits == []
    used = re.findall(r"use (.*?)(?:, if .*)?$", hint)
    assert evaluate(parse_expression(used[0] if used else "x", schema), rows.to_pylist()[0]) == meant


def test_a_hint_says_how_to_write_a_time() -> None:
    (hint,) = {hint_of("TIMESTAMP", text) for text in ('{"x": "31/01/2026"}', '{"x": 5}')}
    assert hint is not None
    (written,) = re.findall(r"like (\S+)", hint)
    rows, misfits = JsonDecoder(parse_schema("x TIMESTAMP")).decode(pa.array([json.dumps({"x": written})]))
    assert (rows["x"].to_pylist(), misfits) == ([AT], [])


def test_texts_that_are_no_objects_have_hints_if_the_cause_is_known() -> None:
    assert hint_of("BIGINT", '[{"x": 1}]') == "send each member of the array as a record of its own"
    assert hint_of("BIGINT", "{'x': 1}") == "write names and texts in double quotes, as JSON does"
    assert hint_of("BIGINT", "x") is None


def test_a_problem_leaves_out_the_values_of_the_record() -> None:
    _, misfits = JsonDecoder(parse_schema("x BIGINT")).decode(pa.array(['{"x": "a"}', '{"x": "b"}', "no"]))
    assert [(each.problem, each.reason) for each in misfits] == [
        ("x is not BIGINT", "x is not BIGINT: 'a'"),
        ("x is not BIGINT", "x is not BIGINT: 'b'"),
        ("it is not a JSON object", "it is not a JSON object: 'no'"),
    ]
