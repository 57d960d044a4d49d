"""The examples, by the commands that their docstrings say, against answers computed in plain Python."""

import ast
import csv
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeAlias

import pytest

from millrace.cli import app
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.running.load import load
from millrace.running.status import all_under
from millrace.testing import Answers, Script, run_script
from millrace.testing.run import EngineName
from millrace.views.store import open_store
from postgres import Postgres

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = EXAMPLES / "data"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "make_data")
MINUTE, HOUR, DAY = 60, 3600, 86_400

Record: TypeAlias = dict[str, Any]
Typed: TypeAlias = tuple[Path, subprocess.Popen[str]]
"""Where commands run, and what runs them."""


def blocks(example: str) -> list[list[str]]:
    """The commands in the docstring of an example, as they are written, in groups with words between them."""
    found: list[list[str]] = [[]]
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{example}.py").read_text(encoding="utf-8")))
    for line in (text or "").splitlines():
        if line.startswith("        "):
            found[-1][-1] += f"\n{line}"
        elif line.startswith("    "):
            found[-1].append(line.strip())
        elif line and found[-1]:
            found.append([])
    return [block for block in found if block]


def test_each_example_is_described() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"({name}.py)" not in table] == []
    for name in NAMES:
        assert any(f"millrace run examples/{name}.py" in command for block in blocks(name) for command in block), name


def test_the_records_are_what_the_script_makes() -> None:
    made = runpy.run_path(str(EXAMPLES / "make_data.py"))["make"]()
    assert {path.name: path.read_text(encoding="utf-8") for path in DATA.iterdir()} == made


# --- Commands -------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to try the examples in, as if it were the root of the repository."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    for name in ("MILLRACE_LOG", "MILLRACE_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """The first commands of an example as a user gives them. They take a while, so other tests go on meanwhile."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "examples").symlink_to(EXAMPLES)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    commands = subprocess.Popen(
        "\n".join(["set -e", *blocks("ad_impressions")[0]]), shell=True, cwd=folder, env=environment,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with commands:
        yield folder, commands
        if commands.poll() is None:  # nobody waited for them
            os.killpg(commands.pid, signal.SIGKILL)


@pytest.fixture
def on_spark(here: Path, typed: Typed, one_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in this process, on the one Spark of all tests."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # to run a file adds its folder
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def do(commands: Iterable[str]) -> None:
    for command in commands:
        if command.startswith("millrace "):
            assert not app(as_words(command)[1:], standalone_mode=False), command
        else:
            subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)


def as_words(command: str) -> list[str]:
    """What a shell makes of it."""
    told = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], check=True, stdout=subprocess.PIPE, text=True)
    return told.stdout.split("\0")[:-1]


def asked(sql: str) -> list[tuple[Any, ...]]:
    with closing(open_store(os.environ.get("MILLRACE_STORE", ".millrace/views.db"))) as store:
        return store.query(sql).rows


# --- Records, and windows computed from them ------------------------------------------------------


def sent(*files: str) -> list[Record]:
    """The records of some files, with their time in seconds."""
    return timed(raw(*files))


def shown(second: int) -> str:
    """A time as the store shows it."""
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M:%S}.000000Z"


def newest(records: Iterable[Record]) -> int:
    return max(int(record["at"]) for record in records)


def by(records: Iterable[Record], key: Callable[[Record], Iterable[Any]]) -> dict[Any, list[Record]]:
    """The records of each of the keys that a record has."""
    found = defaultdict(list)
    for record in records:
        for each in key(record):
            found[each].append(record)
    return found


def slides(at: int, size: int, every: int) -> Iterator[int]:
    """The starts of the windows around a time."""
    start = at - at % every
    while start > at - size:
        yield start
        start -= every


def raw(*files: str) -> list[Record]:
    """The records of some files as they are."""
    return [json.loads(line) for name in files for line in (DATA / f"{name}.json").read_text().splitlines()]


def timed(records: list[Record]) -> list[Record]:
    """Records with their time in seconds."""
    return [{**each, "at": second_of(each["at"])} for each in records]


def second_of(time: str | datetime) -> int:
    return int((datetime.fromisoformat(time) if isinstance(time, str) else time).timestamp())


def micro_batches(files: list[str], many: int) -> list[list[Record]]:
    """The records of some files in so many parts, in their order."""
    records = raw(*files)
    return [records[len(records) * part // many : len(records) * (part + 1) // many] for part in range(many)]


def scripted(given: dict[str, list[list[Record]]]) -> Script:
    """A part of each topic in turn, each a micro-batch; then the input ends."""
    script = Script()
    for parts in zip(*given.values(), strict=True):
        for topic, part in zip(given, parts, strict=True):
            script = script.rows(topic, *part)
    return script.end()


def run_example(name: str, script: Script, engine: EngineName, request: pytest.FixtureRequest) -> Answers:
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    return run_script(load(EXAMPLES / f"{name}.py"), script, engine, spark=spark)


IN_MICRO_BATCHES = pytest.mark.parametrize(
    ("engine", "many"), [("reference", 25), ("panes", 25), pytest.param("spark", 8, marks=pytest.mark.spark)]
)
"""Engines, and the number of micro-batches into which records are divided."""


# --- Charts ---------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_charts_are_right_for_hours_that_are_over_and_in_a_batch_for_all() -> None:
    first, then = blocks("hourly_charts")
    do(first)
    counted = [play for play in sent("plays") if play["ms"] >= 30_000]
    assert charts(newest(counted) - 10) == charted(counted, newest(counted) - 10)
    do(then)
    counted = [play for play in sent("plays", "plays_late") if play["ms"] >= 30_000]
    assert charts(newest(counted) - 10) == charted(counted, newest(counted) - 10)
    assert asked("SELECT DISTINCT timing FROM hourly_plays WHERE timing = 'late'") == [("late",)]
    do(["millrace run examples/hourly_charts.py --mode batch"])
    ever = newest(counted) + HOUR
    assert charts(ever) == charted(counted, ever) != charted(counted, newest(counted) - 10)


def charts(watermark: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What the views hold of hours that are over."""
    over = f"WHERE window_end <= '{shown(watermark)}'"
    hourly = asked(f"SELECT track, window_start, plays, listeners FROM hourly_plays {over}")
    top = asked(f"SELECT window_start, top, longest FROM top_tracks {over}")
    return {row[:2]: row[2:] for row in hourly}, {
        start: (json.loads(most), json.loads(longest)) for start, most, longest in top
    }


def charted(plays: list[Record], watermark: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The same from the plays."""
    over = [play for play in plays if play["at"] // HOUR * HOUR + HOUR <= watermark]
    hourly = by(over, lambda play: [(play["track"], shown(play["at"] // HOUR * HOUR))])
    top = {}
    for start, group in by(over, lambda play: [shown(play["at"] // HOUR * HOUR)]).items():
        longest = sorted(group, key=lambda play: -play["ms"])[:3]
        top[start] = (most_frequent((play["track"] for play in group), 10), [play["track"] for play in longest])
    return {key: (len(group), len({play["user"] for play in group})) for key, group in hourly.items()}, top


def most_frequent(values: Iterable[str], many: int) -> list[Record]:
    ranked = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))[:many]
    return [{"item": value, "count": count} for value, count in ranked]


# --- Hashtags -------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_hashtags_are_counted_in_every_window_that_is_over() -> None:
    files: list[str] = []
    for block, file in zip(blocks("trending_topics"), ("hashtags", "hashtags_late"), strict=True):
        do(block)
        files.append(file)
        uses = sent(*files)
        groups = by(uses, lambda use: [shown(start) for start in slides(use["at"], 10 * MINUTE, 5 * MINUTE)])
        over = {start: group for start, group in groups.items() if start <= shown(newest(uses) - 30 - 10 * MINUTE)}
        expected = {}
        for start, group in over.items():
            for tag, tagged in by(group, lambda use: [use["tag"]]).items():
                expected[tag, start] = (len(tagged), len({use["user"] for use in tagged}))
        found = asked("SELECT tag, window_start, uses, people FROM tag_uses")
        assert {row[:2]: row[2:] for row in found} == expected
        top = {start: json.loads(ranked) for start, ranked in asked("SELECT window_start, top FROM trending")}
        assert top == {start: most_frequent((use["tag"] for use in group), 5) for start, group in over.items()}
    assert asked("SELECT count(*) > 0 FROM tag_uses WHERE timing = 'late'") == [(1,)]
    assert top[max(top)][0]["item"] == "flood"


# --- Rankings of counts -----------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_the_top_ten_of_ten_minutes_are_ranked_early_and_corrected() -> None:
    files, before = list[str](), dict[Any, Any]()
    for block, file in zip(blocks("top_topics"), ("hashtags", "hashtags_late"), strict=True):
        do(block)
        files.append(file)
        uses = sent(*files)
        watermark = newest(uses) - 30
        found = {row[0]: (*row[1:3], json.loads(row[3]), row[4]) for row in asked(as_words(block[2])[-1])}
        assert {start: row[:3] for start, row in found.items()} == ranked(uses)
        assert {start for start, row in found.items() if row[3] == "early"} == {
            start for start in found if start > shown(watermark - 10 * MINUTE)
        }
        popular = by(uses, lambda use: [(use["tag"], shown(use["at"] // 600 * 600))])
        assert {
            (tag, start): many for tag, start, many in asked("SELECT tag, window_start, uses FROM popular_tags")
        } == {key: len(group) for key, group in popular.items() if len(group) >= 10}
        corrected = {start for start, row in before.items() if row[3] == "on-time" and row != found[start]}
        assert {start for start, row in found.items() if row[3] == "late"} == corrected
        assert bool(corrected) == bool(before)
        before = found
    do(["millrace run examples/top_topics.py --mode batch"])
    assert {row[0]: (*row[1:3], json.loads(row[3])) for row in asked(as_words(block[2])[-1])} == ranked(uses)


@IN_MICRO_BATCHES
def test_the_top_ten_are_right_after_every_micro_batch(
    engine: EngineName, many: int, request: pytest.FixtureRequest
) -> None:
    parts = micro_batches(["hashtags", "hashtags_late"], many)
    answers = run_example("top_topics", scripted({"hashtags": parts}), engine, request)
    assert not answers.dead_letters
    assert not any(answers.dropped.values())
    stand = Counter[Any]()
    for number, step in enumerate(answers.steps[:-1]):
        for row in step["top_topics"]:
            start = shown(second_of(row["window_start"]))
            stand[start, row["tags"], row["uses"], tuple(row["top"])] += row["diff"]
        expected = ranked(timed([use for part in parts[: number + 1] for use in part]))
        assert stand == Counter((start, tags, uses, tuple(top)) for start, (tags, uses, top) in expected.items())


def ranked(uses: list[Record]) -> dict[str, tuple[int, int, list[str]]]:
    """Tags, uses and the ten tags that are used most, of each ten minutes."""
    found = {}
    for start, group in by(uses, lambda use: [shown(use["at"] // 600 * 600)]).items():
        counts = Counter(use["tag"] for use in group)
        first = sorted(counts, key=lambda tag: (counts[tag], tag), reverse=True)
        found[start] = len(counts), len(group), first[:10]
    return found


# --- Impressions and clicks -------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_impressions_find_their_clicks_within_an_hour_late_or_not() -> None:
    first, then = blocks("ad_conversions")
    *_, sql = as_words(first[-1])
    do(first)
    before = {row[:2]: row[2:] for row in asked(sql)}
    assert {key: row[:3] for key, row in before.items()} == converted(sent("impressions"), sent("clicks"))
    do(then)
    after = {row[:2]: row[2:] for row in asked(sql)}
    seen, clicked = sent("impressions", "impressions_late"), sent("clicks", "clicks_late")
    assert {key: row[:3] for key, row in after.items()} == converted(seen, clicked)
    corrected = {key for key, row in before.items() if row[3] == "on-time" and row[:3] != after[key][:3]}
    assert {key for key, row in after.items() if row[3] == "late" and before[key][3] == "on-time"} == corrected != set()
    (status,) = all_under(Path(".millrace"))
    assert [part["dropped"] for part in status.progress["parts"].values()] == [0] * len(status.progress["parts"])
    do(["millrace run examples/ad_conversions.py --mode batch"])
    assert {row[:2]: row[2:5] for row in asked(sql)} == converted(seen, clicked)


@IN_MICRO_BATCHES
def test_conversions_are_right_after_every_micro_batch(
    engine: EngineName, many: int, request: pytest.FixtureRequest
) -> None:
    topics = ("impressions", "clicks")
    given = {topic: micro_batches([topic, f"{topic}_late"], many) for topic in topics}
    answers = run_example("ad_conversions", scripted(given), engine, request)
    assert not answers.dead_letters
    assert not any(answers.dropped.values())
    stand, turn = Counter[Any](), dict.fromkeys(topics, 0)
    for number, step in enumerate(answers.steps[:-1]):
        turn[topics[number % 2]] += 1
        for row in step["conversions"]:
            key = row["campaign"], shown(second_of(row["window_start"]))
            stand[key, (row["impressions"], row["clicks"], row["rate"])] += row["diff"]
        seen, clicked = (timed([each for part in given[topic][: turn[topic]] for each in part]) for topic in topics)
        assert {said: many for said, many in stand.items() if many} == dict.fromkeys(
            converted(seen, clicked).items(), 1
        )
    assert turn == dict.fromkeys(topics, many)


def converted(impressions: list[Record], clicks: list[Record]) -> dict[Any, Any]:
    """Impressions, clicks and rate by campaign and hour of the impression."""
    clicked = {each["impression"]: each["at"] for each in clicks}
    found = {}
    for key, group in by(impressions, lambda each: [(each["campaign"], shown(each["at"] // HOUR * HOUR))]).items():
        many = sum(0 <= clicked.get(each["impression"], inf) - each["at"] <= HOUR for each in group)
        found[key] = len(group), many, many / len(group)
    return found


# --- Daily peaks ------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_the_mean_of_daily_maxima_counts_each_sensor_once() -> None:
    sql = "SELECT window_start, sensors, mean_peak, lowest, highest, timing FROM daily_peaks"
    files, before = list[str](), dict[Any, Any]()
    for block, file in zip(blocks("daily_peaks"), ("climate", "climate_late"), strict=True):
        do(block)
        files.append(file)
        readings = sent(*files)
        found = {row[0]: row[1:] for row in asked(sql)}
        assert {day: row[:4] for day, row in found.items()} == peaks_of(readings, newest(readings) - 10)
        hot = peaks_by_sensor(readings, newest(readings) - 10)
        assert {row[:2]: row[2] for row in asked("SELECT sensor, window_start, peak FROM hot_days")} == {
            key: peak for key, peak in hot.items() if peak >= 30
        }
        corrected = {day for day, row in before.items() if row[:4] != found[day][:4]}
        assert {day for day, row in found.items() if row[4] == "late"} >= corrected
        assert bool(corrected) == bool(before)
        before = found
    do(["millrace run examples/daily_peaks.py --mode batch"])
    every = peaks_of(readings, newest(readings) + DAY)
    assert {row[0]: row[1:5] for row in asked(sql)} == every != peaks_of(readings, newest(readings) - 10)


@IN_MICRO_BATCHES
def test_daily_maxima_are_right_after_every_micro_batch(
    engine: EngineName, many: int, request: pytest.FixtureRequest
) -> None:
    parts = micro_batches(["climate", "climate_late"], many)
    answers = run_example("daily_peaks", scripted({"climate": parts}), engine, request)
    assert not answers.dead_letters
    assert not any(answers.dropped.values())
    stand = dict[Any, Any]()
    for number, step in enumerate(answers.steps[:-1]):
        for row in step["daily_peaks"]:
            day = shown(second_of(row["window_start"]))
            stand[day] = row["sensors"], row["mean_peak"], row["lowest"], row["highest"]
        readings = timed([each for part in parts[: number + 1] for each in part])
        assert stand == peaks_of(readings, newest(readings) - 10)


def peaks_by_sensor(readings: list[Record], watermark: int) -> dict[Any, float]:
    over = [each for each in readings if each["at"] // DAY * DAY + DAY <= watermark]
    groups = by(over, lambda each: [(each["sensor"], shown(each["at"] // DAY * DAY))])
    return {key: max(each["celsius"] for each in group) for key, group in groups.items()}


def peaks_of(readings: list[Record], watermark: int) -> dict[Any, Any]:
    days = defaultdict(list)
    for (_, day), peak in peaks_by_sensor(readings, watermark).items():
        days[day].append(peak)
    return {
        day: (len(peaks), pytest.approx(mean(peaks)), min(peaks), max(peaks)) for day, peaks in sorted(days.items())
    }


# --- Page views -----------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_sessions_merge_and_know_the_plan_of_their_time() -> None:
    sql = "SELECT user, window_start, window_end, pages, visited, plan, plan_after FROM sessions"
    first, then = blocks("clickstream_enrichment")
    do(first)
    before = sessions_of(sent("page_views"), ["users"])
    assert {row[:3]: (row[3], json.loads(row[4]), *row[5:]) for row in asked(sql)} == before
    do(then)
    after = sessions_of(sent("page_views", "page_views_late"), ["users", "users_later"])
    assert {row[:3]: (row[3], json.loads(row[4]), *row[5:]) for row in asked(sql)} == after
    assert {("free", "paid"), ("paid", "free")} <= {row[5:] for row in asked(sql)}
    assert [sum(key[0] == "eve" for key in each) for each in (before, after)] == [2, 1]


def sessions_of(views: list[Record], tables: list[str]) -> dict[Any, Any]:
    lines = [line.split(",") for name in tables for line in (DATA / f"{name}.csv").read_text().splitlines()]
    held = [(user, int(datetime.fromisoformat(since).timestamp()), plan) for user, since, plan in lines[1:]]
    found = {}
    for user, theirs in by(views, lambda view: [view["user"]]).items():
        ordered = sorted(theirs, key=lambda view: view["at"])
        ends = [place for place in range(1, len(ordered)) if ordered[place]["at"] - ordered[place - 1]["at"] >= 1800]
        for begin, end in zip([0, *ends], [*ends, len(ordered)], strict=True):
            group = ordered[begin:end]
            plans = []
            for view in group:
                known = [(since, plan) for who, since, plan in held if who == user and since <= view["at"]]
                plans.append(max(known)[1] if known else "none")
            key = (user, shown(group[0]["at"]), shown(group[-1]["at"] + 1800))
            found[key] = (len(group), sorted({view["page"] for view in group}), plans[0], plans[-1])
    return found


# --- Payments -------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_payments_that_look_wrong_are_alerted_and_those_too_late_dropped() -> None:
    sql = "SELECT card, window_start, payments, countries, total FROM card_use"
    first, then = blocks("fraud_spotting")
    cards = []
    for block, files in ((first, ["payments"]), (then, ["payments", "payments_late"])):
        do(block)
        taken = [each for each in sent(*files) if each["card"] != "card-lost"]
        groups = by(
            taken, lambda each: [(each["card"], shown(start)) for start in slides(each["at"], 10 * MINUTE, 2 * MINUTE)]
        )
        expected = {key: used(group) for key, group in groups.items()}
        found = {row[:2]: (row[2], json.loads(row[3]), row[4]) for row in asked(sql)}
        assert found == expected
        wrong = {key: use for key, use in expected.items() if use[0] >= 5 or len(use[1]) > 1 or use[2] > 100_000}
        assert alerts() == wrong
        cards.append({card for card, _ in wrong})
    assert cards == [{"card-hurried", "card-twice"}, {"card-hurried", "card-twice", "card-dear"}]
    (status,) = all_under(Path(".millrace"))
    assert [part["dropped"] for part in status.progress["parts"].values()] == [1, 1]


def used(payments: list[Record]) -> tuple[int, list[str], int]:
    return len(payments), sorted({each["country"] for each in payments}), sum(each["cents"] for each in payments)


def alerts() -> dict[Any, Any]:
    """The last alert of each card and window."""
    found = {}
    for path in sorted(Path(".millrace/alerts").glob("*.json")):
        for row in map(json.loads, path.read_text().splitlines()):
            start = shown(int(datetime.fromisoformat(row["window_start"]).timestamp()))
            found[row["card"], start] = (row["payments"], row["countries"], row["total"])
    return found


# --- Web logs -------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_web_logs_have_the_error_rate_and_the_95th_percentile_of_each_minute() -> None:
    first, dead, then = blocks("web_logs")
    do(first)
    *_, sql = as_words(first[-1])
    check_pages(asked(sql), requests("access"))
    do(dead)
    (letter,) = (letter.rejected for letter in box_of(Path(".millrace"), "web").letters())
    assert "it is no line of an access log" in letter.reason
    assert "web_logs.py" in letter.reason
    do(then)
    rows = asked(sql)
    check_pages(rows, requests("access", "access_late"))
    assert {row[-1] for row in rows} == {"early", "on-time", "late"}


def requests(*files: str) -> dict[tuple[str, str], list[tuple[bool, float]]]:
    """Whether each request failed, and how long it took, by page and minute; lines are taken apart by their spaces."""
    found = defaultdict(list)
    for name in files:
        for record in (DATA / f"{name}.json").read_text().splitlines():
            words = json.loads(record)["line"].split()
            if len(words) == 11:
                at = datetime.strptime(words[3], "[%d/%b/%Y:%H:%M:%S").replace(tzinfo=UTC)
                key = words[6].split("?")[0], shown(int(at.timestamp()) // MINUTE * MINUTE)
                found[key].append((words[8].startswith("5"), 1000 * float(words[10])))
    return found


def check_pages(rows: list[tuple[Any, ...]], expected: dict[tuple[str, str], list[tuple[bool, float]]]) -> None:
    assert {row[:2] for row in rows} == expected.keys()
    for page, start, count, errors, p95, _ in rows:
        group = expected[page, start]
        assert count == len(group)
        assert errors == pytest.approx(100 * sum(failed for failed, _ in group) / len(group), abs=0.06)
        times = sorted(ms for _, ms in group)
        at = 0.95 * (len(times) - 1)
        assert times[max(0, int(at) - 1)] - 1 <= p95 <= times[min(len(times) - 1, int(at) + 2)] + 1


# --- Transfers ------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_the_total_of_all_balances_is_0_at_every_version() -> None:
    first, then = blocks("bank_transfers")
    versions = 0
    for block, files in ((first, ["transfers"]), (then, ["transfers", "transfers_late"])):
        do(block)
        assert dict(asked("SELECT account, cents FROM balances")) == balances(*files)
        with closing(open_store(".millrace/views.db")) as store:
            changes = store.changes("balances", 0).to_pylist()
        totals = Counter[int]()
        for change in changes:
            totals[change["version"]] += change["diff"] * change["cents"]
        assert set(totals.values()) == {0}
        assert len(totals) > versions
        versions = len(totals)
    letters = [letter.rejected for letter in box_of(Path(".millrace"), "bank").letters()]
    assert [json.loads(letter.value or "")["id"] for letter in letters] == [241]


def balances(*files: str) -> dict[str, int]:
    transfers: dict[int, Record] = {}
    for name in files:
        for record in map(json.loads, (DATA / f"{name}.json").read_text().splitlines()):
            if "cents" in record:
                transfers.setdefault(record["id"], record)
    found = Counter[str]()
    for each in transfers.values():
        found[each["payer"]] -= each["cents"]
        found[each["payee"]] += each["cents"]
    return dict(found)


# --- Sensors --------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_sensors_alert_by_the_clock_and_a_silent_hall_is_not_waited_for(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_STORE", postgres.empty())
    (*before, run), then = blocks("sensor_alerts")
    do(before)
    ended = threading.Event()
    failed: list[BaseException] = []

    def other_terminal() -> None:
        try:
            first = [each for each in sent("hall_a", "hall_b") if each["celsius"] != "fault"]
            until(lambda: alerted() == hot(first) and temperatures().keys() == measured(first).keys())
            do(then)
            every = first + sent("hall_a_late")
            until(lambda: alerted() == hot(every) and all(row[3] != "early" for row in temperatures("b").values()))
            values = {key: row[:3] for key, row in temperatures().items()}
            assert values == {key: pytest.approx(row) for key, row in measured(every).items()}
        except BaseException as error:
            failed.append(error)
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C

    terminal = threading.Thread(target=other_terminal)
    terminal.start()
    try:
        do([run])
    finally:
        ended.set()
        terminal.join()
    assert not failed, failed
    (status,) = all_under(Path(".millrace"))
    assert not status.is_running


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not (Path(".millrace/sensors/status.json").exists() and holds()):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def temperatures(hall: str = "") -> dict[Any, Any]:
    rows = asked("SELECT sensor, window_start, highest, average, spread, timing FROM temperatures")
    return {
        (row[0], row[1] if isinstance(row[1], str) else shown(int(row[1].timestamp()))): row[2:]
        for row in rows
        if row[0].startswith(hall)
    }


def measured(readings: list[Record]) -> dict[Any, Any]:
    found = {}
    for key, group in by(readings, lambda each: [(each["sensor"], shown(each["at"] // MINUTE * MINUTE))]).items():
        values = [each["celsius"] for each in group]
        found[key] = (max(values), mean(values), stdev(values) if len(values) > 1 else None)
    return found


def hot(readings: list[Record]) -> Counter[Any]:
    """How many hot readings there were of a sensor in each minute."""
    return Counter((each["sensor"], each["at"] // MINUTE * MINUTE) for each in readings if each["celsius"] >= 60)


def alerted() -> Counter[Any]:
    """How many hot readings all alerts together tell of."""
    log, found = Log(".millrace/log.db"), Counter[Any]()
    for value in log.read("alerts", 0, 0, log.ends("alerts")[0])["value"].to_pylist():
        alert = json.loads(value)
        assert alert["diff"] == 1
        start = int(datetime.fromisoformat(alert["window_start"]).timestamp())
        found[alert["sensor"], start] += alert["readings"]
    return found


# --- Ads ------------------------------------------------------------------------------------------


def click_through(records: list[Record]) -> tuple[dict[tuple[str, str], tuple[int, int]], int]:
    """Impressions and clicks by campaign and minute, and the watermark after them."""
    with (DATA / "campaigns.csv").open(encoding="utf-8") as file:
        campaigns = {int(row["ad"]): row["campaign"] for row in csv.DictReader(file)}
    counted = [each for each in records if not each["bot"] and each["ad"] in campaigns]
    groups = by(counted, lambda each: [(campaigns[each["ad"]], shown(each["at"] // MINUTE * MINUTE))])
    kinds = {key: Counter(each["kind"] for each in group) for key, group in groups.items()}
    return {key: (kind["impression"], kind["click"]) for key, kind in kinds.items()}, newest(counted) - 5


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_ads_are_counted_early_and_corrected(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    first, then = blocks("ad_impressions")
    folder, commands = typed
    told, _ = commands.communicate(timeout=300)
    assert commands.returncode == 0
    monkeypatch.chdir(folder)  # from here on in this process
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.splitlines() if "│" in line]
    said = {(campaign, start): (int(seen), int(clicks), timing) for campaign, start, seen, clicks, timing in rows}
    before, watermark = click_through(sent("ads"))
    assert {key: row[:2] for key, row in said.items()} == before
    assert all(row[2] == ("on-time" if shown(watermark - MINUTE) >= key[1] else "early") for key, row in said.items())
    assert {row[2] for row in said.values()} == {"early", "on-time"}
    do(then)
    after, _ = click_through(sent("ads", "ads_late"))
    *_, sql = as_words(first[-1])
    found = {row[:2]: row[2:] for row in asked(sql)}
    assert {key: row[:2] for key, row in found.items()} == after
    corrected = {key for key in before if before[key] != after[key] and said[key][2] == "on-time"}
    assert {key for key, row in found.items() if row[2] == "late"} == corrected != set()
    letters = [letter.rejected for letter in box_of(Path(".millrace"), "ads").letters()]
    assert [json.loads(letter.value or "")["ad"] for letter in letters] == ["banner"]
    stand = Counter[tuple[Any, ...]]()
    for path in Path(".millrace/click_through_changes").glob("*.json"):
        for change in map(json.loads, path.read_text().splitlines()):
            start = shown(int(datetime.fromisoformat(change["window_start"]).timestamp()))
            stand[change["campaign"], start, change["impressions"], change["clicks"]] += change["diff"]
    assert {said: many for said, many in stand.items() if many} == {(*key, *row): 1 for key, row in after.items()}
