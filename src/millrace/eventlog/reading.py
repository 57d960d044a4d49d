"""Records of a partition by their offsets. Callers pass a connection with a snapshot."""

import sqlite3

import numpy as np
import pyarrow as pa

from millrace.eventlog import blocks
from millrace.eventlog.content import decode
from millrace.eventlog.records import SCHEMA
from millrace.eventlog.topic import find_topic
from millrace.model.errors import CorruptError, NotFoundError


def read(connection: sqlite3.Connection, topic: str, partition: int, start: int, end: int) -> pa.Table:
    """The records from `start` to before `end`, with their offsets; those of a gap are left out."""
    id, about = find_topic(connection, topic)
    if not 0 <= partition < about.partitions:
        raise NotFoundError(f"topic {topic!r} has no partition {partition}", f"it has only 0 to {about.partitions - 1}")
    where = f"{topic}/{partition}"
    _check_bounds(where, start, end, blocks.bounds(connection, id)[partition])
    tables, offsets, at = [SCHEMA.empty_table()], [np.arange(0)], start
    found = blocks.contents(connection, id, partition, start, end) if start < end else ()
    for first, records, content, block, checksum in found:
        last = min(end, first + records)
        if first > at:
            raise _missing(where, at)
        if content is not None:
            table = _decoded(block, checksum, records, where, first)
            tables.append(table.slice(at - first, last - at))
            offsets.append(np.arange(at, last))
        at = last
    if at < end:
        raise _missing(where, at)
    return pa.concat_tables(tables).combine_chunks().add_column(2, "offset", pa.array(np.concatenate(offsets)))


def at_time(connection: sqlite3.Connection, topic: str, instant: int) -> list[int]:
    """The first offset of each partition with a timestamp at or after an instant; its end if there is none."""
    id, _ = find_topic(connection, topic)
    offsets = []
    for partition, (_, end) in enumerate(blocks.bounds(connection, id)):
        first = blocks.first_since(connection, id, partition, instant)
        if first is not None:
            ((_, records, _, block, checksum),) = blocks.contents(connection, id, partition, first, first + 1)
            stamps = _decoded(block, checksum, records, f"{topic}/{partition}", first)["timestamp"]
            end = first + int(np.argmax(stamps.cast(pa.int64()).to_numpy() >= instant))
        offsets.append(end)
    return offsets


def _decoded(block: bytes | None, checksum: int, records: int, where: str, first: int) -> pa.Table:
    if block is None:
        raise _missing(where, first)
    table = decode(block, checksum, f"{where}, offset {first}")
    if len(table) != records:
        raise _missing(where, first)
    return table


def _missing(where: str, offset: int) -> CorruptError:
    return CorruptError(
        f"the log is damaged at {where}, offset {offset}: records are missing",
        "put a copy of it in its place, or skip what is missing: millrace repair FILE --yes",
    )


def _check_bounds(where: str, start: int, end: int, kept: tuple[int, int]) -> None:
    """Refuse offsets that retention removed or that are beyond the end."""
    if start >= end:
        return
    if start < kept[0]:
        raise NotFoundError(
            f"offsets {start} to {min(end, kept[0]) - 1} of {where} are gone: retention removed them",
            f"read from offset {kept[0]} on; for a pipeline that has not read them: millrace repair FILE",
        )
    if end > kept[1]:
        raise NotFoundError(
            f"offsets {max(start, kept[1])} to {end - 1} of {where} are not there: it ends at {kept[1]}",
            "is this another log than the one that was read before?",
        )
