"""What subscriptions share, and what a slow or faulty one cannot do to others."""

import json
from typing import Any

import pyarrow as pa
import pytest

from live_world import SECRET, VIEW, VIEWS
from millrace.live.events import (
    Backlog,
    Changes,
    ChangesRead,
    Disconnect,
    Follow,
    Gone,
    Instruction,
    Read,
    ReadChanges,
    ReadFailed,
    ReadSnapshot,
    Replaced,
    Resume,
    RightsChanged,
    Send,
    SnapshotRead,
    Subscribe,
    Tick,
    Unfollow,
)
from millrace.live.hub import Hub
from millrace.live.parsing import parse
from millrace.live.sending import Limits
from millrace.live.statement import Database, statement
from millrace.live.token import Asked, Token, unseal
from millrace.model.errors import MachineError

_KINDS = [pa.int64(), pa.int64(), pa.string(), pa.float64()]
_CHANGES = pa.schema([*zip(VIEW.columns.names, _KINDS, strict=True), ("version", pa.int64()), ("diff", pa.int32())])


def rows(*found: tuple[Any, ...]) -> pa.Table:
    columns = list(zip(*found, strict=True)) or [()] * len(_KINDS)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, _KINDS, strict=True)]
    return pa.table(arrays, list(VIEW.columns.names))


def changes(version: int, *found: tuple[int, tuple[Any, ...]]) -> Changes:
    columns = list(zip(*((*row, version, diff) for diff, row in found), strict=True)) or [()] * len(_CHANGES)
    table = pa.table([pa.array(each, kind) for each, kind in zip(columns, _CHANGES.types, strict=True)], _CHANGES)
    return Changes("items", version - 1, version, table)


def subscribe(client: str, sql: str, *params: Any, **asked: Any) -> Subscribe:
    return Subscribe(client, "s", parse(sql, VIEWS, params), Asked(sql, params, **asked))


def told(done: list[Instruction], client: str) -> list[dict[str, Any]]:
    texts = [text for each in done if isinstance(each, Send) and each.client == client for text in each.messages]
    return [json.loads(text) for text in texts]


def kinds(done: list[Instruction], client: str) -> list[str]:
    return [each["type"] for each in told(done, client)]


def started(hub: Hub, *subscriptions: Subscribe, limit_reads: int = 9) -> list[Instruction]:
    """Subscribe, and answer reads with an empty view at version 0. Returns all instructions."""
    done = [each for event in subscriptions for each in hub.on(event)]
    seen = 0
    for each in done:  # it grows
        if isinstance(each, ReadSnapshot):
            seen += 1
            assert seen <= limit_reads
            done += hub.on(SnapshotRead("items", each.number, 0, 1, tuple(rows() for _ in each.reads)))
    return done


def test_a_storm_of_one_query_is_one_read() -> None:
    hub = Hub(SECRET)
    storm = [subscribe(str(number), "SELECT * FROM items WHERE n = 1") for number in range(2_048)]
    done = started(hub, *storm, limit_reads=2)  # those that come while it is being read share the next one
    assert sum('"ready"' in text for each in done if isinstance(each, Send) for text in each.messages) == 2_048
    assert [each for each in done if isinstance(each, Follow)] == [Follow("items", 0)]


def test_a_storm_of_many_queries_is_two_reads() -> None:
    hub = Hub(SECRET)
    storm = [subscribe(str(number), "SELECT * FROM items WHERE n = $1", number) for number in range(2_048)]
    done = started(hub, *storm, limit_reads=2)
    (first, second) = [each for each in done if isinstance(each, ReadSnapshot)]
    assert [len(read.queries) for read in first.reads] == [1]
    assert [len(read.queries) for read in second.reads] == [2_047]
    made = statement(second.reads[0], "items", Database.SQLITE)
    assert "IN" in made.sql
    assert len(made.values) == 2_047


def test_queries_without_a_common_column_are_read_without_a_condition() -> None:
    queries = [parse(f"SELECT * FROM items WHERE {text}", VIEWS) for text in ("n = 1", "name = 'a'")]
    assert "WHERE" not in statement(Read(tuple(queries)), "items", Database.POSTGRESQL).sql


def test_a_sorted_result_that_is_held_needs_no_read() -> None:
    hub = Hub(SECRET)
    sql = "SELECT * FROM items ORDER BY n LIMIT 2"
    started(hub, subscribe("a", sql))
    hub.on(changes(1, (1, (1, 5, "x", None))))
    done = hub.on(subscribe("b", sql))
    assert kinds(done, "b") == ["snapshot", "ready"]
    assert told(done, "b")[0]["rows"] == [["[1]", [1, 5, "x", None]]]
    assert not any(isinstance(each, ReadSnapshot) for each in done)


def test_subscriptions_share_the_text_of_a_batch() -> None:
    hub = Hub(SECRET)
    started(hub, *(subscribe(name, "SELECT * FROM items") for name in "abc"))
    done = hub.on(changes(1, (1, (1, 5, "x", None))))
    assert len({each.messages for each in done if isinstance(each, Send)}) == 1
    assert [each.client for each in done if isinstance(each, Send)] == ["a", "b", "c"]


def test_one_slow_client_does_not_delay_another() -> None:
    hub = Hub(SECRET, Limits(backlog=5))
    started(hub, subscribe("slow", "SELECT id, n FROM items"), subscribe("fast", "SELECT id, n FROM items"))
    hub.on(Backlog("slow", 6))
    old = (1, 0, "x", None)
    hub.on(changes(1, (1, old)))
    for version in range(2, 5):
        new = (1, version, "x", None)
        done = hub.on(changes(version, (-1, old), (1, new)))
        assert kinds(done, "slow") == []
        assert kinds(done, "fast") == ["batch", "progress"]
        old = new
    batch, progress = told(hub.on(Backlog("slow", 1)), "slow")
    assert batch["adds"] == [["[1]", [1, 4]]]
    assert batch["changes"] == []
    assert progress["version"] == 4


@pytest.mark.parametrize("how", ["messages", "rows", "time"])
def test_a_client_that_is_too_slow_is_closed_with_a_token(how: str) -> None:
    hub = Hub(SECRET, Limits(backlog=5, most_backlog=50, most_held=2, patience=100))
    started(hub, subscribe("slow", "SELECT id, n FROM items"), subscribe("fast", "SELECT id, n FROM items"))
    done = hub.on(Backlog("slow", 51 if how == "messages" else 6))
    done += hub.on(changes(1, (1, (1, 1, None, None)), (1, (2, 2, None, None))))
    if how == "rows":
        done += hub.on(changes(2, (1, (3, 3, None, None))))
    done += hub.on(Tick(101 if how == "time" else 99))
    (closed,) = told(done, "slow")
    assert closed["type"] == "closed"
    assert unseal(closed["token"], SECRET).version == 0
    assert [type(each) for each in done if getattr(each, "client", "") == "slow"][-1] is Disconnect
    assert kinds(hub.on(changes(3, (1, (9, 9, None, None)))) if how == "rows" else done, "fast")[0] == "batch"


def test_an_interval_sends_the_latest_state_only() -> None:
    hub = Hub(SECRET)
    hub.on(Tick(1_000))
    started(hub, subscribe("a", "SELECT id, n FROM items", min_interval=500))
    done = hub.on(changes(1, (1, (1, 1, None, None))))
    done += hub.on(changes(2, (-1, (1, 1, None, None)), (1, (2, 2, None, None))))
    done += hub.on(Tick(1_499))
    assert kinds(done, "a") == []
    batch, progress = told(hub.on(Tick(1_500)), "a")
    assert batch["adds"] == [["[2]", [2, 2]]]
    assert (progress["version"], progress["rows"]) == (2, 1)
    assert kinds(hub.on(Tick(1_700)), "a") == []


@pytest.mark.parametrize("sql", ["SELECT id FROM items", "SELECT id FROM items ORDER BY n"])
def test_a_subscription_ends_at_its_last_version(sql: str) -> None:
    """Also where later versions come in the same report, and where changes are held back."""
    hub = Hub(SECRET)
    hub.on(Tick(1))
    started(hub, subscribe("a", sql, up_to=2), subscribe("b", sql, up_to=2, min_interval=100))
    added = [changes(version, (1, (version, version, None, None))).rows for version in (1, 2, 3)]
    done = hub.on(Changes("items", 0, 3, pa.concat_tables(added)))
    assert kinds(done, "a") == ["batch", "progress", "batch", "progress", "closed"]
    assert kinds(done, "b") == ["batch", "progress", "closed"]
    for name in "ab":
        assert told(done, name)[-2]["rows"] == 2
        assert told(done, name)[-1]["reason"] == "up_to"
    assert hub.is_empty


def test_progress_is_told_when_idle() -> None:
    hub = Hub(SECRET, Limits(idle=100))
    started(hub, subscribe("a", "SELECT id FROM items"))
    assert kinds(hub.on(Tick(99)), "a") == []
    hub.on(Changes("items", 0, 7, changes(1).rows, "2024-01-01T00:00:00Z"))
    (progress,) = told(hub.on(Tick(100)), "a")
    assert (progress["version"], progress["watermark"]) == (7, "2024-01-01T00:00:00Z")
    assert kinds(hub.on(Tick(150)), "a") == []


def test_changed_rights_end_the_subscriptions_under_them() -> None:
    hub = Hub(SECRET)
    started(hub, subscribe("a", "SELECT id FROM items", rights="x"), subscribe("b", "SELECT id FROM items", rights="y"))
    done = hub.on(RightsChanged("x"))
    assert kinds(done, "a") == ["closed"]
    assert kinds(hub.on(changes(1, (1, (1, 1, None, None)))), "b") == ["batch", "progress"]


def test_a_token_of_another_generation_is_answered_with_a_snapshot() -> None:
    hub = Hub(SECRET)
    sql = "SELECT id FROM items ORDER BY id"
    done = started(hub, subscribe("a", sql))
    token = unseal(told(done, "a")[-1]["token"], SECRET)
    (read,) = [each for each in hub.on(Replaced("items", 2)) if isinstance(each, ReadSnapshot)]
    done = hub.on(SnapshotRead("items", read.number, 9, 2, (rows((1, 1, None, None)),)))
    assert kinds(done, "a") == ["snapshot", "ready"]
    done = hub.on(Resume("b", "s", parse(sql, VIEWS), token, 0))
    assert kinds(done, "b") == ["refetch", "snapshot", "ready"]


def test_a_token_of_other_rights_is_answered_with_a_snapshot() -> None:
    """The rows of the client may be some that it has no right to see."""
    hub = Hub(SECRET)
    wide, narrow = "SELECT id FROM items ORDER BY id", "SELECT id FROM items WHERE n = 1 ORDER BY id"
    done = started(hub, subscribe("a", wide, rights="all"), subscribe("b", narrow, rights="few"))
    token = unseal(told(done, "a")[-1]["token"], SECRET)
    done = hub.on(Resume("c", "s", parse(narrow, VIEWS), token, 0, "few"))
    assert kinds(done, "c") == ["refetch", "snapshot", "ready"]
    assert unseal(told(done, "c")[-1]["token"], SECRET).asked.rights == "few"


def test_changes_that_were_read_before_the_rows_are_read_again() -> None:
    """After a restart nobody follows the view: what happened between the two reads would be missed."""
    hub = Hub(SECRET)
    sql = "SELECT id, n FROM items"
    query = parse(sql, VIEWS)
    first, snapshot = hub.on(Resume("a", "s", query, Token(Asked(sql), 1, 1), 1))
    assert isinstance(first, ReadChanges)
    assert isinstance(snapshot, ReadSnapshot)
    assert hub.on(ChangesRead("items", first.number, 1, changes(1).rows)) == []
    done = hub.on(SnapshotRead("items", snapshot.number, 2, 1, (rows((1, 5, None, None)),)))
    (again,) = [each for each in done if isinstance(each, ReadChanges)]
    assert kinds(done, "a") == []
    missed = changes(2, (1, (1, 5, None, None)))
    ready, batch, progress = told(hub.on(ChangesRead("items", again.number, 2, missed.rows)), "a")
    assert (ready["version"], batch["adds"], progress["version"]) == (1, [["[1]", [1, 5]]], 2)


def test_a_read_that_fails_ends_its_subscriptions_only() -> None:
    hub = Hub(SECRET)
    (read,) = hub.on(subscribe("a", "SELECT id FROM items"))
    hub.on(subscribe("b", "SELECT n FROM items"))
    assert isinstance(read, ReadSnapshot)
    done = hub.on(ReadFailed("items", read.number, MachineError("the store is gone", "wait")))
    assert told(done, "a") == [
        {"sub": "s", "type": "error", "kind": "machine", "problem": "the store is gone", "advice": "wait"}
    ]
    assert kinds(done, "b") == []
    assert any(isinstance(each, ReadSnapshot) for each in done)


def test_a_name_is_used_once() -> None:
    hub = Hub(SECRET)
    started(hub, subscribe("a", "SELECT id FROM items"))
    assert kinds(hub.on(subscribe("a", "SELECT n FROM items")), "a") == ["error"]


def test_a_snapshot_comes_in_parts() -> None:
    hub = Hub(SECRET)
    (read,) = hub.on(subscribe("a", "SELECT id FROM items"))
    assert isinstance(read, ReadSnapshot)
    table = rows(*((number, 1, None, None) for number in range(2_500)))
    done = told(hub.on(SnapshotRead("items", read.number, 3, 1, (table,))), "a")
    assert [(each["type"], each.get("from"), len(each.get("rows", []))) for each in done] == [
        ("snapshot", 0, 1_000), ("snapshot", 1_000, 1_000), ("snapshot", 2_000, 500), ("ready", None, 0)
    ]  # fmt: skip


def test_nothing_is_kept_when_the_last_one_leaves() -> None:
    hub = Hub(SECRET)
    started(hub, subscribe("a", "SELECT id FROM items"), subscribe("b", "SELECT id FROM items ORDER BY n LIMIT 1"))
    assert hub.on(Gone("a")) == []
    assert hub.on(Gone("b")) == [Unfollow("items")]
    assert hub.is_empty
    assert hub.on(changes(1, (1, (1, 1, None, None)))) == []


def test_a_view_that_begins_anew_is_let_go_too() -> None:
    hub = Hub(SECRET)
    started(hub, subscribe("a", "SELECT id FROM items"))
    hub.on(Replaced("items", 2))
    assert hub.on(Gone("a")) == [Unfollow("items")]


def test_changes_with_a_gap_begin_anew() -> None:
    hub = Hub(SECRET)
    started(hub, subscribe("a", "SELECT id FROM items"))
    done = hub.on(Changes("items", 5, 6, changes(1).rows))
    assert kinds(done, "a") == ["refetch"]
    assert any(isinstance(each, ReadSnapshot) for each in done)
