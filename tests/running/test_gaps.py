"""Records that retention removed unread: which of them a pipeline can go on without."""

from dataclasses import replace
from pathlib import Path

from millrace.model.connectors import Commit
from millrace.running.agreement import Lost, Parts, TopicNow, gaps, is_skippable, is_written_in_part
from millrace.sources.skipped import Skipped
from millrace.spark.history import VIEWS, History, TopicRead

READ = TopicRead("plays", "uid", (10, 20), (1, 2))
IN_PROGRESS = replace(READ, since=(5, 20))
DONE = History("id", 1, {VIEWS: 0}, committed=3, digests={2: "b", 3: "c"}, read=(READ,))
REPEATED = replace(DONE, committed=2, read=(IN_PROGRESS,))


def parts(history: History, starts: tuple[int, int], committed: int = 3) -> Parts:
    (read,) = history.read
    now = TopicNow("uid", starts, (30, 30), (1, 2))
    return Parts(Path("checkpoint"), history, {VIEWS: Commit("charts", "id", committed, "c")}, topics={read: now})


def test_only_unread_records_are_a_gap() -> None:
    assert gaps(parts(DONE, (10, 20))) == []
    assert gaps(parts(DONE, (12, 21))) == [Lost("plays", "uid", 0, 10, 12), Lost("plays", "uid", 1, 20, 21)]
    assert str(gaps(parts(DONE, (12, 0)))[0]) == "retention removed offsets 10 to 11 of plays/0 unread"


def test_a_gap_that_the_checkpoint_skips_is_none_until_it_grows() -> None:
    skipped = replace(DONE, skipped=Skipped().adding("uid", "plays", 0, 10, 12))
    assert gaps(parts(skipped, (12, 0))) == []
    assert gaps(parts(skipped, (15, 0))) == [Lost("plays", "uid", 0, 12, 15)]


def test_a_micro_batch_in_progress_reads_its_records_again() -> None:
    assert gaps(parts(REPEATED, (5, 20))) == []
    assert gaps(parts(REPEATED, (7, 20))) == [Lost("plays", "uid", 0, 5, 7)]


def test_a_gap_in_a_micro_batch_in_progress_is_skipped_only_if_no_output_has_it() -> None:
    lost = Lost("plays", "uid", 0, 5, 7)
    assert not is_skippable(parts(REPEATED, (7, 20), committed=3), lost)
    assert is_skippable(parts(REPEATED, (7, 20), committed=2), lost)
    assert is_skippable(parts(REPEATED, (7, 21)), Lost("plays", "uid", 1, 20, 21)), "that partition is not read again"
    function = replace(REPEATED, outputs={VIEWS: 0, "sink function": 0})
    assert not is_skippable(parts(function, (7, 20), committed=2), lost), "a function may have got the answers"
    assert not is_written_in_part(parts(DONE, (7, 20)), "uid", 0, 5, 7), "nothing is read again"
