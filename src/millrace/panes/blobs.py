"""State as named blobs for a key-value store: only changed blobs are written, and only unknown blobs are read.

A segment is immutable, so its rows are written once, in Arrow's IPC format; a bitmap beside them holds the live rows.
The blob `state` is the header: it lists the segments in order and holds the remaining state. Each write has a unique
name, and the header records which write every blob is from. So a reader that caches the state of an earlier write
knows which of its blobs are still valid.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from millrace.model.errors import ConflictError, CorruptError
from millrace.panes.advance import PaneState
from millrace.panes.joining import JoinState
from millrace.panes.store import RowStore, Segment, segment_of

FORMAT = 4
STATE = "state"
_STORES: dict[type[Any], tuple[str, ...]] = {
    PaneState: ("groups", "arrivals", "seen"),
    JoinState: ("left", "right"),
}
_NUMBERS: dict[type[Any], tuple[str, ...]] = {
    PaneState: ("watermark", "now", "dropped", "errors"),
    JoinState: ("watermarks", "dropped", "now"),
}
"""The fields of a state that the header holds: a number, or one for each side of a join."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")

State = TypeVar("State", bound=PaneState | JoinState)
Fetch: TypeAlias = Callable[[str], bytes | None]
"""Reads a blob by its name; None if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredState(Generic[State]):
    """A stored state, and the name of the write that each of its blobs is from."""

    state: State
    writings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Changes:
    """The blobs to put, by name, and the names of the blobs to remove."""

    put: Mapping[str, bytes]
    remove: tuple[str, ...]


def write(before: StoredState[State] | None, after: State, writing: str) -> tuple[StoredState[State], Changes]:
    """The changes that turn the blobs of one state into those of a later one; without `before`, all its blobs."""
    old = {} if before is None else dict(_segments(before.state))
    new = dict(_segments(after))
    put: dict[str, bytes] = {}
    for name, segment in new.items():
        known = old.get(name)
        if known is None:
            put[f"{name}/rows"] = to_bytes(segment.rows)
        if known is None or known.live is not segment.live:
            put[f"{name}/live"] = np.packbits(segment.live).tobytes()
    gone = tuple(f"{name}/{part}" for name in old if name not in new for part in ("rows", "live"))
    writings = {} if before is None else {name: was for name, was in before.writings.items() if name not in gone}
    writings |= dict.fromkeys((*put, STATE), writing)
    put[STATE] = _header(after, writings)
    return StoredState(after, writings), Changes(put, gone)


def read(fetch: Fetch, known: StoredState[PaneState] | None = None) -> StoredState[PaneState] | None:
    """The stored panes, or None if there are none. Blobs of `known` that are still valid are not fetched."""
    return read_as(PaneState, fetch, known)


def read_as(kind: type[State], fetch: Fetch, known: StoredState[State] | None = None) -> StoredState[State] | None:
    """As `read`, for a state of this kind."""
    written = fetch(STATE)
    if written is None:
        return None
    header = json.loads(written)
    if header["format"] != FORMAT:
        raise ConflictError(
            f"the state has format {header['format']}, and this version of Millrace reads format {FORMAT}",
            "run the version of Millrace that wrote it, or compute the views again: millrace replay",
        )
    writings = header["writings"]
    if known is not None and known.writings[STATE] == writings[STATE]:
        return known
    have = {} if known is None else dict(_segments(known.state))

    def segment(name: str, number: int) -> Segment:
        same = {
            part: name in have and known is not None and known.writings[f"{name}/{part}"] == writings[f"{name}/{part}"]
            for part in ("rows", "live")
        }
        if all(same.values()):
            return have[name]
        rows = have[name].rows if same["rows"] else from_bytes(_found(fetch, f"{name}/rows"))
        bits = np.unpackbits(np.frombuffer(_found(fetch, f"{name}/live"), np.uint8), count=len(rows))
        return segment_of(number, rows, bits.astype(np.bool_))

    fields: dict[str, Any] = {}
    for name in _STORES[kind]:
        numbers, following = header.get(name, ((), 0))
        fields[name] = RowStore(tuple(segment(f"{name}/{number}", number) for number in numbers), following)
    for name in _NUMBERS[kind]:
        fields[name] = tuple(header[name]) if isinstance(header[name], list) else header[name]
    return StoredState(kind(**fields), writings)


def to_bytes(table: pa.Table) -> bytes:
    """A table in Arrow's IPC stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def from_bytes(written: bytes) -> pa.Table:
    """The table that `to_bytes` wrote."""
    return pa.ipc.open_stream(written).read_all().combine_chunks()


def _segments(state: PaneState | JoinState) -> list[tuple[str, Segment]]:
    stores = _STORES[type(state)]
    return [(f"{name}/{segment.number}", segment) for name in stores for segment in getattr(state, name).segments]


def _header(state: PaneState | JoinState, writings: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"format": FORMAT, "writings": writings}
    header |= {name: getattr(state, name) for name in _NUMBERS[type(state)]}
    for name in _STORES[type(state)]:
        store: RowStore = getattr(state, name)
        header[name] = [[segment.number for segment in store.segments], store.next_number]
    return json.dumps(header).encode()


def _found(fetch: Fetch, name: str) -> bytes:
    written = fetch(name)
    if written is None:
        raise CorruptError(f"blob {name} of the state is missing", "compute the views again: millrace replay")
    return written
