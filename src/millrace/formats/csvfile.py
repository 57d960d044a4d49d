"""Reads CSV as text: only the delimiter is found out, from the first row, if it is clear from it.

A row with too few or too many fields is refused with its number, and so is an unclosed quote.
"""

import csv
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv

from millrace.model.errors import PipelineError, unreadable

_BLOCK = 4 << 20
"""The bytes of a file that are read at once."""
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
        yield from pyarrow.csv.open_csv(
            file,
            pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK, column_names=names),
            pyarrow.csv.ParseOptions(delimiter=between, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip
    except pa.ArrowInvalid as error:
        if str(error) != "Empty CSV file":  # the file has only a header
            raise


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
