"""Warnings of a run: events that are too late, columns that no record has."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from millrace.cli import app
from millrace.model.schema import parse_schema
from millrace.running.health import Health
from millrace.running.shown import RunDisplay, RunDisplays
from millrace.running.status import note
from millrace.sources.bundle import Bundle
from millrace.sources.looked import Looked, look
from millrace.spark.progress import BatchProgress, PartProgress

SCHEMA = parse_schema("user STRING, ms BIGINT")
LATE = (
    "view hourly: 10 percent of the events of the last minutes were too late; raise delay= of event_time(), or "
    "lateness= of window()"
)
MISSPELLED = (
    "plays: column 'user' is in none of 120 records that were looked at; is it 'users', which the schema does not have?"
)


def progress(elements: int, late: int, looked: Looked | None = None) -> BatchProgress:
    part = PartProgress(None, None, 2, 100, 0, 5, elements=elements, late=late)
    return BatchProgress(3, elements, 0.5, 0, {"view hourly": part}, looked={} if looked is None else {"plays": looked})


def test_a_share_of_events_that_is_too_late_is_a_warning_until_it_is_over() -> None:
    health, batches = Health(), [(99, 99, False), (1, 0, True), (1_000, 0, True), (890, 0, False)]
    for second, (elements, late, warned) in enumerate(batches):
        health = health.after(progress(elements, late), 1_000.0 + second)
        assert bool(health.warnings()) == warned
    health = Health().after(progress(100, 10), 1_000.0)
    assert list(health.warnings().values()) == [LATE]
    assert health.after(progress(0, 0), 1_280.0).warnings() != {}
    assert health.after(progress(0, 0), 1_310.0).warnings() == {}


def test_few_events_are_no_warning_however_late() -> None:
    assert Health().after(progress(99, 99), 0.0).warnings() == {}
    assert Health().after(progress(100, 5), 0.0).warnings() == {}


def texts(*records: str) -> Bundle:
    return Bundle("t/0", np.arange(len(records)), pa.array(records, pa.string()))


def test_fields_are_compared_with_columns_in_the_first_records_of_a_bundle() -> None:
    looked = look(texts('{"users": "a", "ms": 1}', "no JSON", "[1]", '{"ms": null, "users": 1, "x": 2}'), SCHEMA)
    assert looked == Looked(2, {"users": 2, "x": 1}, {"user": 2})
    assert looked.never == ["user"]
    many = look(texts(*['{"user": "a"}'] * 1_000), SCHEMA)
    assert many == Looked(20, {}, {"ms": 20})
    assert (looked + many).never == []
    assert (
        look(texts(*[json.dumps({f"f{n}-{m}": 1 for m in range(9)}) for n in range(20)]), SCHEMA).unknown.__len__()
        == 100
    )
    columns = Bundle("f", np.arange(3), rows=pa.table({"ms": [1, 2, 3]}), names=["ms", "usr"])
    assert look(columns, SCHEMA) == Looked(3, {"usr": 3}, {"user": 3})
    assert look(Bundle("f", np.arange(3), rows=pa.table({"ms": [1, 2, 3]})), SCHEMA) == Looked()


def test_a_misspelled_column_is_a_warning_once_enough_records_were_looked_at() -> None:
    few = Looked(9, {"users": 9, "other": 9}, {"user": 9, "ms": 9})
    health = Health().after(progress(0, 0, few), 0.0)
    assert (health.unknown, health.missing, health.warnings()) == (2, 2, {})
    more = health.after(progress(0, 0, Looked(90, {"users": 90}, {"user": 90, "ms": 90})), 1.0)
    assert list(more.warnings()) == ["plays user"]
    again = more.after(progress(0, 0, Looked(21, {"users": 21}, {"user": 21, "ms": 21})), 2.0)
    absent = "plays: column 'ms' is in none of 120 records that were looked at"
    assert list(again.warnings().values()) == [MISSPELLED, absent]
    assert again.after(progress(0, 0, Looked(1)), 3.0).warnings() == {}


def test_a_run_says_each_warning_once_while_it_holds() -> None:
    said = io.StringIO()
    display = RunDisplay(RunDisplays(Console(file=said, width=200), False, several=False), "charts", lambda: None)
    for _ in range(3):
        display.batch(progress(100, 10, Looked(120, {"users": 120}, {"user": 120})), {})
    assert [line for line in said.getvalue().splitlines() if "too late" in line] == [f"charts: {LATE}"]
    assert [line for line in said.getvalue().splitlines() if "none of" in line] == [f"charts: {MISSPELLED}"]


def test_status_counts_fields_and_shows_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / ".millrace" / "charts"
    checkpoint.mkdir(parents=True)
    last = progress(100, 10, Looked(120, {"users": 120, "x": 3}, {"user": 120}))
    note(checkpoint, "charts", last, 0, 0, Health().after(last, 0.0))
    shown = CliRunner().invoke(app, ["status"]).output
    assert f"charts: {LATE}" in shown
    assert f"charts: {MISSPELLED}" in shown
    (row,) = [json.loads(line) for line in CliRunner().invoke(app, ["status", "--format", "json"]).output.splitlines()]
    assert (row["unknown fields"], row["missing fields"]) == (2, 1)
    assert json.loads(last.to_json())["fields"] == {
        "plays": {"records": 120, "unknown": {"users": 120, "x": 3}, "missing": {"user": 120}}
    }
