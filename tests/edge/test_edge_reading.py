"""A bundle comes to the same whether it is decoded and aggregated at once, or record by record looked at."""

from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from examples import examples
from millrace import agg, memory, table, window
from millrace.model.duration import SECOND, to_datetime, to_instant
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.model.watermark import Seen
from millrace.plan.compile import stage_of
from millrace.sources.bundle import Bundle
from millrace.spark.task import Reading, Sent
from shaping import by_shape_always

SOURCE = memory("input", "k STRING, kind STRING, n BIGINT, at TIMESTAMP, note STRING")
EMPTY = table("empty", "k STRING, name STRING", view="empty")
NAMES = table("names", "k STRING, name STRING", rows=[{"k": "a", "name": "Ann"}])
VIEWS = SOURCE.where("kind = 'view'")
TIMED = VIEWS.event_time("at", delay="0s")
OUTPUTS: dict[str, Query | Stream] = {
    "counts": TIMED.group_by("k").window(window.fixed("10s")).aggregate(views=agg.count(), total=agg.sum("n")),
    "only times": SOURCE.event_time("at", delay="0s").window(window.fixed("10s")).aggregate(all=agg.count()),
    "fails in a value": TIMED.group_by("k").window(window.fixed("10s")).aggregate(total=agg.sum("n + 1")),
    "rows": VIEWS.select("k", n="n + 1"),
    "only counted": SOURCE.window(window.all_time()).aggregate(all=agg.count()),
    "counted whatever they are": SOURCE.where("k = 'a' OR TRUE").window(window.all_time()).aggregate(all=agg.sum("1")),
    "always the same": SOURCE.select(x="1"),
    "none": SOURCE.where("k = 'a' AND FALSE"),
    "an empty table": SOURCE.join(EMPTY, on="k"),
    "nothing in a table": SOURCE.join(NAMES, on="k").where("name = 'nobody'"),
    "a table": SOURCE.join(NAMES, on="k", how="left").event_time("at", delay="0s")
    .group_by("name").window(window.fixed("10s")).aggregate(all=agg.count()),
}  # fmt: skip

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NO_TEXTS = pa.array([], pa.string())

fields = st.fixed_dictionaries(
    {},
    optional={
        "k": st.sampled_from(['"a"', '"7"', "5", "null", '"\\u00fc"', "[1]"]),
        "kind": st.sampled_from(['"view"', '"click"', "null"]),
        "n": st.sampled_from(["1", '"2"', "1.5", "null", "9223372036854775807", '"x"']),
        "at": st.sampled_from(['"2026-01-01T00:00:03Z"', '"2026-01-01T00:00:14Z"', '"noon"', "null"]),
        "note": st.sampled_from(['"hello"', '"\\ud83d"', "{}"]),
    },
)
records = st.one_of(
    fields.map(lambda row: "{" + ", ".join(f'"{name}": {value}' for name, value in row.items()) + "}"),
    st.sampled_from(["", "null", "[]", "{", '{"k": "a"} {}', ' {"k": "a", "kind": "view", "at": "2026-01-01"}\n']),
    st.none(),
)


def good(number: int) -> str:
    return f'{{"k": "{number % 3}", "kind": "view", "n": {number}, "at": "2026-01-01T00:00:{number % 60:02}Z"}}'


@cache
def reading_of(output: str) -> Reading:
    """The reading of an output. It goes on from bundle to bundle, as in a worker."""
    empty = pa.table({"k": NO_TEXTS, "name": NO_TEXTS})
    return Reading([(0, stage_of("output", OUTPUTS[output]))], SOURCE, {"empty": empty})


def read(output: str, texts: list[str | None], at_once: bool) -> tuple[Any, Seen | None, list[dict[str, Any]]]:
    reading = reading_of(output)
    reading._is_clean = at_once
    sent = Sent()
    bundle = Bundle("here", np.arange(len(texts)) * 10, pa.array(texts, pa.string()))
    letters = reading.take(bundle, None, {0: sent})  # type: ignore[arg-type]
    made = [row for table in sent.rows for row in table.to_pylist()]
    return sorted(made, key=repr), sent.seen.get(0), sorted(letters, key=repr)


@pytest.mark.parametrize("name", OUTPUTS)
@given(st.lists(records, max_size=6))
@example(['{"kind": "click", "at": "noon"}', good(1)])
@example(['{"kind": "click", "n": 1.5}', good(1)])
@example(['{"kind": "view", "note": "\\ud83d"}', good(1)])
@example(['{"n": 1.5, "at": "2026-01-01T00:00:03Z"}', good(1)])
@example(["[]", good(1)])
def test_at_once_or_not_is_the_same(name: str, texts: list[str | None]) -> None:
    assert read(name, texts, at_once=True) == read(name, texts, at_once=False)


@pytest.mark.parametrize("name", OUTPUTS)
@examples(30)
@given(st.lists(records.filter(lambda text: text is not None), max_size=6))
@example(['{"kind": "click", "at": "noon"}', good(1)])
@example([good(1), '{"kind": "view", "note": "\\ud83d"}', good(2)])
def test_by_shape_or_not_is_the_same(name: str, texts: list[str | None]) -> None:
    pytest.importorskip("numba")
    expected = read(name, texts, at_once=False)
    with by_shape_always():
        reading_of(name)._decoder.json.by_shape._away = 0
        assert read(name, texts, at_once=True) == expected


def test_records_decoded_by_shape_are_counted() -> None:
    pytest.importorskip("numba")
    reading = Reading([(0, stage_of("output", OUTPUTS["counts"]))], SOURCE, {})
    texts = [good(number) for number in range(100)]
    texts[50] = '{"k": "\\u00fc", "kind": "view", "n": 1.5}'
    bundle = Bundle("here", np.arange(100), pa.array(texts, pa.string()))
    with by_shape_always():
        (letter,) = reading.take(bundle, None, {0: Sent()})  # type: ignore[arg-type]
    assert (letter["offset"], letter["reason"]) == (50, "n is not BIGINT: 1.5")
    assert reading.by_shape == 99


HOUR = 3_600 * SECOND
logged_events = st.tuples(st.sampled_from([0, 1, 30, 90]), st.sampled_from([-1, 0, 23, 24, 25, 72]))
"""When a record was logged, and how far ahead of that its event was, in hours."""


@pytest.mark.parametrize("name", ["counts", "only times", "a table"])
@examples(30)
@given(st.lists(st.lists(logged_events, min_size=1, max_size=3), min_size=1, max_size=4))
@example([[(0, 0)], [(0, 0), (0, 25)], [(0, 0)]])
@example([[(0, 0), (90, 0)], [(0, 72)]])
def test_events_ahead_of_their_log_time_are_found_at_once_or_not(
    name: str, bundles: list[list[tuple[int, int]]]
) -> None:
    found = []
    for at_once in (True, False):
        reading, sent, letters = Reading([(0, stage_of("output", OUTPUTS[name]))], SOURCE, {}), Sent(), []
        for events in bundles:
            logged = [to_instant(NOON) + hours * HOUR for hours, _ in events]
            at = [to_datetime(instant + ahead * HOUR) for instant, (_, ahead) in zip(logged, events, strict=True)]
            texts = [f'{{"k": "a", "kind": "view", "n": 1, "at": "{each:%Y-%m-%dT%H:%M:%SZ}"}}' for each in at]
            reading._is_clean = at_once
            given = Bundle("here", np.arange(len(texts)), pa.array(texts, pa.string()), logged=np.array(logged))
            letters += reading.take(given, None, {0: sent})  # type: ignore[arg-type]
        made = [row for table in sent.rows for row in table.to_pylist()]
        found.append((sorted(made, key=repr), sent.seen.get(0), letters))
    assert found[0] == found[1]
    assert len(found[0][2]) == sum(ahead > 24 for events in bundles for _, ahead in events)


@pytest.mark.parametrize("name", ["always the same", "only counted", "counts", "rows"])
def test_rows_come_to_the_same_as_records_even_if_no_column_is_read(name: str) -> None:
    """A Parquet file is read without the columns that no output wants, so possibly without any."""
    reading, sent = Reading([(0, stage_of("output", OUTPUTS[name]))], SOURCE, {}), Sent()
    rows = {
        "k": ["0", "1", "2"], "kind": ["view"] * 3, "n": [0, 1, 2],
        "at": pa.array([1_767_225_600_000_000 + n * 1_000_000 for n in range(3)], pa.timestamp("us", "UTC")),
    }  # fmt: skip
    table = pa.table({column: values for column, values in rows.items() if column in reading.wanted})
    reading.take(Bundle("here", np.arange(3), rows=table), None, {0: sent})  # type: ignore[arg-type]
    made = [row for table in sent.rows for row in table.to_pylist()]
    assert sorted(made, key=repr) == read(name, [*map(good, range(3))], at_once=True)[0]


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("wrong", ["[]", "{oops", '{"n": 1.5}'])
def test_a_misfit_after_many_records_is_found(name: str, wrong: str) -> None:
    texts: list[str | None] = [*map(good, range(5_000)), wrong]
    found = read(name, texts, at_once=True)
    assert [letter["offset"] for letter in found[2]] == [50_000]
    assert found == read(name, texts, at_once=False)


@pytest.mark.parametrize("name", ["counts", "only times", "rows", "a table"])
def test_what_all_fits_is_taken_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str | None] = [good(number) for number in range(100)]
    looked_at = read(name, texts, at_once=False)
    monkeypatch.setattr(Reading, "_take_rows", lambda *_: pytest.fail("each record was looked at"))
    assert read(name, texts, at_once=True) == looked_at


def test_after_a_misfit_records_are_looked_at_until_all_fit_again() -> None:
    reading = Reading([(0, stage_of("output", OUTPUTS["counts"]))], SOURCE, {})
    cleanly = []
    for texts in (["[]", good(1)], [good(2)], [good(3)]):
        reading.take(Bundle("here", np.arange(len(texts)), pa.array(texts)), None, {0: Sent()})  # type: ignore[arg-type]
        cleanly.append(reading._is_clean)
    assert cleanly == [False, True, True]
