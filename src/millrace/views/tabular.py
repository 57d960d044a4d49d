"""The result of an SQL query as an Arrow table."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millrace.model.errors import PipelineError
from millrace.model.plain import as_text, to_json
from millrace.views.store import ViewRows

ARROW = "application/vnd.apache.arrow.stream"
"""The media type of tables over HTTP."""
VERSION = b"millrace.version"
"""The key in the schema's metadata for the version of the store at which the rows were read."""


def table_of(found: ViewRows) -> pa.Table:
    """The rows as a table; a column whose values have no common Arrow type is text.

    Refuses two columns with one name, as a name must identify a column.
    """
    twice = [name for name, count in Counter(found.columns).items() if count > 1]
    if twice:
        raise PipelineError(f"the query gives two columns named {twice[0]!r}; name each with AS")
    columns = list(zip(*found.rows, strict=True)) or [()] * len(found.columns)
    return pa.table([_array(values) for values in columns], list(found.columns))


def arrow_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _array(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return to_json(value) if isinstance(value, dict | list | bool | int | float) else as_text(value)
