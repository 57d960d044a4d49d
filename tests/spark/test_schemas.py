"""Schemas on Spark: CSV, NOT NULL and unknown fields, alike on fused and native edges."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace import Pipeline, agg, files, window
from millrace.letters.box import box_of
from stream_run import run

pytestmark = pytest.mark.spark

LINES = '''user,ms,at,extra
ann,1,2026-01-01T12:00:00Z,x
ann,,2026-01-01T12:00:01Z,x
"bob,""jr""",3,2026-01-01T12:30:00Z,x
too,few
ann,4,2026-01-01T14:00:00Z,x
'''


@pytest.mark.parametrize("fuse", [True, False])
def test_csv_files_are_read_and_bad_lines_set_aside(spark: SparkSession, tmp_path: Path, fuse: bool) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.csv").write_text(LINES)
    source = files(str(folder), "user STRING, ms BIGINT NOT NULL, at TIMESTAMP, none STRING", "csv", per_batch=1)
    hourly = source.event_time("at", delay="0s").group_by("user").window(window.fixed("1h"))
    pipeline = Pipeline("p", {"sums": hourly.aggregate(ms=agg.sum("ms"))})
    ((first, answers),) = run(spark, pipeline, tmp_path, fuse=fuse)
    assert sorted((row["user"], row["ms"]) for row in answers["view sums"].to_pylist()) == [("ann", 1), ('bob,"jr"', 3)]
    part = first.parts["view sums"]
    assert (first.rows, part.elements, part.late) == (5, 3, 0)
    (looked,) = first.looked.values()
    assert (dict(looked.unknown), looked.never) == ({"extra": 5}, ["none"])
    read = [letter.rejected for letter in box_of(tmp_path, "p").letters()]
    assert sorted((each.offset, each.value, each.reason) for each in read) == [
        (LINES.index("ann,,"), "ann,,2026-01-01T12:00:01Z,x", "ms is missing or null, but NOT NULL"),
        (LINES.index("too"), "too,few", "it has 2 fields, not 4 as the first row"),
    ]
    (folder / "2.csv").write_text("ms,user,at\n5,ann,2026-01-01T12:10:00Z\n6,ann,2026-01-01T14:10:00Z\n")
    ((second, _),) = run(spark, pipeline, tmp_path, fuse=fuse)
    part = second.parts["view sums"]
    assert (part.elements, part.late) == (2, 1)
