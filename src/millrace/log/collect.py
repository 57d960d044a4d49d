"""Records from files, on their way into a topic: JSON lines and CSV, a chunk at a time."""

import csv
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from millrace.log.bundle import as_texts
from millrace.log.condition import are_objects
from millrace.log.duck import asked
from millrace.log.files import lines
from millrace.log.typed import pointer
from millrace.model.errors import ModelError, unknown

FORMATS = ("json", "csv")
_CHUNK = 4 << 20
"""How many bytes of a file are sent together."""
_BETWEEN = (b",", b";", b"\t", b"|")
"""What may stand between the columns of CSV."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that are sent together."""

    values: pa.Array
    lines: npt.NDArray[np.int64]
    """Where each of them is: the number of its line, or of its row, from 1."""
    size: int
    """How many bytes of the file they take."""


def chunks(path: str, format: str) -> Iterator[Chunk]:
    """The records of a file; `-` is what comes in. Refuses a file that cannot be read."""
    if format not in FORMATS:
        raise ModelError(unknown("format", format, FORMATS))
    if path != "-" and not Path(path).is_file():
        raise ModelError(f"there is no file {path}")
    yield from _csv(path) if format == "csv" else _json(path)


def first_misfit(values: pa.Array) -> int | None:
    """The place of the first record that is not a JSON object, if there is one."""
    wrong = np.flatnonzero(~are_objects(values))
    return int(wrong[0]) if len(wrong) else None


def keys_of(values: pa.Array, field: str) -> pa.Array:
    """A field of each record, as text, to be its key."""
    given = {"given": pa.table({"value": as_texts(values)})}
    return asked("SELECT json_extract_string(value, ?) FROM given", given, [pointer(field)]).column(0).combine_chunks()


def _json(path: str) -> Iterator[Chunk]:
    line, rest = 1, b""
    with _opened(path) as file:
        # Of what is piped in, those are taken that are there.
        read = file.read1 if path == "-" else file.read  # type: ignore[attr-defined]
        while more := read(_CHUNK):
            data = rest + more
            whole, rest = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
            if whole:
                yield _chunk(path, whole, line)
                line += whole.count(b"\n")
    if rest:
        yield _chunk(path, rest, line)


def _chunk(path: str, data: bytes, line: int) -> Chunk:
    bundle = lines(path, data)
    assert bundle.texts is not None
    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    return Chunk(bundle.texts, line + np.searchsorted(breaks, bundle.offsets), len(data))


def _csv(path: str) -> Iterator[Chunk]:
    """Each row as a JSON object of texts by column: what type a column has is for the pipeline to say.

    The first row names the columns; by it is known what stands between them.
    """
    with _opened(path) as file:
        header = file.readline()
        between = max(_BETWEEN, key=header.count).decode()
        try:
            names = next(csv.reader([header.decode("utf-8-sig")], delimiter=between, strict=True), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise ModelError(f"{path} is not CSV: its first row does not name columns: {error}") from None
        twice = [name for name in names if names.count(name) > 1]
        if not names or twice:
            what = f"names {twice[0]!r} twice" if twice else "is empty, but names the columns"
            raise ModelError(f"{path} cannot be sent: its first row {what}")
        quotes = _Quotes(file)
        row, before = 1, None
        try:
            for batch in _rows(quotes, names, between):
                if before is not None:
                    yield before
                before = Chunk(_as_json(batch), np.arange(row, row + len(batch)), batch.nbytes)
                row += len(batch)
        except pa.ArrowInvalid as error:
            if before is not None:
                yield before
            raise ModelError(f"{path}: {_where(str(error))}; mend it, and send the rest") from None
        if quotes.count % 2:
            raise ModelError(f"{path}: a quote is opened and never closed; mend it, and send the rest")
        if before is not None:
            yield before


def _rows(file: "_Quotes", names: list[str], between: str) -> Iterator[pa.RecordBatch]:
    """Rows of texts; what is empty and not in quotes is NULL."""
    try:
        yield from pyarrow.csv.open_csv(
            file,
            pyarrow.csv.ReadOptions(use_threads=False, block_size=_CHUNK, column_names=names),
            pyarrow.csv.ParseOptions(delimiter=between, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip
    except pa.ArrowInvalid as error:
        if str(error) != "Empty CSV file":  # it has no rows but the first
            raise


def _as_json(rows: pa.RecordBatch) -> pa.Array:
    given = {"given": pa.Table.from_batches([rows])}
    return asked("SELECT CAST(to_json(given) AS VARCHAR) FROM given", given).column(0).combine_chunks()


def _where(error: str) -> str:
    """What Arrow says of a row, which does not know of the first one."""
    said = error.removeprefix("CSV parse error: ")
    return re.sub(r"Row #(\d+)", lambda found: f"row {int(found[1]) + 1}", said)


class _Quotes(io.RawIOBase):
    """A file that counts the quotes that are read of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Some bytes."""
        data = self._file.read(size)
        self.count += data.count(b'"')
        return data


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
