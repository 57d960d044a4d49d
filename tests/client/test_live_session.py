"""A live query as a client holds it: messages in, rows and changes out, whatever the server sends."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from millrace import MillraceError, PipelineError
from millrace.client.live_link import LostError
from millrace.client.live_session import LiveSession, State
from millrace.live import message
from millrace.live.canonical import canonical, checksum
from millrace.live.window import Entry, difference
from millrace.model.errors import MachineError

TOKEN = "token"


def told(session: LiveSession, *bodies: str, sub: str | None = None) -> list[dict[str, Any]]:
    """Tell a session something. Returns its replies."""
    replies = [reply for body in bodies for reply in session.take(message.to(sub or str(session._number), body))]
    return [json.loads(reply) for reply in replies]


def texts(rows: dict[str, int]) -> list[tuple[str, str]]:
    return [(canonical([name]), canonical([name, value])) for name, value in rows.items()]


def progress(version: int, rows: dict[str, int], is_sorted: bool = False) -> str:
    return message.progress(version, None, len(rows), checksum(texts(rows), is_sorted))


def live(rows: dict[str, int], is_sorted: bool = False, version: int = 1) -> LiveSession:
    """A session with rows."""
    session = LiveSession("SELECT k, n FROM plays", (), 0, None)
    session.greeting()
    told(session, message.snapshot(["k", "n"], is_sorted, 0, texts(rows)), message.ready(version, TOKEN))
    return session


def batch(version: int, before: dict[str, int], after: dict[str, int]) -> str:
    """The changes from one sorted result to another."""

    def entries(rows: dict[str, int]) -> tuple[Entry, ...]:
        return tuple(Entry(b"", id, text) for id, text in texts(rows))

    return message.batch(version, difference(entries(before), entries(after)))


def plain(session: LiveSession) -> dict[str, int]:
    return {row["k"]: row["n"] for row in session.rows}


RESULTS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 5)), unique_by=lambda row: row[0]).map(dict)


@examples(200)
@given(st.lists(RESULTS, min_size=2, max_size=6), st.data())
def test_changes_lead_from_what_was_told_to_what_is(results: list[dict[str, int]], data: st.DataObject) -> None:
    """Also for one who asks seldom, and if the result begins anew."""
    session = live(results[0], is_sorted=True)
    watcher = session.watch()
    seen: dict[str, int] = {}
    for version, (before, after) in enumerate(pairwise(results), 2):
        if data.draw(st.booleans()):
            assert told(session, batch(version, before, after), progress(version, after, True)) == []
        else:
            snapshot = message.snapshot(["k", "n"], True, 0, texts(after))
            told(session, message.refetch("so"), snapshot, message.ready(version, TOKEN))
        assert list(plain(session).items()) == list(after.items())
        if data.draw(st.booleans()) and (change := session.told(watcher)) is not None:
            assert all(seen.pop(row["k"]) == row["n"] for row in change.removed)
            assert not seen.keys() & {row["k"] for row in change.added}
            assert all(seen[row["k"]] != row["n"] for row in change.changed)
            assert all(seen[row["k"]] == row["n"] for row in change.moved)
            seen |= {row["k"]: row["n"] for row in (*change.added, *change.changed)}
            assert (seen, change.version) == (after, version)
            assert session.told(watcher) is None


def test_rows_that_only_move_are_a_change() -> None:
    session = live({"a": 1, "b": 2}, is_sorted=True)
    watcher = session.watch()
    session.told(watcher)
    told(session, batch(2, {"a": 1, "b": 2}, {"b": 2, "a": 1}))
    change = session.told(watcher)
    assert change is not None
    assert (change.added, change.changed, change.removed) == ((), (), ())
    assert len(change.moved) == 1
    assert [row["k"] for row in change.rows] == ["b", "a"]


@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_result_that_has_diverged_is_read_anew(is_sorted: bool) -> None:
    session = live({"a": 1}, is_sorted)
    watcher = session.watch()
    session.told(watcher)
    assert told(session, progress(2, {"a": 1}, is_sorted)) == []
    ended, asked = told(session, progress(3, {"a": 2}, is_sorted))
    assert (ended["type"], ended["sub"], asked["type"], asked["sub"]) == ("unsubscribe", "1", "subscribe", "2")
    assert told(session, progress(4, {"a": 9}, is_sorted), sub="1") == [], "a message of the earlier subscription"
    told(session, message.snapshot(["k", "n"], is_sorted, 0, texts({"a": 2})), message.ready(4, TOKEN))
    change = session.told(watcher)
    assert change is not None
    assert change.changed == ({"k": "a", "n": 2},)


@pytest.mark.parametrize(
    "wrong",
    [
        '"removes":["[\\"z\\"]"],"moves":[],"changes":[],"adds":[]',
        '"removes":[],"moves":[],"changes":[["[\\"z\\"]",["z",1]]],"adds":[]',
        '"removes":[],"moves":[],"changes":[],"adds":[["[\\"a\\"]",["a",1],0]]',
        '"removes":[],"moves":[],"changes":[],"adds":[["[\\"b\\"]",["b",1],7]]',
        '"removes":[],"moves":[["[\\"z\\"]",0]],"changes":[],"adds":[]',
    ],
)
def test_a_batch_that_does_not_fit_changes_nothing_and_the_result_is_read_anew(wrong: str) -> None:
    session = live({"a": 1}, is_sorted=True)
    assert [each["type"] for each in told(session, f'"type":"batch","version":2,{wrong}')] == [
        "unsubscribe",
        "subscribe",
    ]
    assert plain(session) == {"a": 1}


def test_a_session_goes_on_with_its_token_and_subscribes_if_that_is_refused() -> None:
    session = live({"a": 1}, version=5)
    told(session, progress(7, {"a": 1}))
    session.lost()
    assert session.state is State.RECONNECTING
    assert json.loads(session.greeting()) == {"type": "resume", "token": TOKEN, "version": 7, "sub": "2"}
    (asked,) = told(session, message.error(PipelineError("the resume token is not valid")))
    assert (asked["type"], asked["sub"]) == ("subscribe", "3")
    told(session, message.error(PipelineError("unknown view")))
    assert session.is_over
    assert isinstance(session.error, PipelineError)


def test_trouble_of_the_server_ends_only_a_query_that_never_began() -> None:
    away = message.error(MachineError("the store is away", "wait"))
    with pytest.raises(LostError, match="the store is away"):
        told(live({"a": 1}), away)
    session = LiveSession("SELECT", (), 0, None)
    session.greeting()
    told(session, away)
    assert session.is_over
    assert isinstance(session.error, MillraceError)


def test_a_closed_subscription_goes_on_unless_it_was_to_end() -> None:
    session = live({"a": 1})
    (asked,) = told(session, message.closed("the rights have changed", "other"))
    assert (asked["type"], asked["token"]) == ("resume", "other")
    told(session, message.closed("up_to", "other"))
    assert (session.is_over, session.error) == (True, None)


def test_a_snapshot_in_parts_is_shown_as_a_whole() -> None:
    session = live({"a": 1})
    rows = texts({"b": 2, "c": 3})
    told(session, message.snapshot(["k", "n"], False, 0, rows[:1]))
    assert plain(session) == {"a": 1}
    told(session, message.snapshot(["k", "n"], False, 1, rows[1:]), message.ready(2, TOKEN))
    assert plain(session) == {"b": 2, "c": 3}
