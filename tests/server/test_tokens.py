"""Tokens: who may do what on a server, and how they come and go."""

import json
import re
import shlex
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from typer.testing import CliRunner

import millrace
from millrace import CorruptError, MillraceError, agg, memory, on, window
from millrace.cli import app as command
from millrace.eventlog.topics import Log
from millrace.model.connectors import Commit
from millrace.server.app import make_app
from millrace.server.listening import Address, check_address
from millrace.server.pace import Pace
from millrace.server.tokens import FILE, Tokens, create, load, revoke
from millrace.views.rights import Rights, Scope
from millrace.views.shape import shape_of
from millrace.views.store import open_store
from served import served
from stores import answers

SOURCE = memory("events", "k STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
QUERY = SOURCE.window(window.fixed("1h")).trigger(on.each()).retracting().aggregate(n=agg.count())
SHAPES = {name: shape_of(name, QUERY) for name in ("hourly", "secret")}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOURLY = frozenset(["hourly"])
RIGHTS = {
    "admin": Rights(),
    "read": Rights(Scope.READ),
    "hourly": Rights(Scope.READ, HOURLY),
    "norway": Rights(Scope.READ, HOURLY, row_filters=(("hourly", "k = 'NO'"),)),
    "send": Rights(Scope.SEND),
    "plays": Rights(Scope.SEND, topics=frozenset(["plays"])),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("project")
    with Log(made / "log.db") as log:
        log.create("plays")
        log.create("other")
    store = open_store(made / "views.db")
    store.open("p", list(SHAPES.values()))
    rows = [(1, (k, 0, 3_600_000_000, n, "early", 0, False)) for k, n in {"NO": 1, "SE": 2}.items()]
    store.commit(Commit("p", "c", 0), {name: answers(shape, rows) for name, shape in SHAPES.items()}, once=True)
    store.close()
    return made


@pytest.fixture(scope="module")
def secrets(folder: Path) -> dict[str, str]:
    return {name: create(folder / FILE, rights, 1_000_000, 64 << 20, NOW)[1] for name, rights in RIGHTS.items()}


@pytest.fixture(scope="module")
def app(folder: Path, secrets: dict[str, str]) -> FastAPI:
    return make_app(Log(folder / "log.db"), open_store(folder / "views.db"), workers=1)


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, "http://localhost") as client:
        yield client


Asked = Callable[[TestClient, dict[str, str]], Any]
REQUESTS: dict[str, tuple[Asked, set[str]]] = {
    "POST /topics/plays": (lambda c, h: c.post("/topics/plays", json={}, headers=h), {"admin", "send", "plays"}),
    "POST /topics/other": (lambda c, h: c.post("/topics/other", json={}, headers=h), {"admin", "send"}),
    "GET /topics": (lambda c, h: c.get("/topics", headers=h), {"admin", "read", "send", "plays"}),
    "GET /views": (lambda c, h: c.get("/views", headers=h), {"admin", "read", "hourly", "norway"}),
    "GET /views/hourly": (lambda c, h: c.get("/views/hourly", headers=h), {"admin", "read", "hourly", "norway"}),
    "GET /views/secret": (lambda c, h: c.get("/views/secret", headers=h), {"admin", "read"}),
    "GET /views/secret/changes": (lambda c, h: c.get("/views/secret/changes?since=0", headers=h), {"admin", "read"}),
    "POST /query": (
        lambda c, h: c.post("/query", json={"sql": "SELECT * FROM hourly"}, headers=h),
        {"admin", "read", "hourly", "norway"},
    ),
    "POST /query secret": (
        lambda c, h: c.post("/query", json={"sql": "SELECT * FROM secret"}, headers=h), {"admin", "read"},
    ),
    "GET /pipelines": (lambda c, h: c.get("/pipelines", headers=h), {"admin", "read"}),
    "GET /metrics": (lambda c, h: c.get("/metrics", headers=h), {"admin", "read"}),
    "GET dead": (lambda c, h: c.get("/pipelines/p/dead", headers=h), {"admin", "read"}),
    "POST drop": (lambda c, h: c.post("/pipelines/p/dead/drop", json={}, headers=h), {"admin"}),
    "GET /readyz": (lambda c, h: c.get("/readyz", headers=h), set(RIGHTS)),
    "GET /openapi.json": (lambda c, h: c.get("/openapi.json", headers=h), set(RIGHTS)),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_token_allows_what_its_rights_say(name: str, client: TestClient, secrets: dict[str, str]) -> None:
    ask, allowed = REQUESTS[name]
    for who, secret in secrets.items():
        answer = ask(client, {"Authorization": f"Bearer {secret}"})
        refused = answer.status_code == 403 or (answer.status_code == 404 and "unknown view" in answer.text)
        assert refused == (who not in allowed), (who, answer.status_code, answer.text)
    for headers in ({}, {"Authorization": "Bearer mr_wrong"}, {"Authorization": "Basic YTpi"}, {"Authorization": "x"}):
        answer = ask(client, headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_no_request_is_without_rights(client: TestClient, secrets: dict[str, str]) -> None:
    """A route that is added is refused to a token that may only send, or is listed here."""
    everyone = {"/healthz", "/readyz", "/openapi.json", "/topics"}
    headers = {"Authorization": f"Bearer {secrets['plays']}", "Content-Type": "application/json"}
    for path, about in client.get("/openapi.json", headers=headers).json()["paths"].items():
        for method in about:
            address = re.sub(r"{topic}", "other", path)
            address = re.sub(r"{\w+}", "p", address) + "?since=0"
            body = None if method == "get" else b'{"sql": "SELECT 1"}'
            answer = client.request(method, address, content=body, headers=headers)
            assert (answer.status_code == 403) == (path not in everyone), (method, path, answer.text)


def test_health_needs_no_token(client: TestClient) -> None:
    assert client.get("/healthz").status_code == 200


def test_a_row_filter_is_in_every_answer(client: TestClient, secrets: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer {secrets['norway']}"}
    rows = client.get("/views/hourly", headers=headers).json()["rows"]
    changes = client.get("/views/hourly/changes?since=0", headers=headers).json()["changes"]
    asked = client.post("/query", json={"sql": "SELECT k FROM hourly WHERE 1 = 1 OR 2 = 2"}, headers=headers).json()
    assert ([row["k"] for row in rows], [row["k"] for row in changes], asked["rows"]) == (["NO"], ["NO"], [["NO"]])
    (view,) = client.get("/views", headers=headers).json()
    assert (view["view"], view["rows"]) == ("hourly", None)
    other = {"Authorization": f"Bearer {secrets['read']}"}
    tags = [client.get("/views/hourly", headers=each).headers["etag"] for each in (headers, other)]
    assert tags[0] != tags[1]


def test_only_hashes_are_kept_and_only_the_owner_reads_them(folder: Path, secrets: dict[str, str]) -> None:
    text = (folder / FILE).read_text()
    assert not any(secret in text or secret[3:] in text for secret in secrets.values())
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert {each.rights for each in load(folder / FILE) or ()} == set(RIGHTS.values())


def test_a_change_acts_within_a_second(tmp_path: Path) -> None:
    now = [0.0]
    tokens = Tokens(tmp_path / FILE, lambda: now[0])
    assert not tokens.are_required
    made, secret = create(tmp_path / FILE, Rights(), 1, 1, NOW)
    now[0] += 0.3
    assert tokens.are_required
    assert tokens.find(secret) == made
    revoke(tmp_path / FILE, made.id)
    now[0] += 0.3
    assert tokens.find(secret) is None
    assert tokens.are_required, "a server that had tokens must not be open after the last is revoked"
    with pytest.raises(MillraceError, match=f"unknown token '{made.id}'"):
        revoke(tmp_path / FILE, made.id)
    (tmp_path / FILE).write_text("{")
    now[0] += 0.3
    with pytest.raises(CorruptError, match="the file of tokens is damaged"):
        tokens.find(secret)


def test_requests_and_sizes_are_limited_by_token(folder: Path, tmp_path: Path) -> None:
    _, slow = create(tmp_path / FILE, Rights(), 2, 64 << 20, NOW)
    _, small = create(tmp_path / FILE, Rights(), 1_000, 100, NOW)
    with Log(tmp_path / "log.db") as log:
        log.create("plays")
    with TestClient(make_app(Log(tmp_path / "log.db"), open_store(folder / "views.db")), "http://localhost") as client:
        headers = {"Authorization": f"Bearer {slow}"}
        statuses = [client.get("/topics", headers=headers).status_code for _ in range(20)]
        assert (statuses[0], statuses.count(200) < 10, 429 in statuses) == (200, True, True)
        sent = client.post("/topics/plays", json={"n": "x" * 200}, headers={"Authorization": f"Bearer {small}"})
        assert (sent.status_code, "maximum of 100 bytes" in sent.text) == (413, True)


def test_a_pace_recovers() -> None:
    pace = Pace()
    assert [pace.admits("a", 10, 0.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert pace.admits("b", 10, 0.0)
    assert [pace.admits("a", 10, 0.25) for _ in range(3)] == [True, True, False]


def test_other_machines_need_tokens(tmp_path: Path) -> None:
    check_address(Address("127.0.0.1"), tmp_path)
    check_address(Address("::1"), tmp_path)
    for host in ("0.0.0.0", "::", "192.168.1.4", "charts.example"):
        with pytest.raises(MillraceError, match="millrace tokens create --scope read"):
            check_address(Address(host), tmp_path)
    made, _ = create(tmp_path / FILE, Rights(), 1, 1, NOW)
    check_address(Address("0.0.0.0"), tmp_path)
    revoke(tmp_path / FILE, made.id)
    with pytest.raises(MillraceError, match="there are no tokens"):
        check_address(Address("0.0.0.0"), tmp_path)
    with pytest.raises(MillraceError, match="both --tls-cert and --tls-key"):
        check_address(Address(certificate=tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--scope", "write"], "unknown scope 'write'"),
        (["--scope", "send", "--view", "hourly"], "a token of scope send has no --view"),
        (["--scope", "read", "--topic", "plays"], "a token of scope read has no --topic"),
        (["--scope", "read", "--rows", "k = 1"], "name the view with --view"),
        (["--scope", "read", "--view", "hourly", "--rows", "k = "], "does not parse"),
        (["--scope", "read", "--view", "hourly", "--rows", "country = 'NO'"], "unknown column 'country'"),
    ],
)
def test_tokens_that_mean_nothing_are_refused(folder: Path, tmp_path: Path, options: list[str], said: str) -> None:
    log, store = str(tmp_path / "log.db"), str(folder / "views.db")
    refused = CliRunner().invoke(command, ["tokens", "create", *options, "--log", log, "--store", store])
    assert (refused.exit_code, said in refused.output) == (2, True), refused.output
    assert not (tmp_path / FILE).exists()


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    commands = re.findall(r"^    (millrace tokens create .*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for each in commands:
        where = ["--log", str(tmp_path / "log.db"), "--store", str(tmp_path / "views.db")]
        done = CliRunner().invoke(command, [*shlex.split(each)[1:], *where])
        assert done.exit_code == 0, done.output
    assert len(load(tmp_path / FILE) or ()) == 3


def test_the_page_names_every_request(client: TestClient, secrets: dict[str, str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    described = client.get("/openapi.json", headers={"Authorization": f"Bearer {secrets['admin']}"}).json()
    for path in described["paths"]:
        named = re.sub(
            r"{(pipeline|name)}", "charts", path.replace("{topic}", "plays").replace("{view}", "hourly_plays")
        )
        assert named.partition("/dead/")[0] in page, path


def test_tokens_by_command_and_over_tls(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is made, used by the Python client over TLS, and revoked while the server runs."""
    (tmp_path / "views.db").write_bytes((folder / "views.db").read_bytes())
    with Log(tmp_path / "log.db") as log:
        log.create("plays")
    where = ["--log", str(tmp_path / "log.db")]

    def ran(*arguments: str) -> str:
        done = CliRunner().invoke(command, ["tokens", *arguments, *where])
        assert done.exit_code == 0, done.output
        return done.stdout

    options = ("--view", "hourly", "--rows", "k = 'NO'", "--store", str(tmp_path / "views.db"))
    secret = ran("create", "--scope", "read", *options).splitlines()[-1]
    listed = json.loads(ran("list", "--json"))
    assert (listed["scope"], listed["views"], listed["rows"]) == ("read", "hourly", "k = 'NO'")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days",
         "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    tls = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--host", "0.0.0.0")
    with served(tmp_path, *tls, scheme="https", certificate=tmp_path / "cert.pem") as running:
        url = f"https://localhost:{running.port}"
        with millrace.connect(url, token=secret) as connection:
            assert [row["k"] for row in connection.query("SELECT k FROM hourly")] == ["NO"]
            assert [row["k"] for row in connection.view("hourly")] == ["NO"]
            with pytest.raises(MillraceError, match="does not allow"):
                connection.send("plays", {"n": 1})
            ran("revoke", listed["token"])
            time.sleep(1)  # within which it must act
            with pytest.raises(MillraceError, match="the token is not valid"):
                connection.views()
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{running.port}/healthz")
