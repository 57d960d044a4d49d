"""Files in a folder as a source: each file is read once, in the order in which it was found.

A file must be complete when it is found, so write it elsewhere and move it into the folder. Files whose name starts
with `.` or `_` are ignored. A journal stores the position of each file before the file is read, so that a repeated
micro-batch reads the same files.
"""

import json
import mmap
import os
from collections.abc import Container, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.eventlog.sealed import sealed, unsealed
from millrace.formats.compiled import kernel_now
from millrace.formats.compressed import SUFFIXES, UNREADABLE, decompressed
from millrace.formats.csvfile import records_of
from millrace.formats.texts import SPACES, as_texts
from millrace.model.accepted import accepted, as_type
from millrace.model.arrow import arrow_type
from millrace.model.errors import (
    FILE,
    CorruptError,
    MachineError,
    MillraceError,
    NotFoundError,
    PipelineError,
    refuse,
    unknown_option,
    unreadable,
)
from millrace.model.schema import Column, Schema
from millrace.model.stream import Source
from millrace.sources.bundle import LOGGED, Bundle, stamp_of

SPLIT = 64 << 20
"""The approximate size of a split, in bytes."""

_WITHOUT = f"millrace repair {FILE} --yes"
_MOVE_AWAY = f"move it away and go on without it: {_WITHOUT}"
_ZERO = 1023 >> 3
"""The exponent of 1.0 as float64 stores it, to the base 256."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file, by its name in the folder, with its size and its time of modification when it was found."""

    name: str
    size: int
    modified: int | None = None
    """The log time of its records, in microseconds; None in journals of earlier versions."""


class Files:
    """The files of a folder, by position."""

    def __init__(self, source: Source, journal: Path, skipped: Container[str] = ()) -> None:
        """Continue from the end of the journal. Files that are `skipped`, by path, are not read."""
        self._source = source
        self._folder = folder_of(source)
        self._most = int(dict(source.options).get("per_batch", "0"))
        self._journal, self._skipped = journal, skipped
        self._found = _journaled(journal)
        self._known = {found.name for found in self._found}

    def start(self) -> int:
        """The position before the first file."""
        return 0

    def end(self) -> int:
        """The position after all files; new files are found and journaled first."""
        new = list(self._look())
        if new:
            self._keep(new)
        return len(self._found)

    def latest(self, at: int, until: int | None = None) -> int:
        """The end of a micro-batch that starts at `at`; without `until`, new files are found first."""
        end = self.end() if until is None else until
        return max(at, min(end, at + self._most) if self._most else end)

    def splits(self, start: int, end: int) -> list["FileSplit"]:
        """The splits of the files between two positions; a large file has several."""
        format = dict(self._source.options)["format"]
        found = [(os.path.join(self._folder, each.name), each) for each in self._found[start:end]]
        return [
            split
            for path, each in found
            if path not in self._skipped
            for split in _split(path, each, format, self._source)
        ]

    def unreadable(self, start: int) -> Iterator[tuple[int, str, MillraceError]]:
        """The journaled files from a position on that cannot be read: position, path and error of each.

        Raises MachineError if the system refuses to read a file: that is no reason to go on without it.
        """
        for position, found in enumerate(self._found[start:], start):
            try:
                for split in self.splits(position, position + 1):
                    split.read()
            except MachineError:
                raise
            except MillraceError as error:
                yield position, os.path.join(self._folder, found.name), error

    def stamp(self) -> Hashable:
        """The state of the folder, which a new file changes."""
        return stamp_of(self._folder)

    def identity(self, at: object) -> None:
        """Nothing: the journal in the checkpoint names the files."""

    def _look(self) -> Iterator[Found]:
        try:
            entries = list(os.scandir(self._folder))
        except FileNotFoundError:
            problem = f"folder {self._folder} no longer exists"
            raise NotFoundError(problem, "restore it", self._source.place) from None
        sized = []
        for entry in entries:
            if entry.name not in self._known and not entry.name.startswith((".", "_")):
                with suppress(FileNotFoundError):  # it was moved away meanwhile
                    if entry.is_file():
                        sized.append((entry.stat(), entry.name))
        for about, name in sorted(sized, key=lambda each: (each[0].st_mtime_ns, each[1])):
            yield Found(name, about.st_size, about.st_mtime_ns // 1_000)

    def _keep(self, new: Sequence[Found]) -> None:
        self._journal.parent.mkdir(parents=True, exist_ok=True)
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.writelines(json.dumps(sealed(asdict(found))) + "\n" for found in new)
            journal.flush()
            os.fsync(journal.fileno())
        self._found += new
        self._known |= {found.name for found in new}


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A split of a file: bytes of a JSON file, row groups of a Parquet file, a whole CSV file."""

    path: str
    format: str
    schema: Schema
    start: int
    end: int
    size: int
    modified: int | None = None
    """The time of modification, which is the log time of the records."""
    delimiter: str | None = None
    """Between the fields of a CSV file; None if the first row tells."""
    is_strict: bool = False
    """Whether a Parquet file may have no columns beside those of the schema."""

    def read(self, wanted: Container[str] | None = None) -> Bundle:
        """The records. Raises MillraceError if the file cannot be read, or holds columns of other types."""
        try:
            if self.format == "parquet":
                return self._parquet(wanted)
            return replace(self._csv() if self.format == "csv" else self._json(), logged=self.modified)
        except FileNotFoundError:
            raise _gone(self.path) from None
        except UNREADABLE as error:
            raise unreadable(self.path, error, f"mend the file, or {_MOVE_AWAY}") from None

    def _csv(self) -> Bundle:
        with open(self.path, "rb") as file:
            data = decompressed(self.path, file).read()
        if not data.strip(b"\r\n"):
            return Bundle(self.path, np.arange(0), pa.array([], pa.string()))
        try:
            found = records_of(self.path, data, self.delimiter)
        except MillraceError as error:
            raise PipelineError(error.problem, f"correct the file, or {_MOVE_AWAY}") from None
        names = found.cells.column_names
        return Bundle(self.path, found.starts, found.texts, cells=found.cells, wrong=found.wrong, names=names)

    def _json(self) -> Bundle:
        if self.path.endswith(SUFFIXES):
            with open(self.path, "rb") as compressed:
                return lines(self.path, decompressed(self.path, compressed).read())
        with open(self.path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return lines(self.path, b"")
            whole = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        # A line belongs to the split that it starts in.
        start = whole.find(b"\n", self.start - 1) + 1 if self.start else 0
        if (self.start and not start) or start >= self.end:
            return lines(self.path, b"")
        end = whole.find(b"\n", self.end - 1) + 1 or len(whole)
        return lines(self.path, memoryview(whole)[start:end], start)

    def _parquet(self, wanted: Container[str] | None) -> Bundle:
        file = pq.ParquetFile(self.path)
        held = {field.name: field.type for field in file.schema_arrow}
        # Whether a file fits must not depend on which columns are read.
        for column in self.schema:
            if column.name in held and accepted(held[column.name], column.type) is None:
                self._as_type(pa.chunked_array([], held[column.name]), column)
        own = [name for name in held if name != LOGGED]
        extra = [name for name in own if name not in self.schema]
        if self.is_strict and extra:
            raise unknown_option("column", extra[0], self.schema.names).about(self.path)
        asked = [column for column in self.schema if wanted is None or column.name in wanted]
        groups = list(range(self.start, self.end))
        names = [column.name for column in asked if column.name in held] + ([LOGGED] if LOGGED in held else [])
        read = file.read_row_groups(groups, columns=names, use_threads=False)
        columns = {
            column.name: self._as_type(read[column.name], column)
            if column.name in held
            else pa.nulls(len(read), arrow_type(column.type) or pa.null())
            for column in asked
        }
        before = sum(file.metadata.row_group(group).num_rows for group in range(self.start))
        logged = read[LOGGED].to_numpy() if LOGGED in held else self.modified
        offsets = np.arange(before, before + len(read))
        return Bundle(self.path, offsets, rows=pa.table(columns), names=own, logged=logged)

    def _as_type(self, found: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
        try:
            return as_type(found, column.type, f"{self.path}: column {column.name}")
        except MillraceError as error:
            raise PipelineError(error.problem, f"correct the schema of the source, or {_MOVE_AWAY}") from None


def _gone(path: str) -> NotFoundError:
    problem = f"file {path} no longer exists, but the pipeline still needs it"
    return NotFoundError(problem, f"restore the file, or go on without it: {_WITHOUT}")


def lines(origin: str, data: bytes | memoryview, begin: int = 0) -> Bundle:
    """The lines of a text that are not blank, with the byte at which each starts."""
    if begin == 0 and bytes(data[:3]) == b"\xef\xbb\xbf":
        data, begin = data[3:], 3
    ends, is_ascii = _line_ends(data)
    if not len(ends) or ends[-1] < len(data):
        ends = np.append(ends, len(data))
    starts = np.concatenate([[0], ends])
    # Arrow stores texts one after the other, like lines: nothing is copied, and each keeps its line break.
    kind, width = (pa.large_string(), np.int64) if len(data) >= 1 << 31 else (pa.string(), np.int32)
    cuts = starts.astype(width)
    buffers = [None, pa.py_buffer(cuts), pa.py_buffer(data)]
    texts = pa.Array.from_buffers(kind, len(ends), buffers)
    offsets = starts[:-1] + np.int64(begin)
    try:
        if not is_ascii:
            texts.validate(full=True)
    except pa.ArrowInvalid:
        texts = as_texts(texts.view(pa.large_binary() if kind == pa.large_string() else pa.binary()))
    blank = np.diff(cuts) <= 2
    if blank.any():
        kept = ~blank
        for row in np.flatnonzero(blank):
            text = texts[row].as_py()
            kept[row] = text is None or text.strip(SPACES) != ""
        texts, offsets = texts.filter(pa.array(kept)), offsets[kept]
    return Bundle(origin, offsets, texts)


def _line_ends(data: bytes | memoryview) -> tuple[npt.NDArray[np.int64], bool]:
    """The ends of lines, and whether all of the text is ASCII.

    The search reads pieces that fit into the CPU's cache, and eight bytes at a time, because few bytes end a line.
    """
    whole, step = np.frombuffer(data, np.uint8), 1 << 18
    kernel = kernel_now()
    if kernel is not None:
        return _compiled_line_ends(kernel, whole, step)
    even = len(whole) // 8 * 8
    matches = np.empty(step, np.bool_)
    found, is_ascii = [np.zeros(0, np.int64)], True
    for start in range(0, even, step):
        piece = whole[start : min(start + step, even)]
        match = np.equal(piece, ord("\n"), out=matches[: len(piece)])
        words = match.view(np.uint64)
        places = np.flatnonzero(words != 0)
        held = words[places]
        if (held & (held - 1)).any():  # two lines end within eight bytes
            found.append(np.flatnonzero(match) + (start + 1))
        else:  # each is a power of 256, which the exponent of a float shows
            found.append(places * 8 + ((held.astype(np.float64).view(np.int64) >> 55) - _ZERO) + (start + 1))
        is_ascii = is_ascii and int(piece.max()) < 128
    found.append(np.flatnonzero(whole[even:] == ord("\n")) + (even + 1))
    return np.concatenate(found), is_ascii and bool((whole[even:] < 128).all())


def _compiled_line_ends(
    kernel: ModuleType, whole: npt.NDArray[np.uint8], step: int
) -> tuple[npt.NDArray[np.int64], bool]:
    even, ends = len(whole) // 64 * 64, np.empty(step, np.int64)
    found, is_ascii = [np.zeros(0, np.int64)], True
    for start in range(0, even, step):
        many = kernel.line_ends(whole.ctypes.data + start, min(step, even - start), start, ends)
        is_ascii = is_ascii and many >= 0
        found.append(ends[: many if many >= 0 else ~many].copy())
    found.append(np.flatnonzero(whole[even:] == ord("\n")) + (even + 1))
    return np.concatenate(found), is_ascii and bool((whole[even:] < 128).all())


def folder_of(source: Source) -> str:
    """The folder of a source. Refuses one that does not exist or is a file."""
    if not os.path.isdir(source.name):
        if os.path.exists(source.name):
            raise refuse(f"{source.name} is a file, not a folder", source.place, "pass a folder to files()")
        advice = "create the folder, or correct the path"
        raise NotFoundError(f"folder {source.name} does not exist", advice, source.place)
    return os.path.abspath(source.name)


def _split(path: str, found: Found, format: str, source: Source) -> Iterator[FileSplit]:
    if format == "parquet":
        yield from _row_groups(path, found, source)
        return
    # Whether a line break ends a record of CSV depends on all quotes before it.
    pieces = 1 if path.endswith(SUFFIXES) or format == "csv" else max(1, -(-found.size // SPLIT))
    ends = [found.size * piece // pieces for piece in range(pieces + 1)]
    between = dict(source.options).get("delimiter")
    for start, end in pairwise(ends):
        yield FileSplit(path, format, source.schema, start, end, end - start, found.modified, between)


def _row_groups(path: str, found: Found, source: Source) -> Iterator[FileSplit]:
    try:
        about = pq.read_metadata(path)
    except FileNotFoundError:
        raise _gone(path) from None
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(path, error, f"mend the file, or {_MOVE_AWAY}") from None
    start = size = 0
    for group in range(about.num_row_groups):
        size += about.row_group(group).total_byte_size
        if size >= SPLIT or group == about.num_row_groups - 1:
            yield FileSplit(
                path, "parquet", source.schema, start, group + 1, size, found.modified, is_strict=source.is_strict
            )
            start, size = group + 1, 0


def _journaled(journal: Path) -> list[Found]:
    """The files in the journal; a last line that a crash cut off was never used, and is removed."""
    try:
        whole = journal.read_bytes()
    except FileNotFoundError:
        return []
    good = whole[: whole.rfind(b"\n") + 1]
    if len(good) < len(whole):
        os.truncate(journal, len(good))
    try:
        return [Found(**unsealed(line)) for line in good.splitlines()]
    except (ValueError, TypeError):
        raise CorruptError(
            f"the journal {journal} is damaged", "compute the views again: millrace replay FILE"
        ) from None
