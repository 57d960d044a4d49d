"""Records decoded by shape are those that DuckDB reads, with the same values; all others are left to DuckDB."""

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from millrace.edge.decode import JsonDecoder
from millrace.formats import compiled
from millrace.model.schema import parse_schema
from millrace.sources.bundle import Times
from millrace.sources.files import _compiled_line_ends
from millrace.spark.messages import TaskReport
from shaping import by_shape_always

SCHEMA = parse_schema(
    "s STRING, i BIGINT, n TINYINT, d DOUBLE, m DECIMAL(9, 2), w DECIMAL(38, 10), b BOOLEAN, at TIMESTAMP, day DATE"
)
RECORDS = [
    '{"s":"ab cd","i":12,"n":-7,"d":-0.5,"m":19.90,"b":true,"at":"2026-01-31T12:00:00.123456Z","day":"2026-02-28"}',
    '{"x":[1,{"y":"z"},[],{}],"at":"2024-02-29 23:59:59.5+02:30","i":"90","d":"1e5","m":"7.5","b":"false","u":"a\\nb"}',
    '{"s": 5, "i": null, "n": 127, "d": 31e-2, "at": "1999-12-31T00:00:00", "o": {"p": -0.5e+10, "q": null}}\n',
    ' { "day" : "2000-10-10" , "s" : true , "m" : -0.01, "w" : 123456789012, "u" : false }\r\n',
    '{"s":{"a": [1.50, "b"]},"i":-9223372036854775808,"d":0.1,"n":0}',
    '{"s":"\u00e4\u20ac","i":999999999999999999,"d":9007199254740991,"at":"2026-01-31T12:00:00.123456789Z"}',
    "{}",
]
SIGNS = [chr(code) for code in (*range(33), *range(33, 128))] + ["\u00e4", "\u2028", "\ufeff"]


pytest.importorskip("numba")


def mutants(text: str) -> Iterator[str]:
    """The text with each character replaced, left out, doubled, or preceded by another; and cut off anywhere."""
    for at, sign in enumerate(text):
        head, tail = text[:at], text[at + 1 :]
        yield head + tail
        yield head
        yield head + sign + sign + tail
        for other in SIGNS:
            yield head + other + tail
            yield head + other + sign + tail
    for other in SIGNS:
        yield text + other


def agree(decoder: JsonDecoder, texts: Sequence[str | None], teachers: Sequence[str] = ()) -> int:
    """Both ways give the same rows and misfits; how many records have matched a shape."""
    shapes = decoder.by_shape
    shapes._shapes.learn(teachers)
    shapes._graph, shapes._away, before = shapes._shapes.graph(), 0, shapes.matched
    values = pa.array(texts, pa.string())
    with by_shape_always():
        assert shapes.takes(values)
        _, matched = shapes._reader.decode(values, shapes._graph)  # type: ignore[union-attr]
        rows, misfits = decoder.decode(values)
    for text in values.filter(pa.array(matched)).to_pylist():
        json.loads(text)
    expected_rows, expected = decoder.parse(values)
    assert misfits == expected
    assert rows.schema == expected_rows.schema
    if not same(rows, expected_rows):
        good = [text for row, text in enumerate(texts) if row not in {misfit.row for misfit in misfits}]
        for text, found, wanted in zip(good, rows.to_pylist(), expected_rows.to_pylist(), strict=True):
            assert repr(found) == repr(wanted), text
    return shapes.matched - before


def same(rows: pa.Table, expected: pa.Table) -> bool:
    """Also in the sign of a zero."""
    return rows.equals(expected) and all(
        np.array_equal(np.signbit(rows[field.name].to_numpy()), np.signbit(expected[field.name].to_numpy()))
        for field in rows.schema
        if pa.types.is_floating(field.type)
    )


@pytest.mark.parametrize("text", RECORDS)
def test_every_byte_changed(text: str) -> None:
    matched = agree(JsonDecoder(SCHEMA), [text, *mutants(text)], [text])
    assert matched > 1


number_texts = st.one_of(
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.integers(-(2**63) - 3, 2**63 + 3).map(str),
    st.integers(-140, 140).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["-0", "-0.0", "0e5", "00", "1.", ".5", "+1", "NaN", "Infinity", "-Infinity", "1e400", "1E-400"]),
)
times = st.one_of(
    st.from_regex(
        r"(0000|0001|1899|1900|1901|1999|2000|2024|2100|9998|9999)-(0[0-9]|1[0-3])-([0-2][0-9]|3[0-2])"
        r"([T t]([01][0-9]|2[0-4]):[0-6][0-9](:[0-6][0-9](\.[0-9]{1,10})?)?"
        r"(Z|z|[-+](0[0-9]|1[0-9]):[0-6][0-9]|\+02)?)?",
        fullmatch=True,
    ),
    st.datetimes().map(lambda when: when.isoformat() + "Z"),
)
texts = st.one_of(
    st.text(max_size=70),
    st.text('ab\\"\n\u20ac/', max_size=40),
    st.sampled_from(["", "true", "null", "[1]", "{", "5", "19.90"]),
)
nested = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
value_texts = st.one_of(
    number_texts,
    number_texts.map(lambda text: f'"{text}"'),
    times.map(lambda text: f'"{text}"'),
    st.tuples(nested, st.booleans()).map(lambda each: json.dumps(each[0], ensure_ascii=each[1])),
    st.sampled_from(
        ["true", "false", "null", "nul", "tru", '"true"', '"false"', '"a\\u0041"', '"\\ud800"', "[1,]", "{,}", "[}"]
    ),
)
spaces = st.sampled_from(["", "", "", " ", "\t", "\r\n"])
names = st.sampled_from([*SCHEMA.names, "x", "y z", "\u00e4", "s\\u0020", ""])


@st.composite
def records(draw: st.DrawFn) -> str:
    """Records with names and values of all kinds, some of which fit."""
    one, two = draw(spaces), draw(spaces)
    fields = draw(st.lists(st.tuples(names, value_texts), max_size=6))
    inside = f",{one}".join(f'{two}"{name}"{one}:{two}{value}' for name, value in fields)
    return f"{{{inside}{one}}}{draw(spaces)}"


DECODERS = {
    "all": JsonDecoder(SCHEMA),
    "strict": JsonDecoder(SCHEMA, strict=True),
    "some": JsonDecoder(SCHEMA, {"s", "at"}),
    "required": JsonDecoder(parse_schema("s STRING NOT NULL, i BIGINT, at TIMESTAMP NOT NULL")),
}


@examples(60)
@given(st.lists(records(), min_size=1, max_size=20), st.sampled_from([*DECODERS]))
def test_random_records(given: list[str], decoder: str) -> None:
    agree(DECODERS[decoder], given)


@examples(60)
@given(
    st.lists(st.lists(st.tuples(names, value_texts), min_size=1, max_size=4), min_size=1, max_size=20),
    st.sampled_from([*DECODERS]),
)
def test_random_values_in_known_shapes(drawn: list[list[tuple[str, str]]], decoder: str) -> None:
    given = ["{" + ",".join(f'"{name}":{value}' for name, value in fields) + "}" for fields in drawn]
    teachers = ["{" + ",".join(f'"{name}":1' for name, _ in fields) + "}" for fields in drawn]
    agree(DECODERS[decoder], given, teachers)


def produced(number: int) -> str:
    """Records of three producers, with other orders, spaces and fields."""
    match number % 3:
        case 0:
            return f'{{"s":"user {number}","i":{number},"at":"2026-01-01T00:{number % 60:02}:00Z"}}'
        case 1:
            optional = f'"d": {number}.25, ' if number % 2 else ""
            return f'{{"at": "2026-01-01 00:00:00", {optional}"s": "user {number}", "tags": ["a", {number}]}}'
        case _:
            return f'{{ "i":"{number}", "who":{{"name":"n","x":[{number}]}}, "s":null }}\n'


def test_several_producers_at_once_and_records_in_their_place() -> None:
    texts = [produced(number) for number in range(3000)]
    decoder = JsonDecoder(SCHEMA)
    assert agree(decoder, texts) == 3000
    odd = {7: '{"s":"a\\u00e4","i":5}', 500: '{"i":1.5}', 501: "no", 2999: '{"s":"\\"", "d": -0}'}
    assert agree(decoder, [odd.get(number, text) for number, text in enumerate(texts)]) == 3000 - len(odd)


def test_a_slice_and_large_texts() -> None:
    decoder = JsonDecoder(SCHEMA)
    texts = [produced(number) for number in range(100)]
    expected, _ = decoder.parse(pa.array(texts[5:90]))
    with by_shape_always():
        for values in (pa.array(texts), pa.array(texts, pa.large_string())):
            rows, misfits = decoder.decode(values.slice(5, 85))
            assert (rows.to_pylist(), misfits) == (expected.to_pylist(), [])
    assert decoder.by_shape.matched == 170


def test_a_name_twice_is_left_to_duckdb() -> None:
    decoder = JsonDecoder(SCHEMA)
    teachers = ['{"i":1,"n":2}', '{"n":1,"i":2}']
    assert agree(decoder, ['{"i":1,"n":2}', '{"i":1,"n":2,"i":3}'], teachers) == 1


def test_where_records_share_no_shape_it_steps_aside_for_a_while() -> None:
    decoder = JsonDecoder(SCHEMA)
    usual = pa.array([produced(number) for number in range(300)])
    others = pa.array([f'{{"i":{number},"f{number}":1}}' for number in range(1000)])
    with by_shape_always():
        assert decoder.by_shape.takes(usual)
        rows, misfits = decoder.decode(others)
        assert (rows["i"].to_pylist(), misfits) == (list(range(1000)), [])
        assert [decoder.by_shape.takes(usual) for _ in range(17)] == [False] * 16 + [True]
        before = decoder.by_shape.matched
        assert len(decoder.decode(usual)[0]) == 300
    assert decoder.by_shape.matched == before + 300


def test_small_bundles_are_left_to_duckdb() -> None:
    assert compiled.kernel() is not None
    shapes = JsonDecoder(SCHEMA).by_shape
    assert not shapes.takes(pa.array([produced(0)]))
    assert shapes.takes(pa.array([produced(0)] * 30_000))


def test_types_that_are_not_decoded_by_shape() -> None:
    shapes = JsonDecoder(parse_schema("f FLOAT, s STRING")).by_shape
    with by_shape_always():
        assert not shapes.takes(pa.array(['{"f":1,"s":"x"}']))


def test_the_compiled_code_is_there_some_time_after_much_was_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_ENOUGH": 100, "_decoded": 0, "_thread": None, "_kernel": None}.items():
        monkeypatch.setattr(compiled, name, value)
    assert compiled.kernel_after(99) is None
    assert compiled._thread is None
    assert compiled.kernel_after(1) is None
    assert compiled._thread is not None
    compiled._thread.join(60)
    assert compiled.kernel_after(1) is not None


@given(st.binary(max_size=300).map(lambda some: some.replace(b"0", b"\n")), st.integers(0, 9))
def test_lines_end_where_they_end(some: bytes, times: int) -> None:
    whole = np.frombuffer(some * times, np.uint8)
    kernel = compiled.kernel()
    assert kernel is not None
    ends, is_ascii = _compiled_line_ends(kernel, whole, 128)
    assert ends.tolist() == [at + 1 for at, sign in enumerate(some * times) if sign == 10]
    assert is_ascii == (some * times).isascii()


def test_a_report_of_a_task_tells_how_many_records_were_decoded_by_shape() -> None:
    report = TaskReport(Times(0, 0), by_shape={"plays": 5})
    assert TaskReport.from_json(report.to_json()) == report
