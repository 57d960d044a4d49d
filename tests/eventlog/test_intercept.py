"""Interceptors against a slow twin in plain Python, on JSON of every shape; and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import PipelineError
from millrace.eventlog.intercept import (
    Add,
    Drop,
    Interceptor,
    Keep,
    Rename,
    add,
    drop,
    dump,
    intercept,
    keep,
    load,
    rename,
)
from millrace.eventlog.records import records_of
from millrace.eventlog.topics import Log
from millrace.model.evaluate import evaluate
from millrace.model.expression import parse_expression
from millrace.model.schema import parse_schema

NAMES = ["a", "b", "c", "é", 'q"t', "a/b~", "back\\slash"]
anything: Any = object()


def intercepted(interceptors: list[Interceptor], values: list[Any]) -> list[bytes | None]:
    found: list[bytes | None] = intercept(interceptors, records_of(values, None, None, None, 0))["value"].to_pylist()
    return found


# JSON as text, since it is the text that must survive: numbers as they were written, names twice, odd white space.
spaces = st.sampled_from(["", "", "", " ", "\n", " \t\r\n "])
numbers = st.sampled_from(
    ["0", "-0", "1.50", "1e2", "1E+30", "12345678901234567890123", "0.12345678901234567890", "-7"]
)
words = st.sampled_from(NAMES) | st.text(max_size=4) | st.sampled_from(["{", "}", '","', "\\", '\\"', ":", "[1,2"])


@st.composite
def quoted(draw: st.DrawFn, strategy: st.SearchStrategy[str] = words) -> str:
    text = draw(strategy)
    if text and draw(st.integers(0, 3)) == 0:
        return '"' + "".join(f"\\u{ord(sign):04x}" for sign in text if ord(sign) < 0x10000) + '"'
    return json.dumps(text, ensure_ascii=draw(st.booleans()))


@st.composite
def joined(draw: st.DrawFn, parts: list[str], brackets: str) -> str:
    inside = ",".join(draw(spaces) + part + draw(spaces) for part in parts) if parts else draw(spaces)
    return f"{brackets[0]}{inside}{brackets[1]}"


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    names = draw(st.lists(quoted(st.sampled_from(NAMES) | words), max_size=5))
    parts = [f"{name}{draw(spaces)}:{draw(spaces)}{draw(inner)}{draw(spaces)}" for name in names]
    return draw(joined(parts, "{}"))


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    return draw(joined(draw(st.lists(inner, max_size=3)), "[]"))


scalars = numbers | quoted() | st.sampled_from(["true", "false", "null"])
nested = st.recursive(scalars, lambda inner: objects(inner) | arrays(inner), max_leaves=6)
others = (
    st.none() | st.binary(max_size=5) | st.sampled_from([b"nope", b"[1]", b'{"a":1', b'{"a" 1}', b"\xff{}", b"", b"7"])
)
values = st.lists(
    st.tuples(spaces, objects(nested), spaces).map("".join).map(str.encode) | others, max_size=8
)  # fmt: skip

constants = st.sampled_from(["text", 1, 2.5, None, True, {"a": [1]}, 'qu"ote'])
interceptors = (
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(lambda names: drop(*names))
    | st.dictionaries(st.sampled_from(NAMES), constants, min_size=1, max_size=3).map(lambda fields: add(**fields))
    | st.tuples(st.permutations(NAMES), st.permutations(NAMES), st.integers(1, 3)).map(
        lambda drawn: rename(**dict(zip(drawn[0][: drawn[2]], drawn[1], strict=False)))
    )
)


class Pairs(list[tuple[str, Any]]):
    """A JSON object with its fields as they stand there."""


def parsed(value: bytes | None) -> Any:
    """A value with its numbers as they are written; the bytes themselves if they are no JSON object."""
    try:
        text = (value or b"").decode()
        found = json.loads(
            text,
            object_pairs_hook=Pairs,
            parse_int=lambda text: ("number", text),
            parse_float=lambda text: ("number", text),
        )
    except ValueError:
        return value
    return found if isinstance(found, Pairs) else value


def twin(interceptor: Interceptor, value: bytes | None) -> Any:
    fields = parsed(value)
    if not isinstance(fields, Pairs):
        return fields
    match interceptor:
        case Drop(names):
            return Pairs((name, each) for name, each in fields if name not in names)
        case Rename(pairs):
            new, there = dict(pairs), {name for name, _ in fields}
            taken = {new[old] for old in new if old in there}
            return Pairs((new.get(name, name), each) for name, each in fields if name in new or name not in taken)
        case Add(added):
            constant = {name: parsed(b'{"v":' + text.encode() + b"}")[0][1] for name, text in added}
            there = {name for name, _ in fields}
            missing = [(name, each) for name, each in constant.items() if name not in there]
            return Pairs([*((name, constant.get(name, each)) for name, each in fields), *missing])
    raise AssertionError


@given(interceptors, values)
def test_edits_agree_with_plain_python(interceptor: Interceptor, given: list[bytes | None]) -> None:
    found = intercepted([interceptor], given)
    assert [parsed(value) for value in found] == [twin(interceptor, value) for value in given]
    for before, after in zip(given, found, strict=True):
        if isinstance(interceptor, Drop) and parsed(before) == parsed(after):
            assert before == after, "what is not changed is not written anew"


@given(st.lists(interceptors, max_size=4), values)
def test_a_chain_is_one_after_the_other(chain: list[Interceptor], given: list[bytes | None]) -> None:
    step = given
    for each in chain:
        step = intercepted([each], step)
    assert intercepted(chain, given) == step


SCHEMA = parse_schema("ms BIGINT, name STRING, share DOUBLE, ok BOOLEAN")
CONDITIONS = [
    "ms >= 30", "ms BETWEEN 5 AND 40 AND NOT ok", "name = 'a' OR ms < 3", "name IN ('a', 'b')", "share > 0.5",
    "ms > 2.5", "name LIKE 'a%'", "ok", "ms IS NULL", "name IS NOT NULL AND (ms = 7 OR share <= 1)", "ms = -7",
]  # fmt: skip
FIELDS = {
    "ms": ["7", "35", "-7", "null", '"40"', "2.5", '"x"', "true", "{}", "9223372036854775808"],
    "name": ['"a"', '"ab"', "null", "5", "true"],
    "share": ["0.25", "1", "null", '"0.75"', '"x"', "1e300"],
    "ok": ["true", "false", "null", '"true"', "1"],
}


def read(name: str, text: str | None) -> tuple[bool, Any]:
    """Whether a field fits its type, and its value."""
    value = None if text is None else json.loads(text)
    if value is None:
        return True, None
    plain = value if isinstance(value, str) else "true" if value is True else "false" if value is False else str(value)
    match SCHEMA.type_of(name):
        case "BIGINT":
            fits = plain.lstrip("-").isdigit() and abs(int(plain)) < 1 << 63
            return fits, int(plain) if fits else None
        case "DOUBLE":
            fits = plain != "x"
            return fits, float(plain) if fits else None
        case "BOOLEAN":
            return plain in ("true", "false"), plain == "true"
    return True, plain


@given(
    st.sampled_from(CONDITIONS),
    st.lists(st.fixed_dictionaries({}, optional={n: st.sampled_from(of) for n, of in FIELDS.items()}), max_size=12),
)
def test_keep_agrees_with_the_reference(condition: str, given: list[dict[str, str]]) -> None:
    texts = ["{" + ", ".join(f'"{name}": {text}' for name, text in row.items()) + "}" for row in given]
    expression, wanted = parse_expression(condition, SCHEMA), []
    for row, text in zip(given, texts, strict=True):
        fields = {name: read(name, row.get(name)) for name in SCHEMA.names}
        misfit = any(not fields[name][0] for name in expression.columns)
        if misfit or evaluate(expression, {name: value for name, (_, value) in fields.items()}):
            wanted.append(text.encode())
    assert intercepted([keep(condition, SCHEMA)], texts) == wanted


def test_keep_keeps_what_it_cannot_judge() -> None:
    strange = [b"nope", None, b"[1]", b"\xff", b'{"ms": "long"}', b'{"ms": 5.5}']
    assert intercepted([keep("ms >= 30", "ms BIGINT")], [*strange, b"{}", b'{"ms": 3}', b'{"ms": 30}']) == [
        *strange,
        b'{"ms": 30}',
    ]


def test_times_are_compared_as_times() -> None:
    late = keep("at >= '2026-01-01T12:00:00Z'", "at TIMESTAMP")
    given = [f'{{"at": "{at}"}}' for at in ("2026-01-01T12:30:00+02:00", "2026-01-01T12:00:00", "2026-06-01")]
    assert intercepted([late], given) == [each.encode() for each in given[1:]]


def test_a_comma_too_many_is_no_json_and_passes() -> None:
    given = ['{"a": 1,}', '{"a": 1, "b": 2 , }']
    for each in (drop("a"), add(b=2), keep("a > 5", "a BIGINT")):
        assert intercepted([each], given) == [text.encode() for text in given]


def test_conditions_see_what_was_written() -> None:
    given = [f'{{"price": {price}}}' for price in ("19.90", "19.9", '"19.90"', "12345678901234567.89")]
    assert intercepted([keep("price = '19.90'", "price STRING")], given) == [given[0].encode(), given[2].encode()]
    with pytest.raises(PipelineError, match="cannot compare price DECIMAL"):
        keep("price > 1.5", "price DECIMAL(20, 2)")


def test_names_may_be_swapped() -> None:
    assert intercepted([rename(a="b", b="a")], ['{"a": 1, "b": 2}']) == [b'{"b": 1, "a": 2}']


def test_a_topic_intercepts_what_is_appended(tmp_path: Path) -> None:
    chain = (drop("ip"), rename(ts="at"), add(region="eu"), keep("ms >= 30000", "ms BIGINT"))
    with Log(tmp_path / "log.db") as log:
        made = log.create("plays", partitions=2, interceptors=chain)
        assert made.interceptors == chain == log.topic("plays").interceptors
        records = ['{"ms": 30000, "ip": "1.2.3.4", "ts": 1.50}', '{"ms": 5}', "nope"]
        appended = log.append("plays", records, ["k", "k", "k"], producer="p", sequence=1)
        assert sum(each.count for each in appended) == 2
        part = appended[0].partition
        assert log.read("plays", part, 0, 2)["value"].to_pylist() == [
            b'{"ms": 30000, "at": 1.50,"region":"eu"}',
            b"nope",
        ]
        assert log.append("plays", records, ["k", "k", "k"], producer="p", sequence=1) == appended
        assert log.append("plays", ['{"ms": 1}']) == []
        log.change("plays", interceptors=())
        assert sum(each.count for each in log.append("plays", records)) == 3


@pytest.mark.parametrize(
    "made",
    [add(a=1, b={"c": [None, 2.5]}), drop("a", "b c"), rename(a="b"), keep("a > 3", "a BIGINT, `b c` STRING")],
)
def test_interceptors_are_kept_and_shown_as_they_are_written(made: Interceptor) -> None:
    assert load(dump([made, made])) == (made, made)
    assert eval(str(made), {"add": add, "drop": drop, "rename": rename, "keep": keep}) == made


MISTAKES: list[tuple[str, Callable[[], Any], str]] = [
    ("nothing to add", lambda: add(), "add() needs at least one field"),
    ("a value that JSON has not", lambda: add(a=anything), "add() takes JSON values"),
    ("infinity", lambda: add(a=float("inf")), "add() takes JSON values"),
    ("a field that is no name", lambda: drop(anything), "the name of a field is text"),
    ("a new name that is none", lambda: rename(a=anything), "the name of a field is text"),
    ("one name twice", lambda: rename(a="c", b="c"), "gives two fields one name"),
    ("an unknown field", lambda: keep("mss > 3", "ms BIGINT"), "unknown column 'mss'; did you mean 'ms'?"),
    ("no condition", lambda: keep("ms", "ms BIGINT"), "needs a condition, but this is BIGINT"),
    ("no field", lambda: keep("1 = 1", "ms BIGINT"), "names no field"),
    (
        "what may fail",
        lambda: keep("10 / ms > 3", "ms BIGINT"),
        "has no value for some records",
    ),
    (
        "a function",
        lambda: keep("upper(name) = 'A'", "name STRING"),
        "upper of STRING may differ",
    ),
    ("a field of a field", lambda: keep("a.b > 3", "a STRUCT<b: BIGINT>"), "top-level fields only"),
    ("text as a number", lambda: keep("name > 3", "name STRING"), "a cast from STRING to BIGINT may differ"),
    ("a pattern in a field", lambda: keep("name LIKE other", "name STRING, other STRING"), "runs only in Spark"),
    ("a type that is not read", lambda: keep("tags IS NULL", "tags ARRAY<STRING>"), "declare it as STRING"),
    ("a schema that does not parse", lambda: keep("ms > 3", "ms"), "does not parse"),
]


@pytest.mark.parametrize(("make", "says"), [mistake[1:] for mistake in MISTAKES], ids=[name for name, *_ in MISTAKES])
def test_mistake(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(PipelineError) as caught:
        make()
    assert says in caught.value.message
    assert str(caught.value).startswith("test_intercept.py:")


def test_keep_is_made_by_keep() -> None:
    assert keep("ms > 3", "ms BIGINT") == Keep("ms > 3", "ms BIGINT")
    assert intercepted([keep("`b c` > 3", parse_schema("`b c` BIGINT"))], ['{"b c": 3}', '{"b c": 4}']) == [
        b'{"b c": 4}'
    ]


def test_values_that_are_a_slice_are_edited_where_they_are() -> None:
    held = pa.array(['{"a": 0}', '{"a": 1}', '{"a": 2}'], pa.binary()).slice(1)
    assert intercept([drop("a")], records_of(held, None, None, None, 0))["value"].to_pylist() == [b"{}", b"{}"]
