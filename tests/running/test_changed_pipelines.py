"""A pipeline that is changed after it has run: what may change, and what a new view has missed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli import app
from millrace.cli.options import EXIT_CODES
from millrace.model.errors import Kind
from millrace.spark import session

pytestmark = pytest.mark.spark

HEAD = """
from millrace import Pipeline, agg, log, on, window

def count(topic, schema, *keys, **aggregates):
    stream = log(topic, schema).group_by(*keys).window(window.all_time()).trigger(on.each()).accumulating()
    return stream.aggregate(**aggregates or {"n": agg.count()})
"""
USERS = '"users": count("plays", "user STRING", "user")'
COUNTRIES = '"countries": count("plays", "user STRING, country STRING", "country")'
RUN = "run charts.py --until-caught-up"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose pipeline has counted three records by user."""
    monkeypatch.chdir(tmp_path)
    succeed("topics create plays")
    define(USERS)
    send(("ann", "FR"), ("bob", "DE"), ("ann", "FR"))
    succeed(RUN)


def define(*views: str) -> None:
    Path("charts.py").write_text(f"{HEAD}\ncharts = Pipeline('charts', {{{', '.join(views)}}})\n")


def send(*records: tuple[str, str]) -> None:
    lines = [json.dumps({"user": user, "country": country, "ms": 1}) for user, country in records]
    Path("records.json").write_text("\n".join(lines))
    succeed("send plays records.json")


def command(text: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, shlex.split(text))
    return done.exit_code, done.output


def succeed(text: str) -> str:
    code, output = command(text)
    assert code == 0, output
    return output


def table(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in succeed(f"{text} --json").splitlines()]


def answers(view: str, column: str, value: str = "n") -> dict[str, int]:
    return {row[column]: row[value] for row in table(f"query 'SELECT {column}, {value} FROM {view}'")}


def since(view: str) -> Any:
    return {row["view"]: row["records since"] for row in table("views")}[view]


def refused_with(*advice: str) -> str:
    """Run the pipeline: it is refused before Spark starts, with this advice. Returns the message."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "start", lambda *_: pytest.fail("Spark was started"))
        code, output = command(RUN)
    assert code == EXIT_CODES[Kind.CONFLICT], output
    assert re.findall(r"millrace (\w+ charts\.py[^;\n]*)", output) == list(advice)
    return output


def test_a_view_that_was_added_is_filled_by_the_replay_that_is_advised() -> None:
    define(USERS, COUNTRIES)
    said = refused_with("replay charts.py", "run charts.py --from-here")
    assert "view countries is new, and checkpoint .millrace/charts has already read records of its sources" in said
    assert "countries" not in succeed("views"), "it is not served before it has answers"
    send(("cal", "FR"))
    succeed("replay charts.py")
    succeed(RUN)
    assert answers("countries", "country") == {"FR": 3, "DE": 1}
    assert answers("users", "user") == {"ann": 2, "bob": 1, "cal": 1}
    assert since("countries") is None


def test_a_view_that_starts_from_here_says_so() -> None:
    define(USERS, COUNTRIES)
    refused_with("replay charts.py", "run charts.py --from-here")
    send(("cal", "FR"))
    succeed(f"{RUN} --from-here")
    send(("ann", "DE"))
    succeed(RUN)
    assert answers("countries", "country") == {"FR": 1, "DE": 1}, "it goes on without the option"
    assert answers("users", "user") == {"ann": 3, "bob": 1, "cal": 1}
    assert since("users") is None
    assert re.fullmatch(r"20\d\d-.*", since("countries"))
    assert "charts: view countries has no records from before 20" in succeed("status")
    succeed("replay charts.py")
    assert answers("countries", "country") == {"FR": 3, "DE": 2}
    assert since("countries") is None, "a replay makes it whole"
    assert "charts (charts@2): view countries" not in succeed("status")


def test_a_view_of_another_topic_misses_nothing() -> None:
    succeed("topics create skips")
    Path("skips.json").write_text('{"user": "ann"}\n{"user": "ann"}')
    succeed("send skips skips.json")
    define(USERS, '"skips": count("skips", "user STRING", "user")')
    succeed(RUN)
    assert answers("skips", "user") == {"ann": 2}
    assert since("skips") is None


def test_a_column_that_becomes_wider_is_computed_again() -> None:
    narrow = '"longest": count("plays", "user STRING, ms INT", "user", ms=agg.max("ms"))'
    define(narrow)
    succeed("replay charts.py")
    succeed(RUN)
    define(narrow.replace("INT", "BIGINT"))
    assert "ms INT" in refused_with("replay charts.py", "run charts.py --from-here")
    Path("long.json").write_text('{"user": "ann", "ms": 5000000000}')
    succeed("send plays long.json")
    succeed("replay charts.py")
    succeed(RUN)
    assert answers("longest", "user", "ms") == {"ann": 5_000_000_000, "bob": 1}
