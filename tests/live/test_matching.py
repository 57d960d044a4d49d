"""Matching finds for each row the queries that want it: the same as asking each query by itself."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from live_cases import VIEW, Row, conditions, rows, table
from millrace.live.condition import Constant, Slot, walk
from millrace.live.evaluate import scalar, truth
from millrace.live.grid import Grid
from millrace.live.matcher import Matcher
from millrace.live.parsing import parse, parse_filter
from millrace.live.query import LiveQuery, restricted

Matches = set[tuple[int, int]]


def asked(text: str, *params: Any) -> LiveQuery:
    return parse(f"SELECT id FROM items WHERE {text}", {"items": VIEW}, params)


def naive(queries: dict[int, LiveQuery], found: list[Row]) -> Matches:
    """Each query evaluated by itself."""
    matches = set()
    for handle, query in queries.items():
        condition = query.shape.condition
        types = {each.number: each.type for each in walk(condition or Slot(0, "")) if isinstance(each, Slot)}

        def slot(number: int, value: Constant, types: dict[int, str] = types) -> Any:
            return value if isinstance(value, tuple) else scalar(value, types[number])

        slots = [slot(number, value) for number, value in enumerate(query.constants)]
        holds = truth(condition, table(found), slots).to_pylist()
        matches |= {(place, handle) for place, each in enumerate(holds) if each}
    return matches


def matched(matcher: Matcher, found: list[Row]) -> Matches:
    places, handles = matcher.match(table(found))
    pairs = list(zip(places.tolist(), handles.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


# The shapes that have indexes: each with other constants in every query.
INDEXED = [
    ("n = {}", "number"), ("n > {}", "number"), ("{} > n", "number"), ("x >= {}", "double"), ("name = {}", "text"),
    ("name > {} AND name <= {}", "text"), ("n BETWEEN {} AND {}", "number"), ("n < {} AND tag = 'a'", "number"),
    ("m = {} AND n > {}", "number"), ("price < {}", "number"), ("n IN ({}, {})", "number"),
    ("x > {} AND x < {} AND ok", "double"), ("n + m = {}", "number"), ("n > {} AND n > {} AND n < {}", "number"),
    ("m = {} OR n = {}", "number"), ("at >= '2024-01-01 0{}:00:00'", "hour"), ("name LIKE {} AND m > {}", "like"),
    ("n IN ({}, 1) AND m IN ({}, 2)", "number"),
]  # fmt: skip
_CONSTANTS = {
    "number": st.integers(-6, 6),
    "double": st.sampled_from([0.0, 0.1, 2.5, -1.5, 1e2]),
    "text": st.sampled_from(["'a'", "'ab'", "''", "'é'", "NULL"]),
    "hour": st.integers(0, 4),
}


@st.composite
def indexed(draw: st.DrawFn) -> str:
    text, kind = draw(st.sampled_from(INDEXED))
    if kind == "like":
        return text.format(draw(st.sampled_from(["'a%'", "'%b'", "NULL"])), draw(_CONSTANTS["number"]))
    return text.format(*(draw(_CONSTANTS[kind]) for _ in range(text.count("{}"))))


@examples(60)
@given(rows(extreme=True, most=8), st.lists(st.one_of(indexed(), conditions()), max_size=25), st.data())
def test_matching_is_asking_each_query(found: list[Row], texts: list[str], data: st.DataObject) -> None:
    matcher = Matcher()
    queries = {handle: asked(text) for handle, text in enumerate(texts)}
    for handle, query in queries.items():
        matcher.add(handle, query)
    assert matched(matcher, found) == naive(queries, found)
    for handle in data.draw(st.lists(st.sampled_from(sorted(queries)), unique=True)) if queries else []:
        matcher.remove(handle)
        del queries[handle]
    for handle, text in enumerate(data.draw(st.lists(indexed(), max_size=5)), 100):
        queries[handle] = asked(text)
        matcher.add(handle, queries[handle])
    assert matched(matcher, found) == naive(queries, found)
    for handle in list(queries):
        matcher.remove(handle)
    assert not matcher._groups
    assert not matcher._names


@examples(30)
@given(rows(extreme=False, most=8), st.lists(indexed(), max_size=20), st.integers(1, 4), st.integers(1, 4))
def test_a_grid_of_any_size_matches_the_same(found: list[Row], texts: list[str], lines: int, columns: int) -> None:
    grid, one = Grid(lines, columns), Matcher()
    for handle, text in enumerate(texts):
        grid.add(handle, asked(text))
        one.add(handle, asked(text))
    places, handles = grid.match(table(found), [str(row[0]) for row in found])
    assert sorted(zip(places.tolist(), handles.tolist(), strict=True)) == sorted(matched(one, found))
    for handle in range(len(texts)):
        grid.remove(handle)
    assert len(grid) == 0


def test_many_queries_of_many_removals_are_made_again() -> None:
    matcher = Matcher()
    for handle in range(5_000):
        matcher.add(handle, asked("n > $1 AND n < $2", handle, handle + 10))
    for handle in range(4_500):
        matcher.remove(handle)
    (group,) = matcher._groups.values()
    assert len(group.handles) <= 4_096
    found = [(1, 4_505, *[None] * 9)]
    assert matched(matcher, found) == {(0, handle) for handle in range(4_500, 4_505)}


def test_many_queries_with_one_key_are_found_by_their_ranges() -> None:
    matcher = Matcher()
    queries = {
        handle: asked("tag = $1 AND n > $2 AND n <= $3", "ab"[handle % 2], handle // 2, handle // 2 + 3)
        for handle in range(400)
    }
    found: list[Row] = [(key, n, 0, *[None] * 4, tag, *[None] * 3) for key, (n, tag) in enumerate([(9, "a"), (7, "b")])]
    for handle, query in queries.items():
        matcher.add(handle, query)
    assert matched(matcher, found) == naive(queries, found)
    for handle in range(0, 400, 3):
        matcher.remove(handle)
        del queries[handle]
    for handle in range(400, 420):
        queries[handle] = asked("tag = $1 AND n > $2 AND n <= $3", "a", 6, 20)
        matcher.add(handle, queries[handle])
    assert matched(matcher, found) == naive(queries, found)


@pytest.mark.parametrize("text", ["tag = $1", "tag IN ($1)", "n BETWEEN 1 AND 5 AND tag = $1"])
def test_a_row_filter_is_one_more_constant(text: str) -> None:
    """Queries under different filters of one form stay one group."""
    matcher = Matcher()
    found = [(key, 2, 0, *[None] * 4, tag, *[None] * 3) for key, tag in enumerate("abc")]
    for handle, (tag, number) in enumerate((tag, number) for tag in "abc" for number in range(3)):
        condition, constants = parse_filter(f"n > {number}", VIEW)
        matcher.add(handle, restricted(asked(text, tag), condition, constants))
    assert len(matcher._groups) == 1
    assert matched(matcher, found) == {(place, place * 3 + number) for place in range(3) for number in range(2)}
