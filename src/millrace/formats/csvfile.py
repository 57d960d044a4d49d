"""Reads CSV as text: only the delimiter is found out, from the first row, if it is clear from it.

A row with too few or too many fields is refused with its number, and so is an unclosed quote. The file is cut between
two rows into pieces, each of which Arrow parses as a whole, so that a row may be longer than a piece usually is.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv

from millrace.model.errors import PipelineError

_PIECE = 4 << 20
"""The bytes of a file that are usually parsed at once."""
_LONGEST_ROW = 64 << 20
"""The maximum length of a row in bytes, so that an unclosed quote does not read the whole file into memory."""
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
        read = pyarrow.csv.read_csv(
            pa.BufferReader(piece),
            pyarrow.csv.ReadOptions(use_threads=False, block_size=len(piece) + 1, column_names=names),
            pyarrow.csv.ParseOptions(delimiter=between, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip
    except pa.ArrowInvalid as error:
        if str(error) != "Empty CSV file":  # there are only blank lines
            raise
        return []
    return list(read.to_batches())


def _where(error: str, first: int) -> str:
    """Arrow's error message, with row numbers that count the header and the pieces before; `first` is the first row."""
    message = error.removeprefix("CSV parse error: ")
    return re.sub(r"Row #(\d+)", lambda number: f"row {first + int(number[1]) - 1}", message)
