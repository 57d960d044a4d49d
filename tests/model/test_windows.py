from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import window
from millrace.model.duration import SECOND, format_duration, parse_duration, to_datetime, to_instant
from millrace.model.errors import PipelineError
from millrace.model.window import Window
from millrace.panes.slices import slice_of, windows_of

instants = st.integers(-(10**15), 10**16)


@given(st.integers(0, 10**13))
def test_durations_are_read_as_they_are_written(length: int) -> None:
    assert parse_duration(format_duration(length)) == length


def test_a_timedelta_is_a_duration() -> None:
    assert (
        window.fixed(timedelta(minutes=5))
        == window.fixed("5m")
        == window.fixed("2m180s")
        == window.fixed("0.0833333333333333333h")
    )


def test_a_datetime_without_a_zone_is_in_utc() -> None:
    assert to_instant(datetime(1970, 1, 1, 0, 0, 1)) == SECOND  # noqa: DTZ001
    with pytest.raises(PipelineError, match="a timestamp must be a datetime"):
        to_instant("1970-01-01")


@given(instants, st.integers(1, 10**10), st.integers(0, 10**10))
def test_a_fixed_window_holds_its_element(at: int, size: int, offset: int) -> None:
    windowing = window.fixed(timedelta(microseconds=size), timedelta(microseconds=offset))
    (found,) = windowing.assign(at, {})
    assert found.start <= at < found.end == found.start + size
    assert (found.start - offset) % size == 0


@given(instants, st.integers(1, 10**9), st.integers(1, 50), st.integers(0, 10**10))
def test_sliding_windows_are_all_that_hold_their_element(at: int, period: int, times: int, offset: int) -> None:
    size = period * times + period // 2
    windowing = window.sliding(
        timedelta(microseconds=size), timedelta(microseconds=period), timedelta(microseconds=offset)
    )
    found = windowing.assign(at, {})
    around = at - (at - offset) % period
    expected = [Window(start, start + size) for start in range(around - period * (times + 1), around + 1, period)]
    assert list(found) == [each for each in expected if each.start <= at < each.end]


def test_a_session_starts_as_the_span_of_one_element() -> None:
    assert window.session("10s").assign(5, {}) == (Window(5, 5 + 10 * SECOND),)


@given(
    st.sampled_from(sorted(available_timezones() - {"localtime", "Factory"})),
    st.sampled_from(["day", "week", "month", "quarter", "year"]),
    st.datetimes(datetime(1971, 1, 1), datetime(2037, 1, 1)),  # noqa: DTZ001
)
def test_calendar_windows_hold_their_element_and_are_back_to_back(zone: str, unit: str, moment: datetime) -> None:
    at = to_instant(moment.replace(tzinfo=UTC))
    windowing = window.calendar(unit, zone)
    (found,) = windowing.assign(at, {})
    assert found.start <= at < found.end
    assert windowing.assign(found.start, {}) == (found,)
    assert windowing.assign(found.end - 1, {}) == (found,)
    assert windowing.assign(found.end, {})[0].start == found.end
    local = to_datetime(found.start).astimezone(ZoneInfo(zone))
    if unit == "week":
        assert local.weekday() == 0
    if unit in ("month", "quarter", "year"):
        assert local.day == 1


def test_a_day_without_midnight_starts_with_its_first_instant() -> None:
    # In Sao Paulo on 2018-11-04 the clocks went from 00:00 to 01:00.
    zone = ZoneInfo("America/Sao_Paulo")
    (found,) = window.calendar("day", "America/Sao_Paulo").assign(
        to_instant(datetime(2018, 11, 4, 12, tzinfo=zone)), {}
    )
    assert to_datetime(found.start).astimezone(zone) == datetime(2018, 11, 4, 1, tzinfo=zone)
    assert found.end - found.start == 23 * 3600 * SECOND


def test_custom_windows_are_what_a_function_says() -> None:
    def nights(at: datetime, row: Any) -> list[tuple[datetime, datetime]]:
        start = at.replace(hour=22, minute=0) - timedelta(days=at.hour < 6)
        return [(start, start + timedelta(hours=8))] if row["asleep"] else []

    windowing = window.custom(nights)
    two = datetime(2026, 1, 5, 2, tzinfo=UTC)
    (found,) = windowing.assign(to_instant(two), {"asleep": True})
    assert to_datetime(found.start) == datetime(2026, 1, 4, 22, tzinfo=UTC)
    assert windowing.assign(to_instant(two), {"asleep": False}) == ()
    assert str(windowing) == "custom(nights)"


def test_a_custom_window_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(PipelineError, match="ends before it starts"):
        window.custom(lambda at, row: [(at, at)]).assign(0, {})


def test_windows_are_written_as_transcripts_write_them() -> None:
    made = [
        window.fixed("10s", offset="3s"),
        window.sliding("1h", every="5m"),
        window.session("30m"),
        window.count(3),
        window.all_time(),
        window.calendar("day", "Europe/Berlin"),
    ]
    assert [str(windowing) for windowing in made] == [
        "fixed(10s, offset=3s)",
        "sliding(1h, every=5m)",
        "session(gap=30m)",
        "count(3)",
        "global()",
        "calendar(day, zone=Europe/Berlin)",
    ]


@pytest.mark.parametrize(
    ("zone", "year"),
    [
        ("America/St_Johns", 1987),  # back at a minute past midnight, to the day before
        ("America/St_Johns", 2000),
        ("America/Toronto", 1919),  # on from 23:30 to 00:30
        ("America/Sao_Paulo", 2018),  # midnight is skipped
        ("Pacific/Apia", 2011),  # a day is skipped
        ("Europe/Berlin", 2024),
    ],
)
def test_days_of_a_place_begin_when_its_clocks_first_show_them(zone: str, year: int) -> None:
    """By going through a year in steps of a minute, with nothing but zoneinfo to say what the clocks show."""
    place, step = ZoneInfo(zone), 60 * SECOND
    start = to_instant(datetime(year, 1, 1, 12, tzinfo=UTC))
    times = np.arange(start, start + 364 * 86_400 * SECOND, step)
    shown = [datetime.fromtimestamp(at / SECOND, place).toordinal() for at in times.tolist()]
    begins = times[np.flatnonzero(np.diff(np.maximum.accumulate(shown)) > 0) + 1]
    day = window.calendar("day", zone)
    sample = times[1::997].tolist() + [at + more for at in begins.tolist() for more in (-step, 0, step, 120 * step)]
    inside = np.array([at for at in sample if begins[0] <= at < begins[-1]])
    place_of = np.searchsorted(begins, inside, side="right") - 1
    expected = list(zip(begins[place_of].tolist(), begins[place_of + 1].tolist(), strict=True))
    assert [(w.start, w.end) for at in inside.tolist() for w in day.assign(at, {})] == expected
    _, starts, ends = windows_of(day, slice_of(day, inside))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected
