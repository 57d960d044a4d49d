"""Small tables that streams are joined with, in columns: the rows given, or those of a file."""

from pathlib import Path

import duckdb
import pyarrow as pa

from millrace.edge.connection import connection
from millrace.edge.sql import duckdb_type, quoted
from millrace.model.arrow import arrow_type
from millrace.model.errors import Place, refuse
from millrace.model.stream import Table

_READERS = {".csv": "read_csv", ".json": "read_json", ".jsonl": "read_json", ".parquet": "read_parquet"}


def columns_of(table: Table, place: Place | None = None) -> pa.Table:
    """The rows of a table. Refuses a file that is not there, or that holds something else."""
    if table.path is not None:
        return _in_file(table, Path(table.path), place)
    if table.view is not None:  # what it holds, a host knows
        return pa.table({column.name: pa.array([], arrow_type(column.type)) for column in table.schema})
    columns = zip(*table.rows, strict=True)
    return pa.table(
        {
            column.name: pa.array(values, arrow_type(column.type))
            for column, values in zip(table.schema, columns, strict=True)
        }
    )


def _in_file(table: Table, path: Path, place: Place | None) -> pa.Table:
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise refuse(f"table {table.name!r}: {path} is none of {', '.join(_READERS)}", place)
    if not path.is_file():
        raise refuse(f"table {table.name!r}: there is no file {path}", place)
    chosen = ", ".join(
        f"CAST({quoted(column.name)} AS {duckdb_type(column.type)}) AS {quoted(column.name)}" for column in table.schema
    )
    escaped = str(path).replace("'", "''")
    options = ", all_varchar = true" if read == "read_csv" else ""
    try:
        return connection().sql(f"SELECT {chosen} FROM {read}('{escaped}'{options})").to_arrow_table()
    except duckdb.Error as error:
        raise refuse(
            f"table {table.name!r}: {path} does not hold ({table.schema}): {str(error).splitlines()[0]}", place
        ) from None
