"""How often a micro-batch that is run again is written, by guarantee and by writer."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from millrace import MillraceError
from millrace.model.schema import parse_schema
from millrace.spark.writers import Delivery, FileWriter, Guarantee, TableWriter, Writer

SCHEMA = parse_schema("k STRING")


def writer(kind: str, folder: Path) -> Writer:
    return TableWriter(str(folder / "out.db"), "out", SCHEMA) if kind == "table" else FileWriter(str(folder), "json")


def written(kind: str, folder: Path) -> list[str]:
    if kind == "file":
        return sorted(line for path in folder.glob("*.json") for line in path.read_text().splitlines())
    with closing(sqlite3.connect(folder / "out.db")) as database:
        return sorted(k for (k,) in database.execute("SELECT k FROM out"))


@pytest.mark.parametrize("kind", ["table", "file"])
@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_batches_that_are_run_again(kind: str, guarantee: Guarantee, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    begun = tmp_path / "begun"
    for batch in (0, 1, 2, 1, 2, 3):  # after a power cut, two are run again
        delivery = Delivery("p", "here", guarantee, begun)
        answers = pa.table({"k": [f"batch {batch}"]})
        delivery.deliver(batch, [partial(writer(kind, tmp_path / "out").write, answers)])
    # A file of the same process and batch has the same name, so that at-least-once shows in tables only.
    twice = guarantee is Guarantee.AT_LEAST_ONCE and kind == "table"
    assert len(written(kind, tmp_path / "out")) == (6 if twice else 4)


@pytest.mark.parametrize("kind", ["table", "file"])
def test_batches_of_another_checkpoint_are_others(kind: str, tmp_path: Path) -> None:
    for checkpoint in ("one", "two"):
        delivery = Delivery("p", checkpoint, Guarantee.EXACTLY_ONCE, tmp_path / "begun")
        delivery.deliver(0, [partial(writer(kind, tmp_path).write, pa.table({"k": ["a"]}))])
    assert len(written(kind, tmp_path)) == 2


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    writer("table", tmp_path)
    with pytest.raises(MillraceError, match=r"has the columns .* choose another table"):
        TableWriter(str(tmp_path / "out.db"), "out", parse_schema("other BIGINT"))
