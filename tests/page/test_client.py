"""The JavaScript client: against a socket that the test plays, and in Node against a real server."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from browser import Watch, opened
from millrace.live.canonical import canonical, checksum
from watched import Project, Served, hourly

CLIENT = Path(__file__).parents[2] / "src" / "millrace" / "server" / "javascript"
PLAYED = """
async () => {
  const { connect } = await import("/millrace.js");
  const sockets = [];
  class Socket {
    static OPEN = 1;
    readyState = 0;
    sent = [];
    constructor(url, protocols) { Object.assign(this, { url: String(url), protocols }); sockets.push(this); }
    open() { this.readyState = 1; this.onopen(); }
    send(text) { this.sent.push(JSON.parse(text)); }
    say(...messages) { for (const each of messages) this.onmessage({ data: JSON.stringify({ sub: "0", ...each }) }); }
    close() { this.drop(1000); }
    drop(code, reason = "") { if (this.readyState < 3) { this.readyState = 3; this.onclose({ code, reason }); } }
  }
  const real = window.WebSocket;
  window.WebSocket = Socket;
  const until = async (done) => { while (!done()) await new Promise((next) => setTimeout(next, 10)); };
  const snapshot = (rows, token = "t1", version = 1) => [
    { type: "snapshot", from: 0, columns: ["k", "n"], sorted: true, rows }, { type: "ready", version, token }];
  const batch = (version, parts) =>
    ({ type: "batch", version, removes: [], moves: [], changes: [], adds: [], ...parts });
  const progress = (version, rows, checksum) => ({ type: "progress", version, watermark: null, rows, checksum });
  try {
    return await (TEST)({ connect, sockets, until, snapshot, batch, progress });
  } finally {
    window.WebSocket = real;
  }
}
"""


def played(page: Page, test: str) -> Any:
    return page.evaluate(PLAYED.replace("TEST", test))


@pytest.fixture(scope="module")
def blank(browser: Browser, server: Served) -> Iterator[Page]:
    """A page of the server that shows nothing."""
    with opened(browser, f"{server.address}/page/icon.svg", Watch()) as page:
        yield page


def sum_of(*rows: tuple[str, int]) -> int:
    """The checksum of sorted rows (k, n), as the server computes it."""
    return checksum([(f'["{k}"]', canonical([k, n])) for k, n in rows], is_sorted=True)


def test_batches_are_applied_and_told_when_they_are_whole(blank: Page) -> None:
    told = played(blank, """async ({ connect, sockets, until, snapshot, batch, progress }) => {
      const connection = connect("http://localhost:1", { token: "secret" });
      const query = connection.query("SELECT k, n FROM v ORDER BY n LIMIT 3", { params: [1] });
      const told = [];
      query.onChange(({ rows, added, changed, removed, snapshot, version }) =>
        told.push([version, snapshot, rows.map((row) => `${row.k}${row.n}`).join(" "), added, changed, removed]));
      const [socket] = sockets;
      socket.open();
      socket.say(...snapshot([['["a"]', ["a", 1]], ['["b"]', ["b", 2]], ['["c"]', ["c", 3]]]));
      socket.say(batch(2, { removes: ['["b"]'], moves: [['["a"]', 1]], changes: [['["a"]', ["a", 4]]],
        adds: [['["d"]', ["d", 5], 2]] }));
      const early = told.length;
      socket.say(progress(2, 3, SUM));
      socket.say(progress(3, 3, SUM));
      return { told, early, sent: socket.sent, protocols: socket.protocols, url: socket.url, version: query.version };
    }""".replace("SUM", str(sum_of(("c", 3), ("a", 4), ("d", 5)))))  # fmt: skip
    assert (told["url"], told["protocols"]) == ("ws://localhost:1/live", ["millrace", "token.secret"])
    assert told["sent"][0]["sql"] == "SELECT k, n FROM v ORDER BY n LIMIT 3"
    assert told["early"] == 1
    assert told["told"] == [
        [1, True, "a1 b2 c3", [], [], []],
        [2, False, "c3 a4 d5", ['["d"]'], ['["a"]'], ['["b"]']],
    ]
    assert told["version"] == 3


def test_a_client_resumes_after_the_connection_broke(blank: Page) -> None:
    found = played(
        blank,
        """async ({ connect, sockets, until, snapshot }) => {
      const query = connect("http://localhost:1").query("SELECT k, n FROM v");
      sockets[0].open();
      sockets[0].say(...snapshot([['["a"]', ["a", 1]]], "t1", 7));
      sockets[0].drop(1006);
      const state = query.state;
      await until(() => sockets.length === 2);
      sockets[1].drop(1006);
      await until(() => sockets.length === 3);
      sockets[2].open();
      const sent = sockets[2].sent;
      sockets[2].say({ type: "ready", version: 7, token: "t2" });
      const again = query.state;
      sockets[2].say({ type: "closed", token: "t3", reason: "the client reads too slowly" });
      sockets[2].say({ type: "closed", token: "t4", reason: "up_to" });
      return { state, sent, again, rows: query.rows, last: query.state };
    }""",
    )
    assert found["state"] == "reconnecting"
    assert found["sent"] == [
        {"type": "resume", "sub": "0", "token": "t1", "version": 7},
        {"type": "resume", "sub": "0", "token": "t3", "version": 7},
        {"type": "unsubscribe", "sub": "0"},
    ]
    assert (found["again"], found["rows"], found["last"]) == ("live", [{"k": "a", "n": 1}], "closed")


def test_a_client_that_has_diverged_reads_anew(blank: Page) -> None:
    found = played(
        blank,
        """async ({ connect, sockets, snapshot, batch, progress }) => {
      const query = connect("http://localhost:1").query("SELECT k, n FROM v");
      const told = [];
      query.onChange(({ rows }) => told.push(rows.map((row) => row.n).join()));
      const [socket] = sockets;
      socket.open();
      socket.say(...snapshot([['["a"]', ["a", 1]]]));
      socket.say(batch(2, { changes: [['["a"]', ["a", 2]]] }), progress(2, 1, 12345));
      socket.say(batch(3, { changes: [['["a"]', ["a", 3]]] }), progress(3, 1, 12345));  // on its way before
      socket.say(...snapshot([['["a"]', ["a", 9]]], "t2", 4));
      return { told, sent: socket.sent.map(({ type }) => type) };
    }""",
    )
    assert found == {"told": ["1", "9"], "sent": ["subscribe", "unsubscribe", "subscribe"]}


def test_a_token_that_is_no_longer_known_is_no_error(blank: Page) -> None:
    found = played(
        blank,
        """async ({ connect, sockets, until, snapshot }) => {
      const query = connect("http://localhost:1").query("SELECT k, n FROM v");
      const errors = [];
      query.onError((error) => errors.push([error.message, error.kind]));
      sockets[0].open();
      sockets[0].say(...snapshot([]));
      sockets[0].drop(1006);
      await until(() => sockets.length === 2);
      sockets[1].open();
      sockets[1].say({ type: "error", kind: "mistake", problem: "the token is not valid", advice: null });
      const calm = errors.length;
      sockets[1].say({ type: "error", kind: "not-found", problem: "there is no view v", advice: "run it" });
      return { calm, errors, sent: sockets[1].sent.map(({ type }) => type), state: query.state };
    }""",
    )
    assert found["sent"] == ["resume", "subscribe", "unsubscribe"]
    assert (found["calm"], found["errors"], found["state"]) == (
        0,
        [["there is no view v; run it", "not-found"]],
        "closed",
    )


def test_a_connection_that_is_refused_is_not_tried_again(blank: Page) -> None:
    found = played(
        blank,
        """async ({ connect, sockets }) => {
      const query = connect("http://localhost:1").query("SELECT k, n FROM v");
      const errors = [];
      query.onError((error) => errors.push(error.message));
      sockets[0].open();
      sockets[0].drop(1008, "the token is not valid");
      await new Promise((next) => setTimeout(next, 400));
      return { errors, sockets: sockets.length };
    }""",
    )
    assert found == {"errors": ["the token is not valid"], "sockets": 1}


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_the_client_runs_in_node(server: Served, made: Project) -> None:
    program = f"""
      import {{ connect }} from "{server.folder / "millrace.mjs"}";
      const rows = connect("{server.address}").query("SELECT track, plays FROM hourly_plays WHERE track = 'Node'");
      rows.onChange(({{ snapshot }}) => {{
        console.log(JSON.stringify([snapshot, rows.rows]));
        if (!snapshot) rows.close();
      }});
    """
    copied = server.folder / "millrace.mjs"
    copied.write_bytes((CLIENT / "millrace.js").read_bytes())
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    flags = ["--experimental-websocket"] if int(version[1:].split(".")[0]) < 22 else []
    with subprocess.Popen(
        ["node", "--no-warnings", *flags, "--input-type=module", "-e", program], stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        try:
            assert json.loads(node.stdout.readline()) == [True, []]
            made.commit(hourly_plays=[hourly("Node", 5)])
            assert json.loads(node.stdout.readline()) == [False, [{"track": "Node", "plays": 5}]]
            assert node.wait(10) == 0  # nothing is left that would keep it alive
        finally:
            node.kill()
            made.commit(hourly_plays=[hourly("Node", 5, -1)])
