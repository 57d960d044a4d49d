"""Damaged blocks are found, and skipped if a person says so; all other records and all offsets stay."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hand_clock import DAY, Clock
from millrace import ConflictError, CorruptError, NotFoundError
from millrace.eventlog.topics import Appended, Damage, Gap, Log


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    """Five blocks of two records, too large to be merged."""
    with Log(tmp_path / "log.db", clock) as opened:
        opened.create("plays", max_age="1d")
        for number in range(5):
            opened.append("plays", [b"%d" % number + os.urandom(1_100_000), b"%d" % number])
        opened.close()
        yield opened


def damage(log: Log, first: int) -> None:
    """Flip a bit of the block that begins at an offset."""
    log.close()
    with closing(sqlite3.connect(log.path, isolation_level=None)) as database:
        (content,) = database.execute("SELECT content FROM blocks WHERE first = ?", (first,)).fetchone()
        with database.blobopen("contents", "block", content) as blob:
            blob.seek(500_000)
            (byte,) = blob.read(1)
            blob.seek(500_000)
            blob.write(bytes([byte ^ 1]))


def break_page(log: Log, first: int) -> None:
    """Overwrite the number of the next page in a page of the block that begins at an offset."""
    log.close()
    with closing(sqlite3.connect(log.path, isolation_level=None)) as database:
        (content,) = database.execute("SELECT content FROM blocks WHERE first = ?", (first,)).fetchone()
        (block,) = database.execute("SELECT block FROM contents WHERE id = ?", (content,)).fetchone()
    data = bytearray(log.path.read_bytes())
    at = data.find(block[50_000:50_100])
    assert at > 0
    page = at // 8192 * 8192
    data[page : page + 4] = (2**31).to_bytes(4, "big")
    log.path.write_bytes(data)


def small_values(log: Log) -> list[bytes]:
    records = log.read("plays", 0, *log.starts("plays"), *log.ends("plays"))
    return [value for value in records["value"].to_pylist() if len(value) == 1]


def test_a_whole_log_has_no_damage(log: Log) -> None:
    told: list[tuple[int, int]] = []
    assert log.damaged("plays", lambda done, total: told.append((done, total))) == []
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) == 5
    assert told[-1][0] == told[-1][1] > 5_000_000


def test_a_damaged_block_is_skipped_and_the_others_keep_their_offsets(log: Log) -> None:
    marks = [log.marks("plays", [offset]) for offset in range(11)]
    damage(log, 4)
    assert log.damaged("plays") == [Damage(0, 4, 6, "its checksum does not match")]
    with pytest.raises(CorruptError, match=r"at plays/0, offset 4; .* skip the damaged block: millrace repair"):
        log.read("plays", 0, 0, 10)
    assert log.gaps("plays") == []
    log.skip_damaged("plays", 0, 4)
    assert log.gaps("plays") == [Gap(0, 4, 6, 2)]
    assert log.damaged("plays") == []
    assert (log.starts("plays"), log.ends("plays")) == ([0], [10])
    records = log.read("plays", 0, 1, 9)
    assert records["offset"].to_pylist() == [1, 2, 3, 6, 7, 8]
    assert [value[:1] for value in records["value"].to_pylist()] == [b"0", b"1", b"1", b"3", b"3", b"4"]
    assert {column.num_chunks for column in records.columns} == {1}
    assert log.read("plays", 0, 4, 6)["offset"].to_pylist() == []
    assert log.read("plays", 0, 5, 7)["offset"].to_pylist() == [6]
    assert [(first, many, size > 0) for first, many, size in log.sizes("plays", 0, 3, 8)] == [
        (2, 2, True), (4, 2, False), (6, 2, True),
    ]  # fmt: skip
    assert [log.marks("plays", [offset]) for offset in range(11)] == marks
    log.skip_damaged("plays", 0, 4)  # which is done already
    assert log.gaps("plays") == [Gap(0, 4, 6, 2)]


def test_what_was_skipped_is_set_aside_not_deleted(log: Log) -> None:
    damage(log, 4)
    log.skip_damaged("plays", 0, 4)
    log.remove("plays")
    log.close()
    with closing(sqlite3.connect(log.path)) as database:
        asked = "SELECT partition, first, records, why, length(block) FROM set_aside JOIN contents ON id = content"
        ((*about, length),) = database.execute(asked).fetchall()
        assert about == [0, 4, 2, "its checksum does not match"]
        assert length > 1_000_000
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_only_damage_is_skipped(log: Log) -> None:
    with pytest.raises(ConflictError, match="the block of plays/0 at offset 4 is not damaged"):
        log.skip_damaged("plays", 0, 4)
    with pytest.raises(NotFoundError, match="no block of plays/0 starts at offset 5"):
        log.skip_damaged("plays", 0, 5)
    assert len(log.read("plays", 0, 0, 10)) == 10


def test_nothing_is_merged_with_a_gap(log: Log, clock: Clock) -> None:
    damage(log, 8)
    log.skip_damaged("plays", 0, 8)
    assert log.ends("plays") == [10]
    assert log.append("plays", ["x"]) == [Appended(0, 10, 1)]
    assert log.append("plays", ["y"]) == [Appended(0, 11, 1)]
    assert log.gaps("plays") == [Gap(0, 8, 10, 2)]
    assert log.read("plays", 0, 7, 12)["offset"].to_pylist() == [7, 10, 11]
    assert log.at_time("plays", clock.now) == [0]
    assert log.at_time("plays", clock.now + 1) == [12]


def test_a_gap_expires_like_any_block(log: Log, clock: Clock) -> None:
    damage(log, 0)
    log.skip_damaged("plays", 0, 0)
    clock.spend(log, DAY // 2)
    log.append("plays", ["new"])
    clock.spend(log, DAY // 2 + 1)
    assert (log.starts("plays"), log.gaps("plays")) == ([10], [])


def test_a_time_after_a_gap_is_found(log: Log, clock: Clock) -> None:
    clock.now += 1
    log.append("plays", [os.urandom(1_100_000)])
    log.append("plays", ["z"])
    damage(log, 10)
    log.skip_damaged("plays", 0, 10)
    assert log.at_time("plays", clock.now) == [11]


def test_pages_that_sqlite_cannot_read_are_damage_that_can_be_skipped(log: Log) -> None:
    break_page(log, 2)
    (found,) = log.damaged("plays")
    assert (found.first, found.end) == (2, 4)
    assert "SQLite cannot read it" in found.why
    with pytest.raises(CorruptError, match="millrace repair"):
        log.read("plays", 0, 0, 10)
    log.skip_damaged("plays", 0, 2)
    assert small_values(log) == [b"0", b"2", b"3", b"4"]
    assert None not in log.marks("plays", [4])
    log.append("plays", ["more"])
    assert log.ends("plays") == [11]


def test_a_page_that_sqlite_cannot_read_does_not_stop_appends(log: Log) -> None:
    log.append("plays", [os.urandom(100_000)])
    break_page(log, 10)
    assert log.append("plays", [os.urandom(200_000)]) == [Appended(0, 11, 1)]
    assert [each.first for each in log.damaged("plays")] == [10]
    assert len(log.read("plays", 0, 11, 12)) == 1


@pytest.mark.parametrize("table", ["contents", "blocks"])
def test_a_block_that_is_missing_is_damage_that_can_be_skipped(log: Log, table: str) -> None:
    with closing(sqlite3.connect(log.path, isolation_level=None)) as database:
        (content,) = database.execute("SELECT content FROM blocks WHERE first = 4").fetchone()
        column = "id" if table == "contents" else "content"
        database.execute(f"DELETE FROM {table} WHERE {column} = ?", (content,))
    with pytest.raises(CorruptError, match=r"plays/0, offset 4: records are missing; .*millrace repair"):
        log.read("plays", 0, 0, 10)
    (found,) = log.damaged("plays")
    assert (found.partition, found.first, found.end) == (0, 4, 6)
    log.skip_damaged("plays", 0, found.first)
    assert log.damaged("plays") == []
    assert log.gaps("plays") == [Gap(0, 4, 6, 2)]
    assert small_values(log) == [b"0", b"1", b"3", b"4"]
