"""A topic as a source: how far a micro-batch goes, what it reads, and what it says if that is gone."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import ConflictError, MachineError, NotFoundError, log
from millrace.eventlog.topics import Log
from millrace.model.duration import SECOND, to_datetime
from millrace.sources.admission import Admission, share
from millrace.sources.feed import Feed
from millrace.sources.skipped import Skipped, read_skipped, write_skipped

SCHEMA = "k STRING"
OTHER = "d"
"""A key that is in another partition than a."""


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def feed(kept: Log, folder: Path, start: str = "earliest", clock: Clock | None = None) -> Feed:
    return Feed(log("plays", SCHEMA, start), str(kept.path), folder / "journal.json", 1.0, clock or Clock(), "charts")


@pytest.fixture
def kept(tmp_path: Path) -> Log:
    made = Log(tmp_path / "log.db")
    made.create("plays", partitions=2)
    return made


def put(kept: Log, many: int, key: str | None = None) -> None:
    values = [f'{{"k": "{number}"}}' for number in range(many)]
    kept.append("plays", values, None if key is None else [key] * many)


def test_a_log_that_went_away_is_not_made_again_where_it_was(kept: Log, tmp_path: Path) -> None:
    put(kept, 5, "a")
    followed = feed(kept, tmp_path)
    (split,) = followed.splits([0, 0], [5, 0])
    kept.close()
    for path in tmp_path.glob("log.db*"):
        path.unlink()
    for read in (split.read, lambda: feed(kept, tmp_path)):
        with pytest.raises(MachineError, match=r"log .*log\.db is gone; mount its file system again, or put it back"):
            read()
    assert not kept.path.exists()


def test_a_stream_reads_every_record_once_by_the_offsets_of_partitions(kept: Log, tmp_path: Path) -> None:
    put(kept, 5, "a")
    put(kept, 5, OTHER)
    followed = feed(kept, tmp_path)
    first = followed.latest(followed.start())
    assert (followed.start(), first) == ([0, 0], [5, 5])
    put(kept, 2, "a")
    put(kept, 3, OTHER)
    second = followed.latest(first)
    read = [split.read() for split in followed.splits(first, second)]
    places = {bundle.origin: bundle.offsets.tolist() for bundle in read}
    assert sorted(places.values()) == [[5, 6], [5, 6, 7]]
    assert set(places) == {"plays/0", "plays/1"}
    assert followed.latest(second) == second == followed.end()
    assert kept.lag("plays") == {"charts": 0}


def test_where_a_stream_starts_is_remembered(kept: Log, tmp_path: Path) -> None:
    put(kept, 4)
    begun = kept.ends("plays")
    assert sum(begun) == 4
    assert feed(kept, tmp_path, "latest").start() == begun
    put(kept, 4)
    assert feed(kept, tmp_path, "latest").start() == begun


def test_a_stream_may_start_at_a_time(kept: Log, tmp_path: Path) -> None:
    for second in (1, 2, 3):
        for key in ("a", OTHER):
            kept.append("plays", ["{}"], [key], timestamps=[to_datetime(second * SECOND)])
    source = log("plays", SCHEMA, to_datetime(2 * SECOND))
    followed = Feed(source, str(kept.path), tmp_path / "journal.json", 1.0, Clock(), "charts")
    assert followed.start() == [1, 1]


def test_what_retention_took_before_it_was_read_is_not_passed_over(kept: Log, tmp_path: Path) -> None:
    followed = feed(kept, tmp_path)
    begun = followed.start()
    kept.append("plays", ["x" * 1_000] * 10_000, ["a"] * 10_000)
    partition = kept.ends("plays").index(10_000)
    kept.change("plays", max_bytes=1_000_000)
    kept.retain()
    assert 0 < kept.starts("plays")[partition] < 10_000
    end = followed.latest(begun)
    first, *rest = followed.splits(begun, end)
    assert sum(split.end - split.start for split in (first, *rest)) == 10_000
    with pytest.raises(NotFoundError, match=f"plays/{partition} are gone"):
        first.read()


def test_records_before_a_recorded_gap_are_neither_planned_nor_read(kept: Log, tmp_path: Path) -> None:
    put(kept, 10, "a")
    partition = kept.ends("plays").index(10)
    skipped = Skipped().adding(kept.uid_of("plays"), "plays", partition, 2, 6).adding("other", "plays", partition, 0, 9)
    source = log("plays", SCHEMA)
    followed = Feed(source, str(kept.path), tmp_path / "journal.json", 1.0, Clock(), "charts", skipped=skipped)
    begun = followed.start()
    assert begun == [0, 0]
    end = followed.latest(begun)
    assert end[partition] == 10
    (split,) = followed.splits(begun, end)
    assert split.read().offsets.tolist() == [6, 7, 8, 9]
    assert kept.lag("plays") == {"charts": 4}
    inside = [7 if number == partition else 0 for number in range(2)]
    assert [split.start for split in followed.splits(inside, end)] == [7]


def test_skipped_records_are_kept_in_the_checkpoint(tmp_path: Path) -> None:
    assert read_skipped(tmp_path) == Skipped()
    skipped = Skipped().adding("a", "plays", 1, 2, 6).adding("a", "plays", 1, 6, 7).adding("b", "other", 0, 0, 3)
    assert (skipped.records, skipped.raised("a", [0, 4, 9]), skipped.raised("c", [1])) == (8, [0, 7, 9], [1])
    write_skipped(tmp_path, skipped)
    assert read_skipped(tmp_path) == skipped
    file = tmp_path / "skipped.json"
    for damaged in (file.read_text().replace("7", "8"), "{}", "[]", "", '{"topics": {"a": 1}}'):
        file.write_text(damaged)
        with pytest.raises(ValueError, match=r"\w"):
            read_skipped(tmp_path)


def test_a_slow_micro_batch_takes_less_and_a_fast_one_more(kept: Log, tmp_path: Path) -> None:
    put(kept, 400_000)
    clock = Clock()
    followed = feed(kept, tmp_path, clock=clock)
    at, taken = followed.start(), []
    for seconds in (9.0, 4.0, 2.0, 0.1, 0.1):
        after = followed.latest(at)
        taken.append(sum(after) - sum(at))
        at = after
        clock.now += seconds
    # The first one, in which everything starts, teaches nothing.
    assert taken[:4] == [100_000, 100_000, 50_000, 25_000]
    assert taken[4] > 25_000


@pytest.mark.parametrize("fixed", [0.0, 0.3, 0.9, 3.0])
@pytest.mark.parametrize("each", [1e-6, 2e-5])
def test_micro_batches_come_to_last_as_long_as_they_should(fixed: float, each: float) -> None:
    draw, admission, lasted = random.Random(7), Admission(target=1.0), []
    for _ in range(60):
        seconds = (fixed + each * admission.limit) * draw.uniform(0.9, 1.1)
        lasted.append(seconds)
        admission = admission.after(admission.limit, seconds)
    # Where starting one takes as long as it should last, half of the time at least is spent on records.
    expected = max(1.0, 2 * fixed)
    assert all(0.5 * expected < seconds < 2 * expected for seconds in lasted[20:]), lasted[20:]


@given(st.integers(1, 10_000_000), st.floats(0.01, 60))
def test_the_limit_moves_by_two_at_most_and_is_not_raised_by_too_little_to_do(taken: int, seconds: float) -> None:
    before = Admission(1.0)
    after = before.after(min(taken, before.limit), seconds)
    assert before.limit // 2 <= after.limit <= before.limit * 2
    if taken < before.limit:
        assert after.limit <= before.limit


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=6), st.integers(0, 3_000))
def test_partitions_share_the_limit(waiting: list[int], limit: int) -> None:
    taken = share(waiting, limit)
    assert all(0 <= some <= all_ for some, all_ in zip(taken, waiting, strict=True))
    assert sum(taken) == min(limit, sum(waiting))
    held_back = [some for some, all_ in zip(taken, waiting, strict=True) if some < all_]
    assert not held_back or max(taken) - min(held_back) <= 1


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("many", [1, 50])
def test_a_topic_that_was_made_again_is_not_read_as_if_it_were_the_old_one(
    kept: Log, tmp_path: Path, partitions: int, many: int
) -> None:
    put(kept, 10)
    at = feed(kept, tmp_path).latest([0, 0])
    kept.remove("plays")
    kept.create("plays", partitions)
    put(kept, many)
    with pytest.raises(ConflictError, match="it was removed and made again"):
        feed(kept, tmp_path).latest(at)
    with pytest.raises(ConflictError, match="it was removed and made again"):  # also what was planned before
        feed(kept, tmp_path).splits([0, 0], at)


def test_another_log_of_the_same_topics_is_not_read_on(kept: Log, tmp_path: Path) -> None:
    put(kept, 10)
    at = feed(kept, tmp_path).latest([0, 0])
    other = Log(tmp_path / "other.db")
    other.create("plays", partitions=2)
    with pytest.raises(ConflictError, match="is another log"):
        feed(other, tmp_path).latest(at)


def test_a_reader_without_a_name_holds_nobody_up(kept: Log, tmp_path: Path) -> None:
    put(kept, 10)
    again = Feed(log("plays", SCHEMA), str(kept.path), tmp_path / "again.json", 1.0, Clock())
    assert sum(again.latest(again.start())) == 10
    assert kept.lag("plays") == {}


def test_a_reader_that_is_forgotten_holds_nobody_up_until_it_reads_on(kept: Log, tmp_path: Path) -> None:
    put(kept, 10)
    followed = feed(kept, tmp_path)
    at = followed.latest(followed.start())
    assert kept.lag("plays") == {"charts": 10}
    kept.report("charts", "plays", [0, 0], "view other")
    assert kept.lag("plays") == {"charts": 10}, "the slowest member counts"
    kept.report("chartsy", "plays", at)
    kept.forget("charts")
    assert kept.lag("plays") == {"chartsy": 0}
    kept.forget("chartsy")
    followed.latest(at)
    assert kept.lag("plays") == {"charts": 0}
    with pytest.raises(NotFoundError, match="charts"):
        kept.forget("chart")
