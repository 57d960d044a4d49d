"""A server beside a run: in the same process, from its start to its end."""

import socket
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from typer.testing import CliRunner

from millrace.cli import app, pipelines
from millrace.eventlog.topics import Log

PIPELINE = """
from millrace import Pipeline, agg, log, on, window

plays = log("plays", schema="track STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("track")
hourly = plays.window(window.fixed("1h")).trigger(on.each()).accumulating().aggregate(plays=agg.count())
charts = Pipeline("charts", views={"hourly": hourly})
"""


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(tmp_path)
    Path("charts.py").write_text(PIPELINE)
    with Log(".millrace/log.db") as log:
        log.create("plays")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_run_serves_until_it_ends(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def run_stream(*about: Any) -> str:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            told.append(client.post("/topics/plays", json={"track": "Weir"}).json())
            told.append(client.get("/pipelines").json())
        return "it ended"

    monkeypatch.setattr(pipelines, "run_stream", run_stream)
    done = CliRunner().invoke(app, ["run", "charts.py", "--serve", "--port", str(port)])
    assert done.exit_code == 0, done.output
    assert told == [{"topic": "plays", "received": 1}, []]
    assert f"listening on http://127.0.0.1:{port}" in done.output
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


def test_a_run_that_fails_ends_its_server(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_stream(*about: Any) -> str:
        raise RuntimeError("it broke")

    monkeypatch.setattr(pipelines, "run_stream", run_stream)
    done = CliRunner().invoke(app, ["run", "charts.py", "--serve", "--port", str(port)])
    assert done.exit_code != 0
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


def test_a_run_is_refused_an_address_without_tokens(port: int) -> None:
    done = CliRunner().invoke(app, ["run", "charts.py", "--serve", "--host", "0.0.0.0", "--port", str(port)])
    assert (done.exit_code, "millrace tokens create" in done.output) == (2, True)
