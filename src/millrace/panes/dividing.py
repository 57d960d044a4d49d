"""State of some shards, divided anew over another number of them.

A row belongs to the shard that its key hashes to, as the rows that arrive do. What is counted since the start is kept
by the first shard, so that the sums stay as they were. All shards of a stage have the same clock and watermark.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.errors import AGAIN, CorruptError
from millrace.panes.advance import PaneState
from millrace.panes.floats import as_compared
from millrace.panes.grouping import keep
from millrace.panes.hashing import hash_keys
from millrace.panes.joining import JoinState
from millrace.panes.store import Located, RowStore, stack

Owners = npt.NDArray[np.uint64]
_NOWHERE = Located(np.zeros(0, np.intp), np.zeros(0, np.intp))


def divided_panes(states: Sequence[PaneState], keys: Sequence[str] | None, shards: int) -> list[PaneState]:
    """The states of a query's shards; `keys` are the columns that decide the shard. Without them, one shard has all."""
    groups = _divided([state.groups for state in states], keys, shards)
    arrivals = _divided([state.arrivals for state in states], keys, shards)
    seen = _divided([state.seen for state in states], None, shards)
    dropped, errors = sum(state.dropped for state in states), sum(state.errors for state in states)
    watermark, now = _same(state.watermark for state in states), _same(state.now for state in states)
    return [
        PaneState(
            groups[shard], arrivals[shard], watermark, now, 0 if shard else dropped, seen[shard], 0 if shard else errors
        )
        for shard in range(shards)
    ]


def divided_joins(states: Sequence[JoinState], keys: Sequence[str], shards: int) -> list[JoinState]:
    """The states of a join's shards; `keys` are the columns of its `on`."""
    left = _divided([state.left for state in states], keys, shards)
    right = _divided([state.right for state in states], keys, shards)
    watermarks, now = _same(state.watermarks for state in states), _same(state.now for state in states)
    lefts, rights = (sum(state.dropped[side] for state in states) for side in (0, 1))
    return [
        JoinState(left[shard], right[shard], watermarks, (0, 0) if shard else (lefts, rights), now)
        for shard in range(shards)
    ]


T = TypeVar("T")


def _same(values: Iterable[T]) -> T:
    """The value that all shards have. Each derives it from the same messages, so that another one is damage."""
    first, *others = values
    if any(other != first for other in others):
        raise CorruptError("the shards of the state are not from the same micro-batch", AGAIN)
    return first


def _divided(stores: Sequence[RowStore], keys: Sequence[str] | None, shards: int) -> list[RowStore]:
    rows = [keep(segment.rows, segment.live) for store in stores for segment in store.segments]
    living = [table for table in rows if len(table)]
    if not living:
        return [RowStore()] * shards
    whole = stack(living)
    if keys is None:
        return [RowStore().put(_NOWHERE, whole), *[RowStore()] * (shards - 1)]
    columns: list[pa.Array] = [as_compared(whole[name].combine_chunks()) for name in keys]
    owners: Owners = hash_keys(columns, len(whole)) % np.uint64(shards)
    return [RowStore().put(_NOWHERE, keep(whole, owners == shard)) for shard in range(shards)]
