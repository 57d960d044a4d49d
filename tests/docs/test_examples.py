"""The examples, by the commands that their docstrings say, against answers computed in plain Python."""

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
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeAlias

import pytest

from example_runs import (
    DATA,
    EXAMPLES,
    HOUR,
    MINUTE,
    Record,
    as_words,
    asked,
    blocks,
    by,
    do,
    newest,
    sent,
    shown,
    try_in,
)
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.running.status import all_under
from millrace.views.store import open_store
from postgres import Postgres

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "make_data")

Typed: TypeAlias = tuple[Path, subprocess.Popen[str]]
"""Where commands run, and what runs them."""


def test_each_example_is_described() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"({name}.py)" not in table] == []
    for name in NAMES:
        assert any(f"millrace run examples/{name}.py" in command for block in blocks(name) for command in block), name


def test_the_records_are_what_the_script_makes() -> None:
    made = runpy.run_path(str(EXAMPLES / "make_data.py"))["make"]()
    assert {path.name: path.read_text(encoding="utf-8") for path in DATA.iterdir()} == made


# --- Commands -------------------------------------------------------------------------------------


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
def on_spark(tmp_path: Path, typed: Typed, one_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in this process, on the one Spark of all tests."""
    try_in(tmp_path, monkeypatch)


def slides(at: int, size: int, every: int) -> Iterator[int]:
    """The starts of the windows around a time."""
    start = at - at % every
    while start > at - size:
        yield start
        start -= every


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
