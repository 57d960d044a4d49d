"""Reads the records of small files, to try a pipeline on them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.model.errors import NotFoundError, PipelineError, unreadable
from millrace.model.schema import Schema
from millrace.sources.collect import chunks
from millrace.testing.script import Record

_MOST = 100_000
"""The number of records that the reference engine computes in a few seconds."""


def records_in(path: str, schema: Schema) -> list[Record]:
    """The records of a file of JSON lines, CSV or Parquet, chosen by its name; `-` is JSON lines from stdin.

    A row of Parquet has the columns of the schema; the others are left out. Refuses a file that has too many records
    for the reference engine.
    """
    if Path(path).suffix.lower() == ".parquet":
        return _of_parquet(path, schema)
    found: list[Record] = []
    for chunk in chunks(path, "csv" if path.lower().endswith(".csv") else "json"):
        texts = chunk.values.to_pylist()
        if None in texts:
            line = chunk.lines[texts.index(None)]
            raise PipelineError(f"line {line} of {path} is not text in UTF-8", "correct the line")
        found += texts
        _check_few(path, len(found))
    return found


def _of_parquet(path: str, schema: Schema) -> list[Record]:
    if not Path(path).is_file():
        raise NotFoundError(f"there is no file {path}", "check the path")
    try:
        with pq.ParquetFile(path) as file:
            _check_few(path, file.metadata.num_rows)
            rows: list[Record] = file.read(
                [name for name in schema.names if name in file.schema_arrow.names]
            ).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(path, error) from None
    return rows


def _check_few(path: str, count: int) -> None:
    if count > _MOST:
        raise PipelineError(
            f"{path} has more than {_MOST:,} records, too many to try",
            "try a part of them, or compute all of them on Spark: millrace run FILE",
        )
