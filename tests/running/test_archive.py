"""Whether the archive of a batch layer belongs to the log, and which records are archived."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millrace import ConflictError, CorruptError, NotFoundError, files, layers, log
from millrace.eventlog.topics import Log
from millrace.model.stream import Source
from millrace.running import archive as archives
from millrace.running.archive import archive

AGAIN = "millrace run charts.py --layer batch"


class Place:
    """A log, and an archive of its topic in files of three records."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.archive, self.log = folder, folder / "archive", Log(folder / "log.db")
        self.log.create("plays")
        both = layers(batch=files(str(self.archive), "n BIGINT", "parquet"), speed=log("plays", "n BIGINT"))
        assert isinstance(both, Source)
        self.source = both

    def append(self, *numbers: int) -> None:
        self.log.append("plays", [f'{{"n": {number}}}' for number in numbers])

    def fill(self) -> int:
        return archive(self.log, self.source, AGAIN)

    def archived(self) -> list[int]:
        return sorted(n for path in self.archive.glob("*.parquet") for n in pq.read_table(path)["n"].to_pylist())

    def paths(self) -> list[Path]:
        return sorted(self.archive.iterdir())

    def follow(self) -> None:
        """Do what the advice says: move the archive aside, and fill another."""
        self.archive.rename(self.folder / "aside")
        self.fill()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(archives, "_STEP", 3)
    made = Place(tmp_path)
    made.append(0, 1, 2, 3)
    made.append(4, 5, 6)
    assert made.fill() == 7
    return made


def test_each_record_is_archived_once(place: Place) -> None:
    assert place.fill() == 0
    place.append(7)
    assert place.fill() == 1
    assert place.archived() == list(range(8))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_that_was_deleted_is_archived_again(place: Place, number: int) -> None:
    place.paths()[number].unlink()
    place.append(7)
    place.fill()
    assert place.archived() == list(range(8))


def test_an_older_archive_that_was_put_back_is_extended(place: Place) -> None:
    shutil.copytree(place.archive, place.folder / "older")
    place.append(7, 8, 9, 10)
    place.fill()
    shutil.rmtree(place.archive)
    (place.folder / "older").rename(place.archive)
    assert place.fill() == 4
    assert place.archived() == list(range(11))


def other_topic(place: Place) -> None:
    place.log.remove("plays")
    place.log.create("plays")
    place.append(20, 21, 22, 23, 24, 25, 26, 27)


def older_log(place: Place) -> None:
    """A log that ends before the archive does."""
    other_history(place, 10)


def other_history(place: Place, *numbers: int) -> None:
    """The same topic with other records, as after an older copy of the log was put back."""
    uid = place.log.uid_of("plays")
    place.log.remove("plays")
    place.log.create("plays")
    with closing(sqlite3.connect(place.log.path, isolation_level=None)) as database:
        database.execute("UPDATE topics SET uid = ?", (uid,))
    place.append(*numbers)


def same_length(place: Place) -> None:
    other_history(place, *range(20, 28))


@pytest.mark.parametrize("trouble", [other_topic, older_log, same_length])
def test_an_archive_of_another_log_is_refused_and_the_advice_fills_one_of_this(
    place: Place, trouble: Callable[[Place], None]
) -> None:
    trouble(place)
    before = place.archived()
    with pytest.raises(ConflictError, match="does not belong to the log") as refused:
        place.fill()
    assert str(refused.value.advice).endswith(f"aside, and fill another from the log: {AGAIN}")
    assert place.archived() == before
    place.follow()
    found = place.log.read("plays", 0, 0, place.log.ends("plays")[0])["value"].to_pylist()
    assert place.archived() == sorted(int(value[6:-1]) for value in found)


def test_files_that_repeat_offsets_are_refused(place: Place) -> None:
    place.append(7)
    (last,) = (path for path in place.paths() if path.stem.endswith("7"))
    last.rename(place.folder / last.name)
    place.fill()
    (place.folder / last.name).rename(last)
    with pytest.raises(ConflictError, match="repeats offsets of another file"):
        place.fill()


def test_a_damaged_file_is_named_and_archived_again(place: Place) -> None:
    path = place.paths()[1]
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CorruptError, match=f"{path.name} of the archive is damaged"):
        place.fill()
    path.rename(place.folder / "aside")
    assert place.fill() == 3
    assert place.archived() == list(range(7))


def test_records_that_the_log_no_longer_has_cannot_be_archived_again(place: Place) -> None:
    place.append(7, 8)
    place.log.change("plays", max_bytes=1)
    place.log.retain()
    (start,) = place.log.starts("plays")
    assert start > 3
    place.paths()[0].unlink()
    with pytest.raises(NotFoundError, match="offsets 0 to 2 of plays/0 are gone and not in archive"):
        place.fill()
    place.follow()
    assert place.archived() == list(range(start, 9))
