"""Records that fit become columns; those that do not are set aside with the reason, and nothing is altered."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from millrace import PipelineError
from millrace.edge.decode import JsonDecoder, look_like_objects
from millrace.model.schema import parse_schema

SCHEMA = parse_schema("i BIGINT, n INT, d DOUBLE, s STRING, b BOOLEAN, at TIMESTAMP")
DECODER = JsonDecoder(SCHEMA)


def decode(*texts: str | None) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    rows, misfits = DECODER.decode(pa.array(texts, pa.string()))
    return rows.to_pylist(), [(misfit.row, misfit.reason) for misfit in misfits]


def one(text: str) -> dict[str, Any] | None:
    rows, _ = decode(text)
    return {name: value for name, value in rows[0].items() if value is not None} if rows else None


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('{"i": 5, "n": -3, "d": 1.5, "s": "x", "b": true}', {"i": 5, "n": -3, "d": 1.5, "s": "x", "b": True}),
        ("{}", {}),
        ('{"i": null, "other": [1, {"a": 2}]}', {}),
        ('{"i": "5"}', {"i": 5}),
        ('{"i": 9223372036854775807}', {"i": 2**63 - 1}),
        ('{"d": 3}', {"d": 3.0}),
        ('{"d": -1e300}', {"d": -1e300}),
        ('{"s": 2}', {"s": "2"}),
        ('{"s": {"x": 1}}', {"s": '{"x": 1}'}),
        ('{"s": "\\ud83d\\ude00 \\"q\\" \\\\ \\u0000"}', {"s": '😀 "q" \\ \x00'}),
        ('{"at": "2026-01-01T00:00:00Z"}', {"at": datetime(2026, 1, 1, tzinfo=UTC)}),
        ('{"at": "2026-01-01 02:00:00.123456+02:00"}', {"at": datetime(2026, 1, 1, microsecond=123456, tzinfo=UTC)}),
        ('{"at": "2026-01-01 00:00:00"}', {"at": datetime(2026, 1, 1, tzinfo=UTC)}),
        (' \n{"i": 1} ', {"i": 1}),
        ('{"i": 1, "i": 2}', {"i": 1}),
        ('{"I": 1}', {}),
    ],
)
def test_what_fits(text: str, row: dict[str, Any]) -> None:
    assert one(text) == row


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"i": 5.5}', "i is not BIGINT"),
        ('{"i": 1e3}', "i is not BIGINT"),
        ('{"i": 9223372036854775808}', "i is not BIGINT"),
        ('{"i": "five"}', "i is not BIGINT"),
        ('{"i": true}', "i is not BIGINT"),
        ('{"i": [1]}', "i is not BIGINT"),
        ('{"i": ""}', "i is not BIGINT"),
        ('{"n": 2147483648}', "n is not INT"),
        ('{"d": "x"}', "d is not DOUBLE"),
        ('{"b": 1}', "b is not BOOLEAN"),
        ('{"b": "yes"}', "b is not BOOLEAN"),
        ('{"at": "noon"}', "at is not TIMESTAMP"),
        ('{"at": 1700000000}', "at is not TIMESTAMP"),
        ('{"at": "57970-01-01T00:00:00Z"}', "at is not TIMESTAMP"),
        ('{"at": "infinity"}', "at is not TIMESTAMP"),
        ('{"s": "ok", "i": 1, "at": "2026-13-01"}', "at is not TIMESTAMP"),
        ("not json", "it is not a JSON object"),
        ("", "it is not a JSON object"),
        ("  ", "it is not a JSON object"),
        ("null", "it is not a JSON object"),
        ("[1]", "it is not a JSON object"),
        ("5", "it is not a JSON object"),
        ('"{}"', "it is not a JSON object"),
        ('{"i": 1}{"i": 2}', "it is not a JSON object"),
        ('{"i": 1', "it is not a JSON object"),
        (None, "it is not text"),
    ],
)
def test_what_does_not_fit_is_set_aside_with_the_reason(text: str | None, reason: str) -> None:
    rows, misfits = decode('{"i": 1}', text, '{"i": 2}')
    assert [row["i"] for row in rows] == [1, 2]
    ((place, why),) = misfits
    assert place == 1
    assert why.startswith(reason)


def fits(value: Any, kind: str) -> bool:
    """The rule of the module, said plainly."""
    if value is None or kind == "s":
        return True
    if kind in ("i", "n"):
        bits = 63 if kind == "i" else 31
        return isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits
    if kind == "d":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, bool) if kind == "b" else False


plain_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.just("x y"),
    st.lists(st.integers(0, 3), max_size=2),
)


@examples(150)
@given(st.lists(st.dictionaries(st.sampled_from(["i", "n", "d", "b", "s", "other"]), plain_values), max_size=6))
def test_every_record_either_fits_or_is_set_aside(records: list[dict[str, Any]]) -> None:
    rows, misfits = decode(*map(json.dumps, records))
    good = [record for record in records if all(fits(record.get(kind), kind) for kind in ("i", "n", "d", "b"))]
    assert len(rows) == len(good)
    assert len(rows) + len(misfits) == len(records)
    for row, record in zip(rows, good, strict=True):
        for kind in ("i", "n", "d", "b"):
            wanted = record.get(kind)
            assert row[kind] == (float(wanted) if kind == "d" and wanted is not None else wanted)


def test_the_first_of_several_fields_with_one_name_counts_and_is_shown() -> None:
    rows, misfits = decode(
        '{"n": 1, "n": "x"}', '{"n": "x", "n": 2}', '{"n": "y", "s": "}", "other": {"n": 3}, "n": 4}'
    )
    assert [row["n"] for row in rows] == [1]
    assert [reason for _, reason in misfits] == ["n is not INT: 'x'", "n is not INT: 'y'"]


def test_a_control_character_is_shown_in_the_reason() -> None:
    _, misfits = decode("\x1f\n")
    assert [reason for _, reason in misfits] == [r"it is not a JSON object: '\x1f'"]


def test_a_character_that_is_cut_in_the_message_of_duckdb() -> None:
    rows, misfits = decode('{"i": 1}', '{"s": "' + "\u20ac" * 60 + '", "i": tru}')
    assert [row["i"] for row in rows] == [1]
    assert [place for place, _ in misfits] == [1]


def test_names_that_need_quoting() -> None:
    schema = parse_schema({"it's": "BIGINT", 'a "b"': "STRING", "select": "BIGINT"})
    rows, misfits = JsonDecoder(schema).decode(pa.array([json.dumps({"it's": 1, 'a "b"': "x", "select": 3})]))
    assert rows.to_pylist() == [{"it's": 1, 'a "b"': "x", "select": 3}]
    assert misfits == []


def test_a_type_that_is_not_decoded_is_refused() -> None:
    with pytest.raises(PipelineError, match="cannot be decoded from JSON; declare it as STRING"):
        JsonDecoder(parse_schema("tags BINARY"))


@given(
    st.lists(
        st.sampled_from(['{"a":1}', '{"a":"x"}', '{"a":1,}', '{"a":1, }', "{}", "{,}", "}", "{", ",}", "[]", "1"])
    ),
    st.lists(st.sampled_from(["", "\n", "\r\n", " ", "\n\n"]), min_size=20),
    st.integers(0, 3),
)
def test_what_looks_like_an_object_is_told_from_its_ends(texts: list[str], ends: list[str], first: int) -> None:
    values = [text + end for text, end in zip(texts, ends, strict=False)][first:]
    array = pa.array([text + end for text, end in zip(texts, ends, strict=False)], pa.large_string())[first:]
    expected = bool(values) and all(re.fullmatch(r"\{.*(?<![,\s])\s*\}\s*|\{\}\s*", value) for value in values)
    assert look_like_objects(array) == expected
    assert look_like_objects(array.cast(pa.string())) == expected
