"""What was done to the server to harm it, and what it does about it now."""

import asyncio
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from kills import descendants
from millrace import MillraceError, agg, memory, on, window
from millrace.eventlog.topics import Log
from millrace.model.connectors import Commit
from millrace.server import collector as collecting
from millrace.server.answers import Answer
from millrace.server.app import make_app
from millrace.server.asks import Ask, AskQuery, Head, Limits, Part
from millrace.server.body import Body
from millrace.server.collector import Collector, Post
from millrace.server.door import Names
from millrace.server.gate import Marks
from millrace.server.refusals import BusyError
from millrace.server.workers import Workers
from millrace.views.rights import EVERYTHING
from millrace.views.shape import shape_of
from millrace.views.store import open_store
from millrace.views.tabular import ARROW
from postgres import Postgres
from served import Served, served
from stores import answers

SOURCE = memory("events", "k STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
SHAPE = shape_of("hourly", SOURCE.window(window.fixed("1h")).trigger(on.each()).retracting().aggregate(n=agg.count()))
HOUR = 3_600_000_000
ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
MANY = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x, 'aaaaaaaaaaaaaaaaaaaa' AS a FROM r"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with the topic plays, and a store with the view hourly."""
    made = tmp_path_factory.mktemp("project")
    with Log(made / "log.db") as log:
        log.create("plays", partitions=2)
    store = open_store(made / "views.db")
    store.open("p", [SHAPE])
    commit(made, 0, {"Weir": 3, "Delta": 12})
    store.close()
    return made


def commit(folder: Path, batch: int, counts: dict[str, int]) -> None:
    store = open_store(folder / "views.db")
    rows = [(1, (k, 0, HOUR, n, "early", 0, False)) for k, n in counts.items()]
    store.commit(Commit("p", "c", batch), {"hourly": answers(SHAPE, rows)}, once=True)
    store.close()


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    names = Names(frozenset(["charts.example"]), frozenset(["https://page.example"]))
    app = make_app(Log(folder / "log.db"), open_store(folder / "views.db"), names=names, workers=1)
    with TestClient(app, "http://localhost") as client:
        yield client


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    """A real server whose answers are at most 1 MB."""
    with served(folder, "--answer-bytes", "1000000", "--queries", "3") as running:
        yield running


# Other web pages


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({"Host": "evil.example"}, 421, "this server is not 'evil.example'"),
        ({"Host": "evil.example:8080"}, 421, "--allow-host evil.example"),
        ({"Host": "localhost.evil.example"}, 421, "this server is not"),
        ({"Host": "127.0.0.1.evil.example"}, 421, "this server is not"),
        ({"Host": ""}, 421, "this server is not ''"),
        ({"Host": "[::1"}, 421, "this server is not"),
        ({"Origin": "http://evil.example"}, 403, "a web page of http://evil.example may not use this server"),
        ({"Origin": "null"}, 403, "a web page of null"),
        ({"Origin": "http://localhost.evil.example"}, 403, "may not use"),
        ({"Origin": "http://localhost:1234"}, 403, "may not use"),
        ({"Content-Type": "text/plain"}, 415, "send the header Content-Type: application/json"),
        ({"Content-Type": "text/plain; application/json"}, 415, "text/plain is not taken"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "Content-Type: application/json"),
        ({"Content-Type": "multipart/form-data; boundary=a"}, 415, "Content-Type: application/json"),
        ({"Content-Type": ""}, 415, "a body without a content type"),
    ],
)
@pytest.mark.parametrize("path", ["/topics/plays", "/query", "/pipelines/p/dead/drop"])
def test_another_web_page_cannot_write_or_ask(
    headers: dict[str, str], status: int, said: str, path: str, client: TestClient, folder: Path
) -> None:
    ends = Log(folder / "log.db").ends("plays")
    answer = client.post(path, content='{"sql": "SELECT 1"}', headers={**JSON, **headers})
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]
    assert Log(folder / "log.db").ends("plays") == ends


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "charts.example:8080"}, {"Host": "127.0.0.1:8080"}, {"Host": "[::1]:8080"}, {"Host": "192.168.1.4"},
        {"Host": "LOCALHOST"}, {"Host": "a.localhost"}, {"Origin": "http://localhost"}, {"Origin": "https://localhost"},
        {"Origin": "https://page.example"}, {"Content-Type": "application/json; charset=utf-8"},
    ],
)  # fmt: skip
def test_its_own_names_and_pages_can(headers: dict[str, str], client: TestClient) -> None:
    assert client.post("/query", content='{"sql": "SELECT 1"}', headers={**JSON, **headers}).status_code == 200


def test_reading_is_checked_as_well(client: TestClient) -> None:
    for path in ("/views", "/views/hourly", "/topics", "/metrics", "/healthz", "/openapi.json"):
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 421
        assert client.get(path, headers={"Origin": "http://evil.example"}).status_code == 403


def test_a_page_that_is_allowed_is_told_so_by_its_browser(client: TestClient) -> None:
    answer = client.get("/views", headers={"Origin": "https://page.example"})
    assert answer.headers["access-control-allow-origin"] == "https://page.example"


def test_a_socket_of_another_web_page_is_closed(client: TestClient) -> None:
    foreign = {"Host": "localhost", "Origin": "http://evil.example"}
    with client.websocket_connect("/live", headers=foreign) as socket, pytest.raises(WebSocketDisconnect) as closed:
        socket.receive_text()
    assert (closed.value.code, "may not use this server" in closed.value.reason) == (1008, True)


# Values that are none


@pytest.mark.parametrize(
    "body",
    [
        {"seconds": "NaN"}, {"seconds": -1}, {"seconds": 0}, {"seconds": 1e308}, {"seconds": "Infinity"}, {"limit": -5},
        {"limit": 2**63}, {"limit": 2**70}, {"limit": 1.5}, {"params": [2**63]}, {"params": [-(2**70)]},
        {"params": [{}]}, {"params": [[1]]}, {"sql": None}, {"sql": 5}, {"sql": "SELECT 1 \0"}, {"other": 1},
        {"sql": "SELECT $1", "params": ["a", "b"]}, {"sql": "SELECT 9223372036854775808000 FROM nothing"},
        {"params": ["NaN"] * 2_000},
    ],
)  # fmt: skip
def test_a_query_with_values_that_are_none(body: dict[str, Any], client: TestClient) -> None:
    text = json.dumps({"sql": "SELECT 1", **body}).replace('"NaN"', "NaN").replace('"Infinity"', "Infinity")
    answer = client.post("/query", content=text, headers=JSON)
    assert answer.status_code in (400, 404), answer.text
    assert "/" not in answer.json()["problem"].replace("POST /query", "")


@pytest.mark.parametrize(
    "address",
    [
        "/views/hourly?limit=-5", "/views/hourly?limit=9223372036854775808", "/views/hourly?limit=%C2%B2",
        "/views/hourly?limit=1e5", "/views/hourly?offset=9223372036854775808", "/views/hourly?offset=-1",
        "/views/hourly?offset=" + "9" * 5_000, "/views/hourly?n=9223372036854775808", "/views/hourly?n=1e400",
        "/views/hourly?k=%00", "/views/hourly?window_start=99999-01-01", "/views/hourly?k.like=a", "/views/%00",
        "/views/hourly?order=nothing", "/views/hourly/changes?since=-1",
        "/views/hourly/changes?since=9223372036854775808",
        "/views/hourly/changes?since=x", "/views/millrace_store", "/views/hourly__1", "/views/..%2F..%2Fetc",
        "/pipelines/%00/dead", "/pipelines/..%2F../dead", "/pipelines/p/dead/letters?letter=9223372036854775808",
        "/pipelines/p/dead/letters?limit=9223372036854775808",
    ],
)  # fmt: skip
def test_an_address_with_values_that_are_none(address: str, client: TestClient) -> None:
    answer = client.get(address)
    assert answer.status_code in (400, 404, 410, 422), answer.text
    assert "views.db" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        *({"Millrace-Producer": "a", "Millrace-Sequence": given} for given in (str(2**63), "-1", "NaN", "9" * 500)),
        {"Millrace-Producer": "a"}, {"Millrace-Sequence": "1"},
    ],
)  # fmt: skip
def test_a_sequence_number_that_is_none(headers: dict[str, str], client: TestClient) -> None:
    answer = client.post("/topics/plays", json={"n": 1}, headers=headers)
    assert answer.status_code == 400, answer.text
    assert "Millrace-Sequence" in answer.json()["error"]


def test_no_message_tells_where_files_are(tmp_path: Path) -> None:
    app = make_app(Log(tmp_path / "in" / "log.db"), open_store(tmp_path / "in" / "views.db"))
    with TestClient(app, "http://localhost") as client:
        told = [
            client.get("/views"), client.get("/views/hourly"), client.get("/readyz"),
            client.post("/query", json={"sql": "SELECT 1"}), client.post("/topics/none", json={}),
            client.get("/pipelines/p/dead"),
        ]  # fmt: skip
    assert [answer.status_code for answer in told] == [200, 404, 200, 404, 404, 404]
    for answer in told:
        assert str(tmp_path) not in answer.text
    assert "log.db" in told[4].text  # the name of the file is told, in the command that makes the topic


def test_the_description_needs_nothing_from_elsewhere(client: TestClient) -> None:
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404
    described = client.get("/openapi.json").json()
    assert {"/topics/{topic}", "/topics", "/views/{view}", "/query", "/metrics"} <= set(described["paths"])
    assert not re.findall("https?://", json.dumps(described))


# Queries that misbehave


def test_a_query_without_end_is_ended_and_starves_nobody(server: Served) -> None:
    """As many as there are processes for, twice: posts go on as if nothing were."""
    asked: list[httpx.Response] = []

    def ask() -> None:
        asked.append(httpx.post(f"{server.url}/query", json={"sql": ENDLESS, "seconds": 1}, timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    took = []
    with httpx.Client(base_url=server.url, timeout=30) as client:
        while any(thread.is_alive() for thread in threads):
            began = time.monotonic()
            assert client.post("/topics/plays", json={"n": 1}).status_code == 200
            took.append(time.monotonic() - began)
    assert [answer.status_code for answer in asked] == [400] * 6
    assert all("the query takes longer than 1 s" in answer.text for answer in asked)
    assert sorted(took)[len(took) // 2] < 0.5
    assert max(took) < 10


def test_a_result_without_end_is_cut_and_the_server_stays_small(server: Served) -> None:
    answer = httpx.post(f"{server.url}/query", json={"sql": MANY, "seconds": 30}, timeout=60)
    assert answer.status_code == 200
    assert (answer.json()["more"], 500_000 < len(answer.content) < 2_000_000) == (True, True)
    refused = httpx.post(
        f"{server.url}/query", json={"sql": MANY, "seconds": 30}, headers={"Accept": ARROW}, timeout=60
    )
    assert (refused.status_code, "the answer is larger than" in refused.text) == (400, True)
    assert _resident(server.process.pid) < 400 << 20


def test_a_client_that_leaves_ends_its_query(server: Served) -> None:
    body = json.dumps({"sql": ENDLESS, "seconds": 50}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as left:
        head = (
            "POST /query HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        left.sendall("\r\n".join([*head, "", ""]).encode() + body)
        busy = _until(lambda: [each for each in descendants(server.process.pid) if _is_busy(each)])
    _until(lambda: not set(busy) & set(descendants(server.process.pid)))
    assert httpx.post(f"{server.url}/query", json={"sql": "SELECT 1"}, timeout=30).status_code == 200


def test_a_client_that_takes_nothing_gives_its_process_back() -> None:
    closed = []

    async def parts() -> AsyncGenerator[Part]:
        try:
            yield Head(None)
            yield b"a"
        finally:
            closed.append(True)

    async def never(message: Any = None) -> Any:
        await asyncio.Event().wait()

    asyncio.run(asyncio.wait_for(Answer(parts(), "application/json", 0.1)({}, never, never), 30))
    assert closed == [True]


def test_a_term_signal_ends_a_server_with_queries(folder: Path) -> None:
    with served(folder, "--queries", "2") as running:
        threads = [threading.Thread(target=_ask_in_vain, args=(running.url,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        processes = _until(lambda: [each for each in descendants(running.process.pid) if _is_busy(each)])
        running.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        running.process.wait(30)
        assert time.monotonic() - began < 10
        for thread in threads:
            thread.join()
        _until(lambda: not any(Path(f"/proc/{each}").exists() for each in processes))


def _ask_in_vain(url: str) -> None:
    try:
        httpx.post(f"{url}/query", json={"sql": ENDLESS, "seconds": 50}, timeout=60)
    except httpx.TransportError:
        return


def test_a_process_that_does_not_answer_is_replaced(folder: Path) -> None:
    """One that is stopped stands for a call of SQLite that cannot be interrupted."""

    async def ask() -> None:
        workers = Workers(f"sqlite:///{folder}/views.db", count=1)
        try:
            await _answered(workers, "SELECT 1", 20)
            (worker,) = workers._all
            os.kill(worker.process.pid, signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(MillraceError, match=r"the query takes longer than 0\.2 s"):
                await _answered(workers, "SELECT 1", 0.2)
            assert time.monotonic() - began < 10
            assert b'"rows": [[2]]' in await _answered(workers, "SELECT 2", 20)
        finally:
            await workers.close()

    asyncio.run(ask())


def test_the_memory_of_a_query_is_limited(folder: Path) -> None:
    sql = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT DISTINCT x FROM r"

    async def ask() -> None:
        workers = Workers(f"sqlite:///{folder}/views.db", count=1, limits=Limits(memory=32 << 20))
        try:
            with pytest.raises(MillraceError, match=r"needs more than 32 MB of memory|ended before"):
                await _answered(workers, f"SELECT count(*) FROM ({sql})", 50)
            assert b'"rows": [[2]]' in await _answered(workers, "SELECT 2", 20)
        finally:
            await workers.close()

    asyncio.run(ask())


def test_a_query_on_postgresql_is_ended_with_its_session(postgres: Postgres) -> None:
    """In time, and when whoever asked has gone."""
    with closing(open_store(postgres.empty())) as store:
        store.open("p", [SHAPE])

        async def ask() -> None:
            workers = Workers(store.url, count=1)
            try:
                with pytest.raises(MillraceError, match=r"the query takes longer than 0\.3 s"):
                    await _answered(workers, ENDLESS, 0.3)
                with pytest.raises(MillraceError, match="cannot use the function 'pg_advisory_lock'"):
                    await _answered(workers, "SELECT pg_advisory_lock(7265739)", 5)
                left = asyncio.create_task(_answered(workers, ENDLESS, 50))
                await asyncio.to_thread(_until, lambda: _active(store.url))
                left.cancel()
                await asyncio.gather(left, return_exceptions=True)
                await asyncio.to_thread(_until, lambda: not _active(store.url))
                assert b'"rows": [[0]]' in await _answered(workers, "SELECT count(*) FROM hourly", 20)
            finally:
                await workers.close()

        asyncio.run(ask())


def _active(url: str) -> bool:
    """Whether PostgreSQL computes the endless query."""
    with psycopg.connect(url) as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'FETCH%asked%'"
        found = connection.execute(sql).fetchone()
    return bool(found and found[0])


async def _answered(workers: Workers, sql: str, seconds: float) -> bytes:
    ask = Ask(AskQuery(sql, seconds, None, ()), EVERYTHING, False, None)
    return b"".join([part async for part in workers.answer(ask) if isinstance(part, bytes)])


def _until(found: Any) -> Any:
    deadline = time.monotonic() + 30
    while not (value := found()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return value


def _is_busy(process: int) -> bool:
    """Whether a query process computes."""
    try:
        text = Path(f"/proc/{process}/cmdline").read_text()
        before = _cpu(process)
        time.sleep(0.1)
        return "millrace.server.worker" in text and _cpu(process) > before
    except FileNotFoundError:
        return False


def _cpu(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Posts that wait


def test_after_a_stall_each_post_is_judged_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large posts of one client fill several appends; those of others are stored, and a bad one is refused alone."""
    monkeypatch.setattr(collecting, "_TOGETHER", 3_000)
    log = Log(tmp_path / "log.db")
    log.create("plays")
    append, go, sizes = log.append, threading.Event(), list[int]()

    def stalled(topic: str, values: pa.Array, *about: Any, **more: Any) -> Any:
        assert go.wait(30)
        sizes.append(values.nbytes)
        return append(topic, values, *about, **more)

    monkeypatch.setattr(log, "append", stalled)

    async def send() -> list[Any]:
        collector = Collector(log, Marks(), time.monotonic)
        large = Body(json.dumps({"n": "x" * 2_000}).encode())
        bodies = [
            large,
            Body(b'{"n": 1}'),
            large,
            Body(b'{"n": '),
            large,
            Body(b'{"n": 2}\n{"n": 3}', is_lines=True),
            large,
        ]
        sent = [asyncio.create_task(collector.append("plays", Post(body))) for body in bodies]
        await asyncio.sleep(0.05)
        go.set()
        found = await asyncio.gather(*sent, return_exceptions=True)
        collector.close()
        return found

    *counts, last = asyncio.run(send())
    assert [each if isinstance(each, int) else "refused" for each in (*counts, last)] == [1, 1, 1, "refused", 1, 2, 1]
    assert max(sizes) < 6_000
    assert sum(log.ends("plays")) == 7


def test_what_waits_is_bounded_in_bytes(tmp_path: Path) -> None:
    collector = Collector(Log(tmp_path / "log.db"), Marks(), time.monotonic, room=1_000)
    with collector.holding() as hold:
        hold(900)
        with collector.holding() as other, pytest.raises(BusyError, match="holds as many records as it can"):
            other(200)
        hold(100)
    with collector.holding() as hold:
        hold(1_000)
    collector.close()


def test_a_server_without_room_says_429(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting.Collector.__init__, "__defaults__", (1_000,))
    with TestClient(make_app(Log(folder / "log.db"), open_store(folder / "views.db")), "http://localhost") as client:
        answer = client.post("/topics/plays", json={"n": "x" * 2_000})
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        assert client.post("/topics/plays", json={"n": 1}).status_code == 200


def test_one_record_that_an_append_refuses_does_not_refuse_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "log.db")
    log.create("plays")
    append = log.append

    def particular(topic: str, values: pa.Array, *about: Any, **more: Any) -> Any:
        if any("bad" in text for text in values.to_pylist()):
            raise MillraceError("a record is bad")
        return append(topic, values, *about, **more)

    monkeypatch.setattr(log, "append", particular)

    async def send() -> list[Any]:
        collector = Collector(log, Marks(), time.monotonic)
        posts = [Post(Body(json.dumps({"n": text}).encode())) for text in ("a", "bad", "c")]
        return await asyncio.gather(*(collector.append("plays", post) for post in posts), return_exceptions=True)

    one, two, three = asyncio.run(send())
    assert (one, str(two), three) == (1, "a record is bad", 1)


# Answers that have not changed


def test_an_answer_that_has_not_changed_is_not_sent_again(folder: Path, client: TestClient) -> None:
    def asked(known: str | None = None, sql: str = "SELECT k, n FROM hourly") -> list[httpx.Response]:
        headers = {} if known is None else {"If-None-Match": known}
        return [
            client.get("/views/hourly?order=k", headers=headers),
            client.post("/query", json={"sql": sql}, headers=headers),
        ]

    first = asked()
    tags = [answer.headers["etag"] for answer in first]
    assert len(set(tags)) == 2
    both = ", ".join(tags)
    assert [(answer.status_code, answer.content) for answer in asked(both)] == [(304, b"")] * 2
    assert client.get("/views/hourly?order=n", headers={"If-None-Match": both}).status_code == 200
    assert client.get("/views/hourly?order=k", headers={"If-None-Match": both, "Accept": ARROW}).status_code == 200
    commit(folder, 1, {"Weir": 4})
    again = asked(both)
    assert [answer.status_code for answer in again] == [200, 200]
    assert ["Weir", 4] in again[1].json()["rows"]
    assert "etag" not in asked(sql="SELECT k, CURRENT_TIMESTAMP FROM hourly")[1].headers
