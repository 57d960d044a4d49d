"""Small tables that streams are joined with, in columns: the rows given, or those of a file."""

from pathlib import Path

import duckdb
import pyarrow as pa

from millrace.edge.connection import Prepared, connection
from millrace.log.csvfile import opened, read_csv
from millrace.log.sql import duckdb_type, quoted
from millrace.model.arrow import arrow_type
from millrace.model.errors import ModelError, Place, refuse
from millrace.model.stream import Table

_READERS = {".csv": "read_csv", ".json": "read_json", ".jsonl": "read_json", ".parquet": "read_parquet"}


def columns_of(table: Table, place: Place | None = None) -> pa.Table:
    """The rows of a table. Refuses a file that is not there, or that holds something else."""
    if table.path is not None:
        return _in_file(table, Path(table.path), place)
    if table.view is not None:  # what it holds, a host knows
        return _empty(table)
    columns = zip(*table.rows, strict=True)
    return pa.table(
        {
            column.name: pa.array(values, arrow_type(column.type))
            for column, values in zip(table.schema, columns, strict=True)
        }
    )


def _empty(table: Table) -> pa.Table:
    return pa.table({column.name: pa.array([], arrow_type(column.type)) for column in table.schema})


def _in_file(table: Table, path: Path, place: Place | None) -> pa.Table:
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise refuse(f"table {table.name!r}: {path} is none of {', '.join(_READERS)}", place)
    if not path.is_file():
        raise refuse(f"table {table.name!r}: there is no file {path}", place)
    try:
        if read == "read_csv":
            return _chosen(table, path, _csv(path))
        escaped = str(path).replace("'", "''")
        return _chosen(table, path, connection().sql(f"SELECT * FROM {read}('{escaped}')").to_arrow_table())
    except duckdb.Error as error:
        raise refuse(
            f"table {table.name!r}: {path} does not hold ({table.schema}): {str(error).splitlines()[0]}", place
        ) from None
    except ModelError as error:
        raise refuse(f"table {table.name!r}: {error.message}", place) from None


def _csv(path: Path) -> pa.Table:
    with opened(str(path)) as file:
        batches = list(read_csv(str(path), file))
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _chosen(table: Table, path: Path, held: pa.Table) -> pa.Table:
    """The columns of the table, of those that a file holds."""
    if not len(held):
        return _empty(table)
    known = {name.lower() for name in held.column_names}
    for column in table.schema:
        if column.name.lower() not in known:
            raise ModelError(f"{path} has no column {column.name!r}; it has {', '.join(held.column_names)}")
    chosen = ", ".join(
        f"CAST({quoted(column.name)} AS {duckdb_type(column.type)}) AS {quoted(column.name)}" for column in table.schema
    )
    with Prepared().over(held) as ask:
        return ask(f"SELECT {chosen} FROM __rows").to_arrow_table()
