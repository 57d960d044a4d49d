"""A replay of sinks that cannot be swapped: it sends all answers again, or only those that come after it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli import app
from millrace.eventlog.topics import Log

pytestmark = pytest.mark.spark

PIPELINE = """
from millrace import Pipeline, agg, log, on, to_topic, window

plays = log("plays", "k STRING").group_by("k").window(window.all_time()).trigger(on.each())
counts = plays.accumulating().aggregate(n=agg.count())
charts = Pipeline("charts", sinks=[counts.to(to_topic("counts"))])
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project without views that has run once, on the one Spark of all tests."""
    monkeypatch.chdir(tmp_path)
    Path("charts.py").write_text(PIPELINE)
    for topic in ("plays", "counts"):
        typed("topics", "create", topic)
    send("aab")
    typed("run", "charts.py", "--until-caught-up")


def typed(*command: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == code, result.output
    return ["", *result.output.splitlines()][-1]


def send(keys: str) -> None:
    Path("send.json").write_text("\n".join(json.dumps({"k": key}) for key in keys))
    typed("send", "plays", "send.json")


def counted() -> list[tuple[str, int]]:
    log = Log(".millrace/log.db")
    rows = map(json.loads, log.read("counts", 0, 0, log.ends("counts")[0])["value"].to_pylist())
    return [(row["k"], row["n"]) for row in rows]


def test_the_choice_is_asked_for_and_no_resend_goes_on_from_the_state() -> None:
    before = counted()
    assert sorted(before) == [("a", 2), ("b", 1)]
    line = typed("replay", "charts.py", code=2)
    assert line.startswith("topic counts cannot be rewritten; send all answers to it again: millrace replay charts.py")
    typed("replay", "charts.py", "--no-resend")
    assert counted() == before
    send("a")
    typed("run", "charts.py", "--until-caught-up")
    assert counted() == [*before, ("a", 3)]


def test_resend_sends_all_again() -> None:
    before = counted()
    typed("replay", "charts.py", "--resend")
    assert sorted(counted()) == sorted([*before, *before])
    assert "cannot be rolled back" in typed("replay", "charts.py", "--rollback", code=2)
    send("b")
    typed("run", "charts.py", "--until-caught-up")
    assert counted()[-1] == ("b", 2)


def test_a_lost_checkpoint_does_not_send_again_in_silence() -> None:
    Path(".millrace/charts").rename("aside")
    line = typed("run", "charts.py", "--until-caught-up", code=6)
    assert line.endswith("millrace replay charts.py")
    assert len(counted()) == 2
