"""Reads records from files for a topic: JSON lines and CSV, compressed or not, one chunk at a time."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.eventlog.condition import are_objects
from millrace.formats.compressed import SUFFIXES, opened
from millrace.formats.csvfile import read_csv
from millrace.formats.duck import asked
from millrace.formats.texts import as_texts
from millrace.formats.typed import pointer
from millrace.model.errors import NotFoundError, unknown_option
from millrace.sources.files import lines

FORMATS = ("json", "csv")
_DATA = re.compile(r"[^.].*\.(json|jsonl|ndjson|csv)(\.(gz|bz2|zst))?", re.IGNORECASE)
"""The names of data files, also of compressed ones."""
_CHUNK = 4 << 20
"""The bytes of a file that are sent together."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that are sent together."""

    values: pa.Array
    lines: npt.NDArray[np.int64]
    """The number of each record's line or row, from 1."""
    size: int
    """The size of the records in bytes."""


def files_of(paths: Sequence[str]) -> list[str]:
    """The files that are named: a folder stands for the data files in it, by name. Refuses those that do not exist."""
    found = []
    for path in paths:
        if path != "-" and not Path(path).exists():
            raise NotFoundError(f"there is no file {path}", "check the path")
        found += _data_files(Path(path)) if Path(path).is_dir() else [path]
    return found


def _data_files(folder: Path) -> list[str]:
    found = sorted(path for path in folder.iterdir() if _DATA.fullmatch(path.name) and path.is_file())
    if not found:
        raise NotFoundError(f"folder {folder} has no data files", "name files, or a folder of .json or .csv files")
    return [str(path) for path in found]


def format_of(path: str) -> str:
    """The format that the name of a file tells; the name of a compressed file ends with `.gz`, `.bz2` or `.zst`.

    >>> format_of("plays.CSV.gz"), format_of("plays.jsonl"), format_of("-")
    ('csv', 'json', 'json')
    """
    file = Path(path.lower())
    return "csv" if (file.with_suffix("") if file.suffix in SUFFIXES else file).suffix == ".csv" else "json"


def chunks(path: str, format: str, delimiter: str | None = None) -> Iterator[Chunk]:
    """The records of a file; `-` is stdin. Refuses a file that cannot be read.

    The delimiter is that of CSV; by default, the first row shows it.
    """
    if format not in FORMATS:
        raise unknown_option("format", format, FORMATS)
    if path != "-" and not Path(path).is_file():
        raise NotFoundError(f"there is no file {path}", "check the path")
    yield from _csv(path, delimiter) if format == "csv" else _json(path)


def first_misfit(values: pa.Array) -> int | None:
    """The index of the first record that is not a JSON object; None if all are."""
    wrong = np.flatnonzero(~are_objects(values))
    return int(wrong[0]) if len(wrong) else None


def keys_of(values: pa.Array, field: str) -> pa.Array:
    """The keys of records: the text of one field of each."""
    given = {"given": pa.table({"value": as_texts(values)})}
    return asked("SELECT json_extract_string(value, ?) FROM given", given, [pointer(field)]).column(0).combine_chunks()


def _json(path: str) -> Iterator[Chunk]:
    line, rest = 1, b""
    with opened(path) as file:
        # For stdin, `read1` returns what is available rather than waiting for a full chunk.
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


def _csv(path: str, delimiter: str | None) -> Iterator[Chunk]:
    """Each row as a JSON object of texts by column: the pipeline defines the types of columns."""
    row = 1
    with opened(path) as file:
        for batch in read_csv(path, file, delimiter, "name it with --delimiter of millrace send"):
            given = {"given": pa.Table.from_batches([batch])}
            texts = asked("SELECT CAST(to_json(given) AS VARCHAR) FROM given", given).column(0).combine_chunks()
            yield Chunk(texts, np.arange(row, row + len(batch)), batch.nbytes)
            row += len(batch)
