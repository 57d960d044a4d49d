"""The status of pipelines whose report is damaged."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli import app
from millrace.eventlog.sealed import sealed
from millrace.running.status import note
from millrace.spark.progress import BatchProgress, PartProgress

PROGRESS = BatchProgress(3, 10, 0.5, 0, {"view counts": PartProgress(None, None, 2, 100, 0, 5)})


@pytest.mark.parametrize(
    "damaged",
    [
        "", '{"pipeline": "char', "[]", "{}", '{"progress": 1}', json.dumps(sealed({"progress": {"parts": []}})),
        '{"pipeline": "charts", "at": 1, "dead": 0, "progress": {"batch": 3}, "checksum": "0"}',
        '{"pipeline": "charts", "at": "x", "dead": 0, "progress": {"batch": "x", "parts": {}}}',
    ],
)  # fmt: skip
def test_a_damaged_report_is_shown_as_such_and_hides_no_other(tmp_path: Path, damaged: str) -> None:
    for name in ("charts", "other"):
        (tmp_path / name).mkdir()
        note(tmp_path / name, name, PROGRESS, dead=1, clock_moved=0)
    (tmp_path / "charts" / "status.json").write_text(damaged)
    asked = ["status", "--folder", str(tmp_path), "--log", str(tmp_path / "log.db"), "--format", "json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.output.splitlines()]
    shown = [(row["pipeline"], row["is"], row["batch"], row["dead"]) for row in rows]
    file = tmp_path / "charts" / "status.json"
    assert shown == [("charts", f"damaged: {file}", None, None), ("other", "stopped", 3, 1)]
