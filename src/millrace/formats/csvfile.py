"""Reads CSV as text: only the delimiter is found out, from the first row, if it is clear from it.

`read_csv` reads a file of any size. It refuses a row with too few or too many fields, with its number, and an unclosed
quote. It cuts the file between two rows into pieces, each of which Arrow parses as a whole, so that a row may be longer
than a piece usually is. `records_of` divides a whole file into its records, and says which are wrong.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from millrace.formats.csvrows import rows_of
from millrace.formats.texts import as_texts
from millrace.model.errors import PipelineError

_PIECE = 4 << 20
"""The bytes of a file that are usually parsed at once."""
_LONGEST_ROW = 64 << 20
"""The maximum length of a row in bytes, so that an unclosed quote does not read the whole file into memory."""
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
    names = _names(path, header, between)
    row = 2
    for piece in _pieces(path, file, between.encode()):
        try:
            batches = _parsed(piece, names, between)
        except pa.ArrowInvalid as error:
            raise PipelineError(f"{path}: {_where(str(error), row)}", "correct the file") from None
        yield from batches
        row += sum(map(len, batches))


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
    step = max(1, len(whole) * _PIECE // max(1, whole.nbytes))
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
    cells = pyarrow.csv.read_csv(pa.BufferReader(data), *_options(names, between, max(_PIECE, data.size)))
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


@dataclass(frozen=True, slots=True)
class _Patterns:
    """Where rows end: a line break within a quoted field does not end a row."""

    rows: re.Pattern[bytes]
    """Whole rows, as many as there are."""
    row: re.Pattern[bytes]
    """A row without its line break, and without a quote that is not closed."""


def _patterns(between: bytes) -> _Patterns:
    within_field = rb"(?<=[^%b\r\n])" % re.escape(between)
    text, quoted = rb'[^"\r\n]++', within_field.replace(b"<=", b"<!") + rb'"[^"]*+(?:""[^"]*+)*+"'
    row = rb'(?:%b|%b|%b")*+' % (text, quoted, within_field)
    return _Patterns(re.compile(rb"(?:%b[\r\n])*+" % row), re.compile(row))


def _pieces(path: str, file: BinaryIO, between: bytes) -> Iterator[bytes]:
    """The file in pieces that end where a row ends."""
    patterns, rest = _patterns(between), b""
    while more := file.read(max(_PIECE, len(rest))):
        data = rest + more
        end = patterns.rows.match(data).end()  # type: ignore[union-attr]
        if end:
            yield data[:end]
        rest = data[end:]
        if len(rest) > _LONGEST_ROW:
            problem = "a row does not end" if patterns.row.fullmatch(rest) else "a quote is opened and not closed"
            raise PipelineError(f"{path}: {problem} within {_LONGEST_ROW >> 20} MB", "correct the file")
    if not patterns.row.fullmatch(rest):
        raise PipelineError(f"{path}: a quote is opened and never closed", "correct the file")
    if rest:
        yield rest


def _parsed(piece: bytes, names: list[str], between: str) -> list[pa.RecordBatch]:
    """The rows of a piece.

    Arrow's reader of streams would read the file in a thread of its own, and abort the process if it exits meanwhile.
    """
    try:
        read = pyarrow.csv.read_csv(pa.BufferReader(piece), *_options(names, between, len(piece) + 1))
    except pa.ArrowInvalid as error:
        if str(error) != "Empty CSV file":  # there are only blank lines
            raise
        return []
    return list(read.to_batches())


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


def _where(error: str, first: int) -> str:
    """Arrow's error message, with row numbers that count the header and the pieces before; `first` is the first row."""
    message = error.removeprefix("CSV parse error: ")
    return re.sub(r"Row #(\d+)", lambda number: f"row {first + int(number[1]) - 1}", message)
