"""Logs and topics have ids, and every append a mark: a log that was put back or made again is recognised."""

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from hand_clock import DAY, Clock
from millrace import ConflictError, MillraceError
from millrace.eventlog import blocks
from millrace.eventlog.topics import Log


def copy(path: Path, to: Path) -> Path:
    """A copy of a log that is not in use."""
    assert not Path(f"{path}-wal").exists()
    shutil.copy(path, to)
    return to


def test_each_log_has_an_id_of_its_own_which_a_copy_shares(tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as one, Log(tmp_path / "b.db") as other:
        assert len({one.id, other.id}) == 2
        before = one.id
    with Log(tmp_path / "a.db") as again, Log(copy(tmp_path / "b.db", tmp_path / "c.db")) as copied:
        assert again.id == before
        assert copied.id == other.id


def test_a_topic_made_again_has_another_uid(tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as log, Log(tmp_path / "b.db") as other:
        log.create("plays")
        other.create("plays")
        first = log.uid_of("plays")
        log.change("plays", max_age="1d")
        assert log.uid_of("plays") == first
        log.remove("plays")
        log.create("plays")
        assert len({first, log.uid_of("plays"), other.uid_of("plays")}) == 3
        with pytest.raises(MillraceError, match="unknown topic 'clicks'"):
            log.uid_of("clicks")


def test_a_log_of_format_2_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "log.db")
    database.execute(f"PRAGMA application_id = {0x4D696C6C}")
    database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(
        ConflictError, match=r"created by another release of Millrace \(format 2, not 3\); run that release"
    ):
        Log(tmp_path / "log.db")


def test_an_older_copy_that_was_appended_to_has_other_marks(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Log(path) as log:
        log.create("plays")
        log.append("plays", ["a"] * 10)
    older = copy(path, tmp_path / "older.db")
    with Log(path) as log:
        log.append("plays", ["b"] * 10)
        shared, read = log.marks("plays", [10])[0], log.marks("plays", [20])[0]
    with Log(older) as log:
        log.append("plays", ["b"] * 15)
        assert log.marks("plays", [10]) == [shared]
        assert log.marks("plays", [20]) != [read], "the same offsets, another history"
        assert log.marks("plays", [25]) == log.marks("plays", [20])


def test_a_mark_is_that_of_the_record_before_an_offset(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path / "log.db", clock) as log:
        log.create("plays", max_age="1d")
        assert log.marks("plays", [0]) == [None]
        log.append("plays", ["old"] * 3)
        clock.spend(log, DAY // 2)
        log.append("plays", ["new"] * 3)
        first, second = log.marks("plays", [3])[0], log.marks("plays", [4])[0]
        assert first is not None
        assert second is not None
        assert first != second
        assert [log.marks("plays", [offset])[0] for offset in range(8)] == [None, *[first] * 3, *[second] * 3, None]
        clock.spend(log, DAY // 2 + 1)
        assert log.starts("plays") == [3]
        assert log.marks("plays", [3]) == [None], "retention removed that record"
        assert log.marks("plays", [4]) == [second]
        with pytest.raises(MillraceError, match="has 1 partitions, but 2 offsets are given"):
            log.marks("plays", [1, 2])


def test_marks_stay_the_same_while_blocks_are_merged() -> None:
    @examples(40)
    @given(st.lists(st.integers(1, 6), min_size=1, max_size=25), st.integers(1, 2))
    def check(appends: list[int], partitions: int) -> None:
        with tempfile.TemporaryDirectory() as folder, Log(Path(folder) / "log.db") as log:
            log.create("t", partitions)
            known: list[dict[int, int | None]] = [{} for _ in range(partitions)]
            for number, many in enumerate(appends):
                added = log.append("t", ["x"] * many, [f"{number}:{each}" for each in range(many)])
                new = {part.partition: log.marks("t", log.ends("t"))[part.partition] for part in added}
                assert len(set(new.values())) == 1, "an append has one mark, whatever its partitions"
                for part in added:
                    for offset in range(part.first, part.first + part.count):
                        known[part.partition][offset + 1] = new[part.partition]
            assert len({mark for marks in known for mark in marks.values()}) == len(appends)
            for partition in range(partitions):
                for offset, mark in known[partition].items():
                    asked = [0] * partitions
                    asked[partition] = offset
                    assert log.marks("t", asked)[partition] == mark

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MERGED", 400)
        check()


def test_a_damaged_block_has_its_marks(tmp_path: Path) -> None:
    with Log(tmp_path / "log.db") as log:
        log.create("plays")
        for _ in range(3):
            log.append("plays", [os.urandom(1_000_000), b"end"])
        before = [log.marks("plays", [offset]) for offset in range(7)]
        log.close()
        data = bytearray(log.path.read_bytes())
        data[-1_500_000] ^= 1
        log.path.write_bytes(data)
        with pytest.raises(MillraceError, match="damaged"):
            log.read("plays", 0, 0, 6)
        assert [log.marks("plays", [offset]) for offset in range(7)] == before
