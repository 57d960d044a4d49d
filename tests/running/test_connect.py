"""Reading views and sending records from Python: a folder, a database, a server."""

import builtins
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pyarrow as pa
import pytest
import uvicorn

import millrace
import postgres
from millrace import MillraceError, Pipeline, agg, memory, on, window
from millrace.client import remote
from millrace.client.connection import Connection
from millrace.eventlog.topics import Log
from millrace.model.arrow import arrow_schema
from millrace.model.connectors import Commit
from millrace.model.errors import MachineError
from millrace.running.views import KeptViews, shapes_of
from millrace.server.app import make_app
from millrace.spark.answers import schema_of
from millrace.views.store import ForgottenError, NoViewsError, ViewRows, open_store
from millrace.views.tabular import ARROW, table_of

EVENTS = memory("events", "track STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("track")
HOURLY = (
    EVENTS.window(window.fixed("1h")).trigger(on.watermark(early=on.each())).retracting().aggregate(plays=agg.count())
)
PIPELINE = Pipeline("charts", {"hourly": HOURLY})
PLACES = ("folder", "file", "postgresql", "http")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with postgres.server() as started:
        yield started


def commit(store: str | Path, batch: int, plays: dict[str | None, int]) -> None:
    """Write answers to the view, as a micro-batch does."""
    rows = [
        {"track": name, "window_start": 0, "window_end": 3_600_000_000, "plays": many, "diff": 1, "timing": "early",
         "index": batch, "last": False}
        for name, many in plays.items()
    ]  # fmt: skip
    answers = pa.Table.from_pylist(rows, arrow_schema(schema_of(HOURLY)))
    opened = open_store(store)
    KeptViews(opened, PIPELINE).write({"hourly": answers}, Commit("charts", "c", batch), once=True)
    opened.close()


def test_a_run_whose_views_a_replay_replaced_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(open_store(tmp_path / "views.db")) as store:
        views = KeptViews(store, PIPELINE, 1)
        views.write({}, Commit("charts", "c", 0), once=True)
        store.swap("charts", store.begin_generation("charts", shapes_of(PIPELINE)))
        assert not caplog.messages
        for batch in (1, 2):
            views.write({}, Commit("charts", "c", batch), once=True)
    (message,) = caplog.messages
    assert message == "a replay has replaced the views that this run of charts writes to: stop it, and run it again"


def served(folder: Path, store: str) -> Iterator[str]:
    """A server that listens on the loopback, by its URL."""
    app = make_app(Log(folder / "log.db"), open_store(store))
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=running.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not running.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL of a place with a view of three rows and an empty topic, and that of its store."""
    Log(tmp_path / "log.db").create("plays", partitions=2)
    store = str(tmp_path / "views.db")
    if request.param == "postgresql":
        store = request.getfixturevalue("server").empty()
    commit(store, 0, {"Weir": 3, "Delta": 12, None: 1})
    if request.param == "http":
        for url in served(tmp_path, store):
            yield url, store
    else:
        yield (str(tmp_path) if request.param == "folder" else store), store


@pytest.fixture
def connection(place: tuple[str, str], tmp_path: Path) -> Iterator[Connection]:
    url, _ = place
    own = url.startswith("http") or Path(url).is_dir()
    with millrace.connect(url, log=None if own else tmp_path / "log.db") as connected:
        yield connected


def test_a_view_is_read_with_its_types_and_version(connection: Connection) -> None:
    found = connection.view("hourly")
    assert len(found) == 3
    assert found.version == 1
    assert [(row["track"], row["plays"]) for row in found] == [(None, 1), ("Delta", 12), ("Weir", 3)]
    assert found.rows()[1]["window_end"] == datetime(1970, 1, 1, 1, tzinfo=UTC)
    assert found.to_arrow().schema.field("window_start").type == pa.timestamp("us", "UTC")
    assert found.to_arrow().schema.metadata is None
    assert list(found.to_pandas()["plays"]) == [1, 12, 3]


def test_a_view_becomes_polars(connection: Connection) -> None:
    pytest.importorskip("polars")
    found = connection.view("hourly").to_polars()
    assert found["plays"].to_list() == [1, 12, 3]
    assert str(found.schema["window_start"]) == "Datetime(time_unit='us', time_zone='UTC')"


def test_a_query_takes_parameters(connection: Connection) -> None:
    found = connection.query("SELECT track, plays FROM hourly WHERE track = $1 AND plays > $2", ["Delta", 3])
    assert found.columns == ("track", "plays")
    assert found.rows() == [{"track": "Delta", "plays": 12}]
    assert found.version is None
    assert connection.query("SELECT track FROM hourly WHERE plays > 100").rows() == []


def test_parameters_that_do_not_fit_the_query_are_refused(connection: Connection) -> None:
    for given in ([], ["Delta", "Weir"]):
        with pytest.raises(MillraceError, match="the query failed"):
            connection.query("SELECT plays FROM hourly WHERE track = $1", given)
    with pytest.raises(MillraceError):
        connection.query("SELECT plays FROM hourly WHERE track = $1", [object()])


def test_a_time_is_a_parameter_where_the_store_is_opened_here(connection: Connection) -> None:
    asked = ("SELECT count(*) AS n FROM hourly WHERE window_end = $1", [datetime(1970, 1, 1, 1, tzinfo=UTC)])
    if isinstance(connection, remote.RemoteConnection):
        with pytest.raises(MillraceError, match="over HTTP, a parameter must be text, a number, a boolean or None"):
            connection.query(*asked)
    else:
        assert connection.query(*asked).rows() == [{"n": 3}]


def test_changes_go_on_from_a_version(connection: Connection, place: tuple[str, str]) -> None:
    version = connection.view("hourly").version
    assert version == 1
    nothing = connection.changes("hourly", version)
    assert (len(nothing), nothing.version) == (0, 1)
    commit(place[1], 1, {"Weir": 4})
    found = connection.changes("hourly", version)
    assert [(row["track"], row["plays"], row["diff"]) for row in found] == [("Weir", 3, -1), ("Weir", 4, 1)]
    assert found.version == 2
    with pytest.raises(ForgottenError, match="read its rows"):
        connection.changes("hourly", 3)


def test_views_are_listed(connection: Connection) -> None:
    (view,) = connection.views()
    assert (view["view"], view["pipeline"], view["rows"], view["version"]) == ("hourly", "charts", 3, 1)
    assert view["columns"].startswith("track STRING, window_start TIMESTAMP")


@pytest.mark.parametrize(
    "records",
    [
        [{"n": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}, {"n": 2, "at": None}],
        ({"n": n} for n in (1, 2)),
        pa.table({"n": [1, 2]}),
        b'{"n": 1}\n{"n": 2}\n',
        '[{"n": 1}, {"n": 2}]',
    ],
    ids=["dicts", "generator", "arrow", "lines", "array"],
)
def test_records_are_sent(records: Any, tmp_path: Path) -> None:
    Log(tmp_path / "log.db").create("plays")
    with millrace.connect(tmp_path) as connection:
        assert connection.send("plays", records) == 2
    assert [each["n"] for each in values(tmp_path)] == [1, 2]


def test_records_are_sent_wherever_the_log_is(connection: Connection, tmp_path: Path) -> None:
    assert connection.send("plays", {"n": 1, "user": "ann"}, key="user") == 1
    assert connection.send("plays", [{"n": 2, "user": "ann"}], key="user") == 1
    assert connection.send("plays", []) == 0
    assert connection.topics().rows() == [{"topic": "plays", "partitions": 2, "records": 2, "behind": []}]
    assert [each["n"] for each in values(tmp_path)] == [1, 2]
    Log(tmp_path / "log.db").report("charts", "plays", [0, 0])
    assert connection.topics().rows()[0]["behind"] == [{"pipeline": "charts", "records": 2}]
    with pytest.raises(MillraceError, match="unknown topic 'play'; did you mean 'plays'"):
        connection.send("play", {"n": 1})


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([{"n": 1}, 2], "record 2 must be a dict, not 2; no record was sent"),
        ([{"n": 1}, {"n": float("nan")}], "record 2 cannot be written as JSON"),
        ([{"n": {1}}], "record 1 cannot be written as JSON: {1} has no JSON form"),
        (b'{"n": 1}\nno\n', "record 2 of the body is not a JSON object"),
        (7, "takes dicts, an Arrow table or JSON, not 7"),
    ],
)
def test_records_that_are_no_objects_are_refused_whole(records: Any, said: str, tmp_path: Path) -> None:
    Log(tmp_path / "log.db").create("plays")
    with millrace.connect(tmp_path) as connection, pytest.raises(MillraceError) as raised:
        connection.send("plays", records)
    assert said in str(raised.value)
    assert values(tmp_path) == []


def test_many_records_go_to_a_server_in_several_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Log(tmp_path / "log.db").create("plays")
    monkeypatch.setattr(remote, "_MOST", 1_000)
    for url in served(tmp_path, str(tmp_path / "views.db")):
        with millrace.connect(url) as connection:
            assert connection.send("plays", ({"n": n} for n in range(1_000))) == 1_000
    assert sorted(each["n"] for each in values(tmp_path)) == list(range(1_000))


def test_mistakes_are_told_as_the_store_tells_them(connection: Connection) -> None:
    with pytest.raises(MillraceError, match="unknown view 'hourli'; did you mean 'hourly'"):
        connection.view("hourli")
    with pytest.raises(MillraceError, match="unknown view"):
        connection.changes("hourli", 0)
    with pytest.raises(MillraceError, match="only reads"):
        connection.query("DELETE FROM hourly")
    with pytest.raises(MillraceError, match="two columns named 'track'"):
        connection.query("SELECT track, track FROM hourly")


def test_what_does_not_exist_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match=r"there is no folder or store .* run a pipeline first"):
        millrace.connect(tmp_path / "none")
    with pytest.raises(MillraceError, match=r"has neither views.db nor log.db"):
        millrace.connect(tmp_path)
    assert list(tmp_path.iterdir()) == []
    commit(tmp_path / "views.db", 0, {"Weir": 3})
    with millrace.connect(tmp_path) as connection:
        assert len(connection.view("hourly")) == 1
        with pytest.raises(MillraceError, match=r"there is no log .* millrace topics create"):
            connection.topics()
    with (
        millrace.connect(tmp_path / "views.db") as connection,
        pytest.raises(MillraceError, match="the connection has no log"),
    ):
        connection.send("plays", {"n": 1})
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.iterdir()} == {"views.db"}


def test_a_folder_with_topics_and_no_views_yet(tmp_path: Path) -> None:
    Log(tmp_path / "log.db").create("plays")
    with millrace.connect(tmp_path) as connection:
        assert connection.send("plays", {"n": 1}) == 1
        with pytest.raises(NoViewsError, match="run a pipeline with views first"):
            connection.view("hourly")
    assert not (tmp_path / "views.db").exists()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"cannot reach http://127.0.0.1:9: .*; check the address"):
        millrace.connect("http://127.0.0.1:9")
    with pytest.raises(MillraceError, match="a connection to a server does not take log="):
        millrace.connect("http://127.0.0.1:9", log=tmp_path / "log.db")
    with pytest.raises(MillraceError, match="unknown store 'mysql'"):
        millrace.connect("mysql://host/database")


def test_without_polars_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path / "views.db", 0, {"Weir": 3})
    real = builtins.__import__

    def without_polars(name: str, *about: Any, **more: Any) -> Any:
        if name == "polars":
            raise ImportError(name)
        return real(name, *about, **more)

    monkeypatch.setattr(builtins, "__import__", without_polars)
    with millrace.connect(tmp_path) as connection, pytest.raises(ImportError, match="pip install polars"):
        connection.view("hourly").to_polars()


def test_a_result_is_shown_as_text_and_as_html(tmp_path: Path) -> None:
    commit(tmp_path / "views.db", 0, {"<b>": 1, **{f"track {n:02}": n for n in range(29)}})
    with millrace.connect(tmp_path) as connection:
        found = connection.query("SELECT track, plays FROM hourly ORDER BY track")
    lines = repr(found).splitlines()
    assert lines[:2] == ["track     plays", "<b>       1"]
    assert (len(lines), lines[-1]) == (22, "30 rows; the first 20 are shown")
    html = found._repr_html_()
    assert "<th>track</th><th>plays</th>" in html
    assert "<td>&lt;b&gt;</td><td>1</td>" in html
    assert html.count("<tr>") == 21
    assert "30 rows; the first 20 are shown" in html


def test_values_without_a_common_type_are_text() -> None:
    found = table_of(ViewRows(("a", "b", "c"), [(1, None, 2**70), ("x", None, 1)]))
    assert found.to_pylist() == [{"a": "1", "b": None, "c": str(2**70)}, {"a": "x", "b": None, "c": "1"}]


def test_changes_and_arrow_over_http(tmp_path: Path) -> None:
    Log(tmp_path / "log.db").create("plays")
    commit(tmp_path / "views.db", 0, {"Weir": 3})
    for url in served(tmp_path, str(tmp_path / "views.db")):
        plain = httpx.get(f"{url}/views/hourly/changes", params={"since": 0}).json()
        assert [(row["track"], row["diff"]) for row in plain["changes"]] == [("Weir", 1)]
        assert httpx.get(f"{url}/views/hourly/changes", params={"since": 5}).status_code == 410
        assert httpx.get(f"{url}/views/hourly/changes").status_code == 422
        asked = httpx.get(f"{url}/views/hourly", params={"plays.gt": 5}, headers={"Accept": ARROW})
        assert asked.headers["content-type"] == ARROW
        assert len(pa.ipc.open_stream(asked.content).read_all()) == 0


def values(folder: Path) -> list[Any]:
    log = Log(folder / "log.db")
    read = [log.read("plays", part, 0, end) for part, end in enumerate(log.ends("plays"))]
    return [json.loads(value) for value in pa.concat_tables(read)["value"].to_pylist()]
