"""State as named blobs, for a store that keeps bytes: only what changed is written.

A segment never changes, so its rows are written once, as Arrow's own format; which of them still hold is
a row of bits beside them. A blob `state` names the segments in order and holds the rest. Reading them
back gives the state that was written.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.panes.advance import State
from millrace.panes.store import Segment, Store, segment_of

FORMAT = 1
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class Changes:
    """What to put under which name, and which names to remove."""

    put: Mapping[str, bytes]
    remove: tuple[str, ...]


def write(before: State | None, after: State) -> Changes:
    """What makes the blobs of one state those of a later one; of nothing, if there is none before."""
    old = {} if before is None else dict(_segments(before))
    new = dict(_segments(after))
    put = {"state": _header(after)}
    for name, segment in new.items():
        known = old.get(name)
        if known is None:
            put[f"{name}/rows"] = to_bytes(segment.rows)
        if known is None or known.live is not segment.live:
            put[f"{name}/live"] = np.packbits(segment.live).tobytes()
    gone = [name for name in old if name not in new]
    return Changes(put, tuple(f"{name}/{part}" for name in gone for part in ("rows", "live")))


def read(blobs: Mapping[str, bytes]) -> State:
    """The state that was written."""
    header = json.loads(blobs["state"])
    if header["format"] != FORMAT:
        raise ValueError(f"state of format {header['format']} cannot be read; this is format {FORMAT}")
    stores = {}
    for kind in ("groups", "arrivals"):
        numbers, following = header[kind]
        segments = tuple(_segment(blobs, kind, number) for number in numbers)
        stores[kind] = Store(segments, following)
    return State(stores["groups"], stores["arrivals"], header["watermark"], header["now"], header["dropped"])


def _segments(state: State) -> list[tuple[str, Segment]]:
    stores = (("groups", state.groups), ("arrivals", state.arrivals))
    return [(f"{kind}/{segment.number}", segment) for kind, store in stores for segment in store.segments]


def _header(state: State) -> bytes:
    header = {
        "format": FORMAT,
        "watermark": state.watermark,
        "now": state.now,
        "dropped": state.dropped,
        "groups": [[segment.number for segment in state.groups.segments], state.groups.next_number],
        "arrivals": [[segment.number for segment in state.arrivals.segments], state.arrivals.next_number],
    }
    return json.dumps(header).encode()


def to_bytes(table: pa.Table) -> bytes:
    """A table in Arrow's own format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def from_bytes(written: bytes) -> pa.Table:
    """The table that was written."""
    return pa.ipc.open_stream(written).read_all().combine_chunks()


def _segment(blobs: Mapping[str, bytes], kind: str, number: int) -> Segment:
    name = f"{kind}/{number}"
    rows = from_bytes(blobs[f"{name}/rows"])
    bits = np.unpackbits(np.frombuffer(blobs[f"{name}/live"], np.uint8), count=len(rows))
    return segment_of(number, rows, bits.astype(np.bool_))
