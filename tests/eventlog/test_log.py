"""The embedded log: what was appended is there once, in order, whatever dies, fills up or runs at the same time."""

import errno
import math
import os
import pickle
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import appenders
from appenders import WRITERS, numbers_of
from disks import small_disk
from examples import examples
from hand_clock import DAY, Clock
from millrace import ConflictError, CorruptError, MachineError, MillraceError, NotFoundError, PipelineError
from millrace.eventlog import blocks, content, database, partition
from millrace.eventlog.partition import murmur2, partitions_of
from millrace.eventlog.retention import Block, stale
from millrace.eventlog.topics import Appended, Log, Topic
from millrace.eventlog.trouble import clear
from millrace.model.duration import SECOND


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "log.db") as opened:
        opened.create("plays")
        yield opened


def values(log: Log, topic: str = "plays", part: int = 0) -> list[bytes | None]:
    start, end = log.starts(topic)[part], log.ends(topic)[part]
    found: list[bytes | None] = log.read(topic, part, start, end)["value"].to_pylist()
    return found


def run(what: str, path: Path) -> str:
    program = Path(appenders.__file__)
    done = subprocess.run([sys.executable, program, what, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_record_comes_back_as_it_was_given(log: Log) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    log.append(
        "plays", [b"\xff\x00", "text", None], ["k", b"", None], [at, None, 5], [{"h": b"1", "i": None}, [], None]
    )
    first, second, third = log.read("plays", 0, 0, 3).to_pylist()
    assert first == {
        "key": b"k", "value": b"\xff\x00", "offset": 0, "timestamp": at,
        "headers": [{"key": "h", "value": b"1"}, {"key": "i", "value": None}],
    }  # fmt: skip
    assert (second["key"], second["value"], second["headers"]) == (b"", b"text", [])
    assert (third["key"], third["value"], third["headers"], third["offset"]) == (None, None, None, 2)


@pytest.mark.parametrize(
    "given",
    [
        pa.array(["a", "b", "c"]).slice(1),
        pa.array(["b", "c"], pa.large_string()),
        pa.chunked_array([[b"b"], [b"c"]]),
        pa.array(["b", "c"]).dictionary_encode(),
        ["b", b"c"],
    ],
)
def test_values_may_come_in_any_arrow_form(given: Any, log: Log) -> None:
    log.append("plays", given, keys=given)
    assert values(log) == [b"b", b"c"]
    assert log.read("plays", 0, 0, 2)["key"].to_pylist() == [b"b", b"c"]


def test_timestamps_are_now_unless_given(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path / "log.db", clock) as log:
        log.create("plays")
        log.append("plays", ["a", "b"], timestamps=[None, 7])
        stamps = log.read("plays", 0, 0, 2)["timestamp"].cast(pa.int64()).to_pylist()
        assert stamps == [clock.now, 7]


def test_an_append_of_nothing_adds_nothing(log: Log) -> None:
    assert log.append("plays", []) == []
    assert log.append("plays", pa.array([], pa.null())) == []
    assert log.ends("plays") == [0]
    assert log.read("plays", 0, 0, 0)["value"].to_pylist() == []


def test_a_read_is_in_one_piece(log: Log) -> None:
    for number in range(5):
        log.append("plays", [f"{number}" * 400_000] * 3)
    assert len(log.sizes("plays", 0, 0, 15)) == 5
    records = log.read("plays", 0, 1, 14)
    assert {column.num_chunks for column in records.columns} == {1}
    assert [len(value) for value in records["value"].to_pylist()] == [400_000] * 13
    assert log.read("plays", 0, 3, 3)["value"].num_chunks == 1


def test_a_key_stays_in_its_partition_and_in_order(tmp_path: Path) -> None:
    with Log(tmp_path / "log.db") as log:
        log.create("plays", partitions=4)
        for number in range(20):
            log.append("plays", [f"{key}:{number}" for key in "abcdefgh"], list("abcdefgh"))
        found = {key: [] for key in "abcdefgh"}  # type: dict[str, list[tuple[int, int]]]
        for part, end in enumerate(log.ends("plays")):
            for value in log.read("plays", part, 0, end)["value"].to_pylist():
                key, number = value.decode().split(":")
                found[key].append((part, int(number)))
        for numbers in found.values():
            assert [number for _, number in numbers] == list(range(20))
            assert len({part for part, _ in numbers}) == 1


def test_keys_have_the_partitions_that_kafka_gives_them() -> None:
    known = {  # from the tests of Kafka's own producer
        b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829, b"abc": 479470107,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    }  # fmt: skip
    keys = pa.array(list(known), pa.binary())
    assert murmur2(keys).astype("int32").tolist() == list(known.values())
    assert murmur2(keys.slice(2)).astype("int32").tolist() == list(known.values())[2:]
    assert partitions_of(keys, 7).tolist() == [(number & 0x7FFFFFFF) % 7 for number in known.values()]


def test_a_very_long_key_is_no_trouble(tmp_path: Path) -> None:
    with Log(tmp_path / "log.db") as log:
        log.create("plays", partitions=3)
        one, other = (log.append("plays", ["v"], ["k" * 1_000_000])[0].partition for _ in range(2))
        assert one == other


def test_records_without_a_key_are_spread_evenly(tmp_path: Path) -> None:
    with Log(tmp_path / "log.db") as log:
        log.create("plays", partitions=3)
        for _ in range(9):
            assert len(log.append("plays", ["v"] * 10)) == 1
        assert log.ends("plays") == [30, 30, 30]
        assert len(log.append("plays", ["v"] * 30_000)) == 3
        assert log.ends("plays") == [10_030, 10_030, 10_030]


def test_small_appends_make_few_blocks_and_are_rewritten_seldom(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def encode(records: pa.Table) -> content.Content:
        written.append(len(records))
        return content.encode(records)

    monkeypatch.setattr(blocks, "encode", encode)
    many = 300
    for number in range(many):
        log.append("plays", [f"{number}"])
    assert len(log.sizes("plays", 0, 0, many)) <= math.log2(many) + 1
    assert sum(written) <= many * (math.log2(many) + 1)
    assert values(log) == [f"{number}".encode() for number in range(many)]


def test_blocks_are_neither_merged_nor_made_too_large(log: Log) -> None:
    log.append("plays", ["x" * 1000] * 10_000)
    sizes = log.sizes("plays", 0, 0, 10_000)
    assert len(sizes) == 3
    assert all(size <= content.LARGEST for *_, size in sizes)
    for _ in range(8):
        log.append("plays", ["y" * 300_000])
    assert all(size <= content.MERGED for *_, size in log.sizes("plays", 0, 10_000, 10_008))
    assert log.sizes("plays", 0, 3_000, 3_400) == sizes[:2]


def test_what_is_true_of_a_plain_list_is_true_of_the_log() -> None:
    record = st.tuples(st.sampled_from([None, b"a", b"b", b"c"]), st.binary(max_size=4), st.integers(0, 9))
    batches = st.lists(st.lists(record, max_size=6), max_size=10)

    @examples(60)
    @given(batches, st.integers(1, 3), st.integers(0, 20), st.integers(0, 20), st.integers(0, 10))
    def check(batches: list[list[Any]], parts: int, start: int, end: int, instant: int) -> None:
        with tempfile.TemporaryDirectory() as folder, Log(Path(folder) / "log.db") as log:
            log.create("t", parts)
            model: list[list[Any]] = [[] for _ in range(parts)]
            for batch in batches:
                keys, given, stamps = ([row[column] for row in batch] for column in range(3))
                appended = log.append("t", given, keys, stamps)
                assert sum(each.count for each in appended) == len(batch)
                left = list(batch)
                for each in appended:
                    assert each.first == len(model[each.partition])
                    found = log.read("t", each.partition, each.first, each.first + each.count).to_pylist()
                    rows = [(row["key"], row["value"], row["timestamp"].microsecond) for row in found]
                    assert [row for row in batch if row in rows and row[0] is not None] == [
                        row for row in rows if row[0] is not None
                    ]
                    for row in rows:
                        left.remove(row)
                    model[each.partition] += rows
                assert left == []
            assert log.starts("t") == [0] * parts
            assert log.ends("t") == [len(rows) for rows in model]
            for part, rows in enumerate(model):
                first, last = sorted((min(start, len(rows)), min(end, len(rows))))
                found = log.read("t", part, first, last).to_pylist()
                assert [(each["key"], each["value"], each["timestamp"].microsecond) for each in found] == rows[
                    first:last
                ]
                assert [each["offset"] for each in found] == list(range(first, last))
                late = [place for place, row in enumerate(rows) if row[2] >= instant]
                assert log.at_time("t", instant)[part] == min(late, default=len(rows))
                held = log.sizes("t", part, first, last)
                assert [many for _, many, _ in held] == [
                    many for at, many, _ in log.sizes("t", part, 0, len(rows)) if at < last and at + many > first
                ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MERGED", 200)
        patch.setattr(content, "LARGEST", 100)
        patch.setattr(partition, "SPREAD", 2)
        check()


def test_every_acknowledged_record_survives_kills_once_and_in_order(tmp_path: Path) -> None:
    run("killed", tmp_path / "log.db")
    acknowledged = dict.fromkeys(WRITERS, 0)
    for line in (tmp_path / "acknowledged").read_text().splitlines():
        name, after = line.split()
        acknowledged[name] = int(after)
    with Log(tmp_path / "log.db") as log:
        found = [values(log, part=part) for part in range(2)]
        assert sum(map(len, found)) == sum(log.ends("plays"))
        for name in WRITERS:
            numbers = [numbers_of([value for value in part if value is not None], name) for part in found]
            assert [] in numbers  # a key is in one partition
            (kept,) = [each for each in numbers if each] or [[]]
            assert kept == list(range(len(kept)))
            assert len(kept) >= acknowledged[name] > 0


def test_a_log_may_be_used_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    run("shared", tmp_path / "log.db")


def test_many_may_open_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    run("made", tmp_path / "log.db")


def test_the_journal_of_writes_does_not_grow_for_ever(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "JOURNAL", 300_000)
    for _ in range(40):
        log.append("plays", [os.urandom(50_000)])
    assert Path(f"{log.path}-wal").stat().st_size < 3_000_000
    assert len(values(log)) == 40


def test_threads_may_share_a_log(log: Log) -> None:
    def append(name: str) -> None:
        for number in range(15):
            log.append("plays", [f"{name}:{number}"] * 3)

    threads = [threading.Thread(target=append, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [value for value in values(log) if value is not None]
    assert len(found) == 6 * 15 * 3
    for name in "abcdef":
        assert numbers_of(found, name) == [number for number in range(15) for _ in range(3)]


def test_a_log_can_be_pickled(log: Log) -> None:
    log.append("plays", ["a"])
    with pickle.loads(pickle.dumps(log)) as other:
        assert values(other) == [b"a"]


def test_an_append_that_is_repeated_adds_nothing(log: Log) -> None:
    first = log.append("plays", ["a", "b"], producer="p", sequence=0)
    assert first == [Appended(0, 0, 2)]
    assert log.append("plays", ["c"], producer="p", sequence=5) == [Appended(0, 2, 1)]
    assert log.append("plays", ["a", "b"], producer="p", sequence=0) == first
    assert log.append("plays", ["d"], producer="q", sequence=0) == [Appended(0, 3, 1)]
    assert values(log) == [b"a", b"b", b"c", b"d"]
    assert (log.last("plays", "p"), log.last("plays", "q"), log.last("plays", "r")) == (5, 0, None)
    with pytest.raises(ConflictError, match=r"has reached sequence 5, and the log no longer knows append 3"):
        log.append("plays", ["e"], producer="p", sequence=3)
    with pytest.raises(ConflictError, match="belongs to another append"):
        log.append("plays", ["c"], producer="p", sequence=5, session="other")
    with pytest.raises(PipelineError, match=r"both producer= and sequence="):
        log.append("plays", ["e"], producer="p")


def test_only_the_last_sequences_are_remembered(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path / "log.db", clock) as log:
        log.create("plays")
        for number in range(40):
            log.append("plays", [f"{number}"], producer="p", sequence=number)
        assert log.append("plays", ["24"], producer="p", sequence=24) == [Appended(0, 24, 1)]
        with pytest.raises(ConflictError, match="no longer knows append 23"):
            log.append("plays", ["23"], producer="p", sequence=23)
        clock.spend(log, 30 * DAY)
        assert log.last("plays", "p") == 39
        clock.spend(log, 1)
        assert log.last("plays", "p") is None


def test_records_that_are_too_old_go_and_their_offsets_stay_unused(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path / "log.db", clock) as log:
        log.create("plays", max_age="1d")
        log.append("plays", ["old"] * 5, timestamps=[clock.now + 9 * DAY] * 5)  # what they say does not count
        clock.spend(log, DAY // 2)
        log.append("plays", ["new"] * 2)
        assert clock.spend(log, DAY // 2) == 0
        clock.now += 1
        assert log.retain() == {"plays": 5}
        assert (log.starts("plays"), log.ends("plays")) == ([5], [7])
        with pytest.raises(NotFoundError, match=r"offsets 2 to 4 of plays/0 are gone: .*; read from offset 5 on"):
            log.read("plays", 0, 2, 7)
        assert clock.spend(log, DAY) == 2
        assert (log.starts("plays"), log.ends("plays")) == ([7], [7])
        assert log.append("plays", ["next"]) == [Appended(0, 7, 1)]
        assert values(log) == [b"next"]


def test_merging_does_not_keep_what_is_too_old(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path / "log.db", clock) as log:
        log.create("plays", max_age="1d")
        for number in range(200):
            log.append("plays", [f"{number}"])
            clock.now += DAY // 40
            assert log.ends("plays")[0] - log.starts("plays")[0] <= 40 * 5 // 4 + 2
        assert len(log.sizes("plays", 0, *log.starts("plays"), *log.ends("plays"))) < 40


def test_the_oldest_go_when_a_topic_is_too_large(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path / "log.db", clock) as log:
        log.create("plays", partitions=2, max_bytes=4_000_000)
        for _ in range(10):
            log.append("plays", ["x" * 1_500_000])
            clock.now += 1
        assert log.retain() == {"plays": 8}
        assert (log.starts("plays"), log.ends("plays")) == ([4, 4], [5, 5])
        log.change("plays", max_bytes=1)
        assert log.retain() == {}, "the last block of a partition stays"


def test_appending_retains_by_itself_now_and_then(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path / "log.db", clock) as log:
        log.create("plays", max_age="1s")
        log.append("plays", ["a"])
        clock.now += 4 * SECOND
        log.append("plays", ["b"])
        assert log.starts("plays") == [0]
        clock.now += SECOND
        log.append("plays", ["c"])
        assert log.starts("plays") == [1]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(1, 9)), max_size=12),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 30),
)
def test_retention_takes_no_more_than_it_must(given: list[Any], max_age: int | None, max_bytes: int | None) -> None:
    held: list[Block] = []
    for place, (part, ended, size) in enumerate(sorted(given, key=lambda each: each[0])):
        held.append(Block(part, place, 1, size, 0, ended, ended, place))
    kept, gone = held, list[Block]()
    # Again until nothing is left to remove, as `retain` does: stamps may go back while the clock is in doubt.
    while found := stale(kept, max_age, max_bytes, 10):
        gone += found
        kept = [block for block in kept if block not in found]
    for part in (0, 1):
        numbers = [block.first for block in held if block.partition == part]
        left = [block.first for block in kept if block.partition == part]
        assert left == numbers[len(numbers) - len(left) :], "a partition loses its beginning only"
        if left and max_age is not None:
            assert 10 - held[left[0]].ended <= max_age
    if max_bytes is not None and len(kept) > len({block.partition for block in kept}):
        assert sum(block.bytes for block in kept) <= max_bytes
    if max_age is None and gone:
        assert max_bytes is not None
        assert sum(block.bytes for block in kept) + gone[-1].bytes > max_bytes


def test_a_topic_is_made_changed_and_removed(log: Log) -> None:
    made = log.create("clicks", 3, max_age="2h", max_bytes=10)
    assert made == Topic("clicks", 3, 7_200 * SECOND, 10)
    assert log.topics() == [made, Topic("plays")]
    assert log.change("clicks", max_age=None) == Topic("clicks", 3, None, 10)
    assert log.topic("clicks") == Topic("clicks", 3, None, 10)
    log.append("clicks", ["a"], producer="p", sequence=1)
    log.remove("clicks")
    log.create("clicks")
    assert (log.ends("clicks"), log.last("clicks", "p")) == ([0], None)


anything: Any = object()
MISTAKES: list[tuple[str, Callable[[Log], Any], str]] = [
    ("an unknown topic", lambda log: log.append("play", ["a"]), "unknown topic 'play'; did you mean 'plays'?"),
    ("how to make it", lambda log: log.append("clicks", ["a"]), "make it: millrace topics create clicks --log "),
    ("which there are", lambda log: log.remove("clicks"), "unknown topic 'clicks' (known: plays); name one of them"),
    ("a topic twice", lambda log: log.create("plays"), "exists already"),
    ("a bad name", lambda log: log.create("a b"), "letters, digits, '.', '_' and '-', not 'a b'"),
    ("a name that is a folder", lambda log: log.create(".."), "a topic is named by"),
    ("no partitions", lambda log: log.create("t", 0), "1 to 1024 partitions, not 0"),
    ("an age that is none", lambda log: log.create("t", max_age=0), "max_age must be at least 1"),
    ("an age without a unit", lambda log: log.create("t", max_age="7"), "does not parse"),
    ("an interceptor that is none", lambda log: log.create("t", interceptors=[anything]), "is the result of add, drop"),
    ("an unknown partition", lambda log: log.read("plays", 1, 0, 0), "has no partition 1; it has only 0 to 0"),
    (
        "offsets to come",
        lambda log: log.read("plays", 0, 0, 5),
        "offsets 0 to 4 of plays/0 are not there: it ends at 0",
    ),
    ("a value that is none", lambda log: log.append("plays", [{"a": 1}]), "write it as JSON first"),
    ("one value", lambda log: log.append("plays", "a"), "give values in a list, even one"),
    ("numbers", lambda log: log.append("plays", pa.array([1])), "values are bytes or text"),
    ("too few keys", lambda log: log.append("plays", ["a", "b"], ["k"]), "2 values but 1 keys"),
    ("a time that is none", lambda log: log.append("plays", ["a"], timestamps=["noon"]), "timestamps are datetimes"),
    ("headers that are none", lambda log: log.append("plays", ["a"], headers=[7]), "headers are names with bytes"),
    ("too few offsets", lambda log: log.report("r", "plays", [1, 2]), "has 1 partitions, but 2 offsets"),
]


@pytest.mark.parametrize(("make", "says"), [mistake[1:] for mistake in MISTAKES], ids=[name for name, *_ in MISTAKES])
def test_mistake(make: Callable[[Log], Any], says: str, log: Log) -> None:
    with pytest.raises(MillraceError) as caught:
        make(log)
    assert says in caught.value.message
    assert log.ends("plays") == [0]


def test_readers_say_how_far_they_have_come(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path / "log.db", clock) as log:
        log.create("plays", partitions=2, max_age="1d")
        log.append("plays", ["a"] * 3000)
        assert log.lag("plays") == {}
        log.report("charts", "plays", [1000, 1500])
        log.report("other", "plays", [0, 0])
        assert log.lag("plays") == {"charts": 500, "other": 3000}
        clock.spend(log, 2 * DAY)
        assert log.lag("plays") == {"charts": 0, "other": 0}, "what is gone cannot be read"


def fill(log: Log, size: int) -> tuple[int, str]:
    """How many records were appended before one was refused, and why it was."""
    for kept in range(1000):
        try:
            log.append("plays", [os.urandom(size)])
        except MillraceError as error:
            return kept, error.message
    raise AssertionError("it never filled up")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_no_more_keeps_all_or_nothing(log: Log) -> None:
    log.append("plays", ["before"])
    with files_of_at_most(300_000), pytest.raises(MachineError, match="nothing of this was kept"):
        log.append("plays", [os.urandom(1000) for _ in range(1000)])
    assert values(log) == [b"before"]
    assert log.append("plays", ["after"]) == [Appended(0, 1, 1)]
    assert values(log) == [b"before", b"after"]


def test_a_database_that_may_not_grow_is_a_full_disk(log: Log) -> None:
    with log._database.read() as connection:
        connection.execute("PRAGMA max_page_count = 20")
    kept, said = fill(log, 10_000)
    assert "the disk is full; nothing of this was kept: make room, and do it again" in said
    assert len(values(log)) == kept > 0


def test_a_full_disk_is_not_called_an_input_output_error(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite reports it so where it extends its shared memory, which is the first that a run does."""
    monkeypatch.setattr("millrace.eventlog.trouble.why_no_room", lambda path: errno.ENOSPC)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    with pytest.raises(MachineError) as caught, clear(log.path):
        raise error
    assert str(caught.value) == f"log {log.path}: the disk is full; make room, and do it again"


def test_a_disk_that_is_full_leaves_the_log_whole(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        with Log(disk / "log.db", clock=Clock()) as log:  # nothing gets old, however slow the disk is
            log.create("plays", max_age="1s")
            kept, said = fill(log, 50_000)
            assert "the disk is full" in said
            assert len(values(log)) == kept > 0
            assert fill(log, 50_000)[0] == 0
        with Log(disk / "log.db", clock=Clock()) as log:
            assert len(values(log)) == kept
        with sqlite3.connect(disk / "log.db") as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()


def test_who_may_not_write_is_told_so() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "in").mkdir()
        said = run("forbidden", Path(folder) / "in" / "log.db").splitlines()
        (Path(folder) / "in").chmod(0o755)
    assert len(said) == 3, said
    assert "it is read-only; nothing of this was kept" in said[0] or "may be written to" in said[0]
    assert "it cannot be opened or created; check that its folder exists and is writable" in said[1]
    assert "cannot create the folder of the log" in said[2]


def test_a_file_that_is_no_log_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 100)
    with pytest.raises(ConflictError, match=r"it is not an SQLite database \(.*\); choose another path"):
        Log(path)
    assert path.read_text() == "Dear diary, " * 100
    other = tmp_path / "views.db"
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE answers (a)")
    database.close()
    with pytest.raises(ConflictError, match="is a database, but not a log"):
        Log(other)
    database = sqlite3.connect(tmp_path / "newer.db")
    database.execute(f"PRAGMA application_id = {0x4D696C6C}")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ConflictError, match="created by another release"):
        Log(tmp_path / "newer.db")


def test_a_damaged_block_is_noticed_and_the_rest_goes_on(log: Log) -> None:
    for _ in range(3):
        log.append("plays", [os.urandom(1_000_000), b"end"])
    log.close()
    data = bytearray(log.path.read_bytes())
    data[-1_500_000] ^= 1
    log.path.write_bytes(data)
    with pytest.raises(CorruptError, match=r"the log is damaged at plays/0, offset 2; put a copy of it in its place"):
        log.read("plays", 0, 0, 6)
    assert len(log.read("plays", 0, 4, 6)) == 2
    assert log.append("plays", ["more"]) == [Appended(0, 6, 1)]


def test_a_damaged_database_is_noticed(log: Log) -> None:
    log.append("plays", ["a"] * 100)
    log.close()
    data = bytearray(log.path.read_bytes())
    data[8192:] = os.urandom(len(data) - 8192)
    log.path.write_bytes(data)
    with pytest.raises(CorruptError, match=r"the file is damaged \(.*\); put a copy in its place"):
        log.ends("plays")
    log.path.unlink()
    with pytest.raises(MachineError, match="it cannot be opened or created"):
        log.ends("plays")


def test_a_log_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.db")
    log.create("plays")
    log.append("plays", ["old"])
    other = Log(tmp_path / "other.db")
    other.create("plays")
    other.close()
    os.replace(tmp_path / "other.db", tmp_path / "log.db")
    (tmp_path / "log.db-wal").unlink(missing_ok=True)
    log.append("plays", ["new"])
    assert Log(tmp_path / "log.db").read("plays", 0, 0, 1)["value"].to_pylist() == [b"new"]
    (tmp_path / "log.db").unlink()
    with pytest.raises(MachineError, match="cannot be opened"):
        log.append("plays", ["nowhere"])
