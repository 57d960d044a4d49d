"""Records in and answers out over HTTP, with a real server for what only one shows."""

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from millrace import Pipeline, agg, memory, on, window
from millrace.eventlog import opening
from millrace.eventlog.topics import Log
from millrace.model.arrow import arrow_schema
from millrace.model.connectors import Commit
from millrace.running.views import KeptViews
from millrace.server import given
from millrace.server.app import make_app
from millrace.server.body import Body
from millrace.server.collector import Collector, Post
from millrace.server.gate import Gate, Marks
from millrace.spark.answers import schema_of
from millrace.views.store import open_store

EVENTS = memory("events", "track STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("track")
HOURLY = (
    EVENTS.window(window.fixed("1h")).trigger(on.watermark(early=on.each())).retracting().aggregate(plays=agg.count())
)
PIPELINE = Pipeline("charts", {"hourly": HOURLY})
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(tmp_path / "log.db")
    made.create("plays", partitions=2)
    return made


@pytest.fixture
def client(log: Log, tmp_path: Path) -> Iterator[TestClient]:
    store = open_store(tmp_path / "views.db")
    rows = [
        {"track": name, "window_start": 0, "window_end": 3_600_000_000, "plays": plays, "diff": 1, "timing": "early",
         "index": 0, "last": False}
        for name, plays in (("Weir", 3), ("Delta", 12), ("Eddy", 7), (None, 1))
    ]  # fmt: skip
    answers = pa.Table.from_pylist(rows, arrow_schema(schema_of(HOURLY)))
    KeptViews(store, PIPELINE).write({"hourly": answers}, Commit("charts", "c", 0), once=True)
    with TestClient(make_app(log, store, Marks(high=100, low=50)), "http://localhost") as client:
        yield client


def values(log: Log) -> list[dict[str, object]]:
    read = [log.read("plays", part, 0, end) for part, end in enumerate(log.ends("plays"))]
    return [json.loads(value) for value in pa.concat_tables(read)["value"].to_pylist()]


def test_one_record_an_array_and_lines(client: TestClient, log: Log) -> None:
    assert client.post("/topics/plays", json={"n": 1}).json() == {"topic": "plays", "received": 1}
    assert client.post("/topics/plays", json=[{"n": 2}, {"n": 12345678901234567890}]).json()["received"] == 2
    lines = {"Content-Type": "application/x-ndjson"}
    assert client.post("/topics/plays", content=b'{"n": 4}\n\n{"n": 5}', headers=lines).json()["received"] == 2
    assert client.post("/topics/plays", json=[]).json()["received"] == 0
    assert sorted(value["n"] for value in values(log)) == [1, 2, 4, 5, 12345678901234567890]  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b'[{"n": 1}, {"n": }]', "application/json", "the body is not valid JSON: Expecting value"),
        (b'{"n": 1', "application/json", "record 1 of the body is not a JSON object"),
        (b'[{"n": 1}, 2]', "application/json", "record 2 of the body is not a JSON object"),
        (b'{"n": 1}\nno\n', "application/x-ndjson", "record 2 of the body is not a JSON object"),
        (b'{"n": "\xff"}', "application/json", "not text in UTF-8"),
        (b'{"n": 1}\x1f', "application/json", "record 1 of the body is not a JSON object"),
        (b'{"n": 1}\n\x1f\n', "application/x-ndjson", "record 2 of the body is not a JSON object"),
    ],
)
def test_a_body_with_anything_wrong_is_refused_whole(
    body: bytes, kind: str, said: str, client: TestClient, log: Log
) -> None:
    answer = client.post("/topics/plays", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert values(log) == []


def test_an_unknown_topic_is_not_found(client: TestClient) -> None:
    for body in ('{"n": 1}', "[]"):
        answer = client.post("/topics/play", content=body, headers=JSON)
        assert answer.status_code == 404
        assert "did you mean 'plays'?" in answer.json()["error"]


def test_a_request_that_is_sent_again_is_kept_once(client: TestClient, log: Log) -> None:
    for sequence in (0, 1, 0, 1, 2, 2):
        sent = {"Millrace-Producer": "shop", "Millrace-Sequence": str(sequence)}
        answer = client.post("/topics/plays", json=[{"n": sequence}, {"n": sequence}], headers=sent)
        assert answer.status_code == 200, answer.text
    assert sorted(value["n"] for value in values(log)) == [0, 0, 1, 1, 2, 2]  # type: ignore[type-var]
    assert client.post("/topics/plays", json={}, headers={"Millrace-Producer": "shop"}).status_code == 400


def test_producers_wait_while_readers_are_behind(client: TestClient, log: Log) -> None:
    log.report("charts", "plays", [0, 0])
    assert client.post("/topics/plays", json=[{"n": n} for n in range(101)]).status_code == 200
    time.sleep(0.25)  # a lag is believed for as long
    answer = client.post("/topics/plays", json={"n": 0})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    log.report("charts", "plays", log.ends("plays"))
    time.sleep(0.25)
    assert client.post("/topics/plays", json={"n": 0}).status_code == 200


def test_a_gate_opens_below_the_low_mark_only() -> None:
    gate = Gate(Marks(high=10, low=5))
    assert [gate.admits("t", lag) for lag in (10, 11, 9, 5, 4, 9, 11)] == [True, False, False, False, True, True, False]
    assert gate.admits("another", 9)


def test_rows_of_a_view_filtered_sorted_and_limited(client: TestClient) -> None:
    def tracks(address: str) -> list[str]:
        answer = client.get(f"/views/hourly?{address}")
        assert answer.status_code == 200, answer.text
        return [row["track"] for row in answer.json()["rows"]]

    assert tracks("order=-plays&limit=2") == ["Delta", "Eddy"]
    assert tracks("order=-plays&limit=2&offset=1") == ["Eddy", "Weir"]
    assert tracks("plays.gt=3&order=track") == ["Delta", "Eddy"]
    assert tracks("track=Weir&track=Delta&order=track") == ["Delta", "Weir"]
    assert tracks("window_start.ge=1970-01-01T00:30:00Z") == []
    assert client.get("/views/hourly").json()["version"] == 1
    assert client.get("/views").json()[0]["view"] == "hourly"


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/views/hourli", 404, "did you mean 'hourly'?"),
        ("/views/hourly?artist=x", 400, "unknown column 'artist'"),
        ("/views/hourly?plays.above=3", 400, "unknown comparison 'above'"),
        ("/views/hourly?plays.gt=many", 400, "many"),
        ("/views/hourly?limit=-1", 400, "limit must be a whole number"),
        ("/views/hourly?track=x'; DROP TABLE hourly; --", 200, '"rows": []'),
    ],
)
def test_what_an_address_gets_wrong(address: str, status: int, said: str, client: TestClient) -> None:
    answer = client.get(address)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text


def test_a_query_reads_and_does_nothing_else(client: TestClient) -> None:
    answer = client.post("/query", json={"sql": "SELECT track, plays FROM hourly ORDER BY plays DESC", "limit": 1})
    assert answer.json() == {"columns": ["track", "plays"], "rows": [["Delta", 12]], "more": True}
    for sql in ("DELETE FROM hourly", "SELECT 1; SELECT 2", "SELEC"):
        assert client.post("/query", json={"sql": sql}).status_code == 400


@pytest.mark.parametrize(
    ("body", "said"),
    [("{}", "sql: Field required"), ("SELECT 1", "Invalid JSON"), ('{"sql": "SELECT 1", "seconds": "x"}', "seconds: ")],
)
def test_a_query_that_is_none_says_what_it_takes(body: str, said: str, client: TestClient) -> None:
    answer = client.post("/query", content=body, headers=JSON)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert 'send {"sql": "SELECT ..."}' in answer.json()["error"]


def test_numbers_that_json_does_not_have_are_text(client: TestClient) -> None:
    answer = client.post("/query", json={"sql": "SELECT 9e999 AS most, -9e999 AS least, 1.5 AS some"})
    assert json.loads(answer.text, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))["rows"] == [
        ["Infinity", "-Infinity", 1.5]
    ]


def test_requests_that_come_together_are_kept_together(log: Log, tmp_path: Path) -> None:
    app = make_app(log, open_store(tmp_path / "views.db"))

    async def send() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
            sent = [client.post("/topics/plays", json={"n": n}) for n in range(200)]
            return [answer.status_code for answer in await asyncio.gather(*sent)]

    assert asyncio.run(send()) == [200] * 200
    assert sorted(value["n"] for value in values(log)) == list(range(200))  # type: ignore[type-var]


def test_a_request_that_is_given_up_does_not_hold_others_up(log: Log) -> None:
    async def send() -> None:
        collector = Collector(log, Marks(), time.monotonic)
        posts = [Post(Body(b'{"n": %d}' % n)) for n in range(6)]
        sent = [asyncio.create_task(collector.append("plays", each)) for each in posts[:5]]
        await asyncio.sleep(0)
        for task in sent[:4]:
            task.cancel()
        await asyncio.wait_for(sent[4], 30)
        await asyncio.wait_for(collector.append("plays", posts[5]), 30)

    asyncio.run(send())
    assert {4, 5} <= {value["n"] for value in values(log)}


def test_a_disk_that_is_full_is_not_the_sender_s_fault(
    client: TestClient, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = opening.connect

    def small(path: Path, mode: str) -> sqlite3.Connection:
        connection = connect(path, mode)
        connection.execute("PRAGMA max_page_count = 1")  # which is as many as there are
        return connection

    log.close()
    monkeypatch.setattr("millrace.eventlog.database.connect", small)
    answer = client.post("/topics/plays", json={"n": os.urandom(100_000).hex()})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "the disk is full; nothing of this was kept" in answer.json()["error"]
    assert values(log) == []


def test_a_body_that_is_too_long_is_refused_however_it_comes(
    client: TestClient, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given, "MOST", 1_000)
    assert client.post("/topics/plays", json={"n": "x" * 2_000}).status_code == 413
    assert (
        client.post("/topics/plays", content=iter([b'{"n": "', b"x" * 2_000, b'"}']), headers=JSON).status_code == 413
    )
    assert values(log) == []


def test_a_client_that_leaves_is_no_error_of_the_server(log: Log, tmp_path: Path) -> None:
    app = make_app(log, open_store(tmp_path / "views.db"))
    sent: list[Any] = []
    received = iter([{"type": "http.request", "body": b'{"n":', "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    asgi = {"type": "http", "method": "POST", "path": "/topics/plays", "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")]}  # fmt: skip
    asyncio.run(app(asgi, receive, send))  # what it raises, a server prints with its traceback
    assert sent == []
    assert values(log) == []


def test_the_server_is_a_command_and_what_it_acknowledged_survives_its_death(log: Log, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "millrace", "serve", "--port", str(port), "--log", str(log.path)]
    server = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        kept = 0
        while kept < 20:
            try:
                kept += httpx.post(f"http://127.0.0.1:{port}/topics/plays", json={"n": kept}).status_code == 200
            except httpx.TransportError:
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.05)
    finally:
        server.kill()
        server.wait()
    assert [value["n"] for value in values(log)].count(19) == 1
    assert len(values(log)) == 20


def test_the_newest_records_of_a_topic(client: TestClient, log: Log) -> None:
    for number in range(6):
        log.append("plays", [f'{{"n": {number}}}'], [f"k{number}"])
    found = client.get("/topics/plays/records?last=4").json()
    assert [json.loads(record["value"])["n"] for record in found["records"]] == [2, 3, 4, 5]
    assert [record["key"] for record in found["records"]] == ["k2", "k3", "k4", "k5"]
    parts = {record["partition"] for record in client.get("/topics/plays/records?partition=1").json()["records"]}
    assert parts == {1}
    held = client.get("/topics/plays/records", params={"contains": '"n": 3'}).json()
    assert (held["scanned"], [record["key"] for record in held["records"]]) == (6, ["k3"])
    assert client.get("/topics/plays/records?contains=k5").json()["records"][0]["value"] == '{"n": 5}'
    assert client.get("/topics/plays/records?contains=nothing").json()["records"] == []
    for wrong, status in (("play/records", 404), ("plays/records?partition=2", 404), ("plays/records?last=0", 422)):
        assert client.get(f"/topics/{wrong}").status_code == status, wrong


def test_the_history_of_a_view(client: TestClient) -> None:
    found = client.get("/views/hourly/history?track=Eddy").json()["changes"]
    assert [(row["track"], row["plays"], row["diff"], row["version"]) for row in found] == [("Eddy", 7, 1, 1)]
    assert found[0]["committed"].startswith("20")
    assert len(client.get("/views/hourly/history?limit=2").json()["changes"]) == 2
    refused = client.get("/views/hourly/history?order=track")
    assert (refused.status_code, "leave order and offset out" in refused.json()["error"]) == (400, True)
