"""The log's own time: a wrong clock removes no record and forgets no producer, and a right one is followed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hand_clock import DAY, HOUR, Clock
from millrace.eventlog.logtime import GRACE, JUMP, LogTime, jump, moved
from millrace.eventlog.topics import Log
from millrace.model.duration import SECOND

YEAR, MINUTE = 365 * DAY, 60 * SECOND


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    with Log(tmp_path / "log.db", clock) as opened:
        opened.create("plays", max_age="1d")
        opened.append("plays", ["a"] * 3, producer="p", sequence=1)
        yield opened


def test_a_clock_that_is_a_year_ahead_for_a_minute_removes_nothing(log: Log, clock: Clock) -> None:
    clock.now += YEAR
    for _ in range(6):
        log.append("plays", ["meanwhile"], producer="q", sequence=log.ends("plays")[0])
        assert log.retain() == {}
        clock.now += 10 * SECOND
    assert (log.starts("plays"), log.last("plays", "p")) == ([0], 1)
    clock.now += MINUTE - YEAR
    log.append("plays", ["after"])
    assert clock.spend(log, DAY - 2 * MINUTE) == 0
    assert clock.spend(log, HOUR) == 10, "with the right clock all records grow old, the year notwithstanding"
    assert log.last("plays", "q") is not None
    clock.spend(log, 30 * DAY)
    assert log.last("plays", "q") is None


def test_a_timestamp_is_that_of_the_wall_clock(log: Log, clock: Clock) -> None:
    clock.now += YEAR
    log.append("plays", ["b"])
    (record,) = log.read("plays", 0, 3, 4).to_pylist()
    assert record["timestamp"].timestamp() == clock.now / SECOND
    assert log.latest("plays") == clock.now


def test_a_week_off_expires_records_after_the_grace(log: Log, clock: Clock) -> None:
    clock.now += 7 * DAY
    log.append("plays", ["new"])
    assert log.starts("plays") == [0]
    clock.now += GRACE - 1
    assert log.retain() == {}
    clock.now += 1
    assert log.retain() == {"plays": 3}
    assert clock.spend(log, DAY - GRACE) == 0, "what was appended while the clock was in doubt is new"
    assert clock.spend(log, 2 * GRACE) == 1


def test_a_jump_that_is_believed_does_not_make_a_second_one_true(log: Log, clock: Clock) -> None:
    clock.now += 2 * HOUR
    assert log.retain() == {}
    clock.now += YEAR
    assert log.retain() == {}
    clock.now += MINUTE
    assert (log.retain(), log.last("plays", "p")) == ({}, 1)
    clock.now -= YEAR
    assert clock.spend(log, 20 * HOUR) == 0


def test_a_clock_that_comes_back_in_part_is_believed_after_the_grace(log: Log, clock: Clock) -> None:
    clock.now += YEAR
    log.append("plays", ["in a year"])
    clock.now -= YEAR - 30 * DAY
    log.append("plays", ["in a month"])
    assert log.starts("plays") == [0]
    clock.now += GRACE
    assert log.retain() == {"plays": 3}
    assert clock.spend(log, DAY - HOUR) == 0
    assert clock.spend(log, 2 * HOUR) == 2, "the year did not make its record any younger"


def test_a_log_used_once_a_day_expires_a_day_later(log: Log, clock: Clock) -> None:
    held = []
    for _ in range(6):
        clock.now += DAY
        log.append("plays", ["x"])
        held.append(log.ends("plays")[0] - log.starts("plays")[0])
    assert max(held[2:]) <= 4, held


def test_a_clock_turned_back_keeps_nothing_for_ever(log: Log, clock: Clock) -> None:
    clock.now -= 3 * YEAR
    log.append("plays", ["b"])
    assert clock.spend(log, DAY // 2) == 0
    log.append("plays", ["c"])
    assert clock.spend(log, DAY // 2 + MINUTE) == 4
    assert clock.spend(log, DAY // 2) == 1
    clock.now += 3 * YEAR  # the clock is right again
    log.append("plays", ["d"])
    assert clock.spend(log, DAY // 2) == 0, "those years have not passed"


def test_a_clock_that_begins_in_1970_is_not_believed(log: Log, clock: Clock) -> None:
    right = clock.now
    clock.now = 0
    log.append("plays", ["b"])
    clock.spend(log, HOUR)
    clock.now = right + 2 * HOUR
    log.append("plays", ["c"])
    assert clock.spend(log, DAY // 2) == 0


def test_appends_retain_though_the_clock_was_turned_back(log: Log, clock: Clock) -> None:
    clock.now -= YEAR
    for _ in range(30):
        clock.now += HOUR
        log.append("plays", ["b"])
    assert log.starts("plays")[0] > 0


def test_a_jump_is_told(log: Log, clock: Clock) -> None:
    assert log.clock_jump() is None
    clock.now += 2 * HOUR
    assert log.clock_jump() is None, "an idle log is no jump"
    log.append("plays", ["b"])
    assert log.clock_jump() == 2 * HOUR
    clock.now += GRACE
    assert log.clock_jump() is None
    log.retain()
    clock.now -= 3 * HOUR
    assert log.clock_jump() == 3 * HOUR
    log.follow_clock()
    assert log.clock_jump() is None
    assert clock.spend(log, 20 * HOUR) == 0
    assert clock.spend(log, 4 * HOUR) == 4, "their ages stayed as they were"


def test_a_person_may_confirm_a_jump(log: Log, clock: Clock) -> None:
    clock.now += 7 * DAY
    log.append("plays", ["new"])
    log.follow_clock()
    assert log.clock_jump() is None
    assert log.retain() == {"plays": 3}


@given(st.lists(st.integers(-3 * DAY, 3 * DAY) | st.integers(0, 30 * MINUTE), max_size=40))
def test_the_time_of_a_log_never_goes_back_nor_passes_every_clock(steps: list[int]) -> None:
    time = LogTime(0, 0)
    highest = 0
    for step in steps:
        wall = time.wall + step
        after = moved(time, wall)
        assert after.own >= time.own
        highest = max(highest, wall, after.own if step <= JUMP and after.own > wall + JUMP else 0)
        assert after.own <= highest
        if after.seen is not None:
            assert wall - after.own > JUMP
        assert (jump(after, wall) is None) == (abs(wall - after.own) <= JUMP)
        time = after
    for _ in range(3):
        time = moved(time, time.wall + GRACE)
    assert time.seen is None
