"""Tables on a terminal of 80 by 24: nothing is cut off or broken within a word."""

from datetime import UTC, datetime
from io import StringIO

import pyarrow as pa
import pytest
from rich.console import Console

from millrace.cli import shown
from millrace.running.narrow import fitting, width_of
from millrace.running.shown import RunDisplay, RunDisplays
from millrace.spark.progress import BatchProgress, PartProgress

COLUMNS = ("track", "window_start", "window_end", "plays", "listeners", "timing", "index", "last", "version")
ROW = ("Millstream", "2026-01-01 12:00:00.000000Z", "2026-01-01 13:00:00.000000Z", 3, 3, "on-time", 0, 0, 1)


def shown_at(width: int, rows: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    console = Console(width=width, record=True, force_terminal=True, file=StringIO())
    monkeypatch.setattr(shown, "wide_enough", lambda: console)
    shown.show(COLUMNS, rows, "table")
    return console.export_text().splitlines()


def test_rows_that_are_too_wide_are_shown_as_names_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown_at(80, [ROW, ROW], monkeypatch)
    one = [f"{name:<12}  {value}" for name, value in zip(COLUMNS, ROW, strict=True)]
    assert [line.rstrip() for line in lines] == [*one, "", *one]
    assert len(shown_at(160, [ROW, ROW], monkeypatch)) == 6, "a table"
    assert shown_at(80, [], monkeypatch)[0].startswith("┏"), "no rows have no values"


def test_a_long_text_is_folded_in_its_cell() -> None:
    assert width_of({"n": ["1"], "text": ["word " * 100]}, most=24) < 80


def test_the_table_of_a_run_leaves_out_columns_that_do_not_fit() -> None:
    part = PartProgress(1_767_272_690_000_000, 27_650_000_000_000, 3, 1000, 0, 1)
    answer = {
        "track": ["Undertow"],
        "window_start": [datetime(2026, 1, 1, 13, tzinfo=UTC)],
        "window_end": [datetime(2026, 1, 1, 14, tzinfo=UTC)],
        "plays": [1], "listeners": [1], "diff": [1], "timing": ["early"], "index": [0], "last": [False],
    }  # fmt: skip
    headings = {}
    for width in (80, 140):
        console = Console(width=width, record=True, force_terminal=True)
        display = RunDisplay(RunDisplays(console, False, several=False), "charts", lambda: 0)
        display._last["view hourly_plays"] = pa.table(answer)
        progress = BatchProgress(1, 6, 1.5, 0, {"view hourly_plays": part}, {"run": 1.0})
        console.print(display._table(progress), *display._last_answers())
        written = console.export_text()
        assert "…" not in written
        assert "view hourly_plays" in written
        headings[width] = {name for name in ("watermark", "state", "window_end", "index") if f" {name} " in written}
    assert headings == {80: set(), 140: {"watermark", "state", "window_end", "index"}}


def test_columns_are_left_out_in_order_and_only_as_many_as_needed() -> None:
    columns = {"a": ["x" * 10], "b": ["x" * 10], "c": ["x" * 10]}
    assert list(fitting(columns, 40, ("b", "c"))) == ["a", "b", "c"]
    assert list(fitting(columns, 39, ("b", "c"))) == ["a", "c"]
    assert list(fitting(columns, 20, ("b", "c"))) == ["a"]
    assert list(fitting(columns, 1, ("b",))) == ["a", "c"]
