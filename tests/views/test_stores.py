"""Views in stores: the same tests on SQLite and on PostgreSQL."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import committing
from committing import SHAPE, batch_of
from examples import examples
from millrace import (
    ConflictError,
    CorruptError,
    MachineError,
    MillraceError,
    NotFoundError,
    PipelineError,
    agg,
    memory,
    on,
    window,
)
from millrace.model.connectors import Commit
from millrace.model.duration import SECOND
from millrace.model.query import Query
from millrace.model.schema import parse_schema
from millrace.running.preflight import serving
from millrace.views import postgresql, sqlite
from millrace.views.rights import Rights, Scope
from millrace.views.shape import ViewShape, shape_of
from millrace.views.store import Filter, ForgottenError, GenerationState, Store, open_store
from postgres import Postgres
from stores import Answer, Model, Row, answers, rows_of

Make: TypeAlias = Callable[[], str]
"""Gives the URL of a store in which nothing is."""

TIMED = memory("events", "k STRING, v BIGINT, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
HOURLY: Query = (
    TIMED.window(window.fixed("1h")).trigger(on.each()).retracting().aggregate(n=agg.count(), total=agg.sum("v"))
)
HOURS = shape_of("hourly", HOURLY)
HOUR = timedelta(hours=1)
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)


def hour(key: str | None, n: int, start: datetime = NOON, timing: str = "early", index: int = 0) -> Row:
    return key, start, start + HOUR, n, n * 10, timing, index, False


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Make:
    if request.param == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        return lambda: postgres.empty(synchronous_commit="off")
    return lambda: f"sqlite:///{tmp_path_factory.mktemp('store')}/views.db"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests that kill need a disk to be waited for; those kill other processes."""
    monkeypatch.setattr(sqlite, "_WRITER", (*sqlite._WRITER, "PRAGMA synchronous = OFF"))


@pytest.fixture
def store(make: Make) -> Iterator[Store]:
    """A store with the view `hourly` of the pipeline p."""
    with closing(open_store(make())) as opened:
        opened.open("p", [HOURS])
        yield opened


def commit(store: Store, batch: int, *given: Answer, once: bool = True, to: int | None = None) -> int | None:
    checkpoint = "c" if to in (None, 1) else f"c{to}"
    return store.commit(Commit("p", checkpoint, batch), {"hourly": answers(HOURS, given)}, once, to)


def held(store: Store, view: str = "hourly") -> dict[str, int]:
    """The rows of the view: n by key."""
    return {row["k"]: row["n"] for row in store.rows(view).rows.to_pylist()}


def changed(store: Store, since: int) -> list[tuple[int, str, int, int]]:
    """The changes of the view: version, key, n and diff."""
    return [(row["version"], row["k"], row["n"], row["diff"]) for row in store.changes("hourly", since).to_pylist()]


# What a commit does


def test_the_last_answer_for_a_key_counts(store: Store) -> None:
    assert commit(store, 0, (1, hour("a", 1)), (1, hour("b", 1)), (-1, hour("a", 1)), (1, hour("a", 2))) == 1
    assert held(store) == {"a": 2, "b": 1}
    assert commit(store, 1, (1, hour("a", 3)), (-1, hour("a", 3)), (-1, hour("nobody", 1))) == 2
    assert held(store) == {"b": 1}
    assert changed(store, 0) == [(1, "a", 2, 1), (1, "b", 1, 1), (2, "a", 2, -1)]


def test_a_batch_that_is_run_again_is_skipped(store: Store) -> None:
    assert commit(store, 5, (1, hour("a", 1))) == 1
    assert commit(store, 5, (1, hour("a", 2))) is None
    assert held(store) == {"a": 1}
    assert commit(store, 5, (1, hour("a", 4)), once=False) == 2
    assert commit(store, 6, (1, hour("a", 5))) == 3
    for other in (Commit("p", "c", 5), Commit("p", "c", 6, "other offsets"), Commit("p", "c", 8), Commit("p", "d", 0)):
        with pytest.raises(ConflictError, match=r"was last written by batch 6 of checkpoint c.*millrace replay"):
            store.commit(other, {"hourly": answers(HOURS, [(1, hour("b", 1))])}, True)
    assert store.last_commit("p", 1) == Commit("p", "c", 6)
    assert held(store) == {"a": 5}


def test_what_changes_nothing_is_no_change(store: Store) -> None:
    commit(store, 0, (1, hour("a", 1)), (1, hour(None, 1)))
    assert commit(store, 1, (1, hour("a", 1)), (-1, hour(None, 1)), (1, hour(None, 1)), (-1, hour("x", 1))) == 1
    assert commit(store, 2) == 1
    assert store.version() == 1
    assert len(changed(store, 0)) == 2
    assert commit(store, 3, (1, hour("a", 1, timing="on-time", index=1))) == 2, "the pane is another"


def test_rows_tell_the_version_that_wrote_them(store: Store) -> None:
    commit(store, 0, (1, hour("a", 1)), (1, hour("b", 1)))
    commit(store, 1, (1, hour("b", 2)))
    assert sorted(store.query("SELECT k, version FROM hourly").rows) == [("a", 1), ("b", 2)]
    (about,) = store.views()
    assert (about.name, about.pipeline, about.rows, about.version, about.generation) == ("hourly", "p", 2, 2, 1)
    assert about.columns.names[-1] == "version"
    assert about.key == ("k", "window_start", "window_end")


def test_with_newer_an_answer_replaces_a_row_only_if_its_index_is_greater(store: Store) -> None:
    store.open("p", [HOURS, SHAPE])

    def apply(batch: int, *rows: tuple[str | None, int, int]) -> None:
        given = [(1, (key, n, "", "early", index, False)) for key, n, index in rows]
        store.commit(Commit("p", "c", batch), {"counts": answers(SHAPE, given)}, True, newer=True)

    apply(0, ("a", 1, 0), ("b", 5, 4), (None, 2, 1))
    apply(1, ("a", 2, 1), ("b", 3, 2), (None, 9, 1))  # b was repeated from before; NULL is the same again
    assert {row["k"]: row["n"] for row in store.rows("counts").rows.to_pylist()} == {"a": 2, "b": 5, None: 2}
    apply(2, ("a", 0, 0), ("b", 6, 5), (None, 3, 2))
    assert {row["k"]: row["n"] for row in store.rows("counts").rows.to_pylist()} == {"a": 2, "b": 6, None: 3}
    changes = {(row["k"], row["n"], row["diff"]) for row in store.changes("counts", 1).to_pylist()}
    assert changes == {("a", 1, -1), ("a", 2, 1), (None, 2, -1), ("b", 5, -1), (None, 3, 1), ("b", 6, 1)}


def test_all_views_of_a_commit_change_at_once(store: Store) -> None:
    store.open("p", [HOURS, SHAPE])
    both = {"hourly": answers(HOURS, [(1, hour("a", 1))]), "counts": answers(SHAPE, batch_of(0))}
    broken = {**both, "counts": both["counts"].drop_columns(["n"])}
    with pytest.raises(PipelineError, match="answers for view 'counts' have the columns"):
        store.commit(Commit("p", "c", 0), broken, True)
    assert store.version() == 0
    assert held(store) == {}
    assert store.commit(Commit("p", "c", 0), both, True) == 1
    assert [view.version for view in store.views()] == [1, 1]


def test_a_batch_run_replaces_all_rows(store: Store) -> None:
    commit(store, 0, (1, hour("a", 1)), (1, hour("b", 1)), (1, hour(None, 1)))
    new: list[Answer] = [(1, hour("b", 1)), (1, hour(None, 2)), (1, hour("c", 1))]
    assert store.replace("p", {"hourly": answers(HOURS, new)}) == 2
    assert held(store) == {"b": 1, None: 2, "c": 1}
    assert sorted(changed(store, 1), key=str) == [(2, "a", 1, -1), (2, "c", 1, 1), (2, None, 1, -1), (2, None, 2, 1)]
    assert store.views()[0].rows == 3
    assert store.replace("p", {"hourly": answers(HOURS, [])}) == 3
    assert held(store) == {}
    assert store.replace("p", {"hourly": answers(HOURS, [])}) == 3, "nothing changes"


# Shapes


def test_the_key_is_the_group_and_the_window() -> None:
    by_trigger = TIMED.window(window.fixed("1h")).trigger(on.each())
    assert HOURS.columns.names[-3:] == ("timing", "index", "last")
    assert shape_of("v", by_trigger.discarding().aggregate(n=agg.count())).key[-1] == "index"
    everything = TIMED.window(window.all_time()).trigger(on.each())
    assert shape_of("v", everything.accumulating().aggregate(n=agg.count())).key == ("k",)
    assert shape_of("v", everything.discarding().aggregate(index=agg.count())).key == ("k", "pane_index")
    alone = (
        memory("events", "v BIGINT")
        .window(window.all_time())
        .trigger(on.each())
        .accumulating()
        .aggregate(n=agg.count())
    )
    assert shape_of("v", alone).key == ()
    assert shape_of("v", TIMED.window(window.count(3)).aggregate(n=agg.count())).key == (
        "k",
        "window_start",
        "window_end",
    )
    sessions = TIMED.window(window.session("1m")).trigger(on.each())
    assert shape_of("v", sessions.accumulating().aggregate(n=agg.count())).merges
    assert not shape_of("v", sessions.retracting().aggregate(n=agg.count())).merges


def test_columns_of_the_user_keep_their_names(make: Make) -> None:
    query = (
        TIMED.window(window.all_time()).trigger(on.each()).retracting().aggregate(version=agg.count(), diff=agg.count())
    )
    shape = shape_of("v", query)
    with closing(open_store(make())) as store:
        store.open("p", [shape])
        store.commit(
            Commit("p", "c", 0), {"v": answers(shape, [(1, ("a", None, None, 5, 6, "early", 0, False))])}, True
        )
        assert store.query("SELECT version, diff, pane_version FROM v").rows == [(5, 6, 1)]
        assert store.changes("v", 0).column_names[-2:] == ["pane_version", "pane_diff"]
    taken = (
        TIMED.window(window.all_time())
        .trigger(on.each())
        .retracting()
        .aggregate(version=agg.count(), pane_version=agg.count())
    )
    with pytest.raises(PipelineError, match=r"test_stores.py:\d+: view 'v': the schema has two columns 'pane_version'"):
        shape_of("v", taken)


def test_a_view_without_keys_has_one_row(make: Make) -> None:
    query = (
        memory("events", "v BIGINT").window(window.all_time()).trigger(on.each()).retracting().aggregate(n=agg.count())
    )
    shape = shape_of("total", query)
    with closing(open_store(make())) as store:
        store.open("p", [shape])
        for batch in range(3):
            rows: list[Answer] = [(1, (None, None, batch, "early", batch, False))]
            if batch:
                rows.insert(0, (-1, (None, None, batch - 1, "early", batch - 1, False)))
            store.commit(Commit("p", "c", batch), {"total": answers(shape, rows)}, True)
        assert store.query("SELECT n, version FROM total").rows == [(2, 3)]
        assert store.changes("total", 0)["n"].to_pylist() == [0, 0, 1, 1, 2]


def test_a_view_that_is_another_is_refused(store: Store) -> None:
    store.open("p", [HOURS])
    other = shape_of(
        "hourly", TIMED.window(window.fixed("1h")).aggregate(n=agg.sum("v"), total=agg.mean("v"), more=agg.count())
    )
    with pytest.raises(ConflictError, match=r"more is new, total was BIGINT and is DOUBLE; .* millrace replay FILE"):
        store.open("p", [other])
    panes = TIMED.window(window.fixed("1h")).trigger(on.each()).discarding()
    discarding = shape_of("hourly", panes.aggregate(n=agg.count(), total=agg.sum("v")))
    with pytest.raises(ConflictError, match=r"a row is told by \(k, window_start, window_end, index\) and was by"):
        store.open("p", [discarding])
    with pytest.raises(ConflictError, match="view 'hourly' of the store belongs to pipeline 'p', not to 'q'"):
        store.open("q", [HOURS])
    with pytest.raises(ConflictError, match="has a view 'hourly' already; call 'Hourly' something else"):
        store.open("p", [shape_of("Hourly", HOURLY)])


@pytest.mark.parametrize("name", ["millrace_views", "sqlite_master", "pg_class", "a__1", "a__2_changes", "x" * 46])
def test_names_that_cannot_be(name: str, store: Store) -> None:
    with pytest.raises(PipelineError, match=r"rename it|has a name longer"):
        store.open("p", [shape_of(name, HOURLY)])


# Against a plain dict

NASTY = ViewShape(
    "Nasty",
    parse_schema(
        {
            'se"lect': "STRING",
            "group": "DOUBLE",
            "Größe %s $1 ?": "TIMESTAMP",
            "version": "BIGINT",
            "amount": "DECIMAL(30, 4)",
            "whole": "DECIMAL(38, 0)",
            "yes": "BOOLEAN",
            "raw": "BINARY",
            "day": "DATE",
            "real": "FLOAT",
            "small": "TINYINT",
            "many": "ARRAY<DOUBLE>",
            "parts": "STRUCT<a: STRING, at: TIMESTAMP, b: ARRAY<BINARY>, c: DECIMAL(20, 2)>",
            "by": "MAP<STRING, BIGINT>",
            "timing": "STRING",
            "index": "BIGINT",
            "last": "BOOLEAN",
        }
    ),
    ('se"lect', "group", "Größe %s $1 ?"),
)

_texts = st.one_of(
    st.sampled_from(["", "\0", "\u2400", "\u241b", "\u241b\u2400", "\\", "\n\\.\n", "NULL", "'", '"', "NaN", "😀"]),
    st.text(st.characters(codec="utf-8"), max_size=4),
)
_floats = st.one_of(st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e300, 5e-324]), st.floats())
_times = st.one_of(
    st.sampled_from([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), NOON]),
    st.datetimes(timezones=st.just(UTC)),
)
_bigints = st.one_of(st.sampled_from([-(2**63), 2**63 - 1, 0]), st.integers(-(2**63), 2**63 - 1))


def _decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    whole = st.one_of(st.integers(-(10**digits) + 1, 10**digits - 1), st.integers(-(10**15) - 1, 10**15 + 1))
    return whole.map(lambda number: Decimal(f"{number}E-{scale}"))


_keys = st.tuples(
    st.none() | st.sampled_from(["a", "b", "\0", "\u2400"]) | _texts,
    st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.5]) | _floats,
    st.none() | st.sampled_from([NOON]) | _times,
)
_rests = st.tuples(
    st.none() | _bigints,
    st.none() | _decimals(30, 4),
    st.none() | _decimals(38, 0),
    st.none() | st.booleans(),
    st.none() | st.binary(max_size=4),
    st.none() | st.dates(date(1, 1, 1), date(9999, 12, 31)),
    st.none() | st.floats(width=32),
    st.none() | st.integers(-128, 127),
    st.none() | st.lists(st.none() | _floats, max_size=3),
    st.none()
    | st.fixed_dictionaries(
        {
            "a": st.none() | _texts,
            "at": st.none() | _times,
            "b": st.none() | st.lists(st.binary(max_size=3), max_size=2),
            "c": st.none() | _decimals(20, 2),
        }
    ),
    st.none() | st.dictionaries(_texts, _bigints, max_size=2).map(lambda pairs: list(pairs.items())),
    st.sampled_from(["early", "late"]),
    st.integers(0, 2),
    st.booleans(),
)


@st.composite
def _histories(draw: st.DrawFn) -> list[tuple[str, list[Answer]]]:
    """What happens to a view, about a few keys and rows, so that they are met again."""
    keys = draw(st.lists(_keys, min_size=1, max_size=4))
    rests = draw(st.lists(_rests, min_size=1, max_size=3))
    answer = st.tuples(
        st.sampled_from([1, 1, -1]),
        st.builds(lambda key, rest: (*key, *rest), st.sampled_from(keys), st.sampled_from(rests)),
    )
    kinds = st.sampled_from(["commit", "commit", "commit", "twice", "replace", "replay", "rollback"])
    return draw(st.lists(st.tuples(kinds, st.lists(answer, max_size=6)), min_size=1, max_size=6))


def test_any_history_leaves_what_a_dict_would_hold(make: Make) -> None:
    @examples(25)
    @given(_histories())
    def check(history: list[tuple[str, list[Answer]]]) -> None:
        _live(make(), NASTY, history)

    check()


def _live(url: str, shape: ViewShape, history: list[tuple[str, list[Answer]]]) -> None:
    """Let a view and a dict live through the same, and compare them."""
    with closing(open_store(url)) as store:
        _live_in(store, "p", shape, history)


def _live_in(store: Store, pipeline: str, shape: ViewShape, history: list[tuple[str, list[Answer]]]) -> None:
    store.open(pipeline, [shape])
    serving, previous, generation = Model(shape), None, 1
    snapshots = {store.version(): dict(serving.rows)}
    for kind, said in history:
        before, version = dict(serving.rows), store.version()
        last = store.last_commit(pipeline, generation)
        batch = last.batch + 1 if last else 0
        new = {shape.name: answers(shape, said)}
        match kind:
            case "commit" | "twice":
                serving.commit(said)
                after = store.commit(Commit(pipeline, f"c{generation}", batch), new, True)
                if kind == "twice":
                    assert store.commit(Commit(pipeline, f"c{generation}", batch), new, True) is None
                assert after == version + (serving.rows != before)
            case "replace":
                serving.rows.clear()
                serving.commit((diff, row) for diff, row in said if diff > 0)
                assert store.replace(pipeline, new) == version + (serving.rows != before)
            case "replay":
                previous, serving, generation = serving, Model(shape), store.begin_generation(pipeline, [shape])
                serving.commit(said)
                store.commit(Commit(pipeline, f"c{generation}", 0), new, True, generation)
                store.swap(pipeline, generation)
            case "rollback" if previous is not None:
                previous, serving = serving, previous
                store.rollback(pipeline)
                generation = next(
                    each.number for each in store.generations(pipeline) if each.state is GenerationState.SERVING
                )
        snapshots[store.version()] = dict(serving.rows)
    rows = rows_of(store.rows(shape.name).rows, len(shape.columns.names))
    assert Counter(rows) == Counter(serving.rows.values())
    assert next(view.rows for view in store.views() if view.name == shape.name) == len(serving.rows)
    for since, snapshot in snapshots.items():
        watcher = Model(shape, snapshot)
        watcher.apply(store.changes(shape.name, since))
        assert watcher.rows == serving.rows


def test_any_column_may_be_of_the_key(make: Make) -> None:
    every = replace(NASTY, key=NASTY.columns.names[:-3])

    @examples(10)
    @given(_histories())
    def check(history: list[tuple[str, list[Answer]]]) -> None:
        _live(make(), every, history)

    check()


SESSIONS = shape_of(
    "visits", TIMED.window(window.session("1m")).trigger(on.each()).accumulating().aggregate(n=agg.count())
)


@st.composite
def _sessions(draw: st.DrawFn) -> list[list[Answer]]:
    """Sessions that overlap, or do not, in ways that an engine would not think of."""
    bounds = st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
    answer = st.builds(
        lambda key, pair, n: (1, (key, *(NOON + timedelta(seconds=each) for each in pair), n, "early", 0, False)),
        st.sampled_from(["a", "b", None]), bounds, st.integers(0, 3),
    )  # fmt: skip
    return draw(st.lists(st.lists(answer, max_size=8), min_size=1, max_size=4))


def test_a_session_takes_the_place_of_those_that_it_overlaps(make: Make) -> None:
    @examples(25)
    @given(_sessions())
    def check(commits: list[list[Answer]]) -> None:
        _live(make(), SESSIONS, [("commit", each) for each in commits])

    check()


# Changes


def test_changes_are_kept_for_a_while(make: Make) -> None:
    now = [1_000 * SECOND]
    url = make()
    kind = sqlite.SqliteStore if url.startswith("sqlite") else postgresql.PostgresqlStore
    where: Any = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url
    with closing(kind(where, "10m", lambda: now[0])) as store:
        store.open("p", [HOURS, SHAPE])
        commit(store, 0, (1, hour("a", 1)))
        now[0] += 300 * SECOND
        commit(store, 1, (1, hour("a", 2)))
        store.commit(Commit("p", "c", 2), {"counts": answers(SHAPE, batch_of(0))}, True)
        assert changed(store, 0) == [(1, "a", 1, 1), (2, "a", 1, -1), (2, "a", 2, 1)]
        now[0] += 400 * SECOND
        commit(store, 3, (1, hour("b", 1)))  # ten minutes have passed since the first
        with pytest.raises(ForgottenError, match="since version 0 are no longer available: they are kept from 1 on"):
            store.changes("hourly", 0)
        assert changed(store, 1) == [(2, "a", 1, -1), (2, "a", 2, 1), (4, "b", 1, 1)]
        assert len(store.changes("counts", 0)) > 0, "nothing of it was forgotten"
        now[0] += 1
        store.trim("0s")
        assert changed(store, 4) == []
        assert {view.name: view.since for view in store.views()} == {"hourly": 4, "counts": 3}
        with pytest.raises(ForgottenError, match="the store is at 4"):
            store.changes("hourly", 5)


# Several at once


def test_pipelines_share_a_store(make: Make) -> None:
    url, batches = make(), 10
    versions: list[int | None] = []
    failed: list[BaseException] = []

    def work(pipeline: str) -> None:
        try:
            shape = replace(SHAPE, name=f"of_{pipeline}")
            with closing(open_store(url)) as store:
                store.open(pipeline, [shape])
                for number in range(batches):
                    new = {shape.name: answers(shape, batch_of(number))}
                    versions.append(store.commit(Commit(pipeline, "c", number), new, True))
        except BaseException as error:
            failed.append(error)

    pipelines = [threading.Thread(target=work, args=(f"p{number}",)) for number in range(4)]
    for each in pipelines:
        each.start()
    for each in pipelines:
        each.join()
    assert failed == []
    assert sorted(map(str, versions)) == sorted(str(version) for version in range(1, 4 * batches + 1))
    with closing(open_store(url)) as store:
        for view in store.views():
            assert {row[:1]: row for row in rows_of(store.rows(view.name).rows, 6)} == expected(batches)


# Generations


def test_a_replay_takes_the_place_of_what_was_served(store: Store) -> None:
    commit(store, 0, (1, hour("a", 1)), (1, hour("b", 1)))
    new = store.begin_generation("p", [HOURS])
    assert commit(store, 0, (1, hour("b", 1)), (1, hour("c", 1)), to=new) == 2
    assert commit(store, 1, (1, hour("d", 1))) == 3, "the old one goes on"
    assert held(store) == {"a": 1, "b": 1, "d": 1}
    assert [(each.number, each.state) for each in store.generations("p")] == [
        (1, GenerationState.SERVING),
        (2, GenerationState.FILLING),
    ]
    assert store.swap("p", new) == 4
    assert held(store) == {"b": 1, "c": 1}
    assert sorted(changed(store, 3)) == [(4, "a", 1, -1), (4, "c", 1, 1), (4, "d", 1, -1)]
    assert store.swap("p", new) == 4, "it is served already"
    commit(store, 2, (1, hour("e", 1)), to=1)
    assert held(store) == {"b": 1, "c": 1}, "the old pipeline fills what it filled before"
    commit(store, 1, (1, hour("f", 1)), to=new)
    assert store.rollback("p") == 7
    assert held(store) == {"a": 1, "b": 1, "d": 1, "e": 1}
    back = [(7, "c", 1, -1), (7, "f", 1, -1), (7, "a", 1, 1), (7, "d", 1, 1), (7, "e", 1, 1)]
    assert sorted(changed(store, 6)) == sorted(back)
    assert store.rollback("p") == 8
    assert held(store) == {"b": 1, "c": 1, "f": 1}


def test_only_the_previous_generation_is_kept(store: Store) -> None:
    for number in (2, 3, 4):
        assert store.begin_generation("p", [HOURS]) == number
        store.swap("p", number)
    kept = [(each.number, each.state) for each in store.generations("p") if each.state is not GenerationState.DROPPED]
    assert kept == [(3, GenerationState.PREVIOUS), (4, GenerationState.SERVING)]
    with pytest.raises(NotFoundError, match="unknown view 'hourly__2'"):
        store.query("SELECT * FROM hourly__2")
    with pytest.raises(ConflictError, match="generation 2 of pipeline 'p' was dropped by"):
        commit(store, 0, to=2)
    assert store.begin_generation("p", [HOURS]) == 5
    assert store.begin_generation("p", [HOURS]) == 6, "one that was not finished is given up"
    with pytest.raises(ConflictError, match="generation 5 of pipeline 'p' was dropped"):
        store.swap("p", 5)
    with pytest.raises(NotFoundError, match="unknown generation '7'"):
        store.swap("p", 7)


def test_views_that_are_dropped_are_gone_until_they_are_made_anew(store: Store) -> None:
    commit(store, 0, (1, hour("a", 1)))
    assert store.swap("p", store.begin_generation("p", [HOURS])) == 2
    store.begin_generation("p", [HOURS])
    store.drop("p")
    assert (store.views(), store.version()) == ([], 3)
    for gone in ("hourly", "hourly__1", "hourly__2"):
        with pytest.raises(NotFoundError, match=f"unknown view '{gone}'"):
            store.query(f"SELECT * FROM {gone}")
    for _ in range(2):
        with pytest.raises(NotFoundError, match="unknown pipeline 'p'"):
            store.drop("p")
    with pytest.raises(ConflictError, match="generation 1 of pipeline 'p' was dropped by"):
        commit(store, 1, (1, hour("b", 1)), to=1)
    assert serving(store, "p") == 4
    store.open("p", [HOURS])
    assert serving(store, "p") == 4, "what filled an old one does not fill this one"
    commit(store, 0, (1, hour("c", 1)), to=4)
    assert held(store) == {"c": 1}
    with pytest.raises(ConflictError, match="millrace views drop p"):
        store.open("q", [HOURS])
    store.drop("p")
    store.open("q", [HOURS])
    assert [view.pipeline for view in store.views()] == ["q"]


def test_each_generation_has_commits_of_its_own(store: Store) -> None:
    commit(store, 0, (1, hour("a", 1)))
    new = store.begin_generation("p", [HOURS], least=5)
    assert new == 5
    assert store.last_commit("p", new) is None
    store.commit(Commit("p", "d", 0), {}, True, new)
    assert (store.last_commit("p", 1), store.last_commit("p", 5)) == (Commit("p", "c", 0), Commit("p", "d", 0))
    with pytest.raises(NotFoundError, match="no generation before the one that is served"):
        store.rollback("p")


def test_a_replay_may_have_other_columns_and_views(store: Store) -> None:
    commit(store, 0, (1, hour("a", 1)))
    wider = shape_of("hourly", TIMED.window(window.fixed("1h")).aggregate(n=agg.count(), mean=agg.mean("v")))
    new = store.begin_generation("p", [wider, SHAPE])
    row = ("a", NOON, NOON + HOUR, 1, 0.5, "early", 0, False)
    store.commit(Commit("p", "n", 0), {"hourly": answers(wider, [(1, row)])}, True, new)
    assert store.swap("p", new) == 3
    assert store.query("SELECT k, mean FROM hourly").rows == [("a", 0.5)]
    assert [view.name for view in store.views()] == ["counts", "hourly"]
    with pytest.raises(ForgottenError, match="they are kept from 3 on"):
        store.changes("hourly", 1)
    assert len(store.changes("hourly", 3)) == 0
    store.open("p", [wider, SHAPE])
    store.rollback("p")
    assert store.query("SELECT k, total FROM hourly").rows == [("a", 10)]
    assert [view.name for view in store.views()] == ["hourly"]
    with pytest.raises(NotFoundError, match="unknown view 'counts'"):
        store.query("SELECT * FROM counts")
    store.rollback("p")
    assert [view.name for view in store.views()] == ["counts", "hourly"]


def test_readers_see_one_generation_or_the_other(store: Store) -> None:
    store.open("p", [HOURS, SHAPE])
    commit(store, 0, *((1, hour(f"k{number}", 1)) for number in range(10)))
    failed: list[BaseException] = []
    seen: set[Any] = set()
    over = threading.Event()

    def read() -> None:
        try:
            while not over.is_set():
                seen.update(store.query("SELECT count(*), (SELECT count(*) FROM counts) FROM hourly").rows)
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(2, 12):
        store.begin_generation("p", [HOURS, SHAPE])
        commit(store, 0, *((1, hour(f"k{each}", 1)) for each in range(10)), to=number)
        store.swap("p", number)
    over.set()
    for reader in readers:
        reader.join()
    assert failed == []
    assert seen == {(10, 0)}


# Reading


def test_rows_are_filtered_and_sorted(store: Store) -> None:
    given = [(1, hour(key, n, NOON + HOUR * n)) for key, n in (("a", 1), ("b", 2), ("b", 3), (None, 4), ("it's", 5))]
    commit(store, 0, *given)

    def numbers(**options: Any) -> list[int]:
        found: list[int] = store.rows("hourly", **options).rows["n"].to_pylist()
        return found

    assert numbers() == [4, 1, 2, 3, 5], "by key, NULL first"
    assert numbers(where=[("k", "=", "it's")]) == [5]
    assert numbers(where=[("k", "=", "' OR 1 = 1 --")]) == []
    assert numbers(where=[("k", "=", None)]) == [4]
    assert numbers(where=[("k", "!=", None)], order=[("n", "desc")]) == [5, 3, 2, 1]
    assert numbers(where=[("k", "in", ["a", "it's"])]) == [1, 5]
    assert numbers(where=[("k", "in", [])]) == []
    assert numbers(where=[("n", ">=", "2"), ("n", "<", 4)]) == [2, 3]
    assert numbers(where=[("window_start", ">", "2024-02-29T14:00:00+00:00")]) == [4, 3, 5]
    assert numbers(where=[("window_start", "<=", NOON + HOUR)]) == [1]
    assert numbers(where=[("last", "=", "false")], order=[("k", "desc")], limit=2, offset=1) == [2, 3]
    assert numbers(where=[("version", "=", 1)], order=[("k", "asc")], offset=4) == [5]
    snapshot = store.rows("hourly", limit=0)
    assert (snapshot.version, len(snapshot.rows)) == (1, 0)
    assert snapshot.rows.schema.field("window_start").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": [("m", "=", 1)]}, r"unknown column 'm'"),
        ({"where": [("n", "=; DROP", 1)]}, r"unknown comparison '=; DROP' \(known: =, "),
        ({"where": [("n", "=", "many")]}, r"'many' cannot be compared with n, which is BIGINT"),
        ({"where": [("n", "=", 2**70)]}, r"cannot be compared with n, which is BIGINT"),
        ({"where": [("window_start", "<", "noon")]}, r"'noon' cannot be compared with window_start"),
        ({"where": [("k", "in", "abc")]}, r"k in 'abc' needs several values"),
        ({"order": [("n", "up")]}, r"unknown order 'up' \(known: asc, desc\)"),
        ({"order": [('n"; DROP', "asc")]}, r"unknown column"),
        ({"limit": -1}, r"limit is a whole number, not -1"),
        ({"offset": "1; DROP"}, r"offset is a whole number"),
    ],
)
def test_rows_that_cannot_be_asked_for(store: Store, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        store.rows("hourly", **options)


def test_sql_reads(store: Store) -> None:
    commit(store, 0, *((1, hour(f"k{number}", number)) for number in range(5)))
    assert store.query("SELECT sum(n) AS s, count(*) FROM hourly;").rows == [(10, 5)]
    assert store.query("-- hm\n /* so */ WITH t AS (SELECT k FROM hourly) SELECT k FROM t WHERE k = 'k1'").rows
    assert store.query("VALUES (1, '%s $1')").rows == [(1, "%s $1")]
    some = store.query("SELECT k, n FROM hourly ORDER BY n", max_rows=2)
    assert (some.columns, some.rows, some.more) == (("k", "n"), [("k0", 0), ("k1", 1)], True)
    assert not store.query("SELECT k FROM hourly", max_rows=5).more


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM hurly", r"unknown view 'hurly'; did you mean 'hourly'\? \(known: hourly\)"),
        ("SELECT nothing FROM hourly", r"the query failed: .*nothing"),
        ("SELECT 1 FROM", r"the query failed: "),
        ("", r"the query is empty"),
        ("/* */ -- DELETE", r"the query is empty"),
        ("DELETE FROM hourly", r"one statement that only reads"),
        ("WITH t AS (SELECT 1) DELETE FROM hourly__1", r"one statement|the query failed"),
        ("SELECT 1; DELETE FROM hourly__1", r"one statement that only reads"),
        ("SELECT 1; COMMIT; DELETE FROM hourly__1", r"one statement that only reads"),
        ("PRAGMA query_only = FALSE", r"one statement that only reads"),
        ("ATTACH 'x' AS y", r"one statement that only reads"),
        ("SELECT 1 \0", r"NUL"),
        (
            "WITH RECURSIVE r(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r",
            r"longer than 0.3",
        ),
    ],
)
def test_sql_that_is_refused(store: Store, sql: str, message: str) -> None:
    commit(store, 0, (1, hour("a", 1)))
    with pytest.raises(MillraceError, match=message):
        store.query(sql, limit_seconds=0.3)
    assert held(store) == {"a": 1}


def test_postgresql_stays_read_only_whatever_is_asked(postgres: Postgres) -> None:
    with closing(open_store(postgres.empty())) as store:
        store.open("p", [HOURS])
        for setting in ("default_transaction_read_only", "search_path"):
            store.query(f"SELECT set_config('{setting}', 'off', false)")
        for sql in (
            "WITH t AS (DELETE FROM hourly__1 RETURNING 1) SELECT * FROM t",
            "SELECT set_config('transaction_read_only', 'off', false)",
            "SELECT * INTO t FROM hourly",
            "SELECT nextval('x')",
        ):
            with pytest.raises(MillraceError):
                store.query(sql)
        assert store.query("SELECT count(*) FROM hourly").rows == [(0,)]


# What goes wrong


def test_a_store_that_is_not_there(tmp_path: Path, postgres: Postgres) -> None:
    with pytest.raises(NotFoundError, match=r"there is no store .*views.db; run a pipeline with views first"):
        open_store(tmp_path / "views.db").version()
    with pytest.raises(PipelineError, match=r"unknown store 'mysql' .*write sqlite:///file or postgresql://"):
        open_store("mysql://here")
    with pytest.raises(PipelineError, match=r"the URL of the store does not parse"):
        open_store("postgresql://host?nonsense=1")
    with closing(open_store(postgres.empty())) as store, pytest.raises(NotFoundError, match="holds no views"):
        store.views()
    for url, message in (
        (postgres.url(database="nowhere"), r'cannot write to database \'nowhere\' at .*"nowhere" does not exist'),
        (postgres.url(user="nobody"), r'role "nobody" does not exist; check the URL, and that the server runs'),
        ("postgresql://u:secret@127.0.0.1:1/x", r"at 127.0.0.1:1: .*Connection refused; check the URL"),
    ):
        with pytest.raises(MachineError, match=message) as caught:
            open_store(url).open("p", [HOURS])
        assert "secret" not in str(caught.value)


def test_a_wrong_password(postgres: Postgres) -> None:
    rules = postgres.folder / "pg_hba.conf"
    before = rules.read_text()
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE ROLE careful LOGIN PASSWORD 'right'")
        rules.write_text(f"local all careful scram-sha-256\n{before}")
        connection.execute("SELECT pg_reload_conf()")
        time.sleep(0.2)  # the server reads them at its leisure
        with pytest.raises(MachineError, match=r"password authentication failed for user .*; check the URL"):
            open_store(postgres.url(user="careful", password="wrong")).version()
        rules.write_text(before)
        connection.execute("SELECT pg_reload_conf()")


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_WRITER", (*sqlite._WRITER, "PRAGMA max_page_count = 40"))
    with closing(open_store(tmp_path / "views.db")) as store:
        store.open("p", [HOURS])
        commit(store, 0, (1, hour("a", 1)))
        with pytest.raises(MachineError, match=r"the disk is full: .*; nothing was lost: make room, and run again"):
            commit(store, 1, *((1, hour(f"k{number}", 1)) for number in range(5_000)))
        monkeypatch.undo()
        assert held(store) == {"a": 1}
        assert commit(store, 1, (1, hour("b", 1))) == 2


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "views.db"):
        with pytest.raises(MachineError, match=r"cannot write to .*; nothing was lost"):
            open_store(path).open("p", [HOURS])
    (tmp_path / "file").write_text("This is not a database, and never was one.")
    with pytest.raises(CorruptError, match="is damaged, or no database of SQLite"):
        open_store(tmp_path / "file").open("p", [HOURS])


def test_a_key_that_postgresql_cannot_index(postgres: Postgres) -> None:
    with closing(open_store(postgres.empty())) as store:
        store.open("p", [HOURS])
        long = "".join(chr(number) for number in range(256, 10_000))
        with pytest.raises(PipelineError, match=r"nothing was lost: a key is too long, so shorten it in the query"):
            commit(store, 0, (1, hour(long, 1)))


# Kills


def expected(batches: int) -> dict[Row, Row]:
    model = Model(SHAPE)
    for number in range(batches):
        model.commit(batch_of(number))
    return model.rows


def test_a_process_that_is_killed_again_and_again(make: Make, tmp_path: Path) -> None:
    batches, killed, clean = 60, make(), make()
    command = [sys.executable, committing.__file__, killed, str(batches), str(tmp_path / "done"), "7"]
    kills = int(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    assert kills > 5
    with closing(open_store(killed)) as one, closing(open_store(clean)) as other:
        other.open("p", [SHAPE])
        for number in range(batches):
            other.commit(Commit("p", "c", number), {"counts": answers(SHAPE, batch_of(number))}, True)
        assert {row[:1]: row for row in rows_of(one.rows("counts").rows, 6)} == expected(batches)
        assert one.rows("counts") == other.rows("counts")
        order = [("version", "ascending"), ("diff", "ascending"), ("k", "ascending")]
        assert one.changes("counts", 0).sort_by(order) == other.changes("counts", 0).sort_by(order)


def test_a_server_that_is_killed_loses_nothing(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "_WAITS", (0.1,) * 300)
    batches = 100
    with closing(open_store(postgres.empty())) as store:
        store.open("p", [SHAPE])
        versions: list[int | None] = []

        def work() -> None:
            for number in range(batches):
                new = {"counts": answers(SHAPE, batch_of(number))}
                versions.append(store.commit(Commit("p", "c", number), new, True))

        writer = threading.Thread(target=work)
        writer.start()
        for many in (batches // 3, batches * 2 // 3):
            while len(versions) < many:
                time.sleep(0.001)
            postgres.kill()
            postgres.restart()
        writer.join()
        assert versions == list(range(1, batches + 1))
        assert {row[:1]: row for row in rows_of(store.rows("counts").rows, 6)} == expected(batches)
        watcher = Model(SHAPE)
        watcher.apply(store.changes("counts", 0))
        assert watcher.rows == expected(batches)


def test_a_commit_whose_answer_is_lost_is_not_done_twice(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_store(postgres.empty())) as store:
        store.open("p", [HOURS])
        commit(store, 0, (1, hour("a", 1)))
        real, cuts = psycopg.Connection.transaction, [True]

        @contextmanager
        def cut(connection: psycopg.Connection[Any]) -> Iterator[psycopg.Transaction]:
            with real(connection) as transaction:
                yield transaction
            if cuts:
                cuts.pop()
                connection.close()
                raise psycopg.OperationalError("the connection was cut")

        monkeypatch.setattr(psycopg.Connection, "transaction", cut)
        assert commit(store, 1, (1, hour("a", 2))) == 2
        assert cuts == []
        assert changed(store, 0) == [(1, "a", 1, 1), (2, "a", 1, -1), (2, "a", 2, 1)]
        assert commit(store, 1, (1, hour("a", 3))) is None


def test_a_server_that_stays_away(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "_WAITS", (0.01, 0.01))
    with closing(open_store(postgres.empty())) as store:
        store.open("p", [HOURS])
        postgres.kill()
        try:
            with pytest.raises(
                MachineError, match=r"cannot write to .*; nothing was lost: fix the cause, then run again"
            ):
                commit(store, 0, (1, hour("a", 1)))
            with pytest.raises(MachineError, match="cannot read"):
                store.version()
        finally:
            postgres.restart()
        assert commit(store, 0, (1, hour("a", 1))) == 1
        assert store.version() == 1


def test_one_run_at_a_time_writes_to_the_views_of_a_pipeline(make: Make) -> None:
    url = make()
    with closing(open_store(url)) as one, closing(open_store(url)) as other:
        with one.claim("charts", 1):
            with pytest.raises(MachineError, match=r"another run of charts writes .*; stop that run first"):
                other.claim("charts", 1).__enter__()
            with other.claim("charts", 2), other.claim("visits", 1):  # a replay, and another pipeline
                pass
        with other.claim("charts", 1):  # the first run has ended
            pass


def past(store: Store, where: list[Filter], **options: Any) -> list[dict[str, Any]]:
    """The history of some rows of the view."""
    with store.history("hourly", where, **options) as found:
        rows: list[dict[str, Any]] = pa.Table.from_batches(found.batches, found.schema).to_pylist()
    return rows


def test_the_history_of_a_row_has_its_answers_and_corrections_with_their_times(store: Store) -> None:
    before = datetime.now(UTC)
    commit(store, 0, (1, hour("a", 1)), (1, hour("b", 1)), (1, hour("a", 5, NOON + HOUR)))
    commit(store, 1, (-1, hour("a", 1)), (1, hour("a", 2, timing="late", index=1)))
    commit(store, 2, (-1, hour("a", 2)))
    found = past(store, [("k", "=", "a"), ("window_start", "=", NOON)])
    assert [(row["version"], row["diff"], row["n"], row["timing"]) for row in found] == [
        (1, 1, 1, "early"), (2, -1, 1, "early"), (2, 1, 2, "late"), (3, -1, 2, "late"),
    ]  # fmt: skip
    times = [row["committed"] for row in found]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= datetime.now(UTC)
    assert [row["version"] for row in past(store, [("k", "=", "a")], last=2)] == [2, 3]
    few = Rights(Scope.READ, row_filters=(("hourly", "n < 2"),))
    assert [row["n"] for row in past(store, [("k", "=", "a")], rights=few)] == [1, 1]
    with pytest.raises(PipelineError, match="unknown column 'nope'"):
        past(store, [("nope", "=", 1)])
