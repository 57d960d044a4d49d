"""Stores in SQLite on a bad day: damaged, on a full disk, on a read-only disk."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from disks import remount, small_disk
from millrace.model.connectors import Commit
from millrace.model.errors import CorruptError, MachineError, PipelineError
from millrace.model.schema import Column, Schema
from millrace.views.shape import ViewShape
from millrace.views.store import Store, open_store

SHAPE = ViewShape(
    "counts", Schema((Column("user", "STRING"), Column("plays", "BIGINT"), Column("timing", "STRING"))), ("user",)
)
WAY_ON = "move it aside: millrace repair FILE --yes; then compute the views again: millrace replay FILE"
ASK: dict[str, Callable[[Store], object]] = {
    "query": lambda store: store.query("SELECT user, plays FROM counts"),
    "views": lambda store: store.views(),
    "rows": lambda store: store.rows("counts"),
}


def answers(users: int) -> pa.Table:
    names = [f"user {number}" for number in range(users)]
    return pa.table({"diff": [1] * users, "user": names, "plays": [1] * users, "timing": ["early"] * users})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    with small_disk(tmp_path / "disk", "2m") as folder:
        yield folder


def made(path: Path, users: int = 100) -> Path:
    with closing(open_store(path)) as store:
        store.open("charts", [SHAPE])
        store.commit(Commit("charts", "c", 0), {"counts": answers(users)}, once=True)
    return path


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("place", [0, 17, 19, 47, 100])
def test_a_damaged_store_is_named_with_the_way_on(tmp_path: Path, place: int, ask: str) -> None:
    path = made(tmp_path / "views.db")
    data = bytearray(path.read_bytes())
    data[place] ^= 0x81
    path.write_bytes(data)
    with closing(open_store(path)) as store, pytest.raises(CorruptError) as caught:
        ASK[ask](store)
    assert str(caught.value) == f"store {path} is damaged, or no database of SQLite; {WAY_ON}"


@pytest.mark.parametrize("ask", ["views", "rows"])
@pytest.mark.parametrize("text", ["'{'", "CAST(x'ff' AS TEXT)"])
def test_damaged_text_in_the_catalog_is_damage(tmp_path: Path, text: str, ask: str) -> None:
    path = made(tmp_path / "views.db")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE millrace_views SET shape = {text}")
    with closing(open_store(path)) as store, pytest.raises(CorruptError, match="is damaged"):
        ASK[ask](store)


def test_a_mistake_in_a_query_is_still_a_mistake(tmp_path: Path) -> None:
    with closing(open_store(made(tmp_path / "views.db"))) as store, pytest.raises(PipelineError, match="query failed"):
        store.query("SELECT nothing FROM counts")


def test_a_store_on_a_full_disk_says_so(disk: Path) -> None:
    path = made(disk / "views.db")
    with closing(open_store(path)) as store, pytest.raises(MachineError) as caught:
        store.commit(Commit("charts", "c", 1), {"counts": answers(100_000)}, once=True)
    assert str(caught.value) == f"the disk is full: {path}; nothing was lost: make room, and run again"


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_WRITE])
def test_an_io_error_of_a_full_disk_is_a_full_disk(disk: Path, code: int) -> None:
    path = made(disk / "views.db")

    def fail(*about: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    with closing(open_store(path)) as store:
        with pytest.raises(MachineError, match="disk I/O error"):
            store.write(fail)  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="No space"):
            (disk / "filler").write_bytes(bytes(4 << 20))
        with pytest.raises(MachineError, match="the disk is full: "):
            store.write(fail)  # type: ignore[attr-defined]


@pytest.mark.parametrize("ask", ASK)
def test_views_on_a_read_only_disk_are_read(disk: Path, ask: str) -> None:
    path = made(disk / "views.db")
    assert not list(disk.glob("*-wal"))
    remount(disk, "ro")
    with closing(open_store(path)) as store:
        ASK[ask](store)
        assert len(store.query("SELECT * FROM counts").rows) == 100
