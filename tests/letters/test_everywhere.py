"""Dead letters by command, over HTTP and from Python; and in backups."""

import json
import re
import shlex
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient
from typer.testing import CliRunner, Result

import millrace
from millrace import MillraceError, NotFoundError, PipelineError
from millrace.cli.app import app
from millrace.eventlog.topics import Log
from millrace.letters.box import LetterBox, box_of
from millrace.letters.letter import LetterSource, Rejected
from millrace.model.schema import parse_schema
from millrace.running.backup import back_up
from millrace.running.project import Project
from millrace.running.restore import restore
from millrace.server.app import make_app
from millrace.views.store import open_store

JSON = {"Content-Type": "application/json"}
SCHEMA = parse_schema("user STRING, at TIMESTAMP")
BAD_TIME, NO_OBJECT = "at is not TIMESTAMP", "it is not a JSON object"
HINT = "declare it BIGINT and use timestamp_millis(at)"
TIMES = [1_700_000_000_000, 1_700_000_001_000]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose pipeline has set three records aside."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".millrace"
    Log(folder / "log.db").create("plays")
    put(folder, 0, [*(json.dumps({"user": "ann", "at": at}) for at in TIMES), "no JSON"])
    return folder


def put(folder: Path, first: int, values: list[str]) -> None:
    uid = Log(folder / "log.db").uid_of("plays")
    source = LetterSource("plays", "log", SCHEMA, ("view hourly",), uid)
    letters = [
        Rejected("plays", "plays/0", 0, offset, None, problem, f"{problem}: {value}", hint, value)
        for offset, value in enumerate(values, first)
        for problem, hint in [(BAD_TIME, HINT) if value.startswith("{") else (NO_OBJECT, None)]
    ]
    box_of(folder, "charts").put(letters, {"plays": source}, "one", first, 1_000_000 + first)
    box_of(folder, "charts").serve("one", {"plays": source}, lambda letter, uid: False)


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["dead", *words])


def rows(*words: str) -> list[dict[str, Any]]:
    done = command(*words, "--format", "json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def sent(folder: Path) -> list[Any]:
    log = Log(folder / "log.db")
    return [json.loads(value) for value in log.read("plays", 0, 0, log.ends("plays")[0])["value"].to_pylist()]


def test_commands_list_fix_resend_and_drop(folder: Path) -> None:
    assert [(row["reason"], row["letters"], row["hint"]) for row in rows("list", "charts")] == [
        (BAD_TIME, 2, HINT), (NO_OBJECT, 1, None),
    ]  # fmt: skip
    assert rows("list", "charts")[0]["first"] == "1970-01-01T00:00:01+00:00"
    assert BAD_TIME in command("list", "charts").stdout
    (letter,) = rows("show", "charts", "2")
    assert (letter["source"], letter["partition"], letter["offset"]) == ("plays", 0, 1)
    assert letter["reason"] == f'{BAD_TIME}: {{"user": "ann", "at": {TIMES[1]}}}'
    done = command("fix", "charts", "--reason", BAD_TIME, "--set", "at=timestamp_millis(at)")
    assert done.output == "fixed 2 letters; send them: millrace dead resend charts\n"
    assert command("resend", "charts").output == "sent 2 records again\n"
    assert command("resend", "charts", "3").output.startswith("no dead letter is fixed")
    assert [record["at"] for record in sent(folder)] == ["2023-11-14T22:13:20+00:00", "2023-11-14T22:13:21+00:00"]
    assert [row["state"] for row in rows("show", "charts")] == ["resent", "resent", "dead"]
    assert command("drop", "charts", "--resent").output == "dropped 2 letters\n"
    assert command("drop", "charts", "--reason", NO_OBJECT).output == "dropped 1 letter\n"
    assert command("list", "charts").output == "charts has no dead letters\n"


def test_an_editor_fixes_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = folder / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/^no JSON$/{"user": "bob"}/\' "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("EDITOR", str(editor))
    assert command("fix", "charts", "--edit").output.startswith("fixed 1 letter;")
    assert command("show", "charts", "3", "--values").output == '{"user": "bob"}\n'
    assert command("fix", "charts", "1", "--edit").output == "no record was changed\n"
    monkeypatch.setenv("EDITOR", "false")
    assert command("fix", "charts", "--edit").output == "false ended with 1; nothing was changed: try again\n"


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["list", "chart"], "unknown pipeline 'chart'; did you mean 'charts'?", 3),
        (["show", "charts", "9"], "there is no dead letter 9", 3),
        (["show", "charts", "--reason", "at is no TIMESTAMP"], "did you mean 'at is not TIMESTAMP'?", 3),
        (["fix", "charts"], "give either --set or --edit", 2),
        (["fix", "charts", "--set", "at"], "--set takes FIELD=SQL, not 'at'", 2),
        (["fix", "charts", "--set", "at=user"], "dead letter 1 does not fit: at is not TIMESTAMP: 'ann'", 2),
        (["resend", "charts"], "no dead letter is fixed; fix some first, or send them as they are: --unchanged", 2),
        (["resend", "charts", "--log", "no.db"], "there is no log no.db; name it: --log FILE", 3),
        (["drop", "charts"], "no letters are named; name some, or drop all: --all", 2),
    ],
)
def test_mistakes_are_told_in_a_line(words: list[str], said: str, code: int, folder: Path) -> None:
    done = command(*words)
    assert said in done.output
    assert len(done.output.splitlines()) == 1
    assert done.exit_code == code


def test_letters_that_were_not_fixed_are_named(folder: Path) -> None:
    done = command("fix", "charts", "--set", "at=timestamp_millis(at)")
    assert done.output.splitlines() == [
        "fixed 2 letters; send them: millrace dead resend charts",
        "1 letter not fixed; letter 3: it is not a JSON object, so it has no fields",
    ]


def test_the_commands_of_the_how_to_do_what_it_says(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "bad-records.md").read_text()
    commands = re.findall(r"^    millrace dead (.*?)(?:  +#.*)?$", page, re.MULTILINE)
    printed = [command(*shlex.split(each)) for each in commands]
    assert [done.exit_code for done in printed] == [0] * 7
    assert printed[-1].output == "dropped 1 letter\n"
    assert box_of(folder, "charts").letters() == []


@pytest.fixture
def client(folder: Path) -> TestClient:
    return TestClient(
        make_app(Log(folder / "log.db"), open_store(folder / "views.db")), "http://localhost", headers=JSON
    )


def test_requests_list_fix_resend_and_drop(client: TestClient, folder: Path) -> None:
    at = "/pipelines/charts/dead"
    assert [row["letters"] for row in client.get(at).json()["reasons"]] == [2, 1]
    (letter,) = client.get(f"{at}/letters", params={"letter": 3}).json()["letters"]
    assert (letter["value"], letter["reason"]) == ("no JSON", f"{NO_OBJECT}: no JSON")
    assert len(client.get(f"{at}/letters?limit=2").json()["letters"]) == 2
    fixed = client.post(f"{at}/fix", content=b'{"set": {"at": "timestamp_millis(at)"}}').json()
    assert fixed == {"fixed": 2, "failed": {"3": "it is not a JSON object, so it has no fields"}}
    assert client.post(f"{at}/fix", json={"values": {"3": '{"user": "bob"}'}}).json()["fixed"] == 1
    assert client.post(f"{at}/resend", json={"letters": [1, 2]}).json() == {"resent": 2}
    assert client.post(f"{at}/drop", json={"reason": BAD_TIME}).json() == {"dropped": 2}
    assert len(sent(folder)) == 2


def test_requests_that_are_wrong_are_refused(client: TestClient) -> None:
    unknown = client.get("/pipelines/chart/dead")
    assert (unknown.status_code, unknown.json()["kind"]) == (404, "not-found")
    for body in (b"no", b'{"sets": {}}', b'{"letters": ["x"]}'):
        refused = client.post("/pipelines/charts/dead/fix", content=body)
        assert refused.status_code == 400
        assert refused.json()["error"].startswith("the body of POST /pipelines/charts/dead/fix is not valid: ")
    assert client.post("/pipelines/charts/dead/resend", json={}).status_code == 400


@pytest.fixture
def served(folder: Path) -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(make_app(Log(folder / "log.db"), open_store(folder / "views.db")), port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("place", ["folder", "http"])
def test_python_lists_fixes_resends_and_drops(place: str, folder: Path, request: pytest.FixtureRequest) -> None:
    with millrace.connect(folder if place == "folder" else request.getfixturevalue("served")) as connection:
        dead = connection.dead("charts")
        first = dead.reasons().rows()[0]
        assert (first["reason"], first["letters"], first["first"].year) == (BAD_TIME, 2, 1970)
        assert [letter["letter"] for letter in dead.letters(reason=BAD_TIME)] == [1, 2]
        done = dead.fix({"at": "timestamp_millis(at)"})
        assert (done.fixed, list(done.failed)) == (2, [3])
        assert dead.replace(3, {"user": "bob"}).fixed == 1
        assert (dead.resend([1]), dead.resend(), dead.resend()) == (1, 2, 0)
        assert sorted(record["user"] for record in sent(folder)) == ["ann", "ann", "bob"]
        assert [letter["state"] for letter in dead.letters()] == ["resent"] * 3
        assert (dead.drop([2]), dead.drop()) == (1, 2)
        put(folder, 9, ["{}"])
        with pytest.raises(PipelineError, match="does not fit"):
            dead.replace(4, {"at": "x"})
        with pytest.raises(MillraceError, match="no dead letter 99"):
            dead.letters([99])


def test_a_connection_to_a_store_says_where_dead_letters_are(folder: Path) -> None:
    open_store(folder / "views.db").close()
    store, whole = millrace.connect(f"sqlite:///{folder / 'views.db'}"), millrace.connect(folder)
    with store, pytest.raises(PipelineError, match="connect to the folder of its checkpoint"):
        store.dead("charts")
    with whole, pytest.raises(NotFoundError, match="did you mean 'charts'"):
        whole.dead("chart")


def test_repair_moves_a_damaged_file_aside(folder: Path) -> None:
    pipeline = Path("charts.py")
    pipeline.write_text(
        "from millrace import Pipeline, agg, log, window\n"
        'plays = log("plays", "user STRING, at TIMESTAMP").event_time("at", delay="1s")\n'
        'charts = Pipeline("charts", {"n": plays.window(window.fixed("1h")).aggregate(n=agg.count())})\n'
    )
    file = box_of(folder, "charts").file
    assert CliRunner().invoke(app, ["repair", "charts.py"]).output == "nothing is wrong\n"
    file.write_bytes(b"\xa5" * 5000)
    listed = command("list", "charts")
    assert (listed.exit_code, listed.output) == (5, f"{file} is damaged; move it aside: millrace repair FILE --yes\n")
    mended = CliRunner().invoke(app, ["repair", "charts.py", "--yes"])
    assert (mended.exit_code, mended.output.splitlines()[-1]) == (0, "nothing is wrong any more")
    assert command("list", "charts").exit_code == 3, "the pipeline has not run yet"


def test_a_backup_holds_dead_letters_and_a_restore_puts_them_back(folder: Path, tmp_path: Path) -> None:
    project = Project(folder, folder / "log.db", str(folder / "views.db"))
    back_up(project, tmp_path / "saved")
    put(folder, 7, ["later"])
    done = restore(project, tmp_path / "saved")
    assert [letter.number for letter in box_of(folder, "charts").letters()] == [1, 2, 3]
    assert done.aside is not None
    aside = LetterBox(done.aside / "checkpoints" / "charts.dead.db")
    assert [letter.number for letter in aside.letters()] == [1, 2, 3, 4]
