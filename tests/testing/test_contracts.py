"""Sources and sinks of the user's own: they run on Spark, and the kit finds those that break their contract."""

import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millrace import Commit, CustomSink, CustomSource, Pipeline, PipelineError, agg, on, source, to_sink, window
from millrace.spark import batch, stream
from millrace.testing.contracts import check_sink, check_source


class Lines(CustomSource):
    """A file of JSON lines that only grows; a position is a number of lines."""

    def __init__(self, path: str, step: int = 1000) -> None:
        self.path, self.step = path, step

    def lines(self) -> list[str]:
        return Path(self.path).read_text().splitlines()

    def start(self) -> int:
        return 0

    def end(self) -> int:
        return len(self.lines())

    def limit(self, at: int, end: int) -> int:
        return min(end, at + self.step)

    def splits(self, start: int, end: int) -> list[tuple[int, int]]:
        middle = (start + end) // 2
        return [each for each in ((start, middle), (middle, end)) if each[0] < each[1]]

    def read(self, split: tuple[int, int]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()[slice(*split)]]


class Table(CustomSink):
    """A table of SQLite; one transaction stores the rows and the commit."""

    def __init__(self, path: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS kept (k TEXT, v BIGINT)")
            database.execute("CREATE TABLE IF NOT EXISTS commits (id TEXT PRIMARY KEY)")

    def write(self, rows: pa.Table, commit: Commit) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("BEGIN IMMEDIATE")
            if self.is_new(database, commit):
                self.put(database, rows)

    def is_new(self, database: sqlite3.Connection, commit: Commit) -> bool:
        added = database.execute("INSERT OR IGNORE INTO commits VALUES (?)", (str(commit),))
        return added.rowcount == 1

    def put(self, database: sqlite3.Connection, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            database.execute("INSERT INTO kept VALUES (?, ?)", (row["k"], row["v"]))


def stored(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as database:
        return [{"k": k, "v": v} for k, v in database.execute("SELECT k, v FROM kept")]


def append(path: Path, *rows: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


SCHEMA = "k STRING, v BIGINT"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    append(tmp_path / "lines", *({"k": "ab"[v % 2], "v": v} for v in range(10)))
    return tmp_path / "lines"


def test_a_source_that_keeps_its_contract(path: Path) -> None:
    check_source(lambda: Lines(str(path), step=3), SCHEMA)
    check_source(lambda: Lines(str(path), step=3), SCHEMA, add=lambda: append(path, {"k": "c", "v": 1}, {"v": 2}))


class StartsAnywhere(Lines):
    def start(self) -> int:
        return self.end() // 2


class NoJson(Lines):
    def end(self) -> Any:
        return {len(self.lines())}


class Unsteady(Lines):
    reads = 0

    def read(self, split: tuple[int, int]) -> list[dict[str, Any]]:
        type(self).reads += 1
        return [{**row, "v": self.reads} for row in super().read(split)]


class Skips(Lines):
    def __init__(self, path: str) -> None:
        super().__init__(path, step=3)

    def splits(self, start: int, end: int) -> list[tuple[int, int]]:
        return [(start + (start > 0), end)]


class Stuck(Lines):
    def limit(self, at: int, end: int) -> int:
        return at


class Extra(Lines):
    def read(self, split: tuple[int, int]) -> list[dict[str, Any]]:
        return [{**row, "extra": 1} for row in super().read(split)]


class Unpicklable(Lines):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.kept = threading.Lock()


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (StartsAnywhere, "must be the same|must not change|only grow"),
        (NoJson, "JSON value"),
        (Unsteady, "after a restart"),
        (Skips, "every row once"),
        (Stuck, "must advance"),
        (Unpicklable, "picklable"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_source_that_breaks_its_contract(kind: Callable[[str], CustomSource], broken: str, path: Path) -> None:
    with pytest.raises(AssertionError, match=broken):
        check_source(lambda: kind(str(path)), SCHEMA, add=lambda: append(path, *({"k": "c", "v": v} for v in range(4))))


def test_columns_outside_of_the_schema_are_refused(path: Path) -> None:
    with pytest.raises(PipelineError, match="unknown column 'extra'"):
        check_source(lambda: Extra(str(path)), SCHEMA)


class Tells(Table):
    def last(self, pipeline: str, checkpoint: str) -> Commit | None:
        with closing(sqlite3.connect(self.path)) as database:
            known = {id for (id,) in database.execute("SELECT id FROM commits")}
        found = [Commit(pipeline, checkpoint, batch) for batch in range(len(known) + 1)]
        return next((commit for commit in reversed(found) if str(commit) in known), None)


def test_a_sink_that_keeps_its_contract(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    check_sink(lambda: Tells(str(path)), lambda: stored(path))


class Forgetful(Table):
    def is_new(self, database: sqlite3.Connection, commit: Commit) -> bool:
        return True


class BatchOnly(Table):
    def is_new(self, database: sqlite3.Connection, commit: Commit) -> bool:
        return super().is_new(database, Commit(commit.pipeline, "", commit.batch))


class CommitsFirst(Table):
    def is_new(self, database: sqlite3.Connection, commit: Commit) -> bool:
        is_new = super().is_new(database, commit)
        database.commit()
        return is_new


class InPieces(Table):
    def put(self, database: sqlite3.Connection, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            super().put(database, pa.Table.from_pylist([row]))
            database.commit()


class TellsOthers(Tells):
    def last(self, pipeline: str, checkpoint: str) -> Commit | None:
        return super().last(pipeline, "a")


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (TellsOthers, r"last\(\) must return it"),
        (Forgetful, "a second write"),
        (BatchOnly, "must store its rows"),
        (CommitsFirst, "is not stored once"),
        (InPieces, "a part of"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_sink_that_breaks_its_contract(kind: Callable[[str], CustomSink], broken: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with pytest.raises(AssertionError, match=broken):
        check_sink(lambda: kind(str(path)), lambda: stored(path) if path.exists() else [])


def test_what_is_no_source_or_sink_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"derived from millrace\.CustomSource"):
        source("lines", SCHEMA, object())  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"derived from millrace\.CustomSink"):
        to_sink(print, "printed")  # type: ignore[arg-type]


@pytest.mark.spark
def test_a_source_and_a_sink_of_ones_own_run(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    lines = source("lines", SCHEMA, Lines(str(path), step=4))
    totals = lines.group_by("k").window(window.all_time()).trigger(on.each()).accumulating()
    sink = to_sink(Table(str(tmp_path / "kept.db")), "kept")
    pipeline = Pipeline("p", {"totals": totals.aggregate(total=agg.sum("v"))}, [lines.where("v > 6").to(sink)])
    last: dict[str, int] = {}

    def listen(progress: Any, answers: Any) -> None:
        last.update({row["k"]: row["total"] for row in answers["view totals"].to_pylist()})

    for more in ([], [{"k": "a", "v": 100}]):
        append(path, *more)
        run = stream.start(spark, pipeline, tmp_path / "checkpoint", until_caught_up=True, on_batch=listen)
        run.wait()
    assert last == {"a": 120, "b": 25}
    assert sorted(row["v"] for row in stored(tmp_path / "kept.db")) == [7, 8, 9, 100]
    found = batch.collect(spark, Pipeline("p", {"totals": pipeline.views["totals"]}))
    assert {row["k"]: row["total"] for row in found.answers["view totals"].to_pylist()} == last
