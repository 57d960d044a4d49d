"""The examples with several stages and with a join, against answers computed in plain Python.

Each runs by the commands of its docstring, as a stream and as a batch, and in micro-batches on every engine.
"""

import json
from collections import Counter, defaultdict
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from example_runs import (
    DAY,
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
    raw,
    second_of,
    sent,
    shown,
    timed,
    try_in,
)
from millrace.running.load import load
from millrace.running.status import all_under
from millrace.testing import Answers, Script, run_script
from millrace.testing.run import EngineName


@pytest.fixture
def on_spark(tmp_path: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in this process, on the one Spark of all tests."""
    try_in(tmp_path, monkeypatch)


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
