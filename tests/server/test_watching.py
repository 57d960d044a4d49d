"""Watching pipelines over HTTP: health, status, metrics, and the alert rules that use the metrics."""

import fcntl
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from millrace.eventlog.topics import Log
from millrace.running.status import all_under, described, note
from millrace.running.waiting import Waiting
from millrace.server.app import make_app
from millrace.sources.arrived import Latency
from millrace.spark.progress import BatchProgress, PartProgress
from millrace.spark.recent import Recent, write_flow
from millrace.views.store import open_store

ROOT = Path(__file__).parents[2]
RULES, PAGE = ROOT / "examples" / "alerts" / "millrace.yml", ROOT / "docs" / "operations.md"
PART = PartProgress(1_767_268_800_000_000, 5_000_000, 3, 4_096, 7, 2, 1)
PROGRESS = BatchProgress(41, 10, 0.5, 2, {"view hourly": PART}, {"run": 0.4}, latency=Latency(0.5, 2.0))
WAITING = Waiting("the disk is full", "make room", 1_000.0, 1_008.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project: charts in its second generation, new before its first micro-batch, odd with a damaged report."""
    made = tmp_path_factory.mktemp("project")
    for name, pipeline in (("charts", "charts"), ("charts@2", "charts"), ("new", "new"), ("odd", "odd")):
        (made / name).mkdir()
        note(made / name, pipeline, PROGRESS, 5, -3_000_000, rows=1_234, answers=99, at=2_000.0)
    note(made / "new", "new", None, 0, 0, waiting=WAITING)
    (made / "odd" / "status.json").write_text("{")
    log = Log(made / "log.db")
    log.create("plays", partitions=2)
    log.append("plays", ["{}"] * 5)
    log.report("charts", "plays", [0, 0])
    return made


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[None]:
    """Runs hold the checkpoints of charts and new."""
    with (folder / "charts@2" / "lock").open("wb") as one, (folder / "new" / "lock").open("wb") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def server(folder: Path, running: None) -> Iterator[httpx.Client]:
    """A real server over the project."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--folder", ".", "--log", "log.db", "--store", "views.db"]
    process = subprocess.Popen(
        [sys.executable, "-m", "millrace", "serve", *options], cwd=folder, stderr=subprocess.DEVNULL
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            deadline = time.monotonic() + 60
            while True:
                try:
                    client.get("/healthz")
                    break
                except httpx.TransportError:
                    assert time.monotonic() < deadline, "the server does not come up"
                    time.sleep(0.05)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of each metric by the values of its labels, as the parser of Prometheus's own library reads them."""
    order = ("topic", "pipeline", "checkpoint", "output", "phase", "quantile")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in order if name in sample.labels)
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_a_server_tells_the_status_of_pipelines_and_its_own(server: httpx.Client) -> None:
    assert server.get("/healthz").json() == server.get("/readyz").json() == {"status": "ok"}
    old, new, waits, odd = server.get("/pipelines").json()
    assert [each["state"] for each in (old, new, waits, odd)] == ["stopped", "running", "waiting", "damaged"]
    assert server.get("/pipelines/charts").json() == [old, new]
    assert (new["checkpoint"], new["rows"], new["dead"], new["behind"]) == ("charts@2", 1_234, 5, 5)
    assert new["progress"]["parts"]["view hourly"]["groups"] == 3
    assert (waits["progress"], waits["waiting"]["problem"]) == (None, "the disk is full")
    refused = server.get("/pipelines/chart")
    assert refused.status_code == 404
    assert "did you mean 'charts'?" in refused.json()["error"]


def test_the_flow_and_the_recent_micro_batches_are_those_of_the_checkpoint_in_use(
    server: httpx.Client, folder: Path
) -> None:
    assert server.get("/pipelines/charts/flow").json() == {"steps": [], "lines": []}
    flow = {"steps": [{"verb": "source", "detail": "log plays", "source": "plays", "output": None}], "lines": []}
    write_flow(folder / "charts@2", flow)
    assert server.get("/pipelines/charts/flow").json() == flow
    for checkpoint, number in (("charts", 1), ("charts@2", 41), ("charts@2", 42)):
        Recent(folder / checkpoint).add(replace(PROGRESS, batch=number), 2_000.0)
    found = server.get("/pipelines/charts/progress").json()
    assert (found["checkpoint"], [each["batch"] for each in found["batches"]]) == ("charts@2", [41, 42])
    assert found["batches"][0]["phases"] == {"run": 0.4}
    assert len(server.get("/pipelines/charts/progress?since=41").json()["batches"]) == 1
    assert server.get("/pipelines/odd/progress").json()["batches"] == []
    assert server.get("/pipelines/nope/flow").status_code == 404


def test_the_metrics_are_those_of_the_status(server: httpx.Client) -> None:
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = samples(answer.text)
    of_run, of_output = ("charts", "charts@2"), ("charts", "charts@2", "view hourly")
    assert found["millrace_pipeline_running"] == {
        ("charts", "charts"): 0, of_run: 1, ("new", "new"): 1, ("odd", "odd"): 0,
    }  # fmt: skip
    assert [labels for labels, value in found["millrace_pipeline_waiting"].items() if value] == [("new", "new")]
    expected = {
        "rows_total": 1_234, "answers_total": 99, "dead_letters_total": 5, "skipped_records_total": 0,
        "batches_total": 42, "last_batch_timestamp_seconds": 2_000, "last_batch_duration_seconds": 0.5,
        "clock_jump_seconds": -3,
    }  # fmt: skip
    assert {name: found[f"millrace_{name}"][of_run] for name in expected} == expected
    expected = {
        "watermark_timestamp_seconds": 1_767_268_800, "watermark_lag_seconds": 5, "open_windows": 3,
        "state_bytes": 4_096, "late_rows_total": 7,
        "errors_total": 1,
    }  # fmt: skip
    assert {name: found[f"millrace_{name}"][of_output] for name in expected} == expected
    assert found["millrace_last_batch_phase_seconds"][*of_run, "run"] == 0.4
    assert [found["millrace_latency_seconds"][*of_run, share] for share in ("0.5", "0.99")] == [0.5, 2.0]
    assert found["millrace_live_subscriptions"] == found["millrace_live_messages_total"] == {(): 0}
    assert found["millrace_topic_records_total"] == {("plays",): 5}
    assert found["millrace_lag_records"] == {("plays", "charts"): 5}


def test_metrics_are_named_as_prometheus_wants_them(server: httpx.Client) -> None:
    families = list(text_string_to_metric_families(server.get("/metrics").text))
    assert len(families) > 10
    for family in families:
        assert re.fullmatch(r"millrace_[a-z_]+", family.name)
        assert family.documentation
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name


def test_the_operations_page_names_every_metric_with_its_labels(server: httpx.Client) -> None:
    exported = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(server.get("/metrics").text)
        for sample in family.samples
    }
    rows = re.findall(r"^\| `(millrace_\w+)` \| (.*?) ?\|", PAGE.read_text(), re.MULTILINE)
    assert {name: set(filter(None, labels.split(", "))) for name, labels in rows} == exported


def test_the_alert_rules_use_metrics_that_a_server_exports(server: httpx.Client) -> None:
    exported = set(samples(server.get("/metrics").text))
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert group["name"]
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert {"alert", "expr", "labels", "annotations"} <= set(rule)
        assert re.fullmatch(r"Millrace\w+", rule["alert"])
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
        used = set(re.findall(r"\bmillrace_\w+", rule["expr"]))
        assert used or 'up{job="millrace"}' in rule["expr"]
        assert used <= exported, rule["alert"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) > 5


def test_a_server_whose_store_is_unreachable_lives_but_is_not_ready(folder: Path) -> None:
    def pipelines() -> list[dict[str, Any]]:
        return [described(each, None) for each in all_under(folder)]

    away = open_store("postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=2")
    with TestClient(make_app(Log(folder / "log.db"), away, pipelines=pipelines), "http://localhost") as client:
        assert client.get("/healthz").status_code == 200
        refused = client.get("/readyz")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert "check the URL, and that the server runs" in refused.json()["error"]
        assert len(client.get("/pipelines").json()) == 4
        assert client.get("/metrics").status_code == 200
