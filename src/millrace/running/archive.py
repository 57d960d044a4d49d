"""The archive of a batch layer: a folder of Parquet files, each with the records of a partition between two offsets.

A file stores which topic its records come from, and the mark of the last one, by which the log recognises its own
history. So an archive of another log is noticed, and a log that was put back or made again. Offsets that have no file,
because an older copy of the archive was put back or a file was deleted, are archived again while the log has them.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.edge.decode import JsonDecoder
from millrace.eventlog.durable import write_whole
from millrace.eventlog.topics import Log
from millrace.formats.texts import as_texts
from millrace.model.errors import ConflictError, CorruptError, NotFoundError
from millrace.model.stream import Source
from millrace.sources.bundle import LOGGED

_STEP = 500_000
"""The maximum number of records in a file of the archive."""
_ABOUT = b"millrace"
"""The key of the description in the metadata of a file."""


@dataclass(frozen=True, slots=True, order=True)
class Archived:
    """A file of the archive: the records from offset `first` to before `end`."""

    first: int
    end: int
    path: Path
    since: int
    """The first offset of the partition when the archive was begun."""
    topic: str
    """The uid of the topic."""
    mark: int | None
    """The mark of the last record."""


def archive(log: Log, source: Source, again: str) -> int:
    """Archive the records that have no file; returns their number. Leaves out records that do not fit.

    The stream reports those. Refuses an archive that does not belong to the log; `again` is the command to fill one.
    """
    assert source.archive is not None
    folder = Path(source.archive)
    folder.mkdir(parents=True, exist_ok=True)
    uid, decoder, added = log.uid_of(source.name), JsonDecoder(source.schema, strict=source.is_strict), 0
    for partition, (start, end) in enumerate(zip(log.starts(source.name), log.ends(source.name), strict=True)):
        where = f"{source.name}/{partition}"
        files = _files(folder, source.name, partition)
        reason = _disagreement(log, source.name, partition, files, end)
        if reason is not None:
            raise ConflictError(
                f"archive {folder} does not belong to the log: {reason}",
                f"put the archive of this log there; or move {folder} aside, and fill another from the log: {again}",
            )
        since = files[0].since if files else start
        for begin, stop in unarchived(files, since, end):
            if begin < start:
                raise NotFoundError(
                    f"offsets {begin} to {min(start, stop) - 1} of {where} are gone and not in archive {folder}",
                    f"put back a copy of the archive that has them; or raise the retention of the topic, move {folder} "
                    f"aside, and fill another from the records that are left: {again}",
                )
            for first in range(begin, stop, _STEP):
                last = min(stop, first + _STEP)
                records = log.read(source.name, partition, first, last)
                rows, misfits = decoder.decode(as_texts(records["value"].combine_chunks()))
                fitting = np.delete(np.arange(len(records)), [misfit.row for misfit in misfits])
                rows = rows.append_column(LOGGED, records["timestamp"].cast(pa.int64()).take(pa.array(fitting)))
                about = {"topic": uid, "mark": _mark(log, source.name, partition, last), "since": since}
                _write(folder / f"{source.name}-{partition}-{first:016}-{last:016}.parquet", rows, about)
                added += last - first
    return added


def unarchived(files: Sequence[Archived], since: int, end: int) -> Iterator[tuple[int, int]]:
    """The offsets between `since` and `end` that no file has, as ranges; the files do not overlap, and are in order."""
    at = since
    for each in files:
        if at < each.first:
            yield at, each.first
        at = each.end
    if at < end:
        yield at, end


def _disagreement(log: Log, topic: str, partition: int, files: Sequence[Archived], end: int) -> str | None:
    """The reason why the files of a partition are not of this log; None if they are."""
    uid, before = log.uid_of(topic), 0
    for each in files:
        if each.topic != uid:
            return f"{each.path.name} is of another topic {topic!r}, or of one that was made again"
        if each.end > end:
            return f"it has {topic}/{partition} up to offset {each.end - 1}, but the log only up to {end - 1}"
        mark = _mark(log, topic, partition, each.end)
        if None not in (mark, each.mark) and mark != each.mark:
            return f"offset {each.end - 1} of {topic}/{partition} is another record in the log"
        if each.first < before:
            return f"{each.path.name} repeats offsets of another file"
        before = each.end
    return None


def _mark(log: Log, topic: str, partition: int, end: int) -> int | None:
    """The mark of the record before an offset of a partition."""
    offsets = [end if number == partition else 0 for number in range(log.topic(topic).partitions)]
    return log.marks(topic, offsets)[partition]


def _files(folder: Path, topic: str, partition: int) -> list[Archived]:
    """The files of a partition, by their first offset."""
    named = re.compile(rf"{re.escape(topic)}-{partition}-\d+-\d+\.parquet")
    return sorted(_described(path) for path in folder.iterdir() if named.fullmatch(path.name))


def _described(path: Path) -> Archived:
    try:
        about = json.loads((pq.read_schema(path).metadata or {})[_ABOUT])
        first, end = map(int, path.stem.split("-")[-2:])
        return Archived(first, end, path, about["since"], about["topic"], about["mark"])
    except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError):
        raise CorruptError(
            f"{path} of the archive is damaged, or was not written by this version of Millrace",
            "move it aside, and run this again: its records are archived again while the log has them",
        ) from None


def _write(path: Path, rows: pa.Table, about: Mapping[str, object]) -> None:
    described = rows.replace_schema_metadata({_ABOUT: json.dumps(about)})
    write_whole(path, lambda whole: pq.write_table(described, whole))
