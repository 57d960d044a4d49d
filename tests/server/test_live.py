"""Live queries over a real server: what is sent, what is refused, and what survives trouble."""

import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed

import millrace
from live_server import PATIENCE, LiveServer, Peer, Plays, eventually, live_server
from millrace import CorruptError
from millrace.eventlog.topics import Log
from millrace.live.events import Changes, Event, Instruction
from millrace.live.hub import Hub
from millrace.live.sending import Limits
from millrace.model.duration import SECOND
from millrace.server import live_queries, live_routes
from millrace.server.live_queries import read_key
from millrace.server.tokens import FILE, create, revoke
from millrace.views.rights import Rights, Scope
from millrace.views.store import open_store
from postgres import Postgres
from served import served

ALL = "SELECT k, country, n FROM {}"
TOP = "SELECT k, n FROM {} ORDER BY n DESC LIMIT 2"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("live")
    with closing(open_store(folder / "views.db")) as store, live_server(folder, store) as made:
        yield made


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("live")
    with closing(open_store(postgres.empty())) as store, live_server(folder, store) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    """A server over each kind of store."""
    made: LiveServer = request.getfixturevalue(request.param)
    yield made
    eventually(lambda: made.is_empty, "something of a query is held after its last subscriber has left")


@pytest.fixture
def one(sqlite: LiveServer) -> Iterator[LiveServer]:
    """A server over SQLite."""
    yield sqlite
    eventually(lambda: sqlite.is_empty, "something of a query is held after its last subscriber has left")


@pytest.fixture
def plays(request: pytest.FixtureRequest) -> Plays:
    """A view of its own for each test, with three rows."""
    made: LiveServer = request.getfixturevalue("server" if "server" in request.fixturenames else "one")
    view = re.sub(r"\W+", "_", request.node.name.removeprefix("test_"))[:40]
    found = Plays(made.store, view)
    found.commit(("a", "NO", 1), ("b", "SE", 2), ("c", "NO", 3))
    return found


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    made: LiveServer = request.getfixturevalue("server" if "server" in request.fixturenames else "one")
    with Peer(made.url) as connected:
        yield connected


def texts(said: dict[str, Any], part: str) -> list[Any]:
    return [[json.loads(id)[0], *rest] for id, *rest in said[part]]


def test_a_snapshot_and_then_one_batch_a_version(server: LiveServer, plays: Plays, peer: Peer) -> None:
    peer.subscribe(ALL.format(plays.view) + " WHERE n < $1", [10])
    snapshot, ready = peer.until("ready")
    assert (snapshot["columns"], snapshot["sorted"]) == (["k", "country", "n"], False)
    assert sorted(texts(snapshot, "rows")) == [["a", ["a", "NO", 1]], ["b", ["b", "SE", 2]], ["c", ["c", "NO", 3]]]
    version = plays.commit("a", ("b", "SE", 5), ("c", "NO", 30), ("d", "DK", 4))
    batch, progress = peer.until("progress")
    assert ready["version"] < batch["version"] == progress["version"] == version
    assert sorted(json.loads(id)[0] for id in batch["removes"]) == ["a", "c"]
    assert (texts(batch, "changes"), texts(batch, "adds")) == ([["b", ["b", "SE", 5]]], [["d", ["d", "DK", 4]]])
    assert progress["rows"] == 2


def test_a_sorted_query_with_a_limit_has_positions(server: LiveServer, plays: Plays, peer: Peer) -> None:
    peer.subscribe(TOP.format(plays.view))
    snapshot, _ = peer.until("ready")
    assert texts(snapshot, "rows") == [["c", ["c", 3]], ["b", ["b", 2]]]
    plays.commit(("d", "DK", 9))
    batch, _ = peer.until("progress")
    assert [json.loads(id)[0] for id in batch["removes"]] == ["b"]
    assert texts(batch, "adds") == [["d", ["d", 9], 0]]
    plays.commit("c")
    batch, _ = peer.until("progress")
    assert texts(batch, "adds") == [["b", ["b", 2], 1]]


def test_python_has_the_rows_over_a_server_and_over_the_store_itself(server: LiveServer, plays: Plays) -> None:
    for place in (server.url, server.store.url):
        with millrace.connect(place) as db, db.live(TOP.format(plays.view)) as rows:
            changes = iter(rows)
            assert next(changes).rows == rows.rows
            top = max(n for _, n in plays.rows.values())
            version = plays.commit((f"new {top}", "DK", top + 1))
            change = next(changes)
            assert (change.version, change.added) == (version, ({"k": f"new {top}", "n": top + 1},))
            assert rows.rows == change.rows


def test_numbers_that_javascript_rounds_do_not_disturb_the_checksum(server: LiveServer, plays: Plays) -> None:
    large = 2**60
    plays.commit(("large", "NO", large))
    with millrace.connect(server.url).live(f"SELECT n, x FROM {plays.view} WHERE n > 3") as rows:
        assert rows.rows == [{"n": str(large), "x": large * 1e19}]
        version = plays.commit(("small", "NO", 15))
        eventually(lambda: rows.version == version, "the change does not come")
        assert rows.rows[1] == {"n": 15, "x": 1.5e20}
        eventually(lambda: rows.state == "live", "the client has diverged")
        assert rows._session._number == 1, "the client has read the result anew"


def test_a_replay_that_is_swapped_in_begins_the_result_anew(server: LiveServer, plays: Plays, peer: Peer) -> None:
    peer.subscribe(ALL.format(plays.view))
    peer.until("ready")
    with millrace.connect(server.url).live(TOP.format(plays.view)) as rows:
        plays.replay(("a", "NO", 7), ("z", "SE", 8))
        said = peer.until("ready")
        assert [each["type"] for each in said] == ["refetch", "snapshot", "ready"]
        assert said[0]["reason"] == "the view was computed anew"
        assert sorted(texts(said[1], "rows")) == [["a", ["a", "NO", 7]], ["z", ["z", "SE", 8]]]
        version = plays.commit(("y", "SE", 9))
        assert texts(peer.until("batch", version=version)[-1], "adds") == [["y", ["y", "SE", 9]]]
        eventually(lambda: rows.rows == [{"k": "y", "n": 9}, {"k": "z", "n": 8}], "the rows are not right")


def test_a_resume_after_a_replay_begins_the_result_anew(server: LiveServer, plays: Plays, peer: Peer) -> None:
    peer.subscribe(ALL.format(plays.view))
    *_, ready = peer.until("ready")
    peer.close()
    eventually(lambda: server.is_empty, "something is held")
    plays.replay(("z", "SE", 8))
    with Peer(server.url) as other:
        other.say(type="resume", sub="r", token=ready["token"], version=ready["version"])
        refetch, snapshot, _ = other.until("ready")
        assert refetch["type"] == "refetch"
        assert texts(snapshot, "rows") == [["z", ["z", "SE", 8]]]


def test_a_resume_sends_exactly_what_was_missed(server: LiveServer, plays: Plays, peer: Peer) -> None:
    peer.subscribe(TOP.format(plays.view))
    *_, ready = peer.until("ready")
    peer.close()
    version = plays.commit(("d", "DK", 9))
    plays.commit(("e", "DK", 1))
    with Peer(server.url) as other:
        other.say(type="resume", sub="r", token=ready["token"], version=ready["version"])
        ready, batch, _ = other.until("progress")
        assert (ready["type"], ready["version"]) == ("ready", version - 1)
        assert texts(batch, "adds") == [["d", ["d", 9], 0]]


def test_a_dropped_view_ends_its_queries_with_an_error(one: LiveServer, plays: Plays, peer: Peer) -> None:
    other = Plays(one.store, "another")
    peer.subscribe(ALL.format(plays.view))
    peer.until("ready")
    one.store.drop(plays.pipeline)
    other.commit(("a", "NO", 1))  # a new version of the store
    *_, said = peer.until("error")
    assert (said["kind"], plays.view in said["problem"]) == ("not-found", True)


# Who may see what.


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[LiveServer, Plays]]:
    """A server that needs tokens."""
    with closing(open_store(tmp_path / "views.db")) as store:
        plays = Plays(store, "plays")
        plays.commit(("a", "NO", 1), ("b", "SE", 2))
        create(tmp_path / FILE, Rights(), 1_000, 1 << 20, NOW)
        with live_server(tmp_path, store) as made:
            yield made, plays


def test_tokens_decide_which_rows_are_told_and_a_revoked_one_ends_within_a_second(
    guarded: tuple[LiveServer, Plays],
) -> None:
    server, plays = guarded
    rights = Rights(Scope.READ, frozenset(["plays"]), row_filters=(("plays", "country = 'NO'"),))
    token, secret = create(server.folder / FILE, rights, 1_000, 1 << 20, NOW)
    time.sleep(0.3)  # the server looks at its tokens so often
    with pytest.raises(millrace.PipelineError, match="this server needs a token"):
        millrace.connect(server.url).live(ALL.format("plays"))
    with millrace.connect(server.url, token=secret).live(ALL.format("plays")) as rows, Peer(server.url, secret) as peer:
        assert rows.rows == [{"k": "a", "country": "NO", "n": 1}]
        peer.subscribe("SELECT n FROM plays")
        peer.until("ready")
        version = plays.commit(("c", "SE", 3), ("b", "NO", 4), "a")
        eventually(lambda: rows.version == version, "the change does not come")
        assert rows.rows == [{"k": "b", "country": "NO", "n": 4}]
        (batch, _) = peer.until("progress")
        assert (texts(batch, "adds"), len(batch["removes"])) == ([["b", [4]]], 1)
        began = time.monotonic()
        revoke(server.folder / FILE, token.id)
        with pytest.raises(ConnectionClosed) as closed:
            peer.hear()
        assert time.monotonic() - began < 1
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the token is no longer valid")
        with pytest.raises(millrace.PipelineError, match="the token is no longer valid"):
            for _ in rows:
                pass
        assert rows.state == "closed"
    eventually(lambda: server.is_empty, "something is held")


def test_a_token_that_connects_too_often_is_told_to_try_later(guarded: tuple[LiveServer, Plays]) -> None:
    server, _ = guarded
    _, secret = create(server.folder / FILE, Rights(Scope.READ), 1, 1 << 20, NOW)
    time.sleep(0.3)  # the server looks at its tokens so often
    codes = set()
    for _ in range(3):
        with Peer(server.url, secret) as peer:
            with suppress(ConnectionClosed):
                peer.subscribe(ALL.format("plays"))
                peer.until("ready")
            codes.add(peer.socket.close_code)
    assert 1013 in codes
    assert 1008 not in codes  # with which a client would give up


def test_a_web_page_of_another_origin_is_refused(one: LiveServer) -> None:
    with Peer(one.url, origin="https://evil.example") as peer:
        with pytest.raises(ConnectionClosed) as closed:
            peer.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert "https://evil.example may not use this server" in closed.value.rcvd.reason
    answer = httpx.get(f"{one.url}/live?sql=SELECT", headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("no", "the message is not JSON"),
        (b"\xff\x00", "the message is not JSON"),
        ("[1]", "a message is a JSON object, not [1]"),
        ('{"type": "subscrbe", "sub": "q"}', "unknown type of message 'subscrbe'"),
        ('{"type": "subscribe", "sub": "q", "sqll": "x"}', "unknown field of subscribe 'sqll'"),
        ('{"type": "subscribe", "sub": "q"}', "sql must be text, not None"),
        ('{"type": "subscribe", "sub": "q", "sql": "SELECT n FROM nope"}', "unknown view 'nope'"),
        ('{"type": "subscribe", "sub": "q", "sql": "DELETE FROM x"}', "DELETE"),
        ('{"type": "subscribe", "sub": "q", "sql": "SELECT", "form": "csv"}', "unknown form 'csv'"),
        ('{"type": "subscribe", "sub": "q", "sql": "SELECT", "min_interval": -1}', "min_interval is in seconds"),
        ('{"type": "resume", "sub": "q", "token": "x.y"}', "the resume token is not valid"),
        ('{"type": "subscribe", "sub": "q", "sql": "SELECT", "protocol": 2}', "version 1 of the protocol"),
    ],
)
def test_what_is_wrong_with_a_message_is_told(one: LiveServer, peer: Peer, said: str, problem: str) -> None:
    peer.socket.send(said)
    answer = peer.hear()
    assert answer["type"] == "error"
    assert problem in answer["problem"]


def test_a_client_with_mistakes_goes_on(one: LiveServer, plays: Plays, peer: Peer) -> None:
    peer.socket.send("no")
    peer.subscribe("SELECT nope FROM " + plays.view)
    peer.subscribe(ALL.format(plays.view))
    assert [peer.hear()["type"] for _ in range(4)] == ["error", "error", "snapshot", "ready"]
    peer.subscribe(ALL.format(plays.view))
    assert "there is a subscription 'q' already" in peer.hear()["problem"]
    peer.socket.send("x" * (1 << 20) + "x")
    with pytest.raises(ConnectionClosed, match="a message is too long"):
        peer.hear()


# Forms, intervals, ends.


def test_forms_upsert_and_invalidate(one: LiveServer, plays: Plays, peer: Peer) -> None:
    peer.subscribe(TOP.format(plays.view), sub="u", form="upsert")
    peer.until("ready")
    peer.subscribe(TOP.format(plays.view), sub="i", form="invalidate")
    assert [each["type"] for each in peer.until("ready")] == ["ready"]
    version = plays.commit(("b", "SE", 9), "c")
    said = [peer.hear() for _ in range(4)]
    upsert = next(each for each in said if each["type"] == "upsert")
    assert sorted(texts(upsert, "rows")) == [["a", ["a", 1]], ["b", ["b", 9]], ["c", None]]
    assert {"sub": "i", "type": "invalidate", "version": version} in said


def test_a_query_ends_by_itself_at_a_version(one: LiveServer, plays: Plays) -> None:
    now = plays.commit(("d", "DK", 4))
    with millrace.connect(one.url).live(f"SELECT n FROM {plays.view} WHERE k = 'e'", up_to=now + 2) as rows:
        for n in range(5):
            plays.commit(("e", "NO", n))
        assert list(rows)[-1].version == now + 2
        assert rows.rows == [{"n": 1}]
        assert rows.state == "closed"


def test_changes_within_an_interval_are_sent_as_one(one: LiveServer, plays: Plays, peer: Peer) -> None:
    interval = 1.0
    began = time.monotonic()
    peer.subscribe(ALL.format(plays.view), min_interval=interval)
    peer.until("ready")
    for n in range(10):
        version = plays.commit(("e", "NO", n))
    batches = [each for each in peer.until("progress", version=version) if each["type"] == "batch"]
    # A busy machine may spread the commits over several intervals, of which each has one batch.
    assert len(batches) <= (time.monotonic() - began) / interval
    assert texts(batches[-1], "adds") + texts(batches[-1], "changes") == [["e", ["e", "NO", 9]]]


def events(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """The events of a stream."""
    event: dict[str, str] = {}
    for line in lines:
        if not line:
            if event:
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def test_server_sent_events_resume_after_the_last_one(one: LiveServer, plays: Plays) -> None:
    asked = {"sql": ALL.format(plays.view)}
    with httpx.stream("GET", f"{one.url}/live", params=asked, timeout=PATIENCE) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        found = events(stream.iter_lines())
        assert [next(found)["event"] for _ in range(2)] == ["snapshot", "ready"]
        plays.commit(("d", "DK", 4))
        assert next(found)["event"] == "batch"
        last = next(found)["id"]
    version = plays.commit(("e", "DK", 5))
    headers = {"Last-Event-ID": last}
    with httpx.stream("GET", f"{one.url}/live", params=asked, headers=headers, timeout=PATIENCE) as stream:
        found = events(stream.iter_lines())
        assert next(found)["event"] == "ready"
        assert texts(json.loads(next(found)["data"]), "adds") == [["e", ["e", "DK", 5]]]
        assert next(found)["id"].startswith(f"{version}:")
    other = {"Last-Event-ID": "7:no-token"}  # such as after the server's key was lost
    with httpx.stream("GET", f"{one.url}/live", params=asked, headers=other, timeout=PATIENCE) as stream:
        assert next(events(stream.iter_lines()))["event"] == "snapshot"


def test_a_stream_of_events_that_is_over_is_not_asked_for_again(one: LiveServer, plays: Plays) -> None:
    version = plays.commit(("d", "DK", 4))
    asked: dict[str, str | int] = {"sql": ALL.format(plays.view), "up_to": version}
    found = list(events(iter(httpx.get(f"{one.url}/live", params=asked, timeout=PATIENCE).text.splitlines())))
    assert [each["event"] for each in found] == ["snapshot", "ready", "closed"]
    again = httpx.get(f"{one.url}/live", params=asked, headers={"Last-Event-ID": found[1]["id"]})
    assert again.status_code == 204  # else a browser would connect for ever
    refused = httpx.get(f"{one.url}/live", params={"sql": "SELECT nope FROM " + plays.view})
    assert (refused.status_code, "unknown column 'nope'" in refused.json()["problem"]) == (400, True)
    assert httpx.get(f"{one.url}/live").status_code == 400
    assert httpx.get(f"{one.url}/live", params={"resume": "x"}).status_code == 400
    assert httpx.get(f"{one.url}/live", params={**asked, "params": "{"}).status_code == 400


def test_a_cache_that_is_told_what_is_stale_never_serves_old_rows(one: LiveServer, plays: Plays, peer: Peer) -> None:
    """The feed drops what is cached; the ETag spares what has not changed after all."""
    address = f"{one.url}/views/{plays.view}"
    cache: dict[str, httpx.Response] = {}
    statuses = []

    def rows() -> list[int]:
        if "fresh" not in cache:
            known = cache.get("stale")
            answer = httpx.get(address, headers={} if known is None else {"If-None-Match": known.headers["ETag"]})
            statuses.append(answer.status_code)
            cache["fresh"] = answer if known is None or answer.status_code == 200 else known
        return sorted(row["n"] for row in cache["fresh"].json()["rows"])

    peer.subscribe(f"SELECT k FROM {plays.view} WHERE n > 1", form="invalidate")
    peer.until("ready")
    assert (rows(), rows(), statuses) == ([1, 2, 3], [1, 2, 3], [200])
    plays.commit(("a", "NO", 9))
    peer.until("invalidate")
    cache = {"stale": cache["fresh"]}
    assert (rows(), statuses) == ([2, 3, 9], [200, 200])
    Plays(one.store, "other_view").commit(("a", "NO", 1))
    cache = {"stale": cache["fresh"]}
    assert (rows(), statuses) == ([2, 3, 9], [200, 200, 304])


# Load.


def test_slow_clients_delay_nobody_and_are_disconnected_with_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_routes, "_GRACE", 3.0)

    def slow(url: str) -> Peer:
        """A client that reads nothing by itself."""
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        return Peer(url, sock=small, max_queue=1, max_size=None, close_timeout=0.1)

    limits = Limits(backlog=4, patience=SECOND // 2)
    with closing(open_store(tmp_path / "views.db")) as store, live_server(tmp_path, store, limits, 65_536) as server:
        plays = Plays(store, "plays")
        plays.commit(("a", "NO", 0))
        with Peer(server.url) as quick, slow(server.url) as late, slow(server.url) as never:
            for each in (quick, late, never):
                each.subscribe("SELECT country, n FROM plays")
                each.until("ready")
            clients, worst, n = dict(server.live._clients), 0.0, 0
            while clients["c2"].closing is None:
                began, n = time.monotonic(), n + 1
                version = plays.commit(("a", "x" * 50_000, n))
                quick.until("progress", version=version)
                worst = max(worst, time.monotonic() - began)
                assert n < 1_000, "the slow client is not disconnected"
            assert worst < 2
            *_, progress, closed = late.rest()
            assert (closed["type"], closed["reason"]) == ("closed", "the client reads too slowly")
            eventually(lambda: [*server.live._clients] == ["c1"], "a client that does not read is not given up")
            version = plays.commit(("a", "NO", 100))
            with Peer(server.url) as back:
                back.say(type="resume", sub="q", token=closed["token"], version=progress["version"])
                assert back.hear()["type"] == "ready"
                assert back.until("batch", version=version)[-1]["changes"] == [['["a"]', ["NO", 100]]]
        eventually(lambda: server.is_empty, "something is held")


def test_a_storm_of_subscriptions(one: LiveServer, plays: Plays, capsys: pytest.CaptureFixture[str]) -> None:
    many = 2_048
    plays.commit(*((f"k{n}", "NO", n) for n in range(many)))
    with Peer(one.url, max_queue=None) as peer:
        began = time.monotonic()
        for n in range(many):
            peer.subscribe(f"SELECT k FROM {plays.view} WHERE n = $1", [n], sub=str(n))
        for _ in range(many):
            peer.until("ready")
        took = time.monotonic() - began
        with capsys.disabled():
            print(f" {many:,} subscriptions in {took:.2f} s ", end="")  # noqa: T201
        assert took < 20
        plays.commit(("k7", "NO", 8))
        said = [peer.hear() for _ in range(4)]
        assert sorted((each["sub"], each["type"]) for each in said) == [
            ("7", "batch"), ("7", "progress"), ("8", "batch"), ("8", "progress"),
        ]  # fmt: skip


# Trouble.


def test_a_client_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    """No gap and no duplicate: the changes that it was told, in order, are those of the store."""
    with closing(open_store(tmp_path / "views.db")) as store, closing(Log(tmp_path / "log.db")):
        plays = Plays(store, "plays")
        plays.commit(("a", "NO", 0))
        with served(tmp_path) as first:
            rows = millrace.connect(first.url).live("SELECT k, n FROM plays")
            changes: list[Any] = []
            rows.on_change(changes.append)
            eventually(lambda: len(changes) == 1, "no first change")
            plays.commit(("b", "NO", 1))
            eventually(lambda: len(changes) == 2, "no change")
        eventually(lambda: rows.state == "reconnecting", "the client does not notice")
        plays.commit(("b", "NO", 2), ("c", "NO", 3))
        with rows, served(tmp_path, port=first.port):
            eventually(lambda: rows.state == "live", "the client does not connect again")
            plays.commit("a")
            eventually(lambda: len(changes) == 4, "the changes do not come")
            told = [
                ({*(row["k"] for row in c.added)}, [row["n"] for row in c.changed], len(c.removed)) for c in changes
            ]
            assert told == [({"a"}, [], 0), ({"b"}, [], 0), ({"c"}, [2], 0), (set(), [], 1)]
            assert rows.rows == [{"k": "b", "n": 2}, {"k": "c", "n": 3}]


def test_after_a_fault_of_the_hub_clients_connect_again_and_have_the_rows(
    one: LiveServer, plays: Plays, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faulty, left = Hub.on, [1]

    def on(hub: Hub, event: Event) -> list[Instruction]:
        if isinstance(event, Changes) and left:
            left.pop()
            raise AssertionError("nobody foresaw this")
        return faulty(hub, event)

    with caplog.at_level(logging.CRITICAL, "millrace"), millrace.connect(one.url).live(ALL.format(plays.view)) as rows:
        monkeypatch.setattr(Hub, "on", on)
        plays.commit(("d", "DK", 4))
        eventually(lambda: {row["k"] for row in rows.rows} == {*"abcd"}, "the rows are not those of the view")
        assert not left
        plays.commit("a")
        eventually(lambda: {row["k"] for row in rows.rows} == {*"bcd"}, "changes are not told after a fault")


def test_a_client_has_a_most_of_subscriptions_and_those_that_ended_do_not_count(
    one: LiveServer, plays: Plays, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_queries, "_MOST_SUBSCRIPTIONS", 2)
    for number in range(6):  # each ends by itself
        peer.say(type="subscribe", sub=f"past {number}", sql=ALL.format(plays.view), up_to=0)
        assert peer.until("closed")[-1]["reason"] == "up_to"
    for sub in ("a", "b", "c"):
        peer.say(type="subscribe", sub=sub, sql=ALL.format(plays.view))
    assert "at most 2 subscriptions" in peer.until("error")[-1]["problem"]
    assert one.live.figures["subscriptions"] == 2


def test_a_key_is_made_once_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    key = read_key(tmp_path)
    assert (len(key), read_key(tmp_path)) == (32, key)
    assert (tmp_path / "live.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "live.key").write_bytes(key[:5])
    with pytest.raises(CorruptError, match=r"live\.key is damaged; remove it"):
        read_key(tmp_path)
    assert len(read_key(tmp_path / "live.key")) == 32  # nothing can be written in a place that is no folder
