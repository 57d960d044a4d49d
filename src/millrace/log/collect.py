"""Records from files, on their way into a topic: JSON lines and CSV, a chunk at a time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import duckdb
import numpy as np
import pyarrow as pa

from millrace.log.bundle import as_texts
from millrace.log.files import lines
from millrace.model.errors import ModelError, unknown

FORMATS = ("json", "csv")
_CHUNK = 4 << 20
"""How many bytes of a file are sent together."""
_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that are sent together. The same file gives the same chunks again."""

    values: pa.Array
    first_line: int
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
    texts = as_texts(values)
    ((place,),) = _duckdb({"given": pa.table({"place": np.arange(len(texts)), "value": texts})}).execute(
        "SELECT min(place) FROM given "
        "WHERE value IS NULL OR CASE WHEN json_valid(value) THEN json_type(value) <> 'OBJECT' ELSE TRUE END"
    ).fetchall()  # fmt: skip
    return None if place is None else int(place)


def keys_of(values: pa.Array, field: str) -> pa.Array:
    """A field of each record, as text, to be its key."""
    connection = _duckdb({"given": pa.table({"value": as_texts(values)})})
    pointer = "/" + field.replace("~", "~0").replace("/", "~1")
    found = connection.sql("SELECT json_extract_string(value, ?) AS key FROM given", params=[pointer])
    return found.to_arrow_table()["key"].combine_chunks()


def _json(path: str) -> Iterator[Chunk]:
    line, rest = 1, b""
    with _opened(path) as file:
        while read := file.read(_CHUNK):
            whole, _, rest = (rest + read).rpartition(b"\n")
            if whole:
                yield _chunk(path, whole + b"\n", line)
                line += whole.count(b"\n") + 1
    if rest:
        yield _chunk(path, rest, line)


def _chunk(path: str, data: bytes, line: int) -> Chunk:
    texts = lines(path, data).texts
    assert texts is not None
    return Chunk(texts, line, len(data))


def _csv(path: str) -> Iterator[Chunk]:
    """Each row as a JSON object of texts by column: what type a column has is for the pipeline to say."""
    connection = _duckdb({})
    try:
        read = connection.sql(
            "SELECT CAST(to_json(t) AS VARCHAR) AS value FROM read_csv(?, header = true, all_varchar = true) t",
            params=["/dev/stdin" if path == "-" else path],
        ).to_arrow_reader(_ROWS)
        line = 2
        for batch in read:
            yield Chunk(batch.column(0), line, batch.nbytes)
            line += len(batch)
    except duckdb.Error as error:
        raise ModelError(f"{path} is not CSV: {str(error).splitlines()[0]}") from None


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None


def _duckdb(tables: dict[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    for name, table in tables.items():
        connection.register(name, table)
    return connection
