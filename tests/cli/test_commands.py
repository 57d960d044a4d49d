"""The commands that need no Spark: topics, send, tail, query, views, init, status; and what they say of mistakes."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from millrace import Pipeline, agg, memory, window
from millrace.cli import app
from millrace.eventlog.topics import Log, now
from millrace.model.arrow import arrow_schema
from millrace.model.connectors import Commit
from millrace.model.duration import SECOND
from millrace.running.status import note
from millrace.running.views import KeptViews
from millrace.spark.answers import schema_of
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.progress import BatchProgress
from millrace.views.store import open_store


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(*command: str, given: str | None = None) -> str:
    result = CliRunner().invoke(app, command, input=given)
    assert result.exit_code == 0, result.output
    return result.output


MISTAKE, NOT_FOUND, MACHINE, CONFLICT = 2, 3, 4, 6


def refused(*command: str, given: str | None = None, code: int = MISTAKE) -> str:
    result = CliRunner().invoke(app, command, input=given)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def lines(many: int, start: int = 0) -> str:
    return "".join(json.dumps({"user": f"u{n % 3}", "n": n}) + "\n" for n in range(start, start + many))


def kept(topic: str = "plays") -> list[str]:
    log = Log(".millrace/log.db")
    read = [log.read(topic, part, 0, end)["value"] for part, end in enumerate(log.ends(topic))]
    return [value.as_py().decode().strip() for column in read for value in column]


def test_records_are_sent_and_seen(here: Path) -> None:
    (here / "plays.json").write_text(lines(25))
    ran("topics", "create", "plays", "--partitions", "2")
    assert "sent 25 records to plays" in ran("send", "plays", "plays.json", "--key", "user")
    assert sorted(json.loads(value)["n"] for value in kept()) == list(range(25))
    assert len(ran("tail", "plays", "-n", "3").splitlines()) == 3
    assert len(ran("tail", "plays", "--from", "earliest").splitlines()) == 25
    assert ran("tail", "plays", "--from", "latest") == ""
    (whole,) = ran("tail", "plays", "-n", "1", "--whole").splitlines()
    assert set(json.loads(whole)) == {"partition", "offset", "time", "key", "headers", "value"}
    assert json.loads(ran("topics", "--format", "json"))["records"] == 25


def test_what_is_piped_in_is_sent() -> None:
    assert "sent 3 records" in ran("send", "plays", "--create", given=lines(3))
    assert len(kept()) == 3


def test_rows_of_csv_are_objects_of_text(here: Path) -> None:
    (here / "plays.csv").write_text('user,ms\nann,007\n"bob, jr",\n')
    ran("send", "plays", "plays.csv", "--create")
    assert [json.loads(value) for value in kept()] == [{"user": "ann", "ms": "007"}, {"user": "bob, jr", "ms": None}]


def test_other_csv(here: Path) -> None:
    rows = '\ufeffuser;note\r\n"a;b";"two\nlines ""quoted"""\r\n\r\nü;""'
    (here / "notes.csv").write_text(rows, newline="")
    ran("send", "notes", "notes.csv", "--create")
    assert [json.loads(value) for value in kept("notes")] == [
        {"user": "a;b", "note": 'two\nlines "quoted"'}, {"user": "ü", "note": ""},
    ]  # fmt: skip
    assert "sent 1 record to" in ran("send", "notes", "--format", "csv", given="user\nann\n")
    (here / "header.csv").write_text("user,note\n")
    assert "sent 0 records to" in ran("send", "notes", "header.csv")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("user,page,ms\na,b,5\nb,home\n", "wrong.csv: row 3: Expected 3 columns, got 2: b,home"),
        ("user,page\na,b,5\n", "row 2: Expected 2 columns, got 3: a,b,5"),
        ('user,page\na,"b\nc,d\n', "a quote is opened and never closed"),
        ("user,user\na,b\n", "the first row names column 'user' twice"),
        ("", "the first row names no columns"),
    ],
)
def test_csv_that_is_wrong_is_not_guessed_at(rows: str, said: str, here: Path) -> None:
    (here / "wrong.csv").write_text(rows)
    ran("topics", "create", "visits")
    assert said in refused("send", "visits", "wrong.csv")
    assert kept("visits") == []


def test_a_line_that_is_no_object_stops_sending_and_says_where(here: Path) -> None:
    (here / "plays.json").write_text("\n" + lines(2) + "\n[1]\n" + lines(1))
    ran("topics", "create", "plays")
    said = refused("send", "plays", "plays.json")
    assert "line 5 of plays.json: it is not a JSON object: '[1]'; 2 records were sent before it" in said
    assert len(kept()) == 2
    ran("send", "plays", "plays.json", "--unchecked", "--skip", "2")
    assert len(kept()) == 4


def test_sending_again_with_a_name_adds_only_what_is_missing(here: Path) -> None:
    file = here / "plays.json"
    many = 10_000
    file.write_text("".join(json.dumps({"n": n, "note": "x" * 1_000}) + "\n" for n in range(many)))  # three blocks
    ran("topics", "create", "plays")
    command = [sys.executable, "-m", "millrace", "send", "plays", "plays.json", "--producer", "import"]
    for _ in range(3):  # killed in the middle, as it happens
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        log = Log(".millrace/log.db")
        before = log.ends("plays")
        while log.ends("plays") == before and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.wait()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    assert [json.loads(value)["n"] for value in kept()] == list(range(many))


def test_a_file_that_has_grown_is_sent_from_where_it_was(here: Path) -> None:
    file = here / "plays.json"
    file.write_text(lines(3).strip())
    ran("topics", "create", "plays")
    assert "sent 3 records" in ran("send", "plays", "plays.json", "--producer", "import")
    file.write_text(lines(5))
    assert "sent 2 records to plays" in ran("send", "plays", "plays.json", "--producer", "import")
    assert [json.loads(value)["n"] for value in kept()] == list(range(5))


def test_what_is_piped_in_is_sent_as_it_comes() -> None:
    ran("topics", "create", "plays")
    command = [sys.executable, "-m", "millrace", "send", "plays"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(lines(1).encode())
    process.stdin.flush()
    log, deadline = Log(".millrace/log.db"), time.monotonic() + 30
    while not sum(log.ends("plays")):  # though the pipe is open still
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.stdin.close()
    assert process.wait(30) == 0


def test_interceptors_are_done_in_turn() -> None:
    steps = ["add:region=eu", "rename:n=number", "drop:user", "keep:number >= 1; number BIGINT"]
    ran("topics", "create", "plays", *(part for step in steps for part in ("--intercept", step)))
    ran("send", "plays", given=lines(3))
    assert [json.loads(value) for value in kept()] == [{"number": n, "region": "eu"} for n in (1, 2)]
    assert "keep" in ran("topics")
    ran("topics", "change", "plays", "--max-age", "7d")
    assert json.loads(ran("topics", "--format", "json"))["kept for"] == "7d"
    ran("topics", "remove", "plays")
    assert "There are no topics yet" in ran("topics")


@pytest.mark.parametrize(
    ("command", "said", "code"),
    [
        (["send", "play"], "did you mean 'plays'?", NOT_FOUND),
        (["send", "plays", "nowhere.json"], "there is no file nowhere.json", NOT_FOUND),
        (["send", "plays", "--format", "xml"], "unknown format 'xml'", MISTAKE),
        (["topics", "create", "plays"], "exists already", CONFLICT),
        (["topics", "create", "a b"], "a b", MISTAKE),
        (["topics", "create", "other", "--partitions", "0"], "0", MISTAKE),
        (["topics", "create", "other", "--intercept", "shout:loud"], "--intercept must be add:", MISTAKE),
        (["topics", "create", "other", "--max-age", "soon"], "soon", MISTAKE),
        (["tail", "plays", "--from", "yesterday"], "--from must be earliest, latest", MISTAKE),
        (["query", "SELECT 1"], "run a pipeline with views first", NOT_FOUND),
        (["query", "SELECT 1", "--store", "mysql://x"], "unknown store 'mysql'", MISTAKE),
        (["run", "nowhere.py"], "there is no file nowhere.py", NOT_FOUND),
        (["init", "a-b"], "the name of a project must consist of letters", MISTAKE),
    ],
)
def test_mistakes_are_told_in_a_line(command: list[str], said: str, code: int) -> None:
    ran("topics", "create", "plays")
    assert said in refused(*command, given="", code=code)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to(here: Path) -> None:
    here.chmod(0o500)
    assert "cannot" in refused("topics", "create", "plays", code=MACHINE)


def test_a_log_that_is_none(here: Path) -> None:
    (here / "log.db").write_text("This is not a database, and never was one.")
    assert "log.db" in refused("topics", "--log", "log.db", code=CONFLICT)
    assert "log.db" in refused("send", "plays", "--log", "log.db", given=lines(1), code=CONFLICT)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (1,\n", "wrong.py:1: '(' was never closed"),
        ("import math\n\nprint(mth.pi)\n", "wrong.py:3: NameError: name 'mth' is not defined"),
        ("import no_such_module\n", "wrong.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_file_that_python_cannot_run_is_a_line(text: str, said: str, here: Path) -> None:
    (here / "wrong.py").write_text(text)
    assert refused("explain", "wrong.py") == f"{said}\n"


def test_a_port_that_is_taken(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "Address already in use; choose another --port" in refused("serve", "--port", str(port), code=MACHINE)


def put_views() -> None:
    """A store as a run of pipeline p leaves it: view hourly has one row."""
    timed = memory("events", "k STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
    hourly = timed.window(window.fixed("1h")).aggregate(n=agg.count())
    row = {"k": "a, b", "window_start": 0, "window_end": 1, "n": 5, "diff": 1, "timing": "on-time", "index": 0}
    answers = pa.Table.from_pylist([{**row, "last": True}], arrow_schema(schema_of(hourly)))
    with closing(open_store(".millrace/views.db")) as store:
        KeptViews(store, Pipeline("p", {"hourly": hourly})).write({"hourly": answers}, Commit("p", "c", 0), once=True)


def test_views_are_asked_in_sql(here: Path) -> None:
    put_views()
    assert ran("query", "SELECT k, n FROM hourly", "--format", "csv") == 'k,n\n"a, b",5\n'
    assert json.loads(ran("query", "SELECT k, n FROM hourly", "--format", "json")) == {"k": "a, b", "n": 5}
    assert ran("query", "SELECT 9e999 AS x", "--format", "json") == '{"x": "Infinity"}\n'
    assert "│ a, b │ 5 │" in ran("query", "SELECT k, n FROM hourly")
    assert json.loads(ran("views", "--format", "json"))["view"] == "hourly"
    assert "did you mean 'hourly'" in refused("query", "SELECT * FROM hourli", code=NOT_FOUND)
    assert "read" in refused("query", "DELETE FROM hourly")
    assert ran("query", "SELECT n FROM hourly", "--format", "csv") == "n\n5\n"
    slow = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"
    assert "0.2" in refused("query", slow, "--seconds", "0.2")
    assert "known: p" in refused("views", "drop", "pp", code=NOT_FOUND)
    assert ran("views", "drop", "p") == "dropped the views of p\n"
    assert "There are no views yet" in ran("views")


def test_a_project_that_works_is_made(here: Path) -> None:
    printed = ran("init", "charts")
    assert "millrace send plays plays.json" in printed
    assert max(map(len, printed.splitlines())) <= 80, "a usual terminal shows it without breaking lines"
    assert {path.name for path in (here / "charts").iterdir()} == {"charts.py", "plays.json", "README.md"}
    assert "exists already" in refused("init", "charts", code=CONFLICT)
    assert "fused" in ran("explain", "charts/charts.py")


def test_status_without_pipelines() -> None:
    assert "No pipeline has run" in ran("status")


@pytest.mark.parametrize("command", [["topics"], ["views"], ["query", "SELECT n FROM hourly"], ["status"]])
def test_json_is_short_for_the_format(command: list[str], here: Path) -> None:
    ran("topics", "create", "plays")
    put_views()
    (here / ".millrace" / "charts").mkdir()
    note(here / ".millrace" / "charts", "charts", BatchProgress(3, 10, 0.5, 0, {}), 0, 0)
    assert ran(*command, "--json") == ran(*command, "--format", "json") == ran(*command, "--json", "--format", "json")
    assert "│" not in ran(*command, "--json")
    said = "--json and --format csv name two formats; leave one of them out\n"
    assert refused(*command, "--json", "--format", "csv") == said


def test_every_command_with_an_output_format_has_json_for_short() -> None:
    def of(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
        for each, below in getattr(command, "commands", {}).items():
            yield from of(below, f"{name} {each}")
        yield name, {option for parameter in command.params for option in parameter.opts}

    options = dict(of(typer.main.get_command(app), "millrace"))
    formatted = {name for name, of in options.items() if "--format" in of} - {
        "millrace send"
    }  # the format of its input
    assert {"millrace dead list", "millrace dead show", "millrace query"} <= formatted
    assert not [name for name in formatted if "--json" not in options[name]]


def test_status_warns_of_a_clock_that_jumped(here: Path) -> None:
    progress = BatchProgress(3, 10, 0.5, 0, {})
    for name, moved in (("charts", 2 * 86_400 * SECOND), ("visits", -3_600 * SECOND), ("well", 0)):
        (here / ".millrace" / name).mkdir(parents=True)
        note(here / ".millrace" / name, name, progress, 0, moved)
    warned = [line for line in ran("status").splitlines() if ": the clock" in line]
    assert warned == [
        "charts: the clock jumped ahead 2d; if that is wrong, timers follow it back when it is set right",
        "visits: the clock went back 1h: timers follow it",
    ]
    rows = [json.loads(line) for line in ran("status", "--format", "json").splitlines()]
    assert [row["clock moved"] for row in rows] == [172_800, -3_600, None]


def test_status_warns_of_a_clock_that_the_log_does_not_follow(here: Path) -> None:
    ahead = now() + 3 * 3_600 * SECOND
    with Log(here / ".millrace" / "log.db", lambda: ahead) as log:
        log.create("plays")
        log.append("plays", ["{}"])
    *_, line = ran("status").splitlines()
    assert "the clock and the time of the log differ by" in line


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["run", "charts.py"], "there is no log .millrace/log.db; make it with a topic: millrace topics create plays"),
        (["run", "charts.py", "--mode", "batch"], "make it with a topic: millrace topics create plays"),
        (["replay", "charts.py"], "make it with a topic: millrace topics create plays"),
        (["tail", "plays"], "make it with a topic: millrace topics create NAME"),
        (["topics"], "there is no log .millrace/log.db; make it with a topic: millrace topics create NAME"),
        (["topics", "remove", "plays"], "there is no log .millrace/log.db"),
        (["topics", "change", "plays", "--max-age", "7d"], "there is no log .millrace/log.db"),
        (["topics", "forget", "charts"], "there is no log .millrace/log.db"),
        (["replay", "charts.py", "--rollback"], "run a pipeline with views first"),
        (["savepoint", "charts.py"], "run the pipeline first"),
        (["run", "charts.py", "--from-savepoint", "nowhere"], "make one: millrace savepoint charts.py"),
        (["query", "SELECT * FROM hourly_plays"], "run a pipeline with views first"),
        (["views", "drop", "charts"], "run a pipeline with views first"),
        (["views", "drop", "nope"], "run a pipeline with views first"),
        (["send", "plays", "plays.json"], "make it with a topic: millrace topics create plays"),
        (
            ["topics", "--log", "typo.db"],
            "make it with a topic: millrace topics create NAME --log typo.db",
        ),
        (["serve", "--log", "typo.db"], "there is no log typo.db"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_asked_too_early_is_a_line_that_says_what_to_do_first(
    command: list[str], said: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran("init", "charts")
    monkeypatch.chdir(here / "charts")
    before = {*Path().rglob("*")}
    (line,) = refused(*command, code=NOT_FOUND).splitlines()
    assert said in line
    made = {path for path in {*Path().rglob("*")} - before if "__pycache__" not in path.parts}
    assert made == set(), "what is refused leaves nothing behind"


@pytest.mark.parametrize("log", ["typo.db", "a folder/typo.db", ".millrace/log.db"])
def test_the_advice_for_a_log_that_does_not_exist_makes_it(
    log: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran("init", "charts")
    monkeypatch.chdir(here / "charts")
    for command in (["send", "plays", "plays.json"], ["run", "charts.py"]):
        said = refused(*command, "--log", log, code=NOT_FOUND)
        assert not Path(log).exists()
    _, _, advised = said.strip().partition("make it with a topic: millrace ")
    ran(*shlex.split(advised))
    assert "sent 6 records to plays" in ran("send", "plays", "plays.json", "--log", log)


@pytest.mark.parametrize(
    "command", [["tail", "pluys"], ["topics", "remove", "pluys"], ["topics", "change", "pluys", "--max-age", "7d"]]
)
def test_a_topic_that_must_exist_is_not_said_to_be_made(command: list[str]) -> None:
    ran("topics", "create", "plays")
    said = refused(*command, code=NOT_FOUND)
    assert said == "unknown topic 'pluys'; did you mean 'plays'? (known: plays); name one of them\n"
    ran("topics", "remove", "plays")
    assert refused(*command, code=NOT_FOUND) == "unknown topic 'pluys' (known: none); the log has no topics\n"


def test_a_pipeline_that_runs_is_not_run_twice(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran("init", "charts")
    monkeypatch.chdir(here / "charts")
    ran("topics", "create", "plays")
    with Checkpoint(Path(".millrace/charts")).lock():
        *_, line = refused("run", "charts.py", code=MACHINE).splitlines()
    assert line == "another run uses the checkpoint .millrace/charts; stop that run first"


def test_views_that_a_run_writes_to_are_not_written_by_a_run_from_another_checkpoint(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran("init", "charts")
    monkeypatch.chdir(here / "charts")
    ran("topics", "create", "plays")
    with closing(open_store(".millrace/views.db")) as store, store.claim("charts", 1):  # a run that has no rows yet
        *_, line = refused("run", "charts.py", "--checkpoint", "other", code=MACHINE).splitlines()
    store_file = here / "charts" / ".millrace" / "views.db"
    assert line == f"another run of charts writes to its views in {store_file}; stop that run first"


@pytest.mark.parametrize("command", ["run", "replay", "savepoint", "repair"])
@pytest.mark.parametrize("folder", ["afile", "afile/inside"])
def test_a_file_in_the_place_of_a_checkpoint_is_named(
    command: str, folder: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran("init", "charts")
    monkeypatch.chdir(here / "charts")
    ran("topics", "create", "plays")
    Path("afile").touch()
    line = refused(command, "charts.py", "--checkpoint", folder)
    assert line == f"checkpoint {folder}: afile is not a folder; choose another folder\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_second_signal_ends_at_once(number: int) -> None:
    program = (
        "import os, signal, sys, threading\n"
        "from millrace.running.ending import told_to_end\n"
        "with told_to_end() as told:\n"
        f"    os.kill(os.getpid(), {number})\n"
        "    print('told', len(told), flush=True)\n"
        f"    os.kill(os.getpid(), {number})\n"
        "    threading.Event().wait(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "told 1\n"
    assert done.stderr == "ended at once: what was under way is done again the next time\n"
    assert done.returncode == 128 + number


def test_every_command_has_help_with_an_example_or_a_reason() -> None:
    text = ran("--help")
    for command in ("init", "run", "send", "tail", "topics", "query", "views", "replay", "savepoint", "status", "check",
                    "backup", "restore", "explain", "bench", "serve", "demo", "try"):  # fmt: skip
        assert f" {command} " in text
        assert len(ran(command, "--help")) > 200
