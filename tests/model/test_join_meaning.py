"""Joins of two streams, rule by rule (rules 12 to 18 of stages): the reference, and the same cases in columns."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from joined import ColumnarJoin, PlainJoin
from millrace import PipelineError, window
from millrace.model.changes import Change
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME, to_instant
from millrace.model.joining import JoinSpec, out_watermark
from millrace.model.schema import parse_schema
from millrace.model.window import Fixed, Sliding, Windowing

Join = PlainJoin | ColumnarJoin
Start = Callable[[JoinSpec], Join]


@pytest.fixture(params=[PlainJoin, ColumnarJoin])
def start(request: pytest.FixtureRequest) -> Start:
    made: Start = request.param
    return made


def spec(
    how: str = "inner",
    within: tuple[int, int] | None = (0, 10),
    windowing: Windowing | None = None,
    lateness: tuple[int, int] = (0, 0),
    unmatched: str = "final",
    left: str = "k STRING, a BIGINT",
    right: str = "k STRING, b BIGINT",
    on: tuple[str, ...] = ("k",),
) -> JoinSpec:
    kept = within if windowing is None else None
    return JoinSpec(on, how, kept, windowing, lateness, unmatched, parse_schema(left), parse_schema(right))


def a(value: int, at: int, diff: int = 1, key: Any = "x") -> Change:
    """A row of the left."""
    return Change({"k": key, "a": value}, at, diff)


def b(value: int, at: int, diff: int = 1, key: Any = "x") -> Change:
    """A row of the right."""
    return Change({"k": key, "b": value}, at, diff)


def shown(changes: list[Change]) -> list[tuple[Any, ...]]:
    """The values beside the key, with the times of windows as instants, then the event time and the diff."""
    return sorted(
        (
            (*(to_instant(v) if hasattr(v, "year") else v for n, v in each.row.items() if n != "k"), each.at, each.diff)
            for each in changes
        ),
        key=repr,
    )


NOW = (BEGINNING_OF_TIME, BEGINNING_OF_TIME)
END = (END_OF_TIME, END_OF_TIME)


def test_12_both_ends_of_within_are_included(start: Start) -> None:
    join = start(spec(within=(-3, 5)))
    right = [b(each, 20 + each) for each in (-4, -3, 0, 5, 6)]
    assert shown(join.step([a(1, 20)], right, NOW)) == [(1, -3, 20, 1), (1, 0, 20, 1), (1, 5, 25, 1)]


@pytest.mark.parametrize(("within", "times"), [((-9, -4), [11, 16]), ((4, 9), [24, 29])])
def test_12_both_bounds_may_have_the_same_sign(start: Start, within: tuple[int, int], times: list[int]) -> None:
    join = start(spec(within=within))
    join.step([], [b(each, each) for each in range(40)], NOW)
    found = [change.row["b"] for change in join.step([a(1, 20)], [], NOW)]
    assert sorted(found) == list(range(times[0], times[1] + 1))


def test_12_keys_match_as_keys_are_compared(start: Start) -> None:
    columns = {"left": "k DOUBLE, a BIGINT", "right": "k DOUBLE, b BIGINT"}
    join = start(spec(**columns))  # type: ignore[arg-type]
    left = [a(1, 0, key=math.nan), a(2, 0, key=0.0), a(3, 0, key=None), a(4, 0, key=1.5)]
    right = [b(1, 0, key=math.nan), b(2, 0, key=-0.0), b(3, 0, key=None), b(4, 0, key=2.5)]
    assert shown(join.step(left, right, NOW)) == [(1, 1, 0, 1), (2, 2, 0, 1)]


def test_12_all_columns_of_the_key_must_match(start: Start) -> None:
    join = start(spec(on=("k", "n"), left="k STRING, n INT, a INT", right="n INT, k STRING, b INT"))
    left = [Change({"k": "x", "n": n, "a": 1}, 0) for n in (1, 2, None)]
    right = [Change({"k": k, "n": n, "b": 1}, 0) for k, n in (("x", 2), ("y", 1), ("x", None))]
    assert [change.row for change in join.step(left, right, NOW)] == [{"k": "x", "n": 2, "a": 1, "b": 1}]


def test_12_a_pair_appears_once_for_each_shared_window(start: Start) -> None:
    join = start(spec(windowing=Sliding(10, 5)))
    found = join.step([a(1, 7)], [b(1, 8), b(2, 12), b(3, 15)], NOW)
    assert shown(found) == [(0, 10, 1, 1, 8, 1), (5, 15, 1, 1, 8, 1), (5, 15, 1, 2, 12, 1)]


def test_12_calendar_days_of_a_zone(start: Start) -> None:
    hour = 3_600_000_000
    join = start(spec(windowing=window.calendar("day", "Europe/Berlin")))
    # In January midnight in Berlin is 23:00 in UTC.
    found = join.step([a(1, 22 * hour), a(2, 23 * hour)], [b(1, 30 * hour)], NOW)
    assert shown(found) == [(23 * hour, 47 * hour, 2, 1, 30 * hour, 1)]


def test_13_a_pair_appears_when_the_second_row_arrives(start: Start) -> None:
    join = start(spec())
    assert join.step([a(1, 3)], [], NOW) == []
    assert shown(join.step([], [b(2, 9)], NOW)) == [(1, 2, 9, 1)]
    assert shown(join.step([a(4, 8)], [], NOW)) == [(4, 2, 9, 1)]


def test_13_rows_that_arrive_together_pair_once(start: Start) -> None:
    join = start(spec())
    join.step([a(1, 3)], [b(1, 4)], NOW)
    assert shown(join.step([a(2, 3)], [b(2, 4)], NOW)) == [(1, 2, 4, 1), (2, 1, 4, 1), (2, 2, 4, 1)]


def test_13_equal_rows_are_a_multiset(start: Start) -> None:
    join = start(spec())
    assert len(join.step([a(1, 3), a(1, 3)], [b(1, 4)] * 3, NOW)) == 6
    assert shown(join.step([a(1, 3, -1)], [], NOW)) == [(1, 1, 4, -1)] * 3
    assert shown(join.step([], [b(1, 4, -1)], NOW)) == [(1, 1, 4, -1)]


def test_13_a_row_taken_back_takes_back_its_pairs_and_finds_no_new_ones(start: Start) -> None:
    join = start(spec())
    join.step([a(1, 3)], [b(1, 4), b(2, 5)], NOW)
    assert shown(join.step([a(1, 3, -1)], [], NOW)) == [(1, 1, 4, -1), (1, 2, 5, -1)]
    assert join.step([], [b(3, 5)], NOW) == []


def test_13_a_row_and_its_retraction_in_one_bundle_are_nothing(start: Start) -> None:
    join = start(spec())
    join.step([], [b(1, 4)], NOW)
    assert join.step([a(1, 3, -1), a(1, 3)], [], NOW) == []
    assert shown(join.step([a(2, 3)], [b(1, 4, -1)], NOW)) == []


def test_13_a_retraction_takes_back_only_an_equal_row(start: Start) -> None:
    join = start(spec())
    join.step([a(1, 3), a(2, 3), a(1, 4)], [], NOW)
    join.step([a(1, 3, -1)], [], NOW)
    assert shown(join.step([], [b(1, 5)], NOW)) == [(1, 1, 5, 1), (2, 1, 5, 1)]


def test_14_late_rows_of_either_side_are_dropped_and_counted(start: Start) -> None:
    join = start(spec(within=(-50, 50), lateness=(0, 5)))
    join.step([], [], (20, 30))
    found = join.step([a(1, 19), a(2, 20)], [b(1, 24), b(2, 25), b(3, 24, -1)], (20, 30))
    assert shown(found) == [(2, 2, 25, 1)]
    assert join.dropped == (1, 2)


def test_14_a_watermark_does_not_go_back(start: Start) -> None:
    join = start(spec())
    join.step([], [], (20, 20))
    join.step([], [], (5, 5))
    assert join.step([a(1, 19)], [b(1, 19)], (5, 5)) == []
    assert join.dropped == (1, 1)


def test_14_a_late_retraction_takes_nothing_back(start: Start) -> None:
    join = start(spec("left", within=(0, 100)))
    join.step([a(1, 10)], [], (20, 0))
    assert join.step([a(1, 10, -1)], [], (20, 0)) == []
    assert shown(join.step([], [b(1, 10)], (20, 0))) == [(1, 1, 10, 1)]
    assert join.dropped == (1, 0)


def test_15_a_row_of_the_left_is_kept_until_the_right_is_past_it(start: Start) -> None:
    join = start(spec(within=(0, 10), lateness=(0, 5)))
    join.step([a(1, 20)], [], (END_OF_TIME - 1, 35))
    assert shown(join.step([], [b(1, 30)], (END_OF_TIME - 1, 35))) == [(1, 1, 30, 1)]
    join.step([], [], (END_OF_TIME - 1, 36))
    assert join.step([], [b(2, 31)], (END_OF_TIME - 1, 36)) == []


def test_15_a_row_of_the_right_is_kept_until_the_left_is_past_it(start: Start) -> None:
    join = start(spec("right", within=(-10, 0), lateness=(5, 0)))
    join.step([], [b(1, 20)], (35, END_OF_TIME - 1))
    assert join.step([], [], (35, END_OF_TIME - 1)) == []
    assert shown(join.step([a(1, 30)], [], (35, END_OF_TIME - 1))) == [(1, 1, 30, 1)]
    assert join.step([], [], (36, END_OF_TIME - 1)) == []


def test_15_what_an_idle_side_may_still_match_is_kept(start: Start) -> None:
    join = start(spec("left"))
    assert join.step([a(1, 3)], [], (1_000, 5)) == []
    assert join.step([a(2, 2_000)], [], (5_000, 5)) == []
    assert shown(join.step([], [b(1, 9)], (5_000, 9))) == [(1, 1, 9, 1)]


def test_15_with_windows_a_row_is_kept_until_its_window_is_closed_on_the_other_side(start: Start) -> None:
    join = start(spec("left", windowing=Fixed(10), lateness=(0, 5)))
    assert join.step([a(1, 3), a(2, 4)], [], (50, 14)) == []
    assert shown(join.step([], [b(1, 9)], (50, 14))) == [(0, 10, 1, 1, 9, 1), (0, 10, 2, 1, 9, 1)]
    join.step([a(3, 61)], [], (60, 74))
    assert shown(join.step([], [], (60, 75))) == [(60, 70, 3, None, 61, 1)]


def test_16_left_gives_a_row_without_a_partner_when_it_is_let_go(start: Start) -> None:
    join = start(spec("left"))
    assert shown(join.step([a(1, 3), a(2, 3, key=None), a(3, 4)], [b(1, 14)], (0, 13))) == [(3, 1, 14, 1)]
    assert shown(join.step([], [], (0, 14))) == [(1, None, 3, 1), (2, None, 3, 1)]
    assert join.step([], [], END) == []


def test_16_right_and_full_have_the_key_of_the_row_alone(start: Start) -> None:
    join = start(spec("full"))
    join.step([a(1, 3, key="l")], [b(1, 3, key="r"), b(2, 3, key=None)], NOW)
    found = [dict(change.row) for change in join.step([], [], END)]
    assert sorted(found, key=repr) == [
        {"k": "l", "a": 1, "b": None},
        {"k": "r", "a": None, "b": 1},
        {"k": None, "a": None, "b": 2},
    ]
    join = start(spec("right"))
    join.step([a(1, 3, key="l")], [b(1, 3, key="r")], NOW)
    assert [dict(change.row) for change in join.step([], [], END)] == [{"k": "r", "a": None, "b": 1}]


def test_16_a_row_that_had_a_partner_once_is_not_answered_alone(start: Start) -> None:
    """The partner is let go long before the row, as the left is ahead of the right."""
    join = start(spec("left", within=(-5, 100)))
    join.step([a(1, 10)], [b(1, 10)], (10, 10))
    join.step([], [], (1_000, 10))
    assert join.step([], [], (1_000, 1_000)) == []


def test_16_a_row_whose_partners_were_all_taken_back_has_none(start: Start) -> None:
    join = start(spec("left"))
    join.step([a(1, 3)], [b(1, 4), b(2, 4)], NOW)
    join.step([], [b(1, 4, -1)], NOW)
    assert shown(join.step([], [b(2, 4, -1)], NOW)) == [(1, 2, 4, -1)]
    assert shown(join.step([], [], END)) == [(1, None, 3, 1)]


def test_16_a_row_taken_back_after_it_was_let_go_takes_back_its_answer(start: Start) -> None:
    join = start(spec("left"))
    assert shown(join.step([a(1, 3)], [], (0, 100))) == [(1, None, 3, 1)]
    assert shown(join.step([a(1, 3, -1)], [], (0, 100))) == [(1, None, 3, -1)]


def test_16_early_is_taken_back_with_the_first_partner_and_given_again_after_the_last(start: Start) -> None:
    join = start(spec("left", unmatched="early"))
    assert shown(join.step([a(1, 3)], [], NOW)) == [(1, None, 3, 1)]
    assert shown(join.step([], [b(1, 4)], NOW)) == [(1, 1, 4, 1), (1, None, 3, -1)]
    assert shown(join.step([], [b(2, 5)], NOW)) == [(1, 2, 5, 1)]
    assert shown(join.step([], [b(1, 4, -1)], NOW)) == [(1, 1, 4, -1)]
    assert shown(join.step([], [b(2, 5, -1)], NOW)) == [(1, 2, 5, -1), (1, None, 3, 1)]
    assert join.step([], [], END) == []


def test_16_early_says_nothing_of_a_row_whose_partner_is_there_or_comes_with_it(start: Start) -> None:
    join = start(spec("full", unmatched="early"))
    assert shown(join.step([a(1, 3)], [b(1, 4)], NOW)) == [(1, 1, 4, 1)]
    assert shown(join.step([a(2, 3)], [], NOW)) == [(2, 1, 4, 1)]
    assert shown(join.step([], [b(3, 4, key="y"), b(4, 4, key=None)], NOW)) == [(None, 3, 4, 1), (None, 4, 4, 1)]


def test_16_with_windows_a_row_is_alone_in_each_window_by_itself(start: Start) -> None:
    join = start(spec("left", windowing=Sliding(10, 5)))
    assert shown(join.step([a(1, 7)], [b(1, 12)], NOW)) == [(5, 15, 1, 1, 12, 1)]
    assert shown(join.step([], [], END)) == [(0, 10, 1, None, 7, 1)]


def test_16_semi_gives_a_row_once_and_takes_it_back_with_its_last_partner(start: Start) -> None:
    join = start(spec("semi"))
    assert join.step([a(1, 3), a(2, 3, key=None)], [], NOW) == []
    assert shown(join.step([], [b(1, 6), b(2, 5)], NOW)) == [(1, 5, 1)]
    assert join.step([], [b(3, 4)], NOW) == []
    assert join.step([], [b(2, 5, -1), b(3, 4, -1)], NOW) == []
    assert shown(join.step([], [b(1, 6, -1)], NOW)) == [(1, 5, -1)]
    assert shown(join.step([], [b(1, 7)], NOW)) == [(1, 7, 1)]
    assert shown(join.step([a(1, 3, -1)], [], NOW)) == [(1, 7, -1)]


def test_16_semi_takes_back_the_time_that_it_gave_even_if_the_other_side_is_far_ahead(start: Start) -> None:
    join = start(spec("semi"))
    join.step([a(1, 3)], [], (0, 0))
    assert shown(join.step([], [b(1, 8)], (0, 0))) == [(1, 8, 1)]
    join.step([], [b(2, 5)], (0, 1_000))
    assert shown(join.step([a(1, 3, -1)], [], (0, 1_000))) == [(1, 8, -1)]


def test_16_equal_rows_of_a_semi_join_have_one_time(start: Start) -> None:
    join = start(spec("semi"))
    assert shown(join.step([a(1, 3)], [b(1, 8)], NOW)) == [(1, 8, 1)]
    join.step([], [b(2, 5)], NOW)
    assert shown(join.step([a(1, 3), a(1, 3), a(2, 3)], [], NOW)) == [(1, 8, 1), (1, 8, 1), (2, 5, 1)]
    assert shown(join.step([a(1, 3, -1), a(2, 3, -1)], [], NOW)) == [(1, 8, -1), (2, 5, -1)]


def test_16_the_first_partner_of_a_semi_join_is_one_that_is_there(start: Start) -> None:
    join = start(spec("semi"))
    assert shown(join.step([a(1, 3)], [b(1, 4, -1), b(2, 6), b(3, 7)], NOW)) == [(1, 6, 1)]


def test_16_anti_gives_rows_without_a_partner(start: Start) -> None:
    join = start(spec("anti"))
    assert join.step([a(1, 3), a(2, 3, key=None), a(3, 3, key="y")], [b(1, 4)], NOW) == []
    assert shown(join.step([], [], END)) == [(2, 3, 1), (3, 3, 1)]
    join = start(spec("anti", unmatched="early"))
    assert shown(join.step([a(1, 3)], [], NOW)) == [(1, 3, 1)]
    assert shown(join.step([], [b(1, 4)], NOW)) == [(1, 3, -1)]
    assert shown(join.step([], [b(1, 4, -1)], NOW)) == [(1, 3, 1)]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (spec("inner", within=(-20, 30), lateness=(5, 7)), 100),
        (spec("semi", within=(-20, 30), lateness=(5, 7)), 100),
        (spec("left", within=(-20, 30), lateness=(5, 7)), 63),
        (spec("anti", within=(-20, 30), lateness=(5, 7)), 63),
        (spec("right", within=(-20, 30), lateness=(5, 7)), 75),
        (spec("full", within=(-20, 30), lateness=(5, 7)), 63),
        (spec("full", within=(-20, 30), lateness=(5, 7), unmatched="early"), 100),
        (spec("left", within=(-20, -10), lateness=(5, 7)), 93),
        (spec("right", within=(10, 20), lateness=(5, 7)), 95),
        (spec("left", windowing=Fixed(10), lateness=(5, 7)), 90),
        (spec("left", windowing=Sliding(30, 10), lateness=(5, 7)), 70),
        (spec("inner", windowing=Fixed(10)), 100),
    ],
    ids=str,
)
def test_17_the_watermark_after_a_join(made: JoinSpec, expected: int) -> None:
    assert out_watermark(made, 100, 120) == out_watermark(made, 130, 100) == expected
    assert out_watermark(made, END_OF_TIME, END_OF_TIME) == END_OF_TIME
    assert out_watermark(made, BEGINNING_OF_TIME, 100) == BEGINNING_OF_TIME
    assert out_watermark(made, BEGINNING_OF_TIME + 1, 100) >= BEGINNING_OF_TIME


def test_17_the_watermark_after_a_join_by_months() -> None:
    made = spec("left", windowing=window.calendar("month", "Europe/Berlin"))
    day = 86_400_000_000
    assert out_watermark(made, 45 * day, 45 * day) == 31 * day - day // 24
    assert out_watermark(made, -(10**18), 0) == BEGINNING_OF_TIME


def test_the_columns_of_the_result() -> None:
    columns = {"left": "a INT NOT NULL, k STRING", "right": "b INT NOT NULL, k STRING NOT NULL"}
    found = {how: str(spec(how, **columns).schema) for how in ("inner", "left", "right", "full", "semi", "anti")}  # type: ignore[arg-type]
    assert found == {
        "inner": "k STRING NOT NULL, a INT NOT NULL, b INT NOT NULL",
        "left": "k STRING, a INT NOT NULL, b INT",
        "right": "k STRING NOT NULL, a INT, b INT NOT NULL",
        "full": "k STRING, a INT, b INT",
        "semi": "k STRING NOT NULL, a INT NOT NULL",
        "anti": "k STRING, a INT NOT NULL",
    }
    windowed = spec(windowing=Fixed(10)).schema
    assert str(windowed) == "k STRING, window_start TIMESTAMP, window_end TIMESTAMP, a BIGINT, b BIGINT"
    assert str(spec("semi", windowing=Fixed(10)).schema) == (
        "k STRING, window_start TIMESTAMP, window_end TIMESTAMP, a BIGINT"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"how": "outer"}, "unknown kind of join 'outer'"),
        ({"unmatched": "erly", "how": "left"}, "did you mean 'early'"),
        ({"unmatched": "early"}, "inner joins do not answer rows without a partner"),
        ({"on": ()}, "needs on="),
        ({"on": ("k", "k")}, "names a column twice"),
        ({"on": ("a",)}, "unknown column on the right of the join 'a'"),
        ({"right": "k INT, b BIGINT"}, "it is STRING on the left, but INT on the right"),
        ({"left": "k ARRAY<INT>, a INT", "right": "k ARRAY<INT>, b INT"}, "ARRAY<INT> cannot be a key"),
        ({"right": "k STRING, A BIGINT"}, "both sides of the join have a column 'a'; leave it out or rename it"),
        ({"windowing": Fixed(10), "left": "k STRING, window_end BIGINT"}, "the join adds a column 'window_end'"),
        ({"windowing": Fixed(10), "right": "k STRING, window_end BIGINT"}, "the join adds a column 'window_end'"),
        ({"within": None}, "needs either within= or window="),
        ({"within": (1_000_000, -1_000_000)}, r"within=\('1s', '-1s'\)\) has no pairs"),
        ({"lateness": (-1, 0)}, "lateness of a join must not be negative"),
        ({"windowing": window.session("1s")}, "session windows: sessions of the two sides"),
        ({"windowing": window.count(3)}, "count windows depend on the order of arrival"),
        ({"windowing": window.all_time()}, "keep all rows for ever"),
        ({"windowing": window.custom(lambda at, row: [])}, "cannot have custom windows"),
    ],
    ids=lambda each: each if isinstance(each, str) else ", ".join(each),
)
def test_joins_without_a_meaning_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        spec(**arguments)


def test_a_semi_join_may_share_names_as_it_has_no_columns_of_the_right() -> None:
    assert spec("semi", right="k STRING, a BIGINT").schema.names == ("k", "a")
