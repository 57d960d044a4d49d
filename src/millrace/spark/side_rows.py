"""The rows of the sides of a join, as changes on their way to its shards."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millrace.model.arrow import arrow_type
from millrace.model.joining import JoinSpec
from millrace.model.stream import JoinStream, Source, find_event_time, only_from
from millrace.panes.blobs import to_bytes
from millrace.panes.floats import as_compared
from millrace.panes.hashing import hash_keys
from millrace.panes.sides import AT as SIDE_AT
from millrace.panes.sides import DIFF as SIDE_DIFF
from millrace.spark.messages import PARTIALS, Message, TaskReport


def side_rows(join: JoinStream, side: int, rows: pa.Table, source: Source | None = None) -> pa.Table:
    """Rows of a source as changes of a side of a join; of which source, if the side has a union with answers."""
    stream = join.sides[side]
    event_time = find_event_time(stream if source is None else only_from(stream, source))
    assert event_time is not None
    rows = rows.filter(rows[event_time.column].is_valid())  # others only close an epoch
    at = rows[event_time.column].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return as_changes(join.spec, side, rows, at, pa.array(np.ones(len(rows), np.int8)))


def as_changes(spec: JoinSpec, side: int, rows: pa.Table, at: pa.Array, diffs: pa.Array) -> pa.Table:
    """Rows of a side of a join with their event times and diffs."""
    columns = {column.name: typed(rows[column.name], column.type) for column in spec.columns(side)}
    return pa.table({**columns, SIDE_AT: at, SIDE_DIFF: diffs})


def by_key(
    spec: JoinSpec, number: int, sequence: int, changes: list[pa.Table], report: TaskReport, shards: int
) -> Iterator[Message]:
    """A message to each shard, with the changes of a side of a join that have its keys."""
    text = report.to_json()
    whole = pa.concat_tables(changes).combine_chunks() if changes else None
    owners = None
    if whole is not None:
        keys = [as_compared(whole[name].combine_chunks()) for name in spec.on]
        owners = hash_keys(keys, len(whole)) % np.uint64(shards)
    for shard in range(shards):
        own = None if whole is None else whole.filter(pa.array(owners == shard))
        payload = None if own is None or not len(own) else to_bytes(own)
        yield Message(shard, number, sequence, PARTIALS, text, payload)


def typed(column: pa.ChunkedArray, type: str) -> pa.Array:
    """A column with the Arrow type of an SQL type; an unknown type changes nothing."""
    kind = arrow_type(type)
    whole = column.combine_chunks()
    return whole if kind is None else whole.cast(kind)
