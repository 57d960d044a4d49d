"""Live queries from Python and on the command line, over a store of this machine and over a server."""

import asyncio
import json
import logging
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millrace
from live_server import LiveServer, Plays, eventually, live_server
from millrace import MachineError, NotFoundError, PipelineError
from millrace.cli import app
from millrace.client.live_result import Change
from millrace.views.store import open_store

ROOT = Path(__file__).parents[2]
SQL = "SELECT k, n FROM plays ORDER BY k"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("live")
    with closing(open_store(folder / "views.db")) as store, live_server(folder, store) as made:
        yield made


@pytest.fixture(scope="module")
def plays(server: LiveServer) -> Plays:
    """One view for all tests; each commits what it needs."""
    return Plays(server.store, "plays")


@pytest.fixture
def rows(plays: Plays) -> dict[str, int]:
    """The rows of the view, which begins with two."""
    plays.commit(("a", "NO", 1), ("b", "NO", 2), *(key for key in [*plays.rows] if key not in "ab"))
    return {"a": 1, "b": 2}


def test_the_program_that_the_page_shows(server: LiveServer, plays: Plays, rows: dict[str, int]) -> None:
    shown = (ROOT / "src/millrace/server/page/use.js").read_text()
    found = re.search(r"const following = .*?`(.*)`;", shown)
    assert found is not None
    program = re.sub(r"\$\{token\(\) .*?\}", "", found[1]).replace("\\n", "\n")
    for name, value in (("at", server.url), ("sql", SQL)):
        program = program.replace(f"${{quoted({name})}}", repr(value))
    printed: list[Any] = []

    def note(*values: Any) -> None:
        printed.append(values)
        if len(printed) == 2:
            raise KeyboardInterrupt
        plays.commit(("c", "NO", 3))

    with pytest.raises(KeyboardInterrupt):
        exec(program, {"print": note})
    assert [[row["k"] for row in told] for _, told in printed] == [["a", "b"], ["a", "b", "c"]]
    assert printed[0][0] + 1 == printed[1][0]
    eventually(lambda: server.is_empty, "the query is not ended")


def test_a_slow_loop_is_told_of_several_changes_as_one(server: LiveServer, plays: Plays, rows: dict[str, int]) -> None:
    with millrace.connect(server.folder).live(SQL) as live:
        changes = iter(live)
        assert next(changes).added == ({"k": "a", "n": 1}, {"k": "b", "n": 2})
        plays.commit(("c", "NO", 3), ("a", "NO", 5))
        plays.commit("c", ("d", "NO", 4))
        version = plays.commit(("a", "NO", 1), ("b", "NO", 7))
        eventually(lambda: live.version == version, "the rows are not current")
        assert [row["k"] for row in live.rows] == ["a", "b", "d"]
        change = next(changes)
        assert (change.added, change.changed, change.removed) == (({"k": "d", "n": 4},), ({"k": "b", "n": 7},), ())
        assert len(next(iter(live)).added) == 3, "another loop begins with all rows"


def test_functions_are_called_on_changes_also_after_they_have_failed(
    server: LiveServer, plays: Plays, rows: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Change] = []

    def fails(change: Change) -> None:
        seen.append(change)
        raise ValueError("a mistake in the function")

    others: list[Change] = []
    with caplog.at_level(logging.ERROR, "millrace"), millrace.connect(server.folder).live(SQL) as live:
        live.on_change(fails).on_change(others.append)
        eventually(lambda: bool(seen and others), "the functions are not called")
        plays.commit(("c", "NO", 3))
        eventually(lambda: len(seen) == len(others) == 2, "a function is not called again")
        assert live.state == "live"
    assert "a function that is called on changes of a live query has failed" in caplog.text
    assert "a mistake in the function" in caplog.text


def test_close_ends_loops_and_the_rows_stay(server: LiveServer, rows: dict[str, int]) -> None:
    live = millrace.connect(server.url).live(SQL, min_interval=0.5)
    seen: list[Change] = []
    loop = threading.Thread(target=lambda: seen.extend(live))
    loop.start()
    eventually(lambda: live.state == "live", "the query does not begin")
    live.close()
    loop.join(10)
    assert not loop.is_alive()
    assert [row["n"] for row in live.rows] == [1, 2]
    assert (live.columns, live.state) == (("k", "n"), "closed")
    live.close()
    eventually(lambda: server.is_empty, "something of the query is held")


def test_mistakes_are_told_at_once(server: LiveServer, rows: dict[str, int]) -> None:
    for place in (server.url, server.folder):
        db = millrace.connect(place)
        with pytest.raises(PipelineError, match="unknown column 'm'"):
            db.live("SELECT m FROM plays")
        with pytest.raises(NotFoundError, match=r"unknown view 'play'; did you mean 'plays'\?"):
            db.live("SELECT n FROM play")
        with pytest.raises(PipelineError, match="min_interval is in seconds"):
            db.live(SQL, min_interval=-1)


def test_a_server_that_is_not_there_is_told_at_once(server: LiveServer) -> None:
    db = millrace.connect(server.url)
    link, _ = db._link()
    link._url = "ws://127.0.0.1:9/live"  # type: ignore[attr-defined]
    db._link = lambda: (link, "http://127.0.0.1:9")  # type: ignore[method-assign]
    with pytest.raises(MachineError, match=r"cannot reach http://127.0.0.1:9: .*check the address"):
        db.live(SQL)


def test_the_same_with_asyncio(server: LiveServer, plays: Plays, rows: dict[str, int]) -> None:
    async def watch(db: millrace.client.connection.Connection) -> tuple[list[Change], list[Change]]:
        seen: list[Change] = []

        async def note(change: Change) -> None:
            seen.append(change)

        async with db.live_async("SELECT k, n FROM plays WHERE n >= $1", [2]) as live:
            live.on_change(note)
            told = []
            async for change in live:
                told.append(change)
                if len(told) == 2:
                    break
                plays.commit(("c", "NO", len(plays.rows) + 3))
            assert live.rows == told[-1].rows
        assert live.state == "closed"
        with pytest.raises(PipelineError, match="unknown column"):
            async with db.live_async("SELECT nope FROM plays"):
                pass
        return told, seen

    for place in (server.url, server.folder):
        (first, second), seen = asyncio.run(watch(millrace.connect(place)))
        assert first.added[0] == {"k": "b", "n": 2}
        assert [row["k"] for row in (*second.added, *second.changed)] == ["c"]
        assert seen[0].rows == first.rows
    eventually(lambda: server.is_empty, "something of the query is held")


# On the command line.


@pytest.mark.parametrize("kind", ["--server", "--store"])
def test_watch_prints_a_line_of_json_for_each_change(
    kind: str, server: LiveServer, plays: Plays, rows: dict[str, int]
) -> None:
    place = server.url if kind == "--server" else str(server.folder / "views.db")
    ends = server.store.version() + 1
    command = [sys.executable, "-m", "millrace", "watch", SQL, kind, place, "--up-to", str(ends)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())  # it is printed at once, and so the query is watched
        plays.commit(("b", "NO", 9), "a")
        (second,) = map(json.loads, watching.stdout)
        assert watching.wait(60) == 0
    assert [row["k"] for row in first["added"]] == ["a", "b"]
    assert (second["version"], second["changed"], second["removed"]) == (
        ends,
        [{"k": "b", "n": 9}],
        [{"k": "a", "n": 1}],
    )


def test_watch_tells_what_is_wrong(server: LiveServer, rows: dict[str, int]) -> None:
    for options, code, said in (
        (["SELECT n FROM play", "--server", server.url], 3, "did you mean 'plays'?"),
        ([SQL, "--server", "http://127.0.0.1:9"], 4, "cannot reach http://127.0.0.1:9"),
        ([SQL, "--server", server.url, "--store", "views.db"], 2, "--server and --store name two places"),
    ):
        done = CliRunner().invoke(app, ["watch", *options])
        assert (done.exit_code, said in done.stderr) == (code, True), done.stderr


def test_watch_draws_a_table_in_place_on_a_terminal(server: LiveServer, plays: Plays, rows: dict[str, int]) -> None:
    ours, its = pty.openpty()
    command = ["watch", SQL, "--store", str(server.folder / "views.db"), "--up-to", str(server.store.version() + 1)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen([sys.executable, "-m", "millrace", *command], stdout=its, env=environment) as process:
        os.close(its)
        written, changed, deadline = "", False, time.monotonic() + 60
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < deadline, written
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    written += os.read(ours, 65_536).decode()
                except OSError:  # the other side is closed
                    break
            if not changed and "2 rows" in written:
                changed = True
                plays.commit(("red \x1b[31m", "NO", 1_234))
    os.close(ours)
    assert process.returncode == 0
    assert "1,234" in written
    assert "3 rows" in written
    assert "\x1b[31m" not in written, "a value commands the terminal"
    assert "\x1b[1A" in written, "the table is not drawn in place"
