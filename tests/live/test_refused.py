"""What a live query does not support is refused, by name and with advice; nothing is dropped in silence."""

from typing import Any

import pytest

from live_cases import VIEW
from millrace.live.parsing import parse, parse_filter
from millrace.live.query import LiveView
from millrace.model.errors import MillraceError, NotFoundError
from millrace.model.schema import parse_schema

WIDE = LiveView(
    "wide",
    parse_schema("total DECIMAL(20, 2), tags ARRAY<STRING>, raw BINARY, n BIGINT, MixedCase STRING"),
    ("total",),
)
VIEWS = {"items": VIEW, "wide": WIDE}


def refused(sql: str, *params: Any) -> str:
    with pytest.raises(MillraceError) as caught:
        parse(sql, VIEWS, params)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("", "the query is empty"),
        ("SELECT", "the query"),
        ("SELECT id FROM items WHERE", "does not parse"),
        ("DELETE FROM items", "DELETE is not supported"),
        ("SELECT id FROM items; SELECT 1", "a live query is one SELECT"),
        ("SELECT id FROM items UNION SELECT id FROM items", "UNION is not supported"),
        ("SELECT 1", "no FROM"),
        ("SELECT DISTINCT name FROM items", "DISTINCT is not supported"),
        ("SELECT name FROM items GROUP BY name", "GROUP BY is not supported"),
        ("SELECT id FROM items, wide", "JOIN is not supported"),
        ("SELECT id FROM items JOIN wide ON TRUE", "JOIN is not supported"),
        ("WITH a AS (SELECT 1) SELECT id FROM items", "WITH is not supported"),
        ("SELECT id FROM items HAVING id > 1", "HAVING is not supported"),
        ("SELECT id FROM items FOR UPDATE", "FOR UPDATE is not supported"),
        ("SELECT id FROM items TABLESAMPLE (5)", "TABLESAMPLE is not supported"),
        ("SELECT id FROM items AS i", "alias is not supported"),
        ("SELECT id FROM other.items", "db is not supported"),
        ("SELECT id FROM (SELECT * FROM items)", "FROM takes the name of one view"),
        ("SELECT count(*) FROM items", "COUNT(*) is not supported"),
        ("SELECT n + 1 FROM items", "n + 1 is not supported"),
        ("SELECT n AS m FROM items", "n AS m is not supported"),
        ("SELECT *, id FROM items", "selects 'id' twice"),
        ("SELECT * EXCEPT (id) FROM items", "not"),
        ("SELECT id FROM items FETCH FIRST 3 ROWS ONLY", "LIMIT"),
        ("SELECT id FROM items LIMIT -1", "LIMIT takes a whole number"),
        ("SELECT id FROM items LIMIT 1.5", "LIMIT takes a whole number"),
        ("SELECT id FROM items LIMIT n", "LIMIT takes a whole number"),
        ("SELECT id FROM items LIMIT 9999999999", "LIMIT takes a whole number"),
        ("SELECT id FROM items ORDER BY n + 1", "n + 1 is not supported"),
        ("SELECT id FROM items ORDER BY 1", "1 is not supported"),
        ("SELECT id FROM items ORDER BY name COLLATE nocase", "COLLATE"),
        ("SELECT id FROM items ORDER BY n NULLS LAST", "NULL is the smallest value"),
        ("SELECT id FROM items ORDER BY n DESC NULLS FIRST", "NULL is the smallest value"),
        ("SELECT id FROM items WHERE lower(name) = 'a'", "LOWER(name) is not supported"),
        ("SELECT id FROM items WHERE name ILIKE 'a'", "ILIKE"),
        ("SELECT id FROM items WHERE name LIKE 'a' ESCAPE '!'", "ESCAPE"),
        ("SELECT id FROM items WHERE name LIKE tag", "LIKE takes a pattern"),
        ("SELECT id FROM items WHERE name LIKE ANY ('a')", "LIKE takes a pattern"),
        ("SELECT id FROM items WHERE n LIKE 'a'", "LIKE needs a text column"),
        (r"SELECT id FROM items WHERE name LIKE 'a\%'", "contains a backslash"),
        (f"SELECT id FROM items WHERE name LIKE '{'%a' * 9}'", "8 signs %"),
        (f"SELECT id FROM items WHERE {'NOT (' * 3_000}ok{')' * 3_000}", "nested too deeply"),
        ("SELECT id FROM items WHERE n IN (SELECT n FROM items)", "QUERY of IN is not known here"),
        ("SELECT id FROM items WHERE n IN (m, 1)", "IN takes a list of constants"),
        ("SELECT id FROM items WHERE n IN ()", "list at least one constant"),
        ("SELECT id FROM items WHERE (n, m) IN ((1, 2))", "is not supported"),
        ("SELECT id FROM items WHERE n BETWEEN SYMMETRIC 1 AND 2", "SYMMETRIC of BETWEEN"),
        ("SELECT id FROM items WHERE n IS DISTINCT FROM 1", "is not supported"),
        ("SELECT id FROM items WHERE EXISTS (SELECT 1)", "is not supported"),
        ("SELECT id FROM items WHERE CASE WHEN ok THEN TRUE END", "is not supported"),
        ("SELECT id FROM items WHERE CAST(n AS TEXT) = '1'", "is not supported"),
        ("SELECT id FROM items WHERE name || 'a' = 'b'", "is not supported"),
        ("SELECT id FROM items WHERE n & 1 = 1", "is not supported"),
        ("SELECT id FROM items WHERE n", "n is BIGINT, not a condition"),
        ("SELECT id FROM items WHERE name = 1", "compares STRING with a number"),
        ("SELECT id FROM items WHERE n = 'a'", "compares BIGINT with text"),
        ("SELECT id FROM items WHERE n = name", "compares BIGINT with STRING"),
        ("SELECT id FROM items WHERE ok = 1", "compares BOOLEAN with a number"),
        ("SELECT id FROM items WHERE n = m = 1", "can be read in two ways"),
        ("SELECT id FROM items WHERE NOT n = 1 IS NULL", "can be read in two ways"),
        ("SELECT id FROM items WHERE ok = (ok IS NULL)", "can be read in two ways"),
        ("SELECT id FROM items WHERE n BETWEEN 1 AND 2 IS TRUE", "can be read in two ways"),
        ("SELECT id FROM items WHERE price + 1 > 2", "computes with DECIMAL(9, 2)"),
        ("SELECT id FROM items WHERE at + 1 > 2", "compares TIMESTAMP with a number"),
        ("SELECT id FROM items WHERE x % 2 = 1", "% takes whole numbers"),
        ("SELECT id FROM items WHERE price = 1.005", "at most 2 decimals"),
        ("SELECT id FROM items WHERE n = 99999999999999999999", "beyond BIGINT"),
        ("SELECT id FROM items WHERE x = 1e999", "beyond DOUBLE"),
        ("SELECT id FROM items WHERE at > 'noon'", "'noon' is not a time"),
        ("SELECT id FROM items WHERE day = '2024-13-01'", "is not a date"),
        ("SELECT id FROM items WHERE (((((n+1)+1)+1)+1)+1) = 1", "nested too deeply"),
        ("SELECT id FROM items WHERE items2.n = 1", "is not a column of 'items'"),
        ("SELECT nam FROM items", "did you mean 'name'?"),
        ("SELECT id FROM items WHERE pirce > 1", "did you mean 'price'?"),
        ('SELECT "N" FROM items', "unknown column 'N'"),
        ("SELECT id FROM item", "did you mean 'items'?"),
        ("SELECT id FROM items WHERE n = $1", "has 0 parameters"),
        ("SELECT id FROM items WHERE n = ?", "is not supported"),
        ("SELECT id FROM items WHERE n = :a", "is not supported"),
        ("SELECT total FROM wide WHERE total > 1", "can neither compare nor sort"),
        ("SELECT total FROM wide ORDER BY n", "cannot be sorted: 'total', a part of its key"),
        ("SELECT n FROM wide WHERE tags = 'a'", "can neither compare nor sort"),
        (f"SELECT id FROM items WHERE {' OR '.join(['n = 1'] * 300)}", "more than 200 operators"),
    ],
)  # fmt: skip
def test_refused_by_name(sql: str, told: str) -> None:
    assert told in refused(sql)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([1], "parameter $1 must be text"),
        (float("nan"), "parameter $1 is nan"),
        ("a", "compares BIGINT with text"),
        (2**70, "beyond BIGINT"),
    ],
)
def test_parameters_that_do_not_fit(value: object, told: str) -> None:
    assert told in refused("SELECT id FROM items WHERE n = $1", value)


def test_a_parameter_that_is_not_used() -> None:
    assert "does not use parameter $2" in refused("SELECT id FROM items WHERE n = $1", 1, 2)


def test_not_like_is_not_like() -> None:
    """The parser says NOT LIKE by an argument of LIKE, which is easily missed."""
    like, unlike = (parse(f"SELECT id FROM items WHERE name {each} 'a%'", VIEWS) for each in ("LIKE", "NOT LIKE"))
    assert like.shape != unlike.shape
    assert "not" in unlike.shape.text


def test_queries_are_equal_however_they_are_written() -> None:
    one = parse("SELECT id, name FROM items WHERE N > $1 AND name = 'a' LIMIT $2", VIEWS, [3, 5])
    other = parse('select ID, "name"  from ITEMS where items.n > 3 and NAME = $1 limit 5 offset 0', VIEWS, ["a"])
    assert one == other


def test_a_column_of_any_type_can_be_selected_and_tested_for_null() -> None:
    query = parse("SELECT * FROM wide WHERE tags IS NULL OR raw IS NOT NULL", VIEWS)
    assert query.shape.columns == WIDE.columns.names


def test_the_largest_condition_is_read() -> None:
    text = " OR ".join(f"n = {number}" for number in range(100))
    assert len(parse(f"SELECT id FROM items WHERE {text}", VIEWS).constants) == 100


def test_an_unknown_view_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        parse("SELECT a FROM nowhere", VIEWS)


@pytest.mark.parametrize("text", ["n = 1 GROUP BY n", "", "n = 1; DELETE FROM items", "$1 = n", "n"])
def test_row_filters_are_conditions_only(text: str) -> None:
    with pytest.raises(MillraceError):
        parse_filter(text, VIEW)
