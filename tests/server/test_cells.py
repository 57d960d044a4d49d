"""The grid of live queries as processes: the same answers as in one process, whatever happens to the processes."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from live_server import Peer, Plays, live_server
from live_world import VIEWS
from millrace.cli import app
from millrace.live.grid import Grid
from millrace.live.index import Pairs
from millrace.live.matcher import Matcher
from millrace.live.parsing import parse
from millrace.live.query import LiveQuery
from millrace.server.cells import CellProcesses
from millrace.views.store import open_store

CONDITIONS = ("n = $1", "n > $1 OR name = 'n1'", "x BETWEEN $1 AND 30", "name IN ('n2', 'n3') AND n < $1")


def queries(random: Random, many: int) -> list[LiveQuery]:
    """Queries of four shapes, some of them sorted."""
    made = []
    for _ in range(many):
        text = f"SELECT id, x FROM items WHERE {random.choice(CONDITIONS)}{random.choice(['', ' ORDER BY x LIMIT 3'])}"
        made.append(parse(text, VIEWS, [random.randrange(40)]))
    return made


def rows(random: Random, many: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(many), pa.int64()),
            "n": pa.array([random.choice([None, random.randrange(40)]) for _ in range(many)], pa.int64()),
            "name": [f"n{random.randrange(6)}" for _ in range(many)],
            "x": [random.random() * 40 for _ in range(many)],
        }
    )


def matched(by: Grid, table: pa.Table) -> list[tuple[int, int]]:
    return _sorted(by.match(table, [str(id) for id in table["id"].to_pylist()]))


def _sorted(pairs: Pairs) -> list[tuple[int, int]]:
    return sorted(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))


@pytest.fixture(scope="module")
def processes() -> Iterator[CellProcesses]:
    with closing(CellProcesses(2, 2)) as made:
        yield made


def same_as_one(random: Random, grid: Grid, held: dict[int, LiveQuery]) -> None:
    """Add and remove some queries, and compare the answers with those of one matcher."""
    for handle in random.sample(sorted(held), len(held) // 2):
        grid.remove(handle)
        del held[handle]
    first = max(held, default=0) + 1
    for handle, query in enumerate(queries(random, 30), first):
        held[handle] = query
        grid.add(handle, query)
    one = Matcher()
    for handle, query in held.items():
        one.add(handle, query)
    table = rows(random, 50)
    found = matched(grid, table)
    assert found == _sorted(one.match(table))
    assert found


@pytest.fixture(autouse=True)
def by_itself(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Where processes start, the server matches nothing itself."""
    yield
    logged = [record.getMessage() for record in caplog.get_records("call")]
    assert any("matches its changes itself" in each for each in logged) == ("no_process" in request.node.name)


def test_processes_match_as_one_matcher_does(processes: CellProcesses) -> None:
    random = Random(3)
    grids: list[tuple[Grid, dict[int, LiveQuery]]] = [(processes.grid(), {}), (processes.grid(), {})]
    for _ in range(4):
        for grid, held in grids:  # two views share the processes
            same_as_one(random, grid, held)
    closed, _ = grids.pop()
    closed.close()
    for grid, held in (*grids, (processes.grid(), {})):
        same_as_one(random, grid, held)
        grid.close()
    assert len(processes.pids) == 4
    for line in processes._processes:
        for process in line:
            assert (process._held, process._shapes) == ({}, {}), "nothing is kept of queries that are gone"


def test_a_process_that_is_killed_is_replaced_and_no_change_is_lost(processes: CellProcesses) -> None:
    random, grid = Random(5), processes.grid()
    held: dict[int, LiveQuery] = {}
    same_as_one(random, grid, held)
    for pid in (processes.pids[0], processes.pids[3]):
        os.kill(pid, signal.SIGKILL)
        same_as_one(random, grid, held)
    os.kill(processes.pids[1], signal.SIGKILL)
    assert matched(grid, rows(Random(6), 5)) == matched(grid, rows(Random(6), 5))
    assert len(processes.pids) == 4
    grid.close()


def test_a_process_that_hangs_is_replaced() -> None:
    with closing(CellProcesses(1, 2)) as processes:
        random, grid = Random(7), processes.grid()
        held: dict[int, LiveQuery] = {}
        same_as_one(random, grid, held)
        before = processes.pids
        os.kill(before[0], signal.SIGSTOP)
        hanging = processes._processes[0][0]._socket
        assert hanging is not None
        hanging.settimeout(0.2)  # what replaces it has the usual patience
        same_as_one(random, grid, held)
        assert processes.pids[0] != before[0]
        assert processes.pids[1] == before[1]


def _ending(start: Callable[..., Any], command: list[str], **options: Any) -> Any:
    """Start a process that ends at once."""
    return start(["true"], **options)


def test_the_server_matches_by_itself_where_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", partial(_ending, subprocess.Popen))
    with closing(CellProcesses(2, 1)) as processes:
        same_as_one(Random(9), processes.grid(), {})


def test_a_server_with_a_grid_of_processes_sends_the_same(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "views.db")) as store:
        plays = Plays(store, "plays")
        plays.commit(("a", "NO", 1), ("b", "SE", 2))
        with live_server(tmp_path, store, cells=(2, 1)) as server, Peer(server.url) as peer:
            peer.subscribe("SELECT k, n FROM plays WHERE n > 1", sub="all")
            peer.until("ready")
            peer.subscribe("SELECT k FROM plays ORDER BY n DESC LIMIT 1", sub="top")
            peer.until("ready")
            version = plays.commit(("c", "NO", 3), ("b", "SE", 0))
            heard = [peer.hear() for _ in range(4)]
            batches = {each["sub"]: each for each in heard if each["type"] == "batch"}
            assert {each["version"] for each in heard} == {version}
            assert (batches["all"]["removes"], batches["all"]["adds"]) == (['["b"]'], [['["c"]', ["c", 3]]])
            assert (batches["top"]["removes"], batches["top"]["adds"]) == (['["b"]'], [['["c"]', ["c"], 0]])
            assert server.live._cells is not None
            pids = server.live._cells.pids
            assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("grid", ["0x1", "2", "1x-1", "9x9", "axb"])
def test_a_grid_that_is_none_is_refused(grid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve", "--grid", grid])
    assert done.exit_code == 2
    assert "--grid is QUERIESxROWS, such as 2x1" in " ".join(done.output.split())
