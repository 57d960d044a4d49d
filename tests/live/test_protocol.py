"""The protocol: its documentation is true, and messages that are not of it are refused."""

import json
import re
import shutil
import subprocess
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from millrace.live import message
from millrace.live.canonical import canonical, checksum, parsed
from millrace.live.events import Changes, Event, Follow, ReadSnapshot, Send, SnapshotRead, Subscribe, Unsubscribe
from millrace.live.hub import Hub
from millrace.live.parsing import parse
from millrace.live.query import LiveView
from millrace.live.token import Asked, Token, seal, unseal
from millrace.model.errors import MillraceError
from millrace.model.schema import parse_schema
from pages import ROOT, blocks

PAGE = ROOT / "docs" / "live.md"
CHARTS = LiveView("charts", parse_schema("id BIGINT, name STRING, plays BIGINT"), ("id",))
_NAMES = [*CHARTS.columns.names, "version", "diff"]


class _Session:
    """The session of the page, with a store that answers at once."""

    def __init__(self) -> None:
        self.hub, self.version, self.state = Hub(b"secret"), 0, dict[int, list[Any]]()
        self.told: list[str] = []

    def commit(self, version: int, changes: list[tuple[int, list[Any]]]) -> None:
        for diff, row in changes:
            if diff < 0:
                assert self.state.pop(row[0]) == row
            else:
                self.state[row[0]] = row
        rows = [(*row, version, diff) for diff, row in changes]
        table = pa.table([pa.array(each) for each in zip(*rows, strict=True)], _NAMES)
        since, self.version = self.version, version
        self.do(Changes("charts", since, version, table))

    def ask(self, text: str) -> None:
        said = message.read_message(text)
        if isinstance(said, message.UnsubscribeMessage):
            self.do(Unsubscribe("c", said.sub))
            return
        assert isinstance(said, message.SubscribeMessage)
        try:
            query = parse(said.sql, {"charts": CHARTS}, said.params)
        except MillraceError as error:
            self.told.append(message.to(said.sub, message.error(error)))
            return
        self.do(Subscribe("c", said.sub, query, Asked(said.sql, said.params, said.form)))

    def do(self, event: Event) -> None:
        for each in self.hub.on(event):
            match each:
                case Send(messages=messages):
                    self.told += messages
                case ReadSnapshot(number=number, reads=(read,)):
                    query = read.queries[0]  # the session's queries are answered by the whole view
                    limit = "plays" if query.shape.condition is not None else None
                    kept = [row for row in self.state.values() if limit is None or row[2] > 8]
                    rows = pa.table([pa.array(each) for each in zip(*kept, strict=True)], list(CHARTS.columns.names))
                    self.do(SnapshotRead("charts", number, self.version, 1, (rows,)))
                case Follow():
                    pass
                case _:
                    raise AssertionError(each)


def _played(session: str) -> list[dict[str, Any]]:
    """Play the session; returns the messages of the server, and checks each against the page."""
    world, seen = _Session(), []
    for line in session.splitlines():
        if line.startswith("="):
            version, _, rest = line[2:].partition(":")
            found = re.findall(r"([+-]) (\[.*?\])(?= [+-] |$)", rest)
            world.commit(int(version), [(1 if sign == "+" else -1, json.loads(row)) for sign, row in found])
        elif line.startswith(">"):
            world.ask(line[2:])
        else:
            told = json.loads(world.told.pop(0))
            seen.append({**told, "token": "..."} if "token" in told else told)
            assert seen[-1] == json.loads(line[2:])
    assert not world.told
    return seen


def test_the_session_of_the_page_is_real() -> None:
    (session,) = blocks(PAGE, "live")
    assert len(_played(session)) > 10


def test_the_apply_of_the_page_gives_the_rows() -> None:
    (session,) = blocks(PAGE, "live")
    (program,) = blocks(PAGE, "python")
    names: dict[str, Any] = {}
    exec(program, names)
    rows: dict[str, Any] = {}
    checked = 0
    for said in _played(session):
        if said["sub"] != "top":
            continue
        if said["type"] == "snapshot":
            rows = dict(said["rows"])
        elif said["type"] == "batch":
            rows = names["apply"](rows, said)
        elif said["type"] == "progress":
            assert checksum(((id, canonical(row)) for id, row in rows.items()), True) == said["checksum"]
            checked += 1
    assert checked == 3
    assert rows == {"[4]": ["Grey", 20], "[3]": ["Green", 8]}


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=5),
    st.sampled_from([1e21, 1e-7, 1.5e-6, 123456789012345680000.0, -0.0, 5e-324, 1e16, 0.1 + 0.2, "\u2028\x7f\x01"]),
)  # fmt: skip


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no JavaScript")
def test_javascript_computes_the_same_checksum() -> None:
    """The rows go to JavaScript as JSON, and it must find our text and our checksum."""
    found: list[list[Any]] = []

    @examples(300)
    @given(st.lists(VALUES, max_size=6))
    def collect(row: list[Any]) -> None:
        found.append(row)

    collect()
    texts = [canonical(row) for row in found]
    rows = [(f"[{place}]", text) for place, text in enumerate(texts)]
    (program,) = blocks(PAGE, "js")
    sent = "[" + ",".join(f"[{json.dumps(id)},{text}]" for id, text in rows) + "]"
    ask = (
        f"{program}\nconst rows = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        "console.log(JSON.stringify([rows.map(each => JSON.stringify(each[1])), "
        "checksum(rows, true), checksum(rows, false)]));"
    )
    done = subprocess.run(["node", "-e", ask], input=sent, capture_output=True, text=True, check=True, timeout=60)
    theirs, ordered, plain = json.loads(done.stdout)
    assert theirs == texts
    assert (ordered, plain) == (checksum(rows, True), checksum(rows, False))
    assert all(canonical(parsed(text)) == text for text in texts)  # and a Python client does


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[" * 10_000, "not JSON"),
        ("[]", "a message is a JSON object"),
        ("{}", "unknown type of message"),
        ('{"type": "subscrieb"}', "did you mean 'subscribe'?"),
        ('{"type": "subscribe", "sub": "a", "slq": "x"}', "unknown field of subscribe 'slq'"),
        ('{"type": "subscribe", "sub": "a"}', "sql must be text"),
        ('{"type": "subscribe", "sql": "x"}', "sub is a name"),
        ('{"type": "subscribe", "sub": "", "sql": "x"}', "sub is a name"),
        ('{"type": "subscribe", "sub": "a", "sql": "x", "form": "delta"}', "unknown form"),
        ('{"type": "subscribe", "sub": "a", "sql": "x", "params": 1}', "params is a list"),
        ('{"type": "subscribe", "sub": "a", "sql": "x", "min_interval": -1}', "min_interval is in seconds"),
        ('{"type": "subscribe", "sub": "a", "sql": "x", "min_interval": NaN}', "min_interval is in seconds"),
        ('{"type": "subscribe", "sub": "a", "sql": "x", "up_to": 1.5}', "up_to is the number of a version"),
        ('{"type": "subscribe", "sub": "a", "sql": "x", "protocol": 2}', "speaks version 1"),
        ('{"type": "resume", "sub": "a"}', "token must be text"),
        ('{"type": "resume", "sub": "a", "token": "x", "version": -1}', "version is the number of a version"),
    ],
)
def test_messages_that_are_not_of_the_protocol(text: str, told: str) -> None:
    with pytest.raises(MillraceError, match=re.escape(told)):
        message.read_message(text)


def test_a_token_cannot_be_changed() -> None:
    token = Token(Asked("SELECT id FROM items WHERE n = $1", (1, "a", None), "upsert", 5, 7, "readers"), 3, 12)
    sealed = seal(token, b"secret")
    assert unseal(sealed, b"secret") == token
    content, signature = sealed.split(".")
    other, _ = seal(Token(Asked("SELECT * FROM items"), 3, 12), b"guess").split(".")
    for text in (f"{other}.{signature}", f"{content}.{signature[:-2]}AA", content, "", "a.b", "é.é", None, 5):
        with pytest.raises(MillraceError, match="the resume token is not valid"):
            unseal(text, b"secret")
    with pytest.raises(MillraceError):
        unseal(sealed, b"another")
