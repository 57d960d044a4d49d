"""Reads CSV as text: only the delimiter is found out, from the first row, if it is clear from it.

`read_csv` reads a file of any size in batches. It refuses a row with too few or too many fields, with its number, and
an unclosed quote. `records_of` divides a whole file into its records, and says which are wrong.
"""

import csv
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from millrace.formats.csvrows import rows_of
from millrace.formats.texts import as_texts
from millrace.model.errors import PipelineError, unreadable

_BLOCK = 4 << 20
"""The bytes of a file that are read at once."""
_HEADER = re.compile(rb"[\r\n]*[^\r\n]*(\r\n|\n|\r)?")
_BETWEEN = (b",", b";", b"\t", b"|")
"""The usual delimiters."""
_QUOTED = re.compile(rb'"[^"]*"')
_UNUSUAL = re.compile(rb"[\x1e\x1f:^~!]")
"""Characters that separate columns in some files, and that the name of a single column hardly has."""


def read_csv(
    path: str, file: BinaryIO, delimiter: str | None = None, unclear: str = "separate the columns with commas"
) -> Iterator[pa.RecordBatch]:
    """Rows of texts, with the column names of the first row; an empty unquoted field is NULL.

    `unclear` is the advice if the first row does not tell the delimiter.
    """
    header = file.readline()
    between = delimiter or _delimiter(path, header, unclear)
    quotes = _Quotes(file)
    before: pa.RecordBatch | None = None
    try:
        for batch in _rows(quotes, _names(path, header, between), between):
            if before is not None:
                yield before
            before = batch
    except pa.ArrowInvalid as error:
        if before is not None:
            yield before
        raise PipelineError(f"{path}: {_where(str(error))}", "correct the file") from None
    if quotes.count % 2:  # the unclosed quote swallowed the end of the last batch
        raise PipelineError(f"{path}: a quote is opened and never closed", "correct the file")
    if before is not None:
        yield before


def _delimiter(path: str, header: bytes, unclear: str) -> str:
    """The delimiter that the first row shows. Refuses a row that may have one of several, or an unusual one."""
    plain = _QUOTED.sub(b"", header)
    counts = {between: plain.count(between) for between in _BETWEEN}
    most = [between.decode() for between, count in counts.items() if count == max(counts.values())]
    if len(most) == 1:
        return most[0]
    if any(counts.values()):
        raise PipelineError(
            f"{path}: it is not clear whether {most[0]!r} or {most[1]!r} separates the columns", unclear
        )
    if other := _UNUSUAL.search(plain):
        found = other[0].decode()
        raise PipelineError(f"{path}: the first row names one column, or {found!r} separates the columns", unclear)
    return ","


@dataclass(frozen=True, slots=True, eq=False)
class CsvRecords:
    """The records of a CSV file, in order."""

    starts: npt.NDArray[np.int64]
    """The byte at which each starts."""
    texts: pa.Array
    """Each as written, with its line break; None if it is not UTF-8."""
    cells: pa.Table
    """The fields of those that are not in `wrong`, as texts; an empty unquoted field is NULL."""
    wrong: dict[int, str]
    """The records that cannot be divided into fields, with the reasons."""


def records_of(path: str, data: bytes, delimiter: str | None = None) -> CsvRecords:
    """Divide a CSV file into records; its first row names the columns. Refuses a file without such a row."""
    header = _HEADER.match(data)[0]  # type: ignore[index]
    between = delimiter or _delimiter(path, header, 'name the delimiter: files(..., delimiter=";")')
    names = _names(path, header.strip(b"\r\n"), between)
    body = memoryview(data)[len(header) :]
    rows = rows_of(body, between)
    texts = as_texts(_slices(body, rows.starts, rows.ends))
    wrong = {
        int(place): f"it has {rows.fields[place]} fields, not {len(names)} as the first row"
        for place in np.flatnonzero(rows.fields != len(names))
    }
    wrong |= {int(place): "it is not text in UTF-8" for place in np.flatnonzero(texts.is_null().to_numpy(False))}
    if rows.is_open:
        wrong[len(texts) - 1] = "a quote is opened and never closed"
    whole = texts.take(pa.array(np.delete(np.arange(len(texts)), list(wrong)))) if wrong else texts
    step = max(1, len(whole) * _BLOCK // max(1, whole.nbytes))
    cells = [_cells(whole.slice(at, step), names, between) for at in range(0, len(whole), step)]
    empty = pa.schema([(name, pa.string()) for name in names]).empty_table()
    return CsvRecords(len(header) + rows.starts, texts, pa.concat_tables([empty, *cells]), wrong)


def _slices(data: memoryview, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> pa.Array:
    """The parts of the data between starts and ends, which must not overlap."""
    cuts = np.stack([starts, ends], axis=1).ravel() if len(starts) else np.zeros(1, np.int64)
    parts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(data)]
    )
    return parts.take(pa.array(np.arange(0, len(cuts) - 1, 2)))


def _cells(records: pa.Array, names: list[str], between: str) -> pa.Table:
    offsets = np.frombuffer(records.buffers()[1], np.int64)[records.offset : records.offset + len(records) + 1]
    data = records.buffers()[2][int(offsets[0]) : int(offsets[-1])]
    cells = pyarrow.csv.read_csv(pa.BufferReader(data), *_options(names, between, max(_BLOCK, data.size)))
    assert len(cells) == len(records)
    return cells


def _names(path: str, header: bytes, between: str) -> list[str]:
    try:
        names = next(csv.reader([header.decode("utf-8-sig")], delimiter=between, strict=True), [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise PipelineError(f"{path}: the first row must name the columns: {error}") from None
    twice = [name for name in names if names.count(name) > 1]
    if not names or twice:
        problem = f"the first row names column {twice[0]!r} twice" if twice else "the first row names no columns"
        raise PipelineError(f"{path}: {problem}")
    return names


def _rows(file: "_Quotes", names: list[str], between: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from pyarrow.csv.open_csv(file, *_options(names, between, _BLOCK))
    except pa.ArrowInvalid as error:
        if str(error) != "Empty CSV file":  # the file has only a header
            raise


def _options(
    names: list[str], between: str, block: int
) -> tuple[pyarrow.csv.ReadOptions, pyarrow.csv.ParseOptions, pyarrow.csv.ConvertOptions]:
    return (
        pyarrow.csv.ReadOptions(use_threads=False, block_size=block, column_names=names),
        pyarrow.csv.ParseOptions(delimiter=between, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )  # fmt: skip


def _where(error: str) -> str:
    """Arrow's error message, with row numbers that count the header."""
    message = error.removeprefix("CSV parse error: ")
    return re.sub(r"Row #(\d+)", lambda number: f"row {int(number[1]) + 1}", message)


class _Quotes(io.RawIOBase):
    """A file that counts the quotes read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Read some bytes."""
        data = self._file.read(size)
        self.count += data.count(b'"')
        return data


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A file; `-` is stdin. Refuses a file that cannot be read."""
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from None
