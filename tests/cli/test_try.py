"""`millrace try`: a pipeline over small files, on the reference engine, without Spark."""

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from millrace.cli import app
from millrace.eventlog.topics import Log
from millrace.running.load import load
from millrace.spark import batch

EXAMPLES = Path(__file__).parents[2] / "examples"
MISTAKE, NOT_FOUND = 2, 3


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as `millrace init` makes it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to load a file adds its folder
    monkeypatch.setenv("PYTHONPATH", "")
    CliRunner().invoke(app, ["init", "charts"])
    monkeypatch.chdir(tmp_path / "charts")
    return tmp_path / "charts"


def tried(*arguments: str, given: str | None = None) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["try", *arguments, "--format", "json"], input=given)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def refused(*arguments: str, code: int = MISTAKE) -> str:
    result = CliRunner().invoke(app, ["try", *arguments])
    assert result.exit_code == code, result.output
    (line,) = result.output.splitlines()
    return line


def answers(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The micro-batch, the track, the count, the diff and the timing of each answer."""
    return [
        (line["batch"], said["track"], said["plays"], said["diff"], said["timing"])
        for line in lines
        if (said := line.get("answer"))
    ]


def view(lines: list[dict[str, Any]], name: str = "hourly_plays") -> list[dict[str, Any]]:
    return [line["row"] for line in lines if line.get("view") == name]


def test_answers_come_early_on_time_and_late(here: Path) -> None:
    assert answers(tried("charts.py", "plays.json")) == [
        (2, "Millstream", 1, 1, "early"),
        (3, "Watershed", 1, 1, "early"),
        (5, "Millstream", 1, -1, "early"),
        (5, "Millstream", 2, 1, "early"),
        (5, "Millstream", 2, -1, "early"),
        (5, "Millstream", 2, 1, "on-time"),
        (5, "Watershed", 1, -1, "early"),
        (5, "Watershed", 1, 1, "on-time"),
        (6, "Millstream", 2, -1, "on-time"),
        (6, "Millstream", 3, 1, "late"),
        (None, "Undertow", 1, 1, "on-time"),
    ]


def test_a_table_shows_the_answers_and_the_view_at_the_end(here: Path) -> None:
    result = CliRunner().invoke(app, ["try", "charts.py", "plays.json"])
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "6 13:05 Millstream 12:00 to 13:00 3 3 +1 late" in lines
    at_the_end = lines.index("hourly_plays: the view at the end, on 2026-01-01 in UTC")
    assert lines[at_the_end + 4 : at_the_end + 7] == [
        "Millstream 12:00 to 13:00 3 3",
        "Undertow 13:00 to 14:00 1 1",
        "Watershed 12:00 to 13:00 1 1",
    ]
    assert max(map(len, result.stdout.splitlines())) < 80, "it fits a terminal"
    assert "6 records in 6 micro-batches, 11 answers" in result.stderr


def test_diffs_are_coloured_in_a_terminal(here: Path) -> None:
    result = CliRunner().invoke(app, ["try", "charts.py", "plays.json"], env={"FORCE_COLOR": "1", "COLUMNS": "100"})
    assert re.search(r"\x1b\[31m *-1", result.stdout), "a retraction is red"
    assert re.search(r"\x1b\[32m *\+1", result.stdout), "an answer is green"
    assert re.search(r"\x1b\[33m *late", result.stdout)


def test_the_size_of_a_micro_batch_decides_what_is_late(here: Path) -> None:
    assert answers(tried("charts.py", "plays.json", "--batch", "6")) == [
        (1, "Millstream", 3, 1, "on-time"),
        (1, "Watershed", 1, 1, "on-time"),
        (None, "Undertow", 1, 1, "on-time"),
    ]


def test_processing_time_advances_by_a_given_step(here: Path) -> None:
    lines = tried("charts.py", "plays.json", "--every", "4s")
    clocks = {line["batch"]: datetime.fromisoformat(line["clock"]) for line in lines if "clock" in line}
    assert (clocks[5] - clocks[3]).total_seconds() == 8
    early = [number for number, _, _, diff, timing in answers(lines) if (diff, timing) == (1, "early")]
    assert early == [3, 3, 5], "the clock passes a multiple of 10 s at 12:00:13 and at 12:00:21"


def test_many_records_make_a_hundred_micro_batches(here: Path) -> None:
    lines = (here / "plays.json").read_text()
    (here / "plays.json").write_text(lines * 50)
    assert "300 records in 100 micro-batches" in CliRunner().invoke(app, ["try", "charts.py", "plays.json"]).stderr


def test_csv_and_parquet_and_a_pipe_give_the_same_view(here: Path) -> None:
    expected = view(tried("charts.py", "plays.json"))
    rows = [json.loads(line) for line in (here / "plays.json").read_text().splitlines()]
    (here / "plays.csv").write_text(
        "\n".join(["user;track;ms;at;more", *(";".join(map(str, [*row.values(), "x"])) for row in rows)])
    )
    timed = [{**row, "at": datetime.fromisoformat(row["at"]), "more": 1} for row in rows]
    pq.write_table(pa.Table.from_pylist(timed), here / "plays.parquet")
    assert view(tried("charts.py", "plays.csv")) == expected
    assert view(tried("charts.py", "plays.parquet")) == expected
    assert view(tried("charts.py", "-", given=(here / "plays.json").read_text())) == expected


def test_nothing_is_stored(here: Path) -> None:
    tried("charts.py", "plays.json")
    assert {path.name for path in here.iterdir()} <= {"charts.py", "plays.json", "README.md", "__pycache__"}


def test_a_record_that_does_not_fit_is_a_dead_letter_with_its_reason(here: Path) -> None:
    (here / "plays.json").write_text('[1]\n{"track": "A", "ms": 40000, "at": "2026-01-01T12:00:00Z"}\n')
    (letter,) = [line["dead_letter"] for line in tried("charts.py", "plays.json") if "dead_letter" in line]
    assert letter["row"].strip() == "[1]"
    assert "not a JSON object" in letter["reason"]
    printed = CliRunner().invoke(app, ["try", "charts.py", "plays.json"]).stdout
    assert "1 dead letter:\n  plays: it is not a JSON object" in printed


def test_a_strict_source_sets_unknown_fields_aside(here: Path) -> None:
    strict = (here / "charts.py").read_text().replace('at TIMESTAMP"', 'at TIMESTAMP", strict=True')
    (here / "charts.py").write_text(strict)
    play = {"track": "A", "ms": 40000, "at": "2026-01-01T12:00:00Z"}
    (here / "plays.json").write_text(f"{json.dumps(play)}\n{json.dumps(play | {'mood': 'good'})}\n")
    lines = tried("charts.py", "plays.json")
    (reason,) = [line["dead_letter"]["reason"] for line in lines if "dead_letter" in line]
    assert reason == "unknown field 'mood' (known: user, track, ms, at)"
    assert [row["plays"] for row in view(lines)] == [1]


def test_a_time_that_has_not_come_yet_is_a_dead_letter_and_closes_no_window(here: Path) -> None:
    times = ("2026-01-01T12:00:00Z", "2999-01-01T12:00:00Z", "2026-01-01T12:10:00Z")
    (here / "plays.json").write_text("".join(json.dumps({"track": "A", "ms": 40000, "at": at}) + "\n" for at in times))
    lines = tried("charts.py", "plays.json")
    (reason,) = [line["dead_letter"]["reason"] for line in lines if "dead_letter" in line]
    assert "2999-01-01 12:00:00, more than 1d after its record was logged" in reason
    assert [row["plays"] for row in view(lines)] == [2]


def test_records_that_are_too_late_are_counted(here: Path) -> None:
    rows = [{"track": "A", "ms": 40000, "at": f"2026-01-0{day}T12:00:00Z"} for day in (1, 5, 1)]
    (here / "plays.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed = CliRunner().invoke(app, ["try", "charts.py", "plays.json"]).stdout
    assert "hourly_plays: 1 record came too late for every window" in printed


def test_sources_and_joined_views_are_named(here: Path) -> None:
    (here / "two.py").write_text(
        "from millrace import Pipeline, agg, files, log, on, table, to_topic, window\n"
        "names = table('names', 'user STRING, name STRING', view='people')\n"
        "schema = 'user STRING, at TIMESTAMP'\n"
        "both = log('a', schema).union(files('b', schema, 'parquet')).join(names, on='user').event_time('at', '0s')\n"
        "windows = both.group_by('name').window(window.all_time()).trigger(on.each())\n"
        "counted = windows.accumulating().aggregate(n=agg.count())\n"
        "two = Pipeline('two', {'counted': counted}, [both.to(to_topic('all'))])\n"
    )
    row = '{{"user": "{}", "at": "2026-01-01T12:00:00Z"}}\n'
    (here / "a.json").write_text(row.format("u1") + row.format("u2"))
    (here / "b.json").write_text(row.format("u1"))
    (here / "names.csv").write_text("user,name\nu1,Ann\nu2,Bob\n")
    lines = tried("two.py", "--from", "a=a.json", "--from", "b=b.json", "--from", "names=names.csv")
    assert view(lines, "counted") == [
        {"name": name, "window_start": None, "window_end": None, "n": n} for name, n in (("Ann", 2), ("Bob", 1))
    ]
    assert len([line for line in lines if line.get("output") == "topic all"]) == 3
    missing = refused("two.py", "--from", "a=a.json")
    assert missing == "there are no records for b, names; name a file for each: --from b=FILE --from names=FILE"
    assert "name a file for each: --from a=FILE --from b=FILE" in refused("two.py", "a.json")
    unknown = refused("two.py", "--from", "c=a.json", "--from", "a=a.json", "--from", "b=b.json")
    assert unknown == "unknown source or table 'c' (known: a, b, names)"


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["nowhere.json"], "there is no file nowhere.json; check the path", NOT_FOUND),
        (["nowhere.parquet"], "there is no file nowhere.parquet; check the path", NOT_FOUND),
        ([], "there are no records for plays; name a file for each: --from plays=FILE", MISTAKE),
        (["--from", "plays"], "--from must be NAME=FILE, such as --from plays=plays.json, not 'plays'", MISTAKE),
        (["plays.json", "--format", "csv"], "unknown format 'csv' (known: table, json)", MISTAKE),
        (["plays.json", "--every", "soon"], "soon", MISTAKE),
        (["empty.json"], "there are no records to try; name a file that has some", MISTAKE),
    ],
)
def test_a_mistake_is_told_in_a_line(arguments: list[str], said: str, code: int, here: Path) -> None:
    (here / "empty.json").touch()
    assert said in refused("charts.py", *arguments, code=code)


def test_an_expression_that_only_spark_evaluates_is_told_in_a_line(here: Path) -> None:
    text = (here / "charts.py").read_text().replace('"ms >= 30000"', "\"soundex(track) = 'M423'\"")
    (here / "charts.py").write_text(text)
    line = refused("charts.py", "plays.json")
    assert line.startswith("charts.py:8: the reference engine cannot evaluate")
    assert line.endswith("compute it on Spark: millrace run FILE, or engine='spark' in a test")


def test_spark_is_not_imported(here: Path) -> None:
    program = (
        "import sys\n"
        "from millrace.cli import app\n"
        "app(['try', 'charts.py', 'plays.json'], standalone_mode=False)\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('pyspark', 'py4j')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_views_at_the_end_are_those_of_a_batch_on_spark(here: Path, spark: SparkSession) -> None:
    """The example of charts: plays that are out of order, early and late answers, two views."""
    lines = tried(str(EXAMPLES / "hourly_charts.py"), str(EXAMPLES / "data" / "plays.json"))
    log = Log(here / "log.db")
    log.create("plays", partitions=2)
    log.append("plays", (EXAMPLES / "data" / "plays.json").read_text().splitlines())
    pipeline = load(EXAMPLES / "hourly_charts.py")
    computed = batch.collect(spark, pipeline, log=here / "log.db").answers
    for name, query in pipeline.views.items():
        rows = [
            {column: json.loads(json.dumps(value, default=str)) for column, value in row.items()}
            for row in computed[f"view {name}"].select(query.schema.names).to_pylist()
        ]
        for row in (found := view(lines, name)):
            row |= {bound: str(datetime.fromisoformat(row[bound])) for bound in ("window_start", "window_end")}
        assert len(rows) > 1
        assert sorted(found, key=str) == sorted(rows, key=str)
