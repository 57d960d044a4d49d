"""What is saved of a log with damaged pages. SQLite is the judge: it reads the same log before the damage."""

import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from millrace import CorruptError, MillraceError
from millrace.eventlog.opening import PAGE
from millrace.eventlog.pages import Pages
from millrace.eventlog.salvage import Salvaged, salvage, topics_in
from millrace.eventlog.topics import Log

Records = dict[tuple[str, int, int], bytes | None]
"""Values by topic, partition and offset."""


def records(log: Log) -> Records:
    found: Records = {}
    for topic in log.topics():
        for partition, (start, end) in enumerate(zip(log.starts(topic.name), log.ends(topic.name), strict=True)):
            read = log.read(topic.name, partition, start, end)
            for offset, value in zip(read["offset"].to_pylist(), read["value"].to_pylist(), strict=True):
                found[topic.name, partition, offset] = value
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with blocks of many sizes, merged, removed by retention and by the removal of a topic."""
    path = tmp_path_factory.mktemp("made") / "log.db"
    draw = random.Random(7)
    with closing(Log(path)) as log:
        log.create("old")
        for topic, partitions in (("plays", 2), ("clicks", 1)):
            log.create(topic, partitions)
        for number in range(50):
            size = draw.choice([10, 10, 3_000, 20_000])
            values = [f"{number} {os.urandom(size).hex()}" for _ in range(draw.randint(1, 4))]
            log.append(draw.choice(["plays", "plays", "clicks"]), values, producer="p", sequence=number)
            log.append("old", [os.urandom(5_000).hex()])
        log.report("charts", "clicks", [3])
        log.remove("old")
        log.change("clicks", max_bytes=200_000)
        log.retain()
        log.append("plays", ["last"], keys=["k"])
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    return path


@pytest.fixture
def log(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "log.db"))


def damage(path: Path, number: int, byte: int) -> None:
    with path.open("rb+") as file:
        file.seek((number - 1) * PAGE)
        file.write(bytes([byte]) * PAGE)


def tree(path: Path, table: str) -> list[int]:
    """The root of a table, if it is not a leaf too; from SQLite's own catalog."""
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    kind = path.read_bytes()[(root - 1) * PAGE]
    return [root] if kind in (2, 5) else []


def test_all_of_a_whole_log_is_saved(log: Path, tmp_path: Path) -> None:
    saved = salvage(log, tmp_path / "new.db")
    with closing(Log(log)) as before, closing(Log(tmp_path / "new.db")) as after:
        assert records(after) == records(before)
        assert saved == Salvaged(len(records(before)), ("clicks", "plays"), lost=0, unplaced=0)
        assert after.topics() == before.topics()
        assert after.id == before.id
        for topic in before.topics():
            ends = before.ends(topic.name)
            assert after.uid_of(topic.name) == before.uid_of(topic.name)
            assert (after.starts(topic.name), after.ends(topic.name)) == (before.starts(topic.name), ends)
            assert after.marks(topic.name, ends) == before.marks(topic.name, ends)
            assert after.last(topic.name, "p") == before.last(topic.name, "p")
            assert after.lag(topic.name) == before.lag(topic.name)
            assert after.damaged(topic.name) == []
        after.append("plays", ["more"])


def test_a_log_is_saved_to_a_relative_path(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log.parent)
    assert salvage(Path("log.db"), Path("new.db")).lost == 0
    assert topics_in(Path("new.db")) == ["clicks", "plays"]


def test_pages_of_the_journal_are_newer(made: Path, tmp_path: Path) -> None:
    shutil.copy(made, tmp_path / "open.db")
    with closing(sqlite3.connect(tmp_path / "open.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
    with closing(Log(tmp_path / "open.db")) as opened:
        opened.append("plays", ["in the journal"])
        for end in ("", "-wal"):
            shutil.copy(tmp_path / f"open.db{end}", tmp_path / f"log.db{end}")
        expected = records(opened)
    salvage(tmp_path / "log.db", tmp_path / "new.db")
    with closing(Log(tmp_path / "new.db")) as after:
        assert records(after) == expected


def test_damage_of_any_page_costs_only_what_is_in_it(made: Path, tmp_path: Path) -> None:
    with closing(Log(made)) as before:
        expected = records(before)
    content = made.read_bytes()
    numbers = range(1, len(content) // PAGE + 1)
    with_rows = [number for number in numbers if content[(number - 1) * PAGE] in (2, 5, 10, 13)]
    others = random.Random(5).sample([number for number in numbers if number not in with_rows], 12)
    costs_all = []
    for number in [1, *with_rows, *others]:
        log, new = tmp_path / "log.db", tmp_path / f"{number}.db"
        shutil.copy(made, log)
        damage(log, number, 0xA5 if number % 2 else 0)
        saved = salvage(log, new)
        with closing(Log(new)) as after:
            found = records(after)
            assert found.items() <= expected.items(), number
            assert saved.records == len(found)
            assert saved.lost == sum(gap.records for topic in saved.topics for gap in after.gaps(topic))
            assert [after.damaged(topic) for topic in saved.topics] == [[]] * len(saved.topics)
        costs_all += [] if found else [(saved.topics, saved.unplaced > 0)]
        new.unlink()
    assert sorted(costs_all) == [((), True), (("clicks", "plays"), True)], "the pages of topics and of blocks"


@pytest.mark.parametrize("table", ["contents", "the first page"])
def test_damage_above_the_rows_costs_nothing(log: Path, tmp_path: Path, table: str) -> None:
    with closing(Log(log)) as before:
        expected = records(before)
    pages = [1] if table == "the first page" else tree(log, table)
    assert pages, "the table is large enough to have a root above its leaves"
    for page in pages:
        damage(log, page, 0xA5)
    with pytest.raises(MillraceError), closing(Log(log)) as broken:
        broken.check_metadata()
    assert topics_in(log) == ["clicks", "plays"]
    salvage(log, tmp_path / "new.db")
    with closing(Log(tmp_path / "new.db")) as after:
        assert records(after) == expected


def test_nothing_is_found_in_another_file(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    for content in (b"", b"x", os.urandom(100_000), json.dumps({"a": 1}).encode() * 1_000):
        path.write_bytes(content)
        assert topics_in(path) == []
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE t (a, b, c)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", [(n, str(n), b"x" * n) for n in range(3_000)])
        database.commit()
    assert topics_in(tmp_path / "other.db") == []


def test_pages_are_read_as_sqlite_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "any.db"
    draw = random.Random(3)
    numbers = [0, 1, -1, 127, -128, 40_000, 2**31, -(2**40), 2**62, -(2**63), None, 1.5]
    rows = [
        (draw.choice(numbers), "ä" * draw.randrange(40), os.urandom(draw.choice([0, 5, 300, 9_000, 50_000])))
        for _ in range(300)
    ]
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA page_size = {PAGE}")
        database.execute("PRAGMA secure_delete = OFF")  # some builds of SQLite overwrite what is deleted
        database.execute("CREATE TABLE kept (a, b, c)")
        database.execute("CREATE TABLE keyed (id INTEGER, a, b, c, PRIMARY KEY (id)) WITHOUT ROWID")
        for number, row in enumerate(rows):
            database.execute("INSERT INTO kept VALUES (?, ?, ?)", row)
            database.execute("INSERT INTO keyed VALUES (?, ?, ?, ?)", (number, *row))
        database.commit()
        database.execute("DELETE FROM kept WHERE rowid % 5")  # pages that are freed keep copies of their rows
        database.execute("DELETE FROM keyed WHERE id % 5")
        database.commit()
        with Pages(path, 512) as pages:
            found = [(cell.rowid, pages.values(cell)) for cell in pages.cells()]
        kept = {rowid: values for rowid, values in found if rowid is not None and values and len(values) == 3}
        keyed = {values[0]: values for rowid, values in found if rowid is None and values is not None}
        assert len(kept) + len(keyed) + 2 == len(found), "each row once, and the two tables"
        assert kept == {row[0]: row[1:] for row in database.execute("SELECT rowid, * FROM kept")}
        assert keyed == {row[0]: row for row in database.execute("SELECT * FROM keyed")}


def test_the_log_tells_that_its_metadata_is_damaged(log: Path) -> None:
    with closing(Log(log)) as opened:
        opened.check_metadata()
    (root,) = tree(log, "contents")
    damage(log, root, 0)
    with closing(Log(log)) as opened, pytest.raises(CorruptError, match="millrace repair FILE --yes"):
        opened.check_metadata()
