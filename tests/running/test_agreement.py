"""Which parts belong together: the judgement alone, without any of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from millrace.model.connectors import Commit
from millrace.running.agreement import Parts, TopicNow, disagreement, is_unused
from millrace.spark.history import VIEWS, History, TopicRead

SINK = "sink table out.db out"
READ = TopicRead("plays", "uid", (5, 3), (11, None))
NOW = TopicNow("uid", (0, 0), (9, 3), (11, None))
HISTORY = History("c", 1, {VIEWS: 0, SINK: 7}, committed=7, digests={7: "seven", 8: "eight"}, read=(READ,))
SEVEN, EIGHT = (Commit("p", "c", batch, digest) for batch, digest in ((7, "seven"), (8, "eight")))
WHOLE = Parts(Path("charts"), HISTORY, {VIEWS: SEVEN, SINK: EIGHT}, topics={READ: NOW})


def test_parts_after_a_kill_at_any_point_belong_together() -> None:
    """Batch 8 is planned: each output has it, or not yet; Spark has committed it, or a power cut lost the commit."""
    for views in (SEVEN, EIGHT):
        for sink in (SEVEN, EIGHT):
            assert disagreement(replace(WHOLE, commits={VIEWS: views, SINK: sink})) is None
    assert disagreement(replace(WHOLE, history=replace(HISTORY, committed=3))) is None
    done = replace(HISTORY, committed=8)
    assert disagreement(replace(WHOLE, history=done, commits={VIEWS: EIGHT, SINK: EIGHT})) is None
    assert disagreement(Parts(Path("charts"), None, {VIEWS: None, SINK: None}, known=0, newest=0)) is None


def test_an_output_that_was_just_added_has_no_commit_yet() -> None:
    added = replace(HISTORY, outputs={VIEWS: 0, SINK: 8})
    assert disagreement(replace(WHOLE, history=added, commits={VIEWS: SEVEN, SINK: None})) is None
    assert disagreement(replace(WHOLE, commits={VIEWS: SEVEN, "sink topic new": None})) is None


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (replace(WHOLE, history=None), "the store was written from checkpoint c, and there is none in charts"),
        (replace(WHOLE, commits={VIEWS: None}), "the store holds nothing of checkpoint charts"),
        (replace(WHOLE, commits={SINK: Commit("p", "c", 6, "six")}), "has come to batch 7, but sink table out.db out"),
        (replace(WHOLE, commits={VIEWS: Commit("p", "c", 9, "nine")}), "has come to batch 8, but the store to 9"),
        (replace(WHOLE, commits={VIEWS: Commit("p", "c", 8, "other")}), "batch 8 in the store is not the one"),
        (replace(WHOLE, lost=("folder out lacks 1 of the 2 files",)), "folder out lacks 1 of the 2 files"),
        (replace(WHOLE, newest=2), "a checkpoint of generation 2"),
        (replace(WHOLE, topics={READ: replace(NOW, uid="other")}), "it was made again"),
        (replace(WHOLE, topics={READ: replace(NOW, ends=(9, 2))}), "plays/1 ends at offset 2"),
        (replace(WHOLE, topics={READ: replace(NOW, marks=(12, None))}), "offset 4 of plays/0 is not the record"),
    ],
)
def test_parts_that_do_not_belong_together(parts: Parts, reason: str) -> None:
    assert reason in str(disagreement(parts))


def test_a_record_that_retention_removed_cannot_be_compared() -> None:
    assert disagreement(replace(WHOLE, topics={READ: replace(NOW, starts=(5, 3), marks=(None, None))})) is None


def test_a_checkpoint_from_which_nothing_was_delivered_is_unused() -> None:
    begun = History("c", 1, {VIEWS: 0, SINK: 0}, digests={0: "zero"})
    nothing = Parts(Path("charts"), begun, {VIEWS: None, SINK: None})
    assert is_unused(nothing)
    assert is_unused(replace(nothing, commits={VIEWS: None})), "the sink was removed: views are written first"
    assert not is_unused(replace(nothing, commits={SINK: None})), "the views were removed, and may have answers"
    assert not is_unused(replace(nothing, commits={VIEWS: Commit("p", "c", 0, "zero"), SINK: None}))
    assert not is_unused(replace(nothing, history=replace(begun, committed=0)))
    assert not is_unused(replace(nothing, history=None))
