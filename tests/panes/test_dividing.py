"""State divided over other numbers of shards: what comes later finds it, and sums stay as they were."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from millrace import Pipeline, agg, memory, on, window
from millrace.model.duration import SECOND
from millrace.model.errors import CorruptError
from millrace.model.query import Query, Windowed
from millrace.panes.advance import Panes, PaneState
from millrace.panes.dividing import divided_joins, divided_panes
from millrace.panes.hashing import hash_keys
from millrace.panes.joining import JoinState
from millrace.panes.lift import lift
from millrace.plan.compile import compile
from millrace.plan.placing import placed_by

ROWS = memory("rows", "k STRING, u STRING, v BIGINT, at TIMESTAMP").event_time("at", delay="0s")
QUERY = (
    ROWS.group_by("k").window(window.fixed("1m"), lateness="1h").trigger(on.each()).retracting()
    .aggregate(n=agg.count(), total=agg.sum("v"))
)  # fmt: skip
PANES = Panes(QUERY)


def split(rows: range, shards: int) -> list[pa.Table]:
    """The partials of some rows for each shard, as the edge sends them."""
    keys = pa.array([f"key {number % 11}" for number in rows])
    at = np.array([number % 3 * 60 * SECOND for number in rows])
    whole = lift(PANES, [keys], at, [[], [pa.array(list(rows), pa.int64())]])
    owners = hash_keys([whole["key0"].combine_chunks()], len(whole)) % np.uint64(shards)
    return [whole.filter(pa.array(owners == shard)) for shard in range(shards)]


def advanced(states: list[PaneState], rows: range) -> tuple[list[PaneState], list[str]]:
    after, said = [], []
    for state, partials in zip(states, split(rows, len(states)), strict=True):
        state, tables = PANES.advance(state, partials, 0, 0)
        after.append(state)
        said += [repr(row) for table in tables for row in table.to_pylist()]
    return after, sorted(said)


def test_later_rows_find_the_state_of_their_key() -> None:
    alone, _ = advanced([PaneState()], range(100))
    states, _ = advanced([PaneState(), PaneState()], range(100))
    for number, shards in enumerate((5, 1, 3), 1):
        rows = range(100 * number, 100 * number + 40)
        alone, expected = advanced(alone, rows)
        states, said = advanced(divided_panes(states, ("key0",), shards), rows)
        assert said == expected
    assert sum(len(state.groups) for state in states) == len(alone[0].groups)


def test_counts_since_the_start_are_not_multiplied() -> None:
    states, _ = advanced([PaneState(), PaneState()], range(50))
    counted = [replace(state, dropped=3, errors=1) for state in states]
    made = divided_panes(counted, ("key0",), 4)
    assert (sum(state.dropped for state in made), sum(state.errors for state in made)) == (6, 2)
    joins = divided_joins([JoinState(dropped=(1, 2)), JoinState(dropped=(0, 5))], ("k0",), 3)
    assert [join.dropped for join in joins] == [(1, 7), (0, 0), (0, 0)]


def test_without_keys_the_first_shard_has_all() -> None:
    states, _ = advanced([PaneState()], range(50))
    first, *others = divided_panes(states, None, 3)
    assert len(first.groups) == len(states[0].groups)
    assert not any(len(state.groups) for state in others)


def test_shards_of_different_micro_batches_are_damage() -> None:
    with pytest.raises(CorruptError, match="are not from the same micro-batch"):
        divided_panes([PaneState(), PaneState(watermark=5)], ("key0",), 3)
    with pytest.raises(CorruptError):
        divided_joins([JoinState(), JoinState(now=5)], ("k0",), 3)


def test_a_stage_is_where_the_one_is_that_it_reads() -> None:
    def counted(stream: Windowed) -> Query:
        return stream.window(window.all_time()).trigger(on.each()).accumulating().aggregate(m=agg.count())

    later = memory("later", "k STRING, then TIMESTAMP").event_time("then", delay="0s")
    views = {
        "query": QUERY,
        "here": counted(QUERY.group_by("n", "k")),
        "away": counted(QUERY.group_by("n")),
        "once": counted(ROWS.dedup("u").group_by("k")),
        "paired": counted(ROWS.join(later, on="k", within=("0s", "5s")).group_by("u", "k")),
    }
    plan = compile(Pipeline("p", views=views))
    found = {stage.id: placed_by(plan, stage) for stage in plan.stages if stage.is_stateful}
    assert found.pop("view query") == ("key0",)
    assert found.pop("view here") == ("key1",)
    assert found.pop("view away") == ("key0",)
    assert found.pop("view once") is None
    assert found.pop("view paired") == ("key1",)
    assert list(found.values()) == [("k0",)]  # the join
